"""Whoever subscribes to everything where much is retained gets all of it, as fast as it takes it, and holds up nobody.

It is read a slice at a time, off the loop, and nothing of it is dropped, or read for who does not take it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from headwater import Config, Outgoing
from headwater.bus import Bus
from headwater.delivery.retained import FIRST_ROWS, RETAINED_BYTES, RETAINED_ROWS, RetainedReading
from headwater.delivery.supply import Supply
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from headwater.store import state as rows
from mqtt.peer import MqttPeer, Served

TOPICS = 10_000
LIVE_MAX = 1000
"""What a live subscription buffers: far less than is retained."""
CONFIG = Config(live_messages_max=LIVE_MAX)


def name(number: int) -> str:
    return f"kept/{number % 7}/{number:05}"


NAMES = {name(number) for number in range(TOPICS)}


def retain(bus: Bus, count: int = TOPICS) -> None:
    """Half of them are in the state, the others have changed since."""
    for first in range(0, count, 5000):
        some = range(first, min(count, first + 5000))
        bus.publish_many([Outgoing(name(number), b"old %d" % number, retain=True) for number in some])
        if first >= count // 2:
            bus.core.roots.commit.run(bus.core.roots.checkpoints.make_all)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(config=CONFIG, write_bytes_max=1 << 17) as running:
        retain(running.bus)
        yield running


class Reads:
    """Slices that were read: for whom, and in which thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: list[int] = []
        self.threads: list[int] = []
        for owner, name in ((RetainedReading, "read_on"), (Supply, "read_retained")):
            patch.setattr(owner, name, self._noted(getattr(owner, name)))

    def _noted(self, real: Any) -> Any:
        def call(reader: Any, *args: Any) -> Any:
            self.of.append(id(reader))
            self.threads.append(threading.get_ident())
            return real(reader, *args)

        return call


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def got(peer: MqttPeer, count: int) -> list[Publish]:
    """So many messages, acknowledged."""
    found: list[Publish] = []
    while len(found) < count:
        there = [one for one in peer.inbox if isinstance(one, Publish)]
        peer.inbox = [one for one in peer.inbox if not isinstance(one, Publish)]
        peer.send(*(Ack(Kind.PUBACK, one.packet_id) for one in there if one.qos))
        found += there
        if len(found) < count:
            peer.more()
    return found


def noted(bus: Bus) -> int:
    """Rows about retained messages that wait for subscriptions."""
    return sum(1 for _ in bus.core.state.scan(rows.COPY))


# All of it


def test_an_embedded_reader_gets_all_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    with headwater.open(":memory:", CONFIG) as bus:
        retain(bus)
        read = [0]
        real = bus.core.state.scan

        def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
            for row in real(*args):
                read[0] += row[0].startswith(b"R")
                yield row

        monkeypatch.setattr(bus.core.state, "scan", scan)
        live = bus.subscribe("#")
        assert read[0] <= FIRST_ROWS + 1
        found = live.batch(10)
        assert read[0] <= FIRST_ROWS + 1
        while len(found) < TOPICS:
            before = read[0]
            found += live.batch(100)
            assert read[0] - before <= RETAINED_ROWS + 1
        assert {one.topic for one in found} == NAMES
        assert all(one.retained for one in found)
        assert live.dropped == 0
        assert live.batch(10, timeout_s=0) == []


def test_a_reader_with_asyncio_has_none_of_it_read_on_its_loop(reads: Reads) -> None:
    async def read() -> None:
        async with headwater.aio.open(":memory:", CONFIG) as bus:
            retain(bus.threads, 5000)
            async with bus.subscribe("#") as live:
                found: list[headwater.aio.Message] = []
                while len(found) < 5000:
                    found += await live.batch(1000)
                assert len({one.topic for one in found}) == 5000

    asyncio.run(read())
    assert len(reads.of) > 5
    assert threading.get_ident() not in reads.threads


