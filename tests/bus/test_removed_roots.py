"""Roots that are removed: what they had is gone, their place is free, and whoever stood in them is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headwater
import headwater.bus
from headwater.config import Config
from headwater.errors import Conflict, Gap, Malformed, NotFound, QuotaExceeded, Recalled
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.verify import KnownStream, verify


def stored_rows(bus: headwater.bus.Bus, stream: int) -> list[bytes]:
    """What the state has of a stream, and of what subscriptions have of it."""
    number = stream.to_bytes(4, "big")
    kinds = (rows.STREAM, rows.TOPIC, rows.RETAINED, rows.PRODUCER, rows.PURGE, rows.GAP)
    found = [key for kind in kinds for key, _ in bus.core.state.scan(kind + number)]
    for kind in (rows.FLOOR, rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD):
        found += [key for key, _ in bus.core.state.scan(kind) if rows.pair_in(key)[1] & 0x7FFF_FFFF == stream]
    return found


def stream_of(bus: headwater.bus.Bus, name: str) -> int:
    root = bus.core.roots.get(name)
    assert root is not None
    return root.stream.number


def test_a_removed_root_leaves_nothing_and_gives_its_place_back(tmp_path: Path) -> None:
    with headwater.open(tmp_path, Config(roots_max=2)) as bus:
        bus.publish("home/a", b"1", retain=True, producer="p", sequence=1)
        bus.publish("home/b", b"2")
        bus.publish("work/a", b"3")
        with pytest.raises(QuotaExceeded):
            bus.publish("more/a", b"")
        number = stream_of(bus, "home")
        bus.remove_root("home")
        assert [info.topic for info in bus.topics()] == ["work/a"]
        assert bus.retained("#") == {}
        assert [message.topic for message in bus.replay("#")] == ["work/a"]
        assert stored_rows(bus, number) == []
        assert not [name for name in os.listdir(tmp_path / "streams") if name.endswith("-home")]
        bus.publish("more/a", b"4")
        bus.core.roots.commit.run(bus.core.roots.checkpoints.make)
        assert stored_rows(bus, number) == []
    with headwater.open(tmp_path, Config(roots_max=2)) as bus:
        assert [info.topic for info in bus.topics()] == ["more/a", "work/a"]
        assert not bus.events()
    report = verify(DiskFiles(), tmp_path.as_posix(), lambda _: KnownStream(), lambda _: None)
    assert not report.troubles


def test_a_root_that_comes_again_goes_on_with_the_next_offset_and_knows_no_producer(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        for sequence in range(3):
            bus.publish("home/a", b"old", producer="p", sequence=sequence)
        bus.remove_root("home")
        assert bus.publish("home/a", b"new", producer="p", sequence=0).offset == 4
    with headwater.open(tmp_path) as bus:
        assert [(message.offset, message.payload) for message in bus.replay("home/#")] == [(4, b"new")]
        assert bus.publish("home/a", b"next").offset == 5
        assert not bus.events()
        bus.remove_root("home")
        assert bus.publish("home/a", b"third").offset == 6


def test_a_root_is_not_removed_from_under_subscriptions_unless_by_force(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        bus.subscribe("home/#", id="only").close()
        bus.publish("home/a", b"1")
        with pytest.raises(Conflict, match='"only"'):
            bus.remove_root("home")
        bus.unsubscribe("only")
        consumer = bus.subscribe("#", id="wide", start="earliest")
        with pytest.raises(Conflict, match='"wide"'):
            bus.remove_root("home")
        message = consumer.next(timeout_s=5)
        assert message is not None
        message.ack()
        bus.remove_root("home")
        assert bus.topics() == []


def test_a_root_with_dead_letters_or_copies_is_not_removed_unless_by_force(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        bus.publish("home/a", b"1", retain=True)
        with bus.subscribe("#", id="copies"), pytest.raises(Conflict):
            bus.remove_root("home")
        bus.unsubscribe("copies")
        with bus.subscribe("#", id="dead", start="earliest") as consumer:
            message = consumer.next(timeout_s=5)
            assert message is not None
            message.reject("no")
        number = stream_of(bus, "home")
        with pytest.raises(Conflict, match="dead letters"):
            bus.remove_root("home")
        bus.remove_root("home", force=True)
        assert bus.dead_letters("dead") == []
        assert stored_rows(bus, number) == []


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_consumers_and_readers_that_stand_in_a_removed_root_are_told_and_go_on(tmp_path: Path, order: str) -> None:
    with headwater.open(tmp_path, Config(tail_bytes=1, tails_bytes=1)) as bus:
        consumer = bus.subscribe("#", id="s", start="earliest", order=order)  # type: ignore[call-overload]
        reading = bus.follow("#")
        ended = bus.follow("#")
        for count in range(10):
            bus.publish("home/a", b"%d" % count)
        bus.publish("work/a", b"other")
        assert sum(len(ended.batch(100, timeout_s=5)) for _ in range(2)) > 1
        while ended.batch(100, timeout_s=0):
            pass
        taken = consumer.batch(4, timeout_s=5)
        assert reading.next(timeout_s=5) is not None
        bus.remove_root("home", force=True)
        with pytest.raises(Recalled, match="removed"):
            taken[0].ack()
        with pytest.raises(Gap, match="removed"):
            consumer.batch(4, timeout_s=5)
        message = consumer.next(timeout_s=5)
        assert message is not None
        assert message.payload == b"other"
        message.ack()
        bus.publish("home/a", b"again")
        message = consumer.next(timeout_s=5)
        assert message is not None
        assert (message.offset, message.payload) == (11, b"again")
        message.ack()
        seen = []
        gaps = 0
        for _ in range(20):
            try:
                seen += [one.payload for one in reading.batch(100, timeout_s=0.05)]
            except Gap as gap:
                assert "removed" in str(gap)
                gaps += 1
        assert seen[-1] == b"again"
        assert b"other" in seen
        assert gaps <= 1
        found = ended.next(timeout_s=5)
        assert found is not None
        assert found.payload == b"again"
        assert "removed" in {event.kind for event in bus.events()}


def test_what_is_not_there_and_what_is_the_brokers_own_is_not_removed(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        with pytest.raises(NotFound):
            bus.remove_root("home")
        bus.publish("home/a", b"", deliver_at=None)
        for name in ("$sys", "$delayed", "$staged"):
            with pytest.raises(Malformed):
                bus.remove_root(name, force=True)
        with pytest.raises(Malformed):
            bus.remove_root(3)  # type: ignore[arg-type]


def test_a_process_that_reads_beside_the_owner_sees_a_root_go_and_come(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        bus.publish("home/a", b"1")
        bus.publish("work/a", b"1")
        with headwater.open(tmp_path, read_only=True) as beside:
            assert len(list(beside.replay("#"))) == 2
            bus.remove_root("home")
            beside.refresh()
            assert [message.topic for message in beside.replay("#")] == ["work/a"]
            bus.publish("home/b", b"2")
            beside.refresh()
            assert [message.offset for message in beside.replay("home/#")] == [2]


def test_a_backup_holds_what_was_removed_before_it_and_no_more(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"1")
        bus.remove_root("home")
        bus.publish("work/a", b"1")
        bus.backup(tmp_path / "copy")
    headwater.restore(tmp_path / "copy", tmp_path / "restored")
    with headwater.open(tmp_path / "restored") as bus:
        assert [message.topic for message in bus.replay("#")] == ["work/a"]
        assert bus.publish("home/a", b"2").offset == 2
