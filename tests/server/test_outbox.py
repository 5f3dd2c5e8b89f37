"""What a long read has sent leaves together, in order, and whatever comes of the read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headwater.errors import TooLarge
from headwater.server.outbox import GATHER_READ_BYTES_MIN, GATHERED_BYTES_MAX
from headwater.store.batch import checksum
from headwater.wire import batches
from server.harness import Peer, Running, make_body

PAYLOAD = b"x" * 500


class Counting:
    """A transport that counts what is written to it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._inner.write(data)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.writes.append(sum(map(len, pieces)))
        self._inner.writelines(pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def running() -> Iterator[Running]:
    with Running() as running:
        running.bus.publish("home/x", b"0")
        yield running


def said(*payloads: bytes) -> bytes:
    """Frames of two messages each, that nobody waits for."""
    frames = b""
    for number, payload in enumerate(payloads, 1):
        body = make_body(["home/x"] * 2, [payload, b"%d" % number])
        frames += b"".join(batches.pack_publish(number, "home", 2, checksum(body), body, flags=batches.QUIET))
    return frames


def read(running: Running, peer: Peer, received: bytes) -> None:
    """Have the server find these bytes in one read."""
    line = running.session_of(peer).connection

    def do() -> None:
        line.listener.buffer[: len(received)] = received
        line.buffer_updated(len(received))

    running.call(do)


def counted(running: Running, peer: Peer) -> list[int]:
    """How long each of the writes to a peer is, from now on."""
    line = running.session_of(peer).connection
    line._transport = Counting(line._transport)
    writes: list[int] = line._transport.writes
    return writes


def numbers(peer: Peer, count: int) -> list[bytes]:
    return [one.payload for one in peer.take(1, 2 * count)][1::2]


def test_frames_of_one_read_leave_with_one_write_for_each_subscriber(running: Running) -> None:
    ann, bob, eve = (running.peer() for _ in range(3))
    bob.subscribe(1, "home/#")
    eve.subscribe(1, "home/x")
    writes = counted(running, bob), counted(running, eve)
    frames = said(*[PAYLOAD] * 40)
    assert len(frames) >= GATHER_READ_BYTES_MIN
    read(running, ann, frames)
    assert [len(each) for each in writes] == [1, 1]
    wanted = [b"%d" % number for number in range(1, 41)]
    assert numbers(bob, 40) == numbers(eve, 40) == wanted


def test_what_a_short_read_has_sent_leaves_at_once(running: Running) -> None:
    ann, bob = running.peer(), running.peer()
    bob.subscribe(1, "home/#")
    writes = counted(running, bob)
    read(running, ann, said(b"1", b"2"))
    assert len(writes) == 2
    assert numbers(bob, 2) == [b"1", b"2"]


def test_no_more_than_so_much_is_gathered(running: Running) -> None:
    ann, bob = running.peer(), running.peer()
    bob.subscribe(1, "home/#")
    bob.subscribe(2, "home/x")
    writes = counted(running, bob)
    received = said(*[b"x" * 20_000] * 12)
    read(running, ann, received)
    assert len(writes) == 2
    assert GATHERED_BYTES_MAX <= writes[0] < GATHERED_BYTES_MAX + 21_000
    assert numbers(bob, 12) == [b"%d" % number for number in range(1, 13)]


def test_what_was_gathered_leaves_before_the_error_that_ends_the_connection(running: Running) -> None:
    ann, bob = running.peer(), running.peer()
    ann.subscribe(1, "home/#")
    bob.subscribe(1, "home/#")
    read(running, ann, said(*[PAYLOAD] * 40) + b"\xff" * 16)
    assert numbers(ann, 40) == numbers(bob, 40) == [b"%d" % number for number in range(1, 41)]
    assert isinstance(ann.ends(), TooLarge)
