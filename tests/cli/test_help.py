"""What --help shows, at the width of a terminal."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headwater.cli.app import COMMANDS, app_for
from headwater.cli.help import paragraphs

IN_GROUPS = [["subs", "delete"], ["clients", "add"], ["acl", "allow"], ["bench", "fair"]]


def shown(arguments: list[str], columns: int = 80) -> str:
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": str(columns)}).invoke(
        app_for(arguments), [*arguments, "--help"]
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS), *IN_GROUPS], ids=" ".join)
def test_a_flag_has_no_type_and_nobody_is_told_python(arguments: list[str]):
    text = shown(arguments)
    assert "<bool>" not in text
    assert "headwater.open(" not in text
    assert "headwater.connect(" not in text


def test_a_paragraph_is_as_wide_as_the_terminal():
    lines = [line.strip() for line in shown(["pub"]).splitlines()]
    assert "many print one summary (topic, messages, bytes, first_offset, last_offset," in lines
    assert any(
        "duplicate); many print one summary (topic, messages" in line for line in shown(["pub"], 160).splitlines()
    )


def test_what_is_indented_stays_as_it_is():
    text = "One\n    sentence.\n\n    Then:\n\n      a  b\n      c  d\n    "
    assert paragraphs(text) == "One sentence.\n\nThen:\n\n  a  b\n  c  d"
    assert paragraphs(None) is None