def test_a_client_gets_all(served: Served, reads: Reads) -> None:
    with headwater.connect(served.server.url) as bus, bus.subscribe("#") as live:
        found: list[str] = []
        while len(found) < TOPICS:
            found += [one.topic for one in live.batch(1000, timeout_s=60) if one.retained]
        assert len(found) == TOPICS
        assert set(found) == NAMES
        assert live.dropped == 0
    assert len(reads.of) <= 3 + TOPICS // RETAINED_ROWS
    assert served.call(threading.get_ident) not in reads.threads


def test_a_consumer_gets_all(reads: Reads) -> None:
    with headwater.open(":memory:", CONFIG) as bus:
        retain(bus)
        with bus.subscribe("#", id="all") as consumer:
            assert FIRST_ROWS < noted(bus) <= FIRST_ROWS + 1
            assert bus.subscriptions()[0].lag > FIRST_ROWS
            topics: list[str] = []
            while len(topics) < TOPICS:
                found = consumer.batch(300, timeout_s=60)
                assert all(one.retained for one in found)
                topics += [one.topic for one in found]
                assert noted(bus) <= 3 * RETAINED_ROWS
                consumer.ack(found)
            assert len(topics) == TOPICS
            assert set(topics) == NAMES
            assert consumer.batch(10, timeout_s=0) == []
            assert bus.subscriptions()[0].lag == 0
            assert noted(bus) == 0


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_a_consumer_goes_on_where_it_was(tmp_path: Path, order: Any) -> None:
    topics: list[str] = []
    for time in range(4):
        with headwater.open(tmp_path, CONFIG) as bus:
            if not time:
                retain(bus, 5000)
            with bus.subscribe("#", id="all", order=order) as consumer:
                bus.publish(f"later/{time}", b"")
                for _ in range(4 if time < 3 else 1000):
                    found = consumer.batch(300, timeout_s=0)
                    topics += [one.topic for one in found]
                    consumer.ack(found)
    later = topics[-4:]
    assert later == [f"later/{time}" for time in range(4)]
    assert len(topics) == 5004
    assert {*topics} == {*later, *(name(number) for number in range(5000))}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V4, V5])
def test_an_mqtt_client_gets_all(served: Served, reads: Reads, version: int, qos: int) -> None:
    peer = served.mqtt(version=version)
    peer.subscribe("#", qos=qos)
    found = got(peer, TOPICS)
    assert {one.topic for one in found} == NAMES
    assert all(one.retain and one.qos == min(1, qos) for one in found)
    peer.quiet()
    assert len(found) == TOPICS
    assert served.call(threading.get_ident) not in reads.threads


@pytest.mark.parametrize("qos", [0, 1])
def test_one_that_subscribes_again_gets_all_again(served: Served, qos: int) -> None:
    peer = served.mqtt()
    for _ in range(2):
        peer.subscribe("#", qos=qos)
        assert {one.topic for one in got(peer, TOPICS)} == NAMES
    peer.subscribe(Subscription("#", qos, retain_handling=1))
    peer.subscribe(Subscription("#", qos, retain_handling=2))
    peer.quiet()


@pytest.mark.parametrize("qos", [0, 1])
def test_one_that_subscribes_again_in_the_midst_gets_all_once_more(served: Served, qos: int) -> None:
    peer = served.mqtt()
    peer.subscribe("#", qos=qos)
    count = len(got(peer, 1))
    for number in range(100, 110):
        peer.send(Subscribe(number, (Subscription("#", qos),)))
    suback = None
    while suback is None or suback.packet_id < 109:
        count += len(got(peer, 1))
        while any(isinstance(one, Suback) for one in peer.inbox):
            suback = peer.expect(Suback)
    found = got(peer, TOPICS)
    while {one.topic for one in found} != NAMES or count + len(found) < 2 * TOPICS:
        found += got(peer, 1)
    peer.quiet()
    assert count + len(found) <= 3 * TOPICS


