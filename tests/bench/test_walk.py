"""The way of a message stays short: no more calls than docs/contribute/architecture.md says, but for timers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headwater

REPO = Path(__file__).resolve().parents[2]
TOLD = re.compile(r"^\| (embedded|native)\b.* \| (\d+) \| \d+ \|$", re.MULTILINE)
SPARE = 6
"""Calls of timers that may fall into the walk of a server."""


def told() -> dict[str, int]:
    """The calls that the document names, by walk."""
    text = (REPO / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")
    return {name: int(calls) for name, calls in TOLD.findall(text)}


# That of MQTT has two reads, and how often the loop looks for the second is up to the machine.
@pytest.mark.parametrize("name", ["embedded", "native"])
def test_a_message_takes_no_more_calls_than_are_written_down(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "bench" / "walk.py"), name],
        env={**os.environ, "PYTHONPATH": str(Path(headwater.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    counted = re.match(rf"{name}: (\d+) calls", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) <= told()[name] + SPARE, done.stdout
