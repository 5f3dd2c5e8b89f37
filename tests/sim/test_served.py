"""The whole server, played from seeds: clients of ours and of MQTT, a network, disks and clocks that fail, and deaths.

A failure names its seed, and the shortest story that still fails: `cd tests && python -m sim SEED --trace` plays it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from faults.faulty_files import FaultyFile
from sim.play import play
from sim.shrink import report, shrink, smallest
from sim.story import FAULTS, WORK, draw

FIXED = 150
FRESH = 50
PART = 10
"""Seeds in one test."""
SOAKED = 10_000

IMPORTANT = (
    *(f"fault: network {kind}" for kind in ("reset", "silence", "stall", "cut_off", "slow_network")),
    *(f"fault: disk {kind}" for kind in ("fail_sync", "fail_write", "short_write", "fill_disk", "fail_state")),
    "fault: server killed",
    "fault: server stopped",
    "fault: power lost",
    "fault: power lost at a sync",
    "fault: slow disk",
    "fault: clock set",
    "fault: native client killed",
    "fault: threaded client killed",
    "fault: mqtt client killed",
    "fault: receiver killed",
    "server: stopped in good order",
    "message: pending to in flight",
    "message: in flight to acked",
    "message: in flight to retry",
    "message: in flight to dead",
    "message came again",
    "message: dead to redriven",
    "fault: a bit turned over",
    "damage: told",
    "subscription: paused",
    "subscription: resumed",
    "subscription: deleted",
    "mqtt: retained value",
    "mqtt: subscription refused",
    "subscription: attached",
    "subscription: left",
    "producer: sent again",
    "stage: committed",
    "channel: pushed",
    "channel: refused",
    "follow: followed",
    "live: listened",
    "replay: read",
    "mqtt: new session",
    "mqtt: session resumed",
    "mqtt: sent again",
    "mqtt: gave up a silent connection",
    "mqtt: told to disconnect",
    "mqtt: unsubscribed",
    *(f"mqtt: subscribed with QoS {qos}" for qos in range(3)),
    *(f"publish {kind} acked" for kind in ("native", "producer", "stage", "delayed", "qos1", "qos2")),
    "publish native refused",
    "publish qos1 refused",
    "qos 1 out: PUBLISH again",
    "qos 2 in: PUBREC",
    "qos 2 in: PUBCOMP",
    "qos 2 out: PUBLISH",
    "qos 2 out: PUBLISH again",
    "qos 2 out: PUBREL",
)
"""What has to have happened in the fixed stories, or they are no net."""

reached: dict[int, Counter[str]] = {}
"""What the fixed stories reached, by part."""


def play_all(seeds: list[int]) -> Counter[str]:
    """Play them; the first that fails is made short and told."""
    found: Counter[str] = Counter()
    for seed in seeds:
        story = draw(seed)
        ending = play(story)
        if not ending.is_good:
            pytest.fail(report(story, ending), pytrace=False)
        found += ending.reached
    return found


def play_part(part: int) -> None:
    """Some of the fixed stories."""
    if part not in reached:
        reached[part] = play_all(list(range(part * PART, (part + 1) * PART)))


@pytest.mark.xdist_group("stories of the server")  # in one process, which then knows what all of them reached
@pytest.mark.parametrize("part", range(FIXED // PART))
def test_the_promises_of_the_server_are_kept_whatever_happens(part: int) -> None:
    play_part(part)


@pytest.mark.xdist_group("stories of the server")
def test_every_fault_and_every_transition_is_reached() -> None:
    for part in range(FIXED // PART):
        play_part(part)
    total = sum(reached.values(), Counter[str]())
    missing = [what for what in IMPORTANT if not total[what]]
    assert not missing, f"never reached: {missing}; of these there were:\n{table(total)}"


def table(total: Counter[str]) -> str:
    """What was reached, and how often."""
    return "\n".join(f"{times:8}  {what}" for what, times in sorted(total.items()))


@pytest.mark.parametrize("part", range(FRESH // PART))
def test_they_are_kept_in_stories_that_nobody_has_seen(part: int) -> None:
    play_all([random.SystemRandom().getrandbits(32) for _ in range(PART)])


def played(*asked: str, hash_seed: str = "0") -> str:
    """What is said of seeds that are played in a process of their own, where all must go well."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-m", "sim", *asked],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_seed_is_the_same_story_in_every_process() -> None:
    seeds = ["3", "20", "31"]
    here = "".join(f"{seed} {play(int(seed)).digest}\n" for seed in seeds)
    assert played(*seeds, "--digest", hash_seed="1") == played(*seeds, "--digest", hash_seed="2") == here


def test_what_breaks_a_promise_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    # A disk that says of everything that it is synced, and keeps what it likes.
    monkeypatch.setattr(FaultyFile, "datasync", lambda file: None)
    story = next(story for story in map(draw, range(100)) if not play(story).is_good)
    shorter, ending = shrink(story, play(story), plays_max=60)
    assert not ending.is_good
    assert len(shorter.moves) < len(story.moves) / 2
    assert play(shorter).violations == ending.violations


def test_leaving_out_finds_the_few_that_matter() -> None:
    assert smallest(list(range(100)), lambda kept: {7, 30, 93} <= set(kept), 1000) == [7, 30, 93]


def test_every_move_can_be_drawn() -> None:
    kinds = {move.kind for seed in range(200) for move in draw(seed).moves}
    assert kinds == WORK.keys() | FAULTS.keys()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100))
def test_the_promises_of_the_server_are_kept_for_long(part: int) -> None:
    # In a process of its own, as what a killed process leaves behind is not always collected.
    size = SOAKED // 100
    played(f"{1000 + part * size}-{1000 + (part + 1) * size - 1}", "--shrink")
