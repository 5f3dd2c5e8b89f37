"""What nodes state about those they pass on: believed once, and from nodes alone."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from cluster.following import SECRET
from headwater.clock import ManualClock, SystemClock
from headwater.cluster import preamble
from headwater.cluster.preamble import SIGNATURE, TOLERANCE_S, Preambles
from headwater.errors import HeadwaterError, Malformed, NotAllowed, QuotaExceeded

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
CLIENT = ("203.0.113.7", 4711)


def at(clock: ManualClock | None = None, door: str = "native", node: str = "n1", secret: bytes = SECRET) -> Preambles:
    return Preambles(secret, door, node, clock or SystemClock())


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        (CLIENT, CLIENT),
        (("2001:db8::7", 1), ("2001:db8::7", 1)),
        (("::ffff:203.0.113.7", 65535), ("203.0.113.7", 65535)),
        (("fe80::1%eth0", 9), ("fe80::1", 9)),
        (("unix", 0), ("0.0.0.0", 0)),
    ],
)
def test_the_address_that_is_stated_is_the_one_that_is_believed(said: tuple[str, int], believed: tuple[str, int]):
    assert at().believe(at().pack(said)) == believed


def test_it_is_as_other_software_reads_proxy_protocol():
    said = at().pack(CLIENT, ("192.0.2.1", 7411))
    assert said[:16] == SIGNATURE + b"\x21\x11" + struct.pack("!H", len(said) - 16)
    assert said[16:28] == bytes((203, 0, 113, 7, 192, 0, 2, 1)) + struct.pack("!HH", 4711, 7411)
    assert said[28:31] == b"\xe0" + struct.pack("!H", len(said) - 31)


@given(st.integers(0, 86), st.integers(1, 255))
def test_a_preamble_of_which_anything_was_changed_is_not_believed(place: int, change: int):
    said = bytearray(at().pack(CLIENT))
    said[place] ^= change
    with pytest.raises((NotAllowed, Malformed)):
        at().believe(bytes(said))


@pytest.mark.parametrize(
    "other", [at(secret=b"another"), at(door="mqtt"), at(node="n2")], ids=["secret", "door", "node"]
)
def test_what_is_meant_for_another_is_not_believed(other: Preambles):
    with pytest.raises(NotAllowed, match="secret"):
        at().believe(other.pack(CLIENT))


def test_what_was_said_once_is_not_believed_again():
    here, said = at(), at().pack(CLIENT)
    here.believe(said)
    with pytest.raises(NotAllowed, match="said before"):
        here.believe(said)


@pytest.mark.parametrize("apart_s", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_what_is_old_or_ahead_of_its_time_is_not_believed(apart_s: float):
    clock = ManualClock()
    said = at(clock).pack(CLIENT)
    clock.jump(apart_s)
    with pytest.raises(NotAllowed, match="NTP"):
        at(clock).believe(said)


def test_what_was_believed_is_remembered_as_long_as_it_would_be_believed_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(preamble, "REMEMBERED_MAX", 2)
    clock = ManualClock()
    here = at(clock)
    first = at(clock).pack(CLIENT)
    for said in (first, at(clock).pack(CLIENT)):
        here.believe(said)
    with pytest.raises(QuotaExceeded):
        here.believe(at(clock).pack(CLIENT))
    clock.advance(2 * TOLERANCE_S - 1)
    with pytest.raises(NotAllowed):
        here.believe(first)
    clock.advance(2)
    assert here.believe(at(clock).pack(CLIENT)) == CLIENT


def heard(new_loop: Callable[[], asyncio.AbstractEventLoop], pieces: list[bytes], ends: bool = False) -> object:
    """What is made of a connection that says these pieces, and what is left of them."""

    async def play() -> object:
        loop = asyncio.get_running_loop()
        here, there = _pair()
        with here, there:
            here.setblocking(False)
            reading = loop.create_task(at().read(loop, here))
            for piece in pieces:
                there.sendall(piece)
                await asyncio.sleep(0.01)
            if ends:
                there.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(5.0):
                stated = await reading
            try:
                return stated, here.recv(4096)
            except BlockingIOError:
                return stated, b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(play())


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
        return here, there


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_comes_behind_a_preamble_stays_for_the_connection(new_loop: Callable[[], asyncio.AbstractEventLoop]):
    assert heard(new_loop, [at().pack(CLIENT) + b"hello"]) == (CLIENT, b"hello")


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_preamble_may_come_in_pieces(new_loop: Callable[[], asyncio.AbstractEventLoop]):
    said = at().pack(CLIENT)
    pieces = [said[:1], said[1:5], said[5:12], said[12:17], said[17:], b"more"]
    assert heard(new_loop, pieces) == (CLIENT, b"more")


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("said", [b"\x10\x0c\x00\x04MQTT", b"GET / HTTP/1.1\r\n", b"\r", b"\r\n\r\nGET", b"\x0d\0\0\0"])
def test_an_ordinary_connection_loses_none_of_its_bytes(new_loop: Callable[[], asyncio.AbstractEventLoop], said: bytes):
    assert heard(new_loop, [said[:1], said[1:] + b"!"]) == (None, said + b"!")


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("size", [0, 1, 11, 12, 40])
def test_one_that_ends_in_the_middle_is_let_go(new_loop: Callable[[], asyncio.AbstractEventLoop], size: int):
    with pytest.raises(ConnectionError):
        heard(new_loop, [at().pack(CLIENT)[:size]] if size else [], ends=True)


@pytest.mark.parametrize(
    "said",
    [
        SIGNATURE + b"\x20\x00\x00\x00",
        SIGNATURE + b"\x21\x11\xff\xff" + b"x" * 65535,
        SIGNATURE + b"\x21\x11\x00\x0c" + b"x" * 12,
    ],
    ids=["local", "long", "another proxy's"],
)
def test_other_preambles_are_refused(said: bytes):
    with pytest.raises(HeadwaterError):
        heard(asyncio.new_event_loop, [said[:2000]])
