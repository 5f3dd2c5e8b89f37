from __future__ import annotations

import pytest

from headwater.admin.dashboard import formatting as shown


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.25, "0.2"), (9, "9"), (9_999, "9,999"), (12_345, "12.3k"), (250_000_000, "250M")]
)
def test_a_number_is_brief(number: float, text: str) -> None:
    assert shown.brief(number) == text


@pytest.mark.parametrize(
    ("payload", "best"),
    [
        (b"21.5", "Text"),
        (b'{"a": 1}', "JSON"),
        (b"[1]", "JSON"),
        (b"{not json", "Text"),
        (b"\xff\x00", "Hex"),
        (b"", "Text"),
    ],
)
def test_a_payload_is_shown_in_the_way_that_says_most(payload: bytes, best: str) -> None:
    assert shown.decoded(payload).best == best


def test_json_is_laid_out() -> None:
    assert shown.decoded(b'{"a":[1,2]}').json == '{\n  "a": [\n    1,\n    2\n  ]\n}'


def test_json_that_is_nested_without_end_is_text() -> None:
    assert shown.decoded(b"[" * 60_000).best == "Text"


def test_characters_that_move_or_hide_others_are_spelled_out() -> None:
    assert shown.plain("a\u202eb\x1b[2J\u200b") == "a\\u202eb\\x1b[2J\\u200b"
    assert shown.decoded("one\ntwo\u202e".encode()).text == "one\ntwo\\u202e"


def test_a_large_payload_is_cut_and_says_so() -> None:
    found = shown.decoded(b"x" * (shown.TEXT_BYTES_MAX + 5))
    assert found.text is not None
    assert found.text.endswith("5 more bytes are not shown")
    assert len(found.hex) < 32 * 1024


def test_a_character_that_is_cut_at_the_end_does_not_make_text_binary() -> None:
    payload = ("x" * (shown.TEXT_BYTES_MAX - 1) + "é").encode()
    assert shown.decoded(payload).text is not None


def test_a_preview_is_one_line() -> None:
    assert shown.preview(b"a\nb\r\n\tc") == "a b c"
    assert len(shown.preview(b"x" * 10_000)) == shown.PREVIEW_CHARS + 1


def test_a_hex_dump_has_offsets_bytes_and_characters() -> None:
    assert shown.hex_dump(b"Hello, broker 123!").splitlines()[1].split() == ["000010", "33", "21", "3!"]


def test_json_folds_with_its_numbers_as_they_were_written() -> None:
    payload = b'{"id": 12345678901234567890, "t": 21.50, "on": true, "in": {"\\u202e": ["a", null]}, "none": {}}'
    assert shown.nodes(payload) == [
        "",
        None,
        "object",
        [
            ["id", "12345678901234567890", "value", []],
            ["t", "21.50", "value", []],
            ["on", "true", "value", []],
            [
                "in",
                None,
                "object",
                [["\\u202e", None, "array", [["0", '"a"', "text", []], ["1", "null", "value", []]]]],
            ],
            ["none", None, "object", []],
        ],
    ]


def test_what_is_no_json_or_too_much_of_it_does_not_fold() -> None:
    assert shown.nodes(b"{") is None
    assert shown.nodes(b"[" + b"1," * 2500 + b"1]") is None
    assert shown.nodes(b"[" * 100_000) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no VAT rate", "no VAT rate"),
        ("refused:\n  port 9", "refused: port 9"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no rate\n', "ValueError: no rate"),
        ("Traceback (most recent call last)", "Traceback (most recent call last)"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_an_error_is_told_on_one_line(text: str, told: str) -> None:
    assert shown.error(text) == told
