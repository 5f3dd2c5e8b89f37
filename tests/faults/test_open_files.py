"""Real processes that may open few files: more roots than that are written, read and found again, and what could not be
opened is refused and goes on when there is room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater

CHILD = Path(__file__).with_name("open_files_child.py")
ROOTS = 1050
PATIENCE_S = 120


@pytest.fixture
def folder() -> Iterator[str]:
    """In memory where that is to be had: it takes thousands of syncs to make so many roots."""
    memory = "/dev/shm"
    made = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield f"{made}/data"
    shutil.rmtree(made)


def run(*arguments: object) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(CHILD), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_more_roots_than_files_may_be_open_are_written_in_groups_and_found_after_kill_9(folder: str) -> None:
    found = run("groups", folder, 128, ROOTS)
    assert found["open_max"] <= 128 // 2 + 24, "and half of what the process may open is left for others"  # type: ignore[operator]
    assert found["kinds"] == []
    with headwater.open(folder, read_only=True) as bus:
        for number in range(0, ROOTS, 50):
            assert [message.payload for message in bus.replay(f"r{number}/#")] == [b"0", b"1", b"all"]
    with headwater.open(folder) as bus:
        assert bus.publish("r7/x", b"more").offset == 4
        assert [root.messages for root in bus.topics("+/x")] == [
            4 if root.topic == "r7/x" else 3 for root in bus.topics("+/x")
        ]


def test_what_met_the_limit_is_refused_and_goes_on_when_there_is_room(folder: str) -> None:
    found = run("ballast", folder, 128)
    assert found["refused"] == {"publish": 503, "publish_many": 503, "create": 503, "replay": 503, "next": 503}
    assert found["retryable"] == [True]
    assert found["failed"] == []
    assert found["kinds"] == []
    assert found["after"] == ["one", "two", "three"]
