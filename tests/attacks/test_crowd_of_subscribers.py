"""A root with very many subscribers: a batch of it reaches all of them in slices, and nobody else waits for that."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import pytest

import headwater
from headwater.config import Config
from headwater.delivery import fan_out
from headwater.delivery.fan_out import AT_ONCE_MAX, TURN_MAX
from headwater.delivery.selection import Selection
from headwater.receipt import Receipt
from headwater.server import bell
from headwater.store import stream
from headwater.store.batch import Batch, Seed, read_batch
from headwater.wire.batches import QUIET
from headwater.wire.frame import Kind
from server.harness import Running
from server.site import until

CROWD = 3000


class Turns:
    """Counts the turns of a loop."""

    def __init__(self, running: Running) -> None:
        self.now = 0
        self.is_over = False
        self._loop = running.loop
        running.call(self._go_on)

    def _go_on(self) -> None:
        self.now += 1
        if not self.is_over:
            self._loop.call_soon(self._go_on)


class Listening:
    """One of a crowd: notes what it hears of, and when."""

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = False

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.heard: list[list[bytes]] = []

    def deliver(self, selection: Selection) -> None:
        self.heard.append([message.payload for message in selection.taken()])
        self._crowd.on_heard()


class Crowd:
    """Very many who listen, and how many of them heard of something in each turn of the loop."""

    def __init__(self, running: Running, filter: str, count: int = CROWD) -> None:
        self.turns = Turns(running)
        self.by_turn: dict[int, int] = {}
        self.heard = 0
        self.all = [Listening(self) for _ in range(count)]

        def join() -> None:
            for one in self.all:
                running.bus.core.dispatcher.listeners.listen(filter, one)

        running.bus.core.roots.commit.run(join)

    def on_heard(self) -> None:
        self.heard += 1
        self.by_turn[self.turns.now] = self.by_turn.get(self.turns.now, 0) + 1


@pytest.fixture
def running() -> Iterator[Running]:
    with Running() as running:
        running.bus.publish_many([("crowd/x", b"before"), ("other/x", b"before")])
        yield running


class Held:
    """The loop tells nobody of anything as long as this is so."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running, self._monkeypatch = running, monkeypatch
        monkeypatch.setattr(bell, "TOLD_IN_TURN", 0)

    def end(self) -> None:
        self._monkeypatch.setattr(bell, "TOLD_IN_TURN", 16)


