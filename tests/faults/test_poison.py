"""A message that kills its consumer: real processes that end by kill -9 in the midst of it, embedded and served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from headwater.bus import Bus
from server.harness import Running

PATIENCE_S = 60
CONSUMER = """
import os, signal, sys
import headwater

how, where, order, most, size = sys.argv[1:]
bus = headwater.open(where) if how == "embedded" else headwater.connect(where)
with bus, bus.subscribe("jobs/#", id="s", start="earliest", order=order, max_deliveries=int(most)) as sub:
    while True:
        found = sub.batch(int(size))
        for message in found:
            if message.payload == b"poison":
                os.kill(os.getpid(), signal.SIGKILL)
            print(message.payload.decode(), message.attempt, flush=True)
        sub.ack(found)
        if found[-1].payload == b"9":
            break
"""


def live(how: str, where: object, order: str, size: int, most: int = 3) -> tuple[int, list[str]]:
    """One life of a consumer: how it ended, and what it was through with."""
    ended = subprocess.run(
        [sys.executable, "-c", CONSUMER, how, str(where), order, str(most), str(size)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def publish(bus: Bus) -> None:
    bus.publish_many(("jobs/x", b"poison" if number == 5 else b"%d" % number) for number in range(10))


def check_given_up(bus: Bus) -> None:
    (letter,) = bus.dead_letters("s")
    assert letter.payload == b"poison"
    assert letter.errors[-1] == "its consumer was gone without a word (delivery 3 of at most 3)"
    (info,) = bus.subscriptions()
    assert (info.lag, info.dead) == (0, 1)


@pytest.mark.parametrize("order", ["strict", "none"])
@pytest.mark.parametrize("size", [1, 10])
def test_embedded_it_becomes_a_dead_letter_and_all_others_get_through(tmp_path: Path, order: str, size: int) -> None:
    with headwater.open(tmp_path) as bus:
        bus.subscribe("jobs/#", id="s", start="earliest", order=order, max_deliveries=3).close()  # type: ignore[call-overload]
        publish(bus)
    lives = [live("embedded", tmp_path, order, size) for _ in range(4)]
    assert [code for code, _ in lives] == [-9, -9, -9, 0]
    assert {line.partition(" ")[0] for _, lines in lives for line in lines} == set("012346789")
    assert {line.partition(" ")[2] for _, lines in lives for line in lines} == {"1"}  # no attempt is counted
    with headwater.open(tmp_path) as bus:
        check_given_up(bus)


@pytest.mark.parametrize("order", ["strict", "none"])
@pytest.mark.parametrize("size", [1, 10])
def test_served_it_becomes_a_dead_letter_and_all_others_get_through(order: str, size: int) -> None:
    with Running() as running:
        publish(running.bus)
        url = f"headwater://127.0.0.1:{running.server.port}"
        lives = [live("served", url, order, size) for _ in range(4)]
        assert [code for code, _ in lives] == [-9, -9, -9, 0]
        assert {line.partition(" ")[0] for _, lines in lives for line in lines} == set("012346789")
        check_given_up(running.bus)


def test_it_comes_again_for_ever_where_nothing_else_is_wanted(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        publish(bus)
    assert [live("embedded", tmp_path, "strict", 1, most=0)[0] for _ in range(4)] == [-9] * 4
    with headwater.open(tmp_path) as bus:
        assert not bus.dead_letters("s")
