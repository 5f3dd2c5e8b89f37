"""docs/contribute/mqtt-conformance.md lists the statements of both specifications; each names tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "contribute" / "mqtt-conformance.md"
ROW = re.compile(r"^\| \[(?P<statement>MQTT-\d+\.\d+\.\d+-\d+)\] \| (?P<what>[^|]+) \| (?P<tests>[^|]+) \|$")
TEST = re.compile(r"`(?P<file>[a-z_/]+\.py)::(?P<name>test_\w+)`")


def sections() -> dict[str, list[re.Match[str]]]:
    """The rows of the page, by heading; a row that cannot be parsed is an error, not passed over."""
    found: dict[str, list[re.Match[str]]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif "MQTT-" in line:
            row = ROW.match(line)
            assert row is not None, f"not a row of statement, what it asks, and tests: {line}"
            found.setdefault(heading, []).append(row)
    return found


@cache
def defined_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_each_statement_is_there_once_and_names_tests_that_there_are(version: str) -> None:
    rows = sections()[f"Statements of MQTT {version}"]
    assert len(rows) > 40
    assert len({row["statement"] for row in rows}) == len(rows)
    for row in rows:
        named = TEST.findall(row["tests"])
        assert named, row["statement"]
        for file, name in named:
            assert name in defined_in(file), f"{row['statement']}: there is no {file}::{name}"