@pytest.fixture
def held(running: Running, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(running, monkeypatch)


def test_a_turn_of_the_loop_tells_so_many_and_no_more(running: Running) -> None:
    crowd = Crowd(running, "crowd/#")
    running.peer().publish("crowd/x", b"1")
    crowd.turns.is_over = True
    assert crowd.heard == CROWD, "who published is answered when all were told"
    assert max(crowd.by_turn.values()) <= bell.TOLD_IN_TURN


def test_a_turn_of_the_committing_role_tells_so_many_and_no_more(running: Running, held: Held) -> None:
    """Also where many batches have a few subscribers each."""
    crowd = Crowd(running, "crowd/#", AT_ONCE_MAX)
    bus, peer = running.bus, running.peer()

    def publish() -> list[Future[Receipt]]:
        numbers = range(1, 3 * TURN_MAX // AT_ONCE_MAX)
        return [bus.publish_soon("crowd/x", b"1", producer="p", sequence=number) for number in numbers]

    futures = bus.core.roots.commit.run(publish)  # so that they are one group
    peer.publish("other/x", b"2")
    assert crowd.heard == TURN_MAX
    held.end()
    until(lambda: crowd.heard == len(futures) * AT_ONCE_MAX)


def test_a_publish_to_another_root_is_answered_while_a_crowd_is_told(running: Running, held: Held) -> None:
    crowd = Crowd(running, "crowd/#")
    one, another = running.peer(), running.peer()
    asked = one.publish_soon("crowd/x", b"1")
    for _ in range(3):
        another.publish("other/x", b"2")
    assert crowd.heard == 0
    one.ping()
    assert not [frame for frame in one.inbox if frame.kind == Kind.PUBLISHED], "not all were told"
    held.end()
    one.published(asked)
    assert crowd.heard == CROWD


def test_the_order_of_a_root_stays(running: Running, held: Held) -> None:
    """Also for those who hear of little of it, and for what nobody waits for."""
    crowd = Crowd(running, "crowd/#", 300)
    peer, reader = running.peer(), running.peer()
    reader.subscribe(1, "crowd/#")
    for number in range(10):
        topics = ["crowd/x", "crowd/y"] if number % 3 == 0 else "crowd/x"
        asked = peer.publish_soon(topics, b"%d" % number, flags=QUIET if number % 3 == 1 else 0)
    held.end()
    peer.published(peer.publish_soon("crowd/x", b"10"))
    assert asked
    heard = [b"".join(sorted(set(payloads), key=int)) for payloads in crowd.all[0].heard]
    assert b"".join(heard) == b"012345678910"
    assert all(one.heard == crowd.all[0].heard for one in crowd.all)
    assert [int(one) for one in dict.fromkeys(reader.payloads(1, 15))] == list(range(11))


@pytest.mark.parametrize("flags", [0, QUIET])
def test_every_live_subscription_of_a_connection_gets_each_message_once(running: Running, flags: int) -> None:
    count = 2 * AT_ONCE_MAX
    peer, reader = running.peer(), running.peer()
    for number in range(1, count + 1):
        reader.subscribe(number, "crowd/#")
    for number in range(20):
        peer.publish_soon("crowd/x", b"%d" % number, flags=flags if number % 4 else 0)
    for number in range(1, count + 1):
        assert [int(payload) for payload in reader.payloads(number, 20)] == list(range(20))
    reader.quiet()


def test_who_comes_while_a_crowd_is_told_hears_of_what_comes_after(running: Running, held: Held) -> None:
    crowd = Crowd(running, "crowd/#", 200)
    topics = [f"crowd/{number}" for number in range(600)]  # they are looked up some at a time
    peer, late = running.peer(), running.peer()
    first = peer.publish_soon(topics, b"1")
    peer.ping()
    late.subscribe(1, "crowd/#")
    asked = peer.publish_soon(topics, b"2")
    held.end()
    peer.published(first)
    peer.published(asked)
    assert set(late.payloads(1, 600)) == {b"2"}
    assert crowd.heard == 2 * 200


def test_who_leaves_while_a_crowd_is_told_hears_of_nothing_more(running: Running, held: Held) -> None:
    Crowd(running, "crowd/#")
    with running.bus.subscribe("crowd/#") as live:
        asked = (peer := running.peer()).publish_soon("crowd/x", b"1")
        peer.ping()
    held.end()
    peer.published(asked)
    with pytest.raises(headwater.Closed):
        live.batch(1, timeout_s=0)


def test_more_than_may_wait_is_told_at_once(running: Running, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "WAITING_BYTES_MAX", 3 * fan_out.BATCH_WEIGHT)
    crowd = Crowd(running, "crowd/#", 300)
    peer = running.peer()
    asked = [peer.publish_soon("crowd/x", b"%d" % number, producer="p", sequence=number) for number in range(1, 6)]
    until(lambda: crowd.heard >= 300)  # though nobody is told in a turn of the loop
    held.end()
    peer.published(asked[-1])
    assert [payload for (payload,) in crowd.all[-1].heard] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_server_that_stops_has_told_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    with headwater.open(":memory:") as bus:
        with Running(bus=bus) as running:
            Held(running, monkeypatch)
            crowd = Crowd(running, "crowd/#")
            bus.publish("crowd/x", b"1")  # a thread that is blocked is not kept until all are told
            assert crowd.heard == 0
            crowd.turns.is_over = True
        assert crowd.heard == CROWD
        bus.publish("crowd/x", b"2")
        assert crowd.heard == 2 * CROWD, "without a server, nobody else would tell them"


def test_what_waits_for_the_next_turn_is_done_between_very_many_reads(running: Running) -> None:
    woken: list[int] = []

    class Sleeper:
        is_rung = False

        def on_wake(self) -> None:
            woken.append(1)

    def read_on() -> int:
        (connection,) = running.server.listener.connections
        running.server.wakes.ring(Sleeper())
        for _ in range(bell.READS_IN_TURN):
            connection.hear(b"")
        return len(woken)

    with running.peer():
        assert running.call(read_on) == 1


def test_the_newest_batch_stays_in_memory_for_all_who_read_it() -> None:
    config = Config(tail_bytes=16 * 1024)
    with headwater.open(":memory:", config) as bus:
        for size, is_held in ((20_000, True), (30_000, True), (1000, True), (100_000, False)):
            (receipt,) = bus.publish_many([("crowd/x", bytes(size))])
            held = bus.core.roots.all()[0].stream.held
            assert (held(receipt.offset, 1 << 20) is not None) is is_held
        assert held(1, 1 << 20) is None, "no more than the newest"


def test_a_large_batch_is_read_from_disk_once_for_all_who_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [0]

    def counted(seed: Seed, data: bytes, at: int = 0) -> Batch | None:
        found = read_batch(seed, data, at)
        read[0] += found is not None
        return found

    monkeypatch.setattr(stream, "read_batch", counted)
    with headwater.open(tmp_path, Config(tail_bytes=1)) as bus:
        topics = [f"crowd/{number}" for number in range(50)]
        consumers = [bus.subscribe(topic, id=topic) for topic in topics]
        bus.publish_many([(topic, bytes(30_000)) for topic in topics])
        for topic, consumer in zip(topics, consumers, strict=True):
            (message,) = consumer.batch(2, timeout_s=0)
            assert (message.topic, len(message.payload)) == (topic, 30_000)
    assert read[0] == 1
