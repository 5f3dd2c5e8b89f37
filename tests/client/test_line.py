"""Threads beside the loop's that read a connection, and write to it."""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict
from typing import Any

import pytest

from client.conftest import Connect
from client.peer import Peer, Talk
from client.test_feed import payloads, read, settle, subscribe
from client.test_link import in_thread
from headwater import Closed, Gap, TimedOut
from headwater.client.connection import Connection
from headwater.client.line import Line
from headwater.store.body import Body
from headwater.wire import requests as wire
from headwater.wire.batches import read_publish
from headwater.wire.frame import Kind
from headwater.wire.requests import decode
from server.site import until

WAIT_S = 60.0

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="the loop alone reads and writes here")


def line_of(bus: Any) -> Line:
    line = bus._client.link._connection._line
    assert isinstance(line, Line)
    return line


def wait_until_read(bus: Any) -> None:
    """Until a thread that waits for something reads."""
    line = line_of(bus)
    until(line._turn.locked)


def test_who_waits_reads_and_the_loop_reads_when_nobody_does(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[str] = []
    take = Connection.take_elsewhere

    def noted(connection: Connection, size: int) -> bool:
        took.append(threading.current_thread().name)
        return take(connection, size)

    monkeypatch.setattr(Connection, "take_elsewhere", noted)
    bus, talk = connect()
    live, request = subscribe(bus, talk)

    def wait() -> list[bytes]:
        threading.current_thread().name = "waits"
        return payloads(live.batch(10, WAIT_S))

    waiting = in_thread(wait)
    wait_until_read(bus)
    talk.deliver(request.number, 1, [b"1"])
    assert waiting() == [b"1"]
    assert took == ["waits"]
    talk.deliver(request.number, 2, [b"2"])
    settle(bus, talk)
    assert payloads(live.batch(10, 0)) == [b"2"]
    assert took == ["waits"]


def test_what_the_loop_looks_at_keeps_its_place_between_messages(connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    waiting = in_thread(lambda: live.batch(10, WAIT_S))
    wait_until_read(bus)
    with Together(talk):
        talk.deliver(request.number, 1, [b"1"])
        talk.notice(request.number, "gap", Gap("a", 2, 5, "gone"))
        talk.deliver(request.number, 6, [b"6"])
    assert payloads(waiting()) == [b"1"]
    with pytest.raises(Gap):
        live.batch(10, WAIT_S)
    assert payloads(live.batch(10, WAIT_S)) == [b"6"]


def test_no_thread_waits_for_bytes_while_the_loop_has_yet_to_look_at_some(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, talk = connect()
    history, request = read(bus, talk, "replay")
    line, look = line_of(bus), Connection._take_behind
    reads: list[bool] = []

    def look_late(connection: Connection) -> None:
        if connection._behind and not reads:
            until(lambda: history._feed._waiting > 0)  # not for bytes: it had its turn, and gave it back
            reads.append(line._turn.locked())
        look(connection)

    monkeypatch.setattr(Connection, "_take_behind", look_late)
    waiting = in_thread(lambda: payloads(list(history)))
    wait_until_read(bus)
    with Together(talk):
        talk.deliver(request.number, 1, [b"1"])
        talk.notice(request.number, "over")
    assert waiting() == [b"1"]
    assert reads == [False]


class Together:
    """What is said within leaves at once."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._said: list[bytes] = []

    def __enter__(self) -> None:
        self._talk.send = lambda *pieces: self._said.extend(pieces)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del self._talk.send
        self._talk.send(*self._said)


def test_what_each_thread_sends_leaves_in_the_order_of_its_calls(connect: Connect) -> None:
    bus, talk = connect()
    first = in_thread(lambda: bus.request("rpc/x", b"?", timeout_s=0.01))
    talk.subscribed()
    with pytest.raises(TimedOut):
        first()
    talk.publish()
    rounds, padding = 40, bytes(50_000)  # more than the socket takes at once

    def work(thread: int) -> None:
        for place in range(0, 2 * rounds, 2):
            bus.request_soon("rpc/x", b"%d %d " % (thread, place) + padding)
            bus.send("rpc/x", b"%d %d " % (thread, place + 1) + padding)

    working = [in_thread(lambda thread=thread: work(thread)) for thread in range(4)]
    places: dict[bytes, list[int]] = defaultdict(list)
    while sum(map(len, places.values())) < 4 * 2 * rounds:
        for message in Body(read_publish(talk.next(Kind.PUBLISH)).body).messages(1):
            thread, place, _ = message.payload.split(b" ")
            places[thread].append(int(place))
    for done in working:
        done()
    assert list(places.values()) == [list(range(2 * rounds))] * 4


def test_a_thread_that_is_interrupted_while_it_takes_has_the_connection_made_anew(
    peer: Peer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, talk = connect()
    follow, request = read(bus, talk, "follow")

    def interrupted(_: Connection, size: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "take_elsewhere", interrupted)
    waiting = in_thread(lambda: follow.batch(10, WAIT_S))
    wait_until_read(bus)
    talk.deliver(request.number, 1, [b"lost"])
    with pytest.raises(KeyboardInterrupt):
        waiting()
    monkeypatch.undo()
    again = peer.talk()
    request = again.subscribed()
    assert request.after is None
    again.deliver(request.number, 1, [b"lost"])
    assert payloads(follow.batch(10, WAIT_S)) == [b"lost"]


def test_whoever_reads_goes_on_over_the_next_connection(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, _ = subscribe(bus, talk)
    waiting = in_thread(lambda: live.batch(10, WAIT_S))
    wait_until_read(bus)
    talk.cut()
    again = peer.talk()
    again.deliver(again.subscribed().number, 1, [b"1"])
    assert payloads(waiting()) == [b"1"]


def test_a_damaged_batch_that_another_thread_reads_ends_the_connection(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    waiting = in_thread(lambda: live.batch(10, WAIT_S))
    wait_until_read(bus)
    talk.deliver(request.number, 1, [b"bad"], crc=1)
    again = peer.talk()
    again.deliver(again.subscribed().number, 1, [b"good"])
    assert payloads(waiting()) == [b"good"]


def test_a_close_wakes_whoever_reads_and_gives_all_files_back(connect: Connect) -> None:
    before = len(os.listdir("/proc/self/fd"))
    bus, talk = connect()
    live, _ = subscribe(bus, talk)
    waiting = in_thread(lambda: live.batch(10, WAIT_S))
    wait_until_read(bus)
    line = line_of(bus)
    bus.close()
    with pytest.raises(Closed):
        waiting()
    assert decode(talk.next(Kind.GOODBYE).payload, wire.Goodbye) == wire.Goodbye(end_session=True)
    assert line._socket.fileno() == -1
    talk.cut()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_what_a_thread_reads_counts_as_heard(connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    connection = bus._client.link._connection
    assert connection is not None
    waiting = in_thread(lambda: live.batch(10, WAIT_S))
    wait_until_read(bus)
    connection._heard_s = -1e9
    talk.deliver(request.number, 1, [b"1"])
    assert payloads(waiting()) == [b"1"]
    bus._loop.call_soon_threadsafe(connection._check_silence)
    settle(bus, talk)
    assert bus._client.link.connections == 1