@pytest.mark.parametrize("qos", [0, 1])
def test_those_who_subscribe_at_once_share(served: Served, reads: Reads, qos: int) -> None:
    peers = [served.mqtt() for _ in range(4)]
    for peer in peers:
        peer.send(Subscribe(1, (Subscription("#", qos),)))
    readers = [threading.Thread(target=got, args=(peer, TOPICS)) for peer in peers]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # Nobody is through before the last has begun.
    first = {who: reads.of.index(who) for who in reads.of}
    last = {who: len(reads.of) - 1 - reads.of[::-1].index(who) for who in reads.of}
    assert max(first.values()) < min(last.values())


# Who does not take it


@pytest.mark.parametrize("qos", [0, 1])
def test_nothing_is_read_for_who_takes_nothing(reads: Reads, qos: int) -> None:
    with Served(config=CONFIG, write_bytes_max=1 << 17) as served:
        for first in range(0, 3000, 100):
            some = range(first, first + 100)
            served.bus.publish_many([Outgoing(name(number), bytes(10_000), retain=True) for number in some])
        slices = 3000 * 10_000 / RETAINED_BYTES
        peer = served.mqtt("lazy")
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.send(Subscribe(1, (Subscription("#", qos),)))
        served.until(lambda: reads.of and not served.mqtt_session("lazy").connection.is_writable)
        other = served.mqtt()
        count = 0
        while len(reads.of) > count:  # what is on its way may take a while to fill the line
            count = len(reads.of)
            for _ in range(100):
                other.ping()
        assert count < slices / 2
        for number in range(2, 50):
            peer.send(Subscribe(number, (Subscription("#", qos),)))
        for _ in range(20):
            other.ping()
        assert len(reads.of) == count
        session = served.mqtt_session("lazy")
        peer.close()
        served.until(lambda: not session.pumps)
        other.ping()
        assert len(reads.of) == count


@pytest.mark.parametrize("qos", [0, 1])
def test_it_ends_with_the_subscription(served: Served, reads: Reads, qos: int) -> None:
    peer = served.mqtt()
    peer.send(Subscribe(1, (Subscription("#", qos),)))
    peer.expect(Suback)
    peer.got()
    peer.send(Unsubscribe(2, ("#",)))
    peer.expect(Unsuback)
    count = len(reads.of)
    peer.ping()
    assert len(reads.of) == count < TOPICS / RETAINED_ROWS


# What comes meanwhile


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_newer_is_not_followed_by_what_was_retained(again: bool, qos: int) -> None:
    count = 5000
    with Served(config=CONFIG, write_bytes_max=1 << 16) as served:
        retain(served.bus, count)
        peer = served.mqtt()
        if again:
            peer.subscribe(Subscription("#", qos, retain_handling=2))
        peer.send(Subscribe(9, (Subscription("#", qos),)))
        first = got(peer, 1)
        newer = {name(number): b"new" for number in range(0, count, 20)}
        kept = {name(number): b"new" for number in range(5, count, 20)}
        served.bus.publish_many([Outgoing(topic, payload) for topic, payload in newer.items()])
        served.bus.publish_many([Outgoing(topic, payload, retain=True) for topic, payload in kept.items()])
        served.bus.publish("end/x", b"end")
        last = {one.topic: one.payload for one in first}
        while "end/x" not in last:
            for one in got(peer, 1):
                assert last.get(one.topic) != b"new"
                last[one.topic] = one.payload
        assert {topic for topic, payload in last.items() if payload == b"new"} == newer.keys() | kept.keys()
        assert len(last) == count + 1


def test_what_was_cleared_meanwhile_is_the_last_word_on_its_topic() -> None:
    with headwater.open(":memory:", CONFIG) as bus:
        retain(bus, 5000)
        live = bus.subscribe("#")
        gone = name(6)
        assert gone not in {one.topic for one in live.batch(FIRST_ROWS)}
        bus.publish(gone, b"", retain=True)
        bus.publish("end/x", b"")
        found: list[tuple[str, bytes]] = []
        while not found or found[-1][0] != "end/x":
            found += [(one.topic, one.payload) for one in live.batch(1000)]
        assert [payload for topic, payload in found if topic == gone][-1] == b""
