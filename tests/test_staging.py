"""Staged publishes of an embedded bus: seen by nobody, then by all, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.bus import Bus
from headwater.clock import ManualClock
from headwater.config import KIB, Config, Retention
from headwater.errors import Conflict, Malformed, NotFound, QuotaExceeded
from headwater.log.roots import STAGED
from headwater.message import Outgoing
from headwater.staging import EPOCH_MAX, Staging
from headwater.store.batch import Batch, checksum
from headwater.store.body import encode_body


@pytest.fixture
def bus() -> Iterator[Bus]:
    with headwater.open(":memory:") as made:
        yield made


def seen(bus: Bus, filter: str = "#") -> list[tuple[str, bytes]]:
    return [(one.topic, one.payload) for one in bus.replay(filter)]


def staged_bytes(bus: Bus) -> int:
    root = bus.core.roots.get(STAGED)
    return 0 if root is None else root.stream.durable - root.stream.first_offset + 1


def test_nobody_sees_what_is_staged_before_it_is_committed_and_then_all_do(bus: Bus):
    live, named = bus.subscribe("#"), bus.subscribe("a/#", id="s")
    bus.stage("p", 1, [("a/x", b"1"), ("b/y", b"2")])
    assert seen(bus) == []
    assert bus.topics() == []
    assert live.next(timeout_s=0) is None
    assert bus.commit_stage("p", 1) == {"a": (1, 1), "b": (1, 1)}
    assert sorted(seen(bus)) == [("a/x", b"1"), ("b/y", b"2")]
    assert sorted(one.payload for one in (live.next(timeout_s=60), live.next(timeout_s=60)) if one) == [b"1", b"2"]
    message = named.next(timeout_s=60)
    assert message is not None
    assert message.payload == b"1"


def test_parts_come_in_the_order_in_which_the_commit_names_them(bus: Bus):
    for part in ("x", "y", "z"):
        bus.stage("p", 1, [("a", part.encode())], part=part)
    assert bus.commit_stage("p", 1, ["z", "x", "y"]) == {"a": (1, 3)}
    assert seen(bus) == [("a", b"z"), ("a", b"x"), ("a", b"y")]


def test_a_part_that_is_staged_again_replaces_the_one_before(bus: Bus):
    bus.stage("p", 1, [("a", b"old"), ("a", b"old")], part="x")
    bus.stage("p", 1, [("a", b"new")], part="x")
    bus.commit_stage("p", 1, ["x"])
    assert seen(bus) == [("a", b"new")]


def test_parts_that_a_commit_does_not_name_are_dropped(bus: Bus):
    bus.stage("p", 1, [("a", b"1")], part="x")
    bus.stage("p", 1, [("a", b"2")], part="y")
    bus.commit_stage("p", 1, ["y"])
    assert seen(bus) == [("a", b"2")]
    with pytest.raises(NotFound):
        bus.commit_stage("p", 2, ["x"])


def test_a_commit_that_is_asked_for_again_answers_the_same_and_changes_nothing(bus: Bus):
    bus.stage("p", 1, [("a", b"1")])
    first = bus.commit_stage("p", 1)
    bus.publish("a", b"between")
    assert bus.commit_stage("p", 1) == first
    bus.stage("p", 1, [("a", b"again")])
    assert bus.commit_stage("p", 1) == first
    assert seen(bus) == [("a", b"1"), ("a", b"between")]


def test_an_older_epoch_is_a_thing_of_the_past(bus: Bus):
    bus.stage("p", 5, [("a", b"5")])
    bus.commit_stage("p", 5)
    bus.stage("p", 4, [("a", b"4")])
    assert bus.commit_stage("p", 4) == {}
    assert seen(bus) == [("a", b"5")]


def test_producers_do_not_touch_each_other(bus: Bus):
    bus.stage("p", 1, [("a", b"p")])
    bus.stage("p2", 1, [("a", b"p2")])
    bus.drop_stage("p", 1)
    assert bus.commit_stage("p2", 1) == {"a": (1, 1)}
    assert seen(bus) == [("a", b"p2")]


def test_an_epoch_without_messages_can_be_committed(bus: Bus):
    assert bus.commit_stage("p", 1) == {}
    assert bus.commit_stage("p", 2, []) == {}
    bus.stage("p", 2, [("a", b"late")])
    assert bus.commit_stage("p", 2) == {}


def test_what_is_dropped_is_gone(bus: Bus):
    bus.stage("p", 1, [("a", b"1")], part="x")
    bus.drop_stage("p", 1)
    bus.drop_stage("p", 1)
    with pytest.raises(NotFound, match="stage it again"):
        bus.commit_stage("p", 1, ["x"])
    bus.stage("p", 1, [("a", b"2")], part="x")
    bus.commit_stage("p", 1, ["x"])
    assert seen(bus) == [("a", b"2")]


def test_a_commit_of_a_part_that_is_missing_commits_nothing(bus: Bus):
    bus.stage("p", 1, [("a", b"1")], part="x")
    with pytest.raises(NotFound, match='"y"'):
        bus.commit_stage("p", 1, ["x", "y"])
    assert seen(bus) == []


def test_retained_keys_and_headers_come_through_a_stage(bus: Bus):
    bus.stage("p", 1, [headwater.Outgoing("a/x", b"1", retain=True, key=b"k", headers={"unit": "C"})])
    bus.commit_stage("p", 1)
    (message,) = bus.replay("a/#")
    assert (message.key, dict(message.headers)) == (b"k", {"unit": "C"})
    assert [one.payload for one in bus.retained("a/#").values()] == [b"1"]


def test_bodies_that_nothing_refers_to_any_more_are_deleted(bus: Bus):
    for epoch in range(1, 4):
        bus.stage("p", epoch, [("a", b"x" * 1000)])
        assert staged_bytes(bus) == 1
        bus.commit_stage("p", epoch)
        assert staged_bytes(bus) == 0


def test_a_body_whose_row_is_not_written_yet_survives_the_commit_of_others(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    stored, go_on = threading.Event(), threading.Event()
    real = Staging._store

    def store(self: Staging, body: bytes) -> int:
        offset = real(self, body)
        if b"slow" in body:
            stored.set()
            go_on.wait(60)
        return offset

    monkeypatch.setattr(Staging, "_store", store)
    slow = threading.Thread(target=bus.stage, args=("slow", 1, [("a", b"slow")]))
    slow.start()
    assert stored.wait(60)
    bus.stage("quick", 1, [("a", b"quick")])
    bus.commit_stage("quick", 1)
    go_on.set()
    slow.join()
    bus.commit_stage("slow", 1)
    assert seen(bus) == [("a", b"quick"), ("a", b"slow")]


def test_retention_does_not_reach_what_is_staged():
    config = Config(segment_bytes=64 * KIB, retention=Retention(hard_bytes=1, bytes=1), disk_free_bytes_min=0)
    with headwater.open(":memory:", config) as bus:
        for part in range(8):
            bus.stage("p", 1, [("a", b"x" * 20_000)], part=str(part))
        bus.core.upkeep.go_round()
        assert bus.commit_stage("p", 1, [str(part) for part in range(8)]) == {"a": (1, 8)}


def test_a_purge_of_everything_leaves_what_is_staged(bus: Bus):
    bus.stage("p", 1, [("a", b"1")])
    bus.purge("$staged/#")
    bus.commit_stage("p", 1)
    assert seen(bus) == [("a", b"1")]


def test_what_is_staged_and_never_committed_is_dropped_in_time_while_the_bus_is_open():
    clock = ManualClock()
    with headwater.open(":memory:", Config(stage_age_s=100.0), clock=clock) as bus:
        bus.stage("old", 1, [("a", b"old")], part="x")
        clock.advance(60)
        bus.stage("new", 1, [("a", b"new")], part="x")
        clock.advance(60)
        bus.core.upkeep.go_round()
        with pytest.raises(NotFound):
            bus.commit_stage("old", 1, ["x"])
        bus.commit_stage("new", 1, ["x"])
        assert seen(bus) == [("a", b"new")]


def test_a_commit_that_the_limits_refuse_changes_nothing_and_can_be_dropped(tmp_path: Path):
    config = Config(topics_per_root_max=2)
    with headwater.open(tmp_path, config) as bus:
        bus.stage("p", 1, [("a/1", b"1")], part="x")
        bus.stage("p", 1, [("a/2", b"2"), ("a/3", b"3")], part="y")
        for _ in range(2):
            with pytest.raises(QuotaExceeded):
                bus.commit_stage("p", 1, ["x", "y"])
        assert seen(bus) == []
    with headwater.open(tmp_path, config) as bus:
        assert seen(bus) == []
        bus.drop_stage("p", 1)
        bus.stage("p", 2, [("a/1", b"1")])
        assert bus.commit_stage("p", 2) == {"a": (1, 1)}


def test_more_parts_of_a_root_than_an_epoch_has_numbers_for_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.staging.BATCHES_PER_EPOCH_MAX", 3)
    staged = [
        Outgoing(topic="a/0", payload=b"0"),
        Outgoing(topic="a/1", payload=b"1", key=b"k"),
        Outgoing(topic="a/0", payload=b"2", headers=(("unit", "C"), ("unit", "F"))),
        Outgoing(topic="a/2", payload=b"3", retain=True),
        Outgoing(topic="a/0", payload=b"4"),
    ]
    with headwater.open(tmp_path) as bus:
        for part, message in enumerate(staged):
            bus.stage("p", 1, [message], part=str(part))
        assert bus.commit_stage("p", 1, [str(part) for part in range(5)]) == {"a": (1, 5)}
        assert bus.commit_stage("p", 1, [str(part) for part in range(5)]) == {"a": (1, 5)}
        found = list(bus.replay("a/#"))
        assert [(one.topic, one.payload) for one in found] == [(one.topic, one.payload) for one in staged]
        assert [one.key for one in found] == [None, b"k", None, None, None]
        assert [one.header_pairs for one in found] == [(), (), (("unit", "C"), ("unit", "F")), (), ()]
        assert list(bus.retained("a/#")) == ["a/2"]
        root = bus.core.roots.get("a")
        assert root is not None
        assert [found.last_offset for found in root.stream.read(1, 1 << 20) if isinstance(found, Batch)] == [2, 4, 5]


def test_what_is_staged_survives_a_restart(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        bus.stage("p", 1, [("a", b"1")], part="x")
    with headwater.open(tmp_path) as bus:
        assert bus.commit_stage("p", 1, ["x"]) == {"a": (1, 1)}
    with headwater.open(tmp_path) as bus:
        assert bus.commit_stage("p", 1, ["x"]) == {"a": (1, 1)}
        assert seen(bus) == [("a", b"1")]


def test_commits_of_many_threads_are_made_once_each(bus: Bus):
    for producer in range(4):
        bus.stage(f"p{producer}", 1, [("a", b"%d" % producer)])
    answers: list[object] = []

    def commit(producer: int) -> None:
        answers.append((producer, bus.commit_stage(f"p{producer}", 1)["a"]))

    threads = [threading.Thread(target=commit, args=(number % 4,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    assert len(set(answers)) == 4
    assert sorted(payload for _, payload in seen(bus)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("producer", ["", "a\0b", "\ud800", "x" * 300, None, 3])
def test_a_producer_that_is_none_is_refused(bus: Bus, producer: object):
    for call in (
        lambda: bus.stage(producer, 1, [("a", b"")]),  # type: ignore[arg-type]
        lambda: bus.commit_stage(producer, 1),  # type: ignore[arg-type]
        lambda: bus.drop_stage(producer, 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(Malformed):
            call()


@pytest.mark.parametrize("epoch", [-1, EPOCH_MAX, 1.0, True, "1", None])
def test_an_epoch_that_is_none_is_refused(bus: Bus, epoch: object):
    for call in (
        lambda: bus.stage("p", epoch, [("a", b"")]),  # type: ignore[arg-type]
        lambda: bus.commit_stage("p", epoch),  # type: ignore[arg-type]
        lambda: bus.drop_stage("p", epoch),  # type: ignore[arg-type]
    ):
        with pytest.raises(Malformed):
            call()


@pytest.mark.parametrize("parts", ["x", ["a\0"], ["x" * 257], [1], ["\ud800"]])
def test_parts_that_are_none_are_refused(bus: Bus, parts: object):
    with pytest.raises(Malformed):
        bus.commit_stage("p", 1, parts)  # type: ignore[arg-type]


def test_the_highest_epoch_works_too(bus: Bus):
    bus.stage("p", EPOCH_MAX - 1, [("a", b"1")])
    assert bus.commit_stage("p", EPOCH_MAX - 1) == {"a": (1, 1)}


def test_a_body_that_lies_is_not_staged(bus: Bus):
    body = encode_body(["a/x"], [b"1"], 1)
    for root, count, crc in (("a", 2, checksum(body)), ("a", 1, 1), ("b", 1, checksum(body))):
        with pytest.raises(Malformed):
            bus.stage_body("p", 1, "", root, count, crc, body)
    assert staged_bytes(bus) == 0


def test_staging_into_an_epoch_that_is_being_committed_is_refused(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    bus.stage("p", 1, [("a", b"1")])
    monkeypatch.setattr(Staging, "_finish", lambda *_: {})
    bus.commit_stage("p", 1)
    monkeypatch.undo()
    with pytest.raises(Conflict, match="being committed"):
        bus.stage("p", 1, [("a", b"2")])
    with pytest.raises(Conflict, match="being committed"):
        bus.drop_stage("p", 1)
    bus.stage("p", 2, [("a", b"2")])
    assert bus.commit_stage("p", 2) == {"a": (2, 2)}
    assert seen(bus) == [("a", b"1"), ("a", b"2")]


def test_an_epoch_has_no_more_bytes_than_its_commit_may_hold() -> None:
    with headwater.open(":memory:", Config(stage_bytes_max=3000)) as bus:
        bus.stage("p", 1, [("home/x", bytes(1000))], part="a")
        bus.stage("p", 1, [("home/x", bytes(1000))], part="b")
        for _ in range(5):  # a part that is staged again takes the place of the first
            bus.stage("p", 1, [("home/x", bytes(1000))], part="b")
        with pytest.raises(headwater.TooLarge, match="stage_bytes_max"):
            bus.stage("p", 1, [("home/x", bytes(1000))], part="c")
        bus.stage("p", 2, [("home/x", bytes(1000))], part="c")
        assert bus.commit_stage("p", 1, ("a", "b")) == {"home": (1, 2)}
        assert bus.commit_stage("p", 2, ("c",)) == {"home": (3, 3)}
