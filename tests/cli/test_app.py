from __future__ import annotations

import pytest

import headwater
from cli.command import run
from headwater.cli.output import safe, shown, size


def test_the_help_names_every_command():
    shown = run("--help").stdout
    for (
        name
    ) in "pub sub replay topics subs dead clients acl tokens sessions purge backup restore verify bench demo".split():
        assert f" {name} " in shown


def test_the_version_is_told():
    assert run("--version").stdout == f"headwater {headwater.__version__}\n"


def test_an_unknown_command_is_a_usage_error():
    assert "bogus" in run("bogus", code=2).stderr


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"plain \xc3\xa4", "plain ä"),
        (b"a\tb\nc\x7f", "a\\tb\\nc\\x7f"),
        (b"\\n", "\\\\n"),
        ("\u202e\u200b\u2028\x9b31m".encode(), "\\u202e\\u200b\\u2028\\x9b31m"),
        (b"\xff", "0xff"),
        (b"", ""),
    ],
)
def test_payloads_are_shown_as_text_without_control_characters_or_in_hexadecimal(payload: bytes, text: str):
    assert shown(payload) == text


def test_names_with_broken_unicode_are_shown_too():
    assert safe("a\udcffb") == "a\\udcffb"


def test_sizes_are_for_people():
    assert [size(count) for count in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1,023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
