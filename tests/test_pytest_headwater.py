"""The fixtures for users' tests, in a run of pytest such as theirs: another process, other files."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def run(folder: Path, *arguments: str, **files: str) -> str:
    """What pytest says of these files, with no plugin but ours."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_headwater", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_bus_tells_what_was_published_to_it_and_each_test_has_its_own(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        test_it="""
import headwater
import headwater.bus

def test_one(bus):
    assert isinstance(bus, headwater.bus.Bus)
    bus.publish("home/kitchen/temp", b"21.5")
    bus.send("home/hall/temp", b"19")
    bus.publish("jobs/x", b"")
    assert [m.payload for m in bus.published("home/#")] == [b"21.5", b"19"]
    assert len(bus.published()) == 3

def test_another(bus):
    assert bus.published() == []

def test_a_failing_assertion(bus):
    bus.publish("home/kitchen/temp", b"21.5")
    assert bus.published("home/#") == []
""",
    )
    assert "2 passed" in said
    assert "1 failed" in said
    assert "home/kitchen/temp" in said


def test_the_clock_moves_the_bus_of_the_same_test_alone(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        test_it="""
from datetime import UTC, datetime, timedelta

def test_time(bus, clock):
    bus.publish("jobs/x", b"later", deliver_at=bus.now + timedelta(hours=1))
    assert bus.published("jobs/#") == []
    clock.advance(3600)
    assert [m.payload for m in bus.published("jobs/#")] == [b"later"]

def test_the_machine_s(bus):
    assert abs(bus.now - datetime.now(UTC)) < timedelta(hours=1)
""",
    )
    assert "2 passed" in said, said


def test_fixtures_of_the_same_names_replace_these(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        conftest="""
import pytest

@pytest.fixture
def clock():
    return "a clock of mine"
""",
        test_it="""
import pytest

@pytest.fixture
def served_bus():
    return "mine"

def test_mine(bus, clock, served_bus):
    assert (clock, served_bus) == ("a clock of mine", "mine")
    assert bus.published() == []
""",
    )
    assert "1 passed" in said, said


def test_a_served_bus_is_a_client_that_others_may_stand_beside(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        test_it="""
import headwater

def test_served(served_bus):
    with headwater.connect(served_bus.url) as other:
        other.publish("home/x", b"1")
    served_bus.send("home/x", b"2")
    assert [m.payload for m in served_bus.published("home/#")] == [b"1", b"2"]
    assert served_bus.served.ends() == {"home": 2}
""",
    )
    assert "1 passed" in said, said


def test_nothing_of_headwater_is_imported_before_a_fixture_is_used(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        test_it="""
import sys

def test_alone():
    assert not [name for name in sys.modules if name == "headwater" or name.startswith("headwater.")]
""",
    )
    assert "1 passed" in said, said


def test_pytest_finds_it_where_headwater_is_installed() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"headwater": "pytest_headwater"}
    assert "src/pytest_headwater" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
