"""The topic tree, level by level: what is below, in pages, and only what somebody may see."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headwater.config import Config
from headwater.message import Outgoing
from headwater.server.watch import levels as looking
from headwater.wire import administration as wire
from server.harness import Peer, Running, code


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test sees at once what it did."""
    monkeypatch.setattr(looking, "FRESH_US", 0)
    monkeypatch.setattr(looking, "FRESH_TIMES", 0)


def levels(peer: Peer, parent: str = "", **page: object) -> list[tuple[str, int, int, bool]]:
    found = peer.ask(wire.ListLevels(parent=parent, **page))  # type: ignore[arg-type]
    return [(one.name, one.topics, one.messages, one.is_topic) for one in found]


def test_each_level_has_the_sums_of_what_is_below_it():
    with Running() as running:
        peer = running.peer()
        peer.publish(["home/a/temp", "home/a/power", "home/a/temp", "home/b", "home"])
        peer.publish("hall/x")
        assert levels(peer) == [("hall", 1, 1, False), ("home", 4, 5, True)]
        assert levels(peer, "home") == [("a", 2, 3, False), ("b", 1, 1, True)]
        assert levels(peer, "home/a") == [("power", 1, 1, True), ("temp", 1, 2, True)]
        assert levels(peer, "home/a/temp") == []
        (a, b) = peer.ask(wire.ListLevels(parent="home"))
        assert (a.path, a.last_offset, b.path, b.last_offset) == ("home/a", 0, "home/b", 4)
        assert peer.ask(wire.ListLevels())[1].last_offset == 5


def test_a_topic_that_has_topics_below_it_is_one_level_though_others_sort_between_them():
    with Running() as running:
        peer = running.peer()
        peer.publish(["r/b", "r/b-c", "r/b/c", "r//x", "r/é"])
        assert levels(peer, "r") == [("", 1, 1, False), ("b", 2, 2, True), ("b-c", 1, 1, True), ("é", 1, 1, True)]
        assert levels(peer, "r/") == [("x", 1, 1, True)]


def test_pages_follow_each_other_without_gap_or_repeat():
    with Running() as running:
        peer = running.peer()
        names = [f"n{number:03}" for number in range(25)] + [""]
        peer.publish([f"home/{name}" for name in names])
        peer.publish([f"root{number}" for number in range(1)])
        for limit in (1, 7, 1000):
            found: list[str] = []
            after: str | None = None
            while page := peer.ask(wire.ListLevels(parent="home", after=after, limit=limit)):
                assert len(page) <= limit
                found += [one.name for one in page]
                after = found[-1]
            assert found == sorted(names)
        assert [one.name for one in peer.ask(wire.ListLevels(limit=1))] == ["home"]
        assert [one.name for one in peer.ask(wire.ListLevels(after="home"))] == ["root0"]


def test_retained_values_are_marked_and_what_was_purged_is_gone():
    with Running() as running:
        peer = running.peer()
        running.bus.publish_many([Outgoing("home/a", b"1", retain=True), Outgoing("home/b", b"2")])
        assert [one.retained for one in peer.ask(wire.ListLevels(parent="home"))] == [True, False]
        running.bus.purge("home/a")
        assert levels(peer, "home") == [("b", 1, 1, True)]


def test_what_is_not_there_is_not_found_and_what_is_no_topic_is_refused():
    with Running() as running:
        peer = running.peer()
        peer.publish("home/a")
        for parent in ("hall", "home/b", "home/a/b", "$staged", "$delayed"):
            with code(404):
                levels(peer, parent)
        for parent in ("home/#", "+", "home/\0"):
            with code(422):
                levels(peer, parent)


def test_nobody_sees_or_counts_what_it_may_not_subscribe_to():
    with Running(auth="scram") as running:
        running.client("root", admin=True)
        running.client("ann", allow=("subscribe home/a/#", "subscribe home/+/temp", "subscribe home/c"))
        running.rules("ann", deny=("subscribe home/a/secret",))
        for topic in ("home/a/temp", "home/a/secret", "home/b/temp", "home/b/power", "home/c", "hall/x", "home/d/e"):
            running.bus.publish(topic, b"1")
        ann, root = running.peer("ann"), running.peer("root")
        assert levels(ann) == [("home", 3, 3, False)]
        assert levels(ann, "home") == [("a", 1, 1, False), ("b", 1, 1, False), ("c", 1, 1, True)]
        assert levels(ann, "home/a") == [("temp", 1, 1, True)]
        for hidden in ("hall", "home/d", "home/a/secret"):
            with code(404):
                levels(ann, hidden)
        assert levels(root, "home/a") == [("secret", 1, 1, True), ("temp", 1, 1, True)]
        assert [name for name, *_ in levels(root)] == ["$sys", "hall", "home"]  # the audit is on the first


def test_a_rule_that_is_taken_back_counts_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "FRESH_US", 60_000_000)
    with Running(auth="scram") as running:
        running.client("ann", allow=("subscribe home/a", "subscribe home/b"))
        running.bus.publish_many([("home/a", b"1"), ("home/b", b"2")])
        ann = running.peer("ann")
        assert len(levels(ann, "home")) == 2
        running.bus.acl.remove("ann", "subscribe", "home/b")
        assert levels(ann, "home") == [("a", 1, 1, True)]


@pytest.mark.parametrize("seed", range(3))
def test_the_tree_adds_up_to_the_topics_whatever_was_stored_when(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    with Running(tmp_path, Config(checkpoint_batches=3)) as running:
        peer = running.peer()
        for _ in range(12):
            names = ["/".join(rng.choices("abc", k=rng.randrange(1, 4))) for _ in range(100)]
            running.bus.publish_many([(f"r/{name}", b"x") for name in names] * rng.randrange(1, 3))

        def walk(parent: str) -> dict[str, tuple[int, int]]:
            found: dict[str, tuple[int, int]] = {}
            for one in peer.ask(wire.ListLevels(parent=parent)):
                below = walk(one.path)
                its = {one.path: (0, one.last_offset)} if one.is_topic else {}
                assert one.topics == len(below) + len(its)
                assert one.messages >= sum(count for count, _ in below.values())
                own = one.messages - sum(count for count, _ in below.values())
                found |= below
                if one.is_topic:
                    found[one.path] = own, one.last_offset
            return found

        assert walk("r") == {info.topic: (info.messages, info.last_offset) for info in running.bus.topics("r/#")}


def test_sums_are_remembered_for_a_while_and_not_without_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "FRESH_US", 60_000_000)
    monkeypatch.setattr(looking, "REMEMBERED_MAX", 3)
    with Running() as running:
        peer = running.peer()
        peer.publish([f"r/{number}/x" for number in range(10)])
        before = levels(peer, "r")
        peer.publish("r/new")
        assert levels(peer, "r") == before
        for number in range(10):
            levels(peer, f"r/{number}")
        assert len(running.server.broker.overview.levels._known) == 3
        assert len(levels(peer, "r")) == 11
