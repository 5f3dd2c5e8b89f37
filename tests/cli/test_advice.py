"""What errors advise at the command line: commands, and no calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/x", b"1"), ("work/y", b"2")])
        bus.subscribe("home/x", id="s").close()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sub work/# --id s", "headwater subs delete s first"),
        ("subs delete none", "headwater subs lists those that are"),
        ("dead redrive none --all", "headwater subs lists those that are"),
        ("remove-root none --yes", "headwater topics shows what there is"),
        ("replay # --after 1", "--after ROOT=OFFSET"),
        ("pub home/x 1 --sequence 1", "--sequence needs --producer NAME"),
    ],
)
def test_an_error_advises_a_command(command: str, says: str, data: Path):
    refused = here(*command.split(), data=data, code=2)
    assert says in refused.stderr
    assert "bus." not in refused.stderr


def test_a_folder_that_is_in_use_is_not_to_be_opened_in_python(data: Path):
    with headwater.open(data):
        refused = here("pub", "home/x", "1", data=data, code=2)
    assert "is owned by this process; close it there" in refused.stderr
    assert "read_only" not in refused.stderr


def test_one_of_something_is_not_several(data: Path):
    assert "1 topic in 1 root, 1 message" in here("topics", "home/#", data=data).stdout
    assert "1 topic purged" in here("purge", "home/x", "--yes", data=data).stdout
    assert "whole: 3 messages in 3 roots" in here("verify", data=data).stdout  # the audit's, too
