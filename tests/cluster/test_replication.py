"""A leader's core goes by records, and whoever applies them has the same folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import headwater
from cluster.memory_engine import Faults
from cluster.nodes import SMALL, Leader, Node, another, first, rows, segments
from headwater.bus import Bus
from headwater.cluster.comparison import compare
from headwater.errors import Conflict, SteppedDown, Unavailable
from headwater.store import marks
from headwater.store.files import DiskFiles
from headwater.store.state import TOPIC
from headwater.surface import Consumer

MUCH = b"x" * 3000


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Node, Node]:
    one = first(tmp_path / "1")
    return one, another(one, tmp_path / "2")


@pytest.fixture
def led(pair: tuple[Node, Node]) -> Iterator[Leader]:
    leader = pair[0].lead(1)
    yield leader
    leader.drop()


def check_equal(one: Node, two: Node) -> None:
    """Both have applied all, and have the same."""
    positions = []
    for node in (one, two):
        replica = node.followed()
        positions.append(replica.position)
        digests = replica.digests()
        replica.close()
        positions.append(digests.position)
    assert len(set(positions)) == 1
    assert segments(one.path) == segments(two.path)
    assert rows(one.path) == rows(two.path)
    assert marks.found(DiskFiles(), one.path) == marks.found(DiskFiles(), two.path)


def take(consumer: Consumer) -> int:
    message = consumer.next(timeout_s=5)
    assert message is not None
    message.ack()
    return message.offset


def publish_and_ack(bus: Bus) -> None:
    for number in range(60):
        bus.publish_many([("home/hall", b"%d" % number * 900), ("away/garden", b"x" * 30)])
    with bus.subscribe("home/#", id="thermostat", start="earliest") as consumer:
        for message in consumer.batch(50, timeout_s=5):
            message.ack()
        consumer.batch(1, timeout_s=5)[0].nack("not now")


def publish_much(bus: Bus) -> None:
    """Large groups, which are written apart."""
    futures = [bus.publish_soon(f"root{number % 3}/a", MUCH * 5) for number in range(30)]
    assert all(future.result().offset for future in futures)


def publish_with_everything(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True, key=b"k", headers={"unit": "C"}, ttl_s=3600)
    bus.publish("home/a", b"2", producer="importer", sequence=7)
    assert bus.publish("home/a", b"2", producer="importer", sequence=7).duplicate
    bus.send("home/b", b"nobody waits")
    bus.publish("home/c", b"later", deliver_at=bus.now + timedelta(seconds=0.05))
    bus.publish("home/c", b"much later", deliver_at=bus.now + timedelta(hours=1))
    with bus.follow("home/c") as following:
        assert next(iter(following)).payload == b"later"


def trim(bus: Bus) -> None:
    for _ in range(60):
        bus.publish("home/hall", MUCH)
    bus.purge("home/#")
    bus.publish("home/hall", b"after")
    assert bus.core.roots.get("home").stream.first_offset == 61  # type: ignore[union-attr]


def remove_roots(bus: Bus) -> None:
    for name in ("a", "b", "c"):
        bus.publish(f"{name}/x", MUCH)
    bus.remove_root("b")
    assert bus.publish("b/x", b"again").offset == 2
    bus.remove_root("a")


def stage(bus: Bus) -> None:
    bus.stage("job", 1, [("home/a", b"1"), ("away/b", b"2")])
    assert bus.commit_stage("job", 1) == {"home": (1, 1), "away": (1, 1)}
    bus.stage("job", 2, [("home/a", b"1")])


def administer(bus: Bus) -> None:
    bus.clients.add("sensor-7", "a-long-secret-word")
    bus.acl.allow("sensor-7", "publish", "home/#")
    bus.schedule("home/beat", b"x", cron="0 0 1 1 *")
    bus.publish("home/a", b"1")
    bus.mark_archived("lake1", {"home": 1})


WORK: list[Callable[[Bus], None]] = [
    publish_and_ack,
    publish_much,
    publish_with_everything,
    trim,
    remove_roots,
    stage,
    administer,
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_follower_has_the_leaders_segments_to_the_byte_and_its_rows(
    pair: tuple[Node, Node], work: Callable[[Bus], None]
) -> None:
    leader = pair[0].lead(1)
    work(leader.bus)
    leader.close()
    check_equal(*pair)


def test_all_of_it_in_one_with_compressed_bodies_in_parts_that_come_twice(tmp_path: Path) -> None:
    config = msgspec.structs.replace(SMALL, compression="zstd", compression_bytes_min=100)
    one = first(tmp_path / "1", config)
    two = another(one, tmp_path / "2")
    leader = one.lead(1, Faults(1, doubled=300), part_bytes_max=10_000)
    for work in (publish_and_ack, publish_much, publish_with_everything, administer):
        work(leader.bus)
    leader.close()
    check_equal(one, two)


def test_a_segment_that_went_bad_after_it_was_compared_is_found_when_all_is_read_anew(pair: tuple[Node, Node]) -> None:
    leader = pair[0].lead(1)
    publish_and_ack(leader.bus)
    leader.close()
    one, two = pair[0].followed(), pair[1].followed()
    assert compare({"n1": one.digests(), "n2": two.digests()}).difference is None
    path, *_ = sorted(Path(two.path).glob("streams/*-home/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    found = compare({"n1": one.digests(anew=True), "n2": two.digests(anew=True)})
    assert found.difference is not None
    assert found.difference.base == 1
    one.abandon()
    two.abandon()


def test_another_node_goes_on_with_all_that_was_acknowledged(pair: tuple[Node, Node]) -> None:
    one, two = pair
    leader = one.lead(1)
    publish_and_ack(leader.bus)
    leader.drop()
    second = two.lead(2)
    assert [message.offset for message in second.bus.replay("home/hall")] == list(range(1, 61))
    with second.bus.subscribe("home/#", id="thermostat") as consumer:
        assert [take(consumer) for _ in range(10)] == list(range(51, 61))
    publish_and_ack(second.bus)
    second.close()
    check_equal(one, two)


def test_a_backup_of_a_leader_is_an_ordinary_folder(led: Leader, tmp_path: Path) -> None:
    publish_and_ack(led.bus)
    led.bus.backup(tmp_path / "backup")
    with headwater.open(tmp_path / "backup") as bus:
        assert len(list(bus.replay("home/#"))) == 60
        assert bus.publish("home/hall", b"on its own").offset == 61


def test_the_folder_of_a_node_is_refused_in_a_sentence_that_says_how_it_leaves(
    led: Leader, pair: tuple[Node, Node]
) -> None:
    with pytest.raises(Conflict, match="cluster leave"):
        headwater.open(pair[1].path)


def test_rows_that_nobody_waits_for_are_seen_at_once_and_reach_the_others(pair: tuple[Node, Node]) -> None:
    leader = pair[0].lead(1)
    state = leader.core.state
    leader.engine.is_up = False
    state.write({b"zb": b"1", b"zc": b"2"})
    state.write({b"zc": None, b"za": b"3"})
    assert state.get(b"zc") is None
    assert list(state.scan(b"z")) == [(b"za", b"3"), (b"zb", b"1")]
    assert list(state.scan(b"z", b"zb")) == [(b"zb", b"1")]
    leader.engine.is_up = True
    state.sync()
    state.commit({b"zb": None})
    assert list(state.scan(b"z")) == [(b"za", b"3")]
    leader.close()
    check_equal(*pair)
    assert rows(pair[1].path)[b"za"] == b"3"


def test_while_the_engine_is_silent_what_is_new_is_refused_at_once_and_what_was_sent_is_stored(
    pair: tuple[Node, Node],
) -> None:
    leader = pair[0].lead(1)
    bus = leader.bus
    bus.publish("home/a", b"1")
    leader.engine.is_up = False
    under_way = bus.publish_soon("home/a", b"2")
    while not leader.sequencer.is_suspended:
        threading.Event().wait(0.001)
    with pytest.raises(Unavailable, match="try again") as refused:
        bus.publish("home/a", b"3")
    assert refused.value.retryable
    with pytest.raises(Unavailable):
        bus.subscribe("home/#", id="new")
    assert [message.payload for message in bus.replay("home/a")] == [b"1"]
    leader.engine.is_up = True
    assert under_way.result(10).offset == 2
    while leader.sequencer.is_suspended:
        threading.Event().wait(0.001)
    assert bus.publish("home/a", b"3").offset == 3
    leader.close()
    check_equal(*pair)


def test_a_leader_that_another_has_overtaken_acknowledges_nothing_and_its_folder_has_nothing_of_it(
    pair: tuple[Node, Node],
) -> None:
    one, two = pair
    old = one.lead(1)
    old.bus.publish("home/a", b"1")
    old.settle()
    new = two.lead(2)
    new.bus.publish("home/a", b"another's")
    with pytest.raises(SteppedDown, match="leads no more"):
        old.bus.publish("home/a", b"never")
    with pytest.raises(SteppedDown):
        old.bus.publish("home/a", b"nor this")
    assert old.sequencer.stopped is not None
    old.drop()
    new.close()
    check_equal(one, two)
    third = one.lead(3)
    assert [message.payload for message in third.bus.replay("home/a")] == [b"1", b"another's"]
    third.close()


def test_a_checkpoint_is_made_while_a_node_leads(led: Leader) -> None:
    led.bus.publish("home/a", b"1")
    led.replication.checkpoint()
    assert led.replication.synced == led.settle()


def test_messages_of_a_root_are_counted_alike(led: Leader) -> None:
    led.bus.publish("home/a", b"1")
    led.settle()
    assert [info.topic for info in led.bus.topics("home/#")] == ["home/a"]
    assert not list(led.core.state.scan(TOPIC + b"\xff"))


def test_a_repeated_producer_sequence_joins_the_one_under_way(pair: tuple[Node, Node]) -> None:
    leader = pair[0].lead(1)
    bus = leader.bus
    bus.publish("home/a", b"1")
    leader.engine.is_up = False
    under_way = bus.publish_soon("home/a", b"2", producer="importer", sequence=1)
    while not leader.sequencer.is_suspended:
        threading.Event().wait(0.001)
    with pytest.raises(Unavailable):  # it is not sent a second time,
        bus.publish("home/a", b"2", producer="importer", sequence=1)
    leader.engine.is_up = True
    while leader.sequencer.is_suspended:
        threading.Event().wait(0.001)
    again = bus.publish("home/a", b"2", producer="importer", sequence=1)  # and is the first one once that is known
    assert again.duplicate
    assert again.offset == under_way.result(10).offset == 2
    assert [message.payload for message in bus.replay("home/a")] == [b"1", b"2"]
    leader.close()
    check_equal(*pair)


def test_a_leader_whose_lease_is_over_hands_out_and_shows_nothing_until_it_is_renewed(led: Leader) -> None:
    bus, showing = led.bus, led.core.roots.showing
    with bus.subscribe("home/#", id="thermostat", start="earliest") as consumer:
        bus.publish("home/a", b"1")
        led.replication.is_late = lambda: True  # as when the process stood still, and nobody has said so yet
        assert consumer.batch(1, timeout_s=0.05) == []
        assert showing.is_held is not None
        assert showing.is_held()
        led.replication.is_late = lambda: False
        assert not showing.is_held()
        assert [message.payload for message in consumer.batch(1, timeout_s=5)] == [b"1"]


def test_whoever_reads_may_leave_while_the_engine_is_silent(led: Leader) -> None:
    with led.bus.subscribe("home/#"), led.bus.follow("home/#"):
        led.bus.publish("home/a", b"1")
        led.engine.is_up = False
        under_way = led.bus.publish_soon("home/a", b"2")
        while not led.sequencer.is_suspended:
            threading.Event().wait(0.001)
    led.engine.is_up = True
    under_way.result(10)
    led.core.settle()
    with led.bus.subscribe("away/#"):  # with which those are let go of
        assert led.core.dispatcher.listeners.count == 1


@pytest.mark.parametrize("stands_by", [False, True], ids=["another comes", "another stands by"])
def test_a_consumer_that_left_while_the_engine_was_silent_keeps_nothing_from_others(led: Leader, stands_by: bool):
    bus = led.bus
    bus.publish_many([("home/a", b"1"), ("home/a", b"2")])
    gone = bus.subscribe("home/#", id="thermostat", start="earliest")
    if stands_by:
        other = bus.subscribe("home/#", id="thermostat")
    assert len(gone.batch(2, timeout_s=5)) == 2
    led.engine.is_up = False
    under_way = bus.publish_soon("home/a", b"3")
    while not led.sequencer.is_suspended:
        threading.Event().wait(0.001)
    gone.close()
    led.engine.is_up = True
    under_way.result(10)
    led.core.settle()
    if not stands_by:
        other = bus.subscribe("home/#", id="thermostat")
    taken = other.batch(3, timeout_s=5)
    while len(taken) < 3:
        more = other.batch(3, timeout_s=5)
        assert more
        taken += more
    assert [message.payload for message in taken] == [b"1", b"2", b"3"]
    other.close()


def test_a_message_of_eight_megabytes_is_one_record_of_many_parts(pair: tuple[Node, Node]) -> None:
    leader = pair[0].lead(1, part_bytes_max=(1 << 20) - 256)
    before = leader.engine.bed.last
    much = bytes(range(256)) * (8 << 12)
    assert leader.bus.publish("home/a", much).offset == 1
    assert leader.engine.bed.last - before > 8
    leader.close()
    check_equal(*pair)
    other = pair[1].lead(2)
    [message] = other.bus.replay("home/a")
    assert message.payload == much
    other.close()
