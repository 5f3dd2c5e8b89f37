"""A passage: two connections whose bytes are each other's, from a client to the leader and back.

    client ── outer ──▶ inner ── leader
           ◀─────────────────────

Nothing is read from one side while bytes wait for the other. What one side ends, the other is told; when one is gone,
the other has `linger_s` to take what is left.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from headwater.config import Serving
from headwater.server.accepting import Peer
from headwater.wire.frame import HEADER, HEADER_BYTES, Kind
from headwater.wire.handshake import READS

if TYPE_CHECKING:
    from headwater.cluster.doors import Way
    from headwater.cluster.leader import Leader

CHUNK_BYTES = 32 * 1024
"""What is read at once; no more is read while as much waits for the other side."""
TCP_ESTABLISHED = 1
"""What the system calls a connection of which neither side has ended anything."""
PROBE = b"GET /"
PROBES = (b"GET /readyz ", b"GET /readyz?", b"GET /healthz ", b"GET /healthz?")
PROBE_BYTES = max(map(len, PROBES))
LINE_BYTES_MAX = 8 * 1024
KIND_AT = 4
HELLO = bytes((Kind.HELLO,))
"""How the first frame of a native client is told from anything else, and where that stands."""
END_OF_HEAD = b"\r\n\r\n"


class Passage:
    """A client's connection, and the one to the leader that goes with it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.outer = Side(self)
        self.inner = Side(self)
        self.client: Peer = ("", 0)
        self.leader: Leader | None = None
        """To whom it leads; None until it is connected."""
        self.was_open = False
        """Whether it was passed on."""
        self.is_over = self.reads_only = self.is_here = False
        """Whether all is over; whether the client only reads; and if so, whether it does so at this node."""
        self._early = b""
        """What the client said before there was a leader: one chunk, or the beginning of a request, which may be a
        probe."""
        self._ended_s: float | None = None
        self._begun = self._is_waiting = False

    # Called by its sides

    def on_made(self, side: Side) -> None:
        """A side is connected."""
        if side is self.inner:
            if self.is_over:
                side.abort()
            return
        self.client = _peer_of(side)
        self.way.on_begin(self)

    def on_early(self, data: bytes) -> None:
        """The client has said something before there is a leader to take it: the rest waits."""
        said = self._early = self._early + data
        if not self.way.looks_first or self._begun:
            self._wait()
            return
        if self.way.serves_readers:
            if len(said) >= HEADER_BYTES or not HELLO.startswith(said[KIND_AT : KIND_AT + 1]):
                self._take_on()
            return
        if any(probe.startswith(said) for probe in PROBES if len(said) < len(probe)):
            return
        if said.startswith(PROBES) and END_OF_HEAD not in said and len(said) < LINE_BYTES_MAX:
            return
        self._wait()
        if said.startswith(PROBES):
            self.outer.write(self.way.answer(said.split(b" ", 2)[1].decode("latin-1")))
            self.outer.close()
            return
        self._begun = True
        self.way.take_on(self)

    def on_early_end(self) -> None:
        """The client says no more, and has said little."""
        if self.way.serves_readers and not self._begun:
            self._take_on()

    def _take_on(self) -> None:
        self._wait()
        self._begun, self.reads_only = True, reads_only(self._early)
        self.way.take_on(self)

    def _wait(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.outer.hold()

    def other(self, side: Side) -> Side:
        """The one at the other end."""
        return self.inner if side is self.outer else self.outer

    def on_lost(self, side: Side, is_broken: bool) -> None:
        """A side is gone: the other is to send what it has, and go."""
        if side is self.inner and not side.was_open:
            return  # a try that came to nothing
        other = self.other(side)
        if is_broken:
            other.abort()
        elif not other.is_gone:
            self._ended_s = self.way.loop.time()
            other.close()
        if self.outer.is_gone and (self.inner.is_gone or not self.inner.was_open):
            self.is_over = True
            self.way.on_end(self)

    # Called by its way

    def open(self, preamble: bytes) -> None:
        """The leader is there."""
        self.inner.was_open = True
        if not self.was_open:
            self.was_open = True
            self.way.on_open(self)
        early, self._early = self._early, b""
        self.inner.write(preamble + early)
        if self._is_waiting:
            self.outer.release()
        if self.outer.has_ended:
            self.inner.end()

    def forget_inner(self) -> None:
        """A leader was not reached; the next is tried over another connection."""
        self.inner.abort()
        self.inner = Side(self)

    def abort(self) -> None:
        """End both at once."""
        self.is_over = True
        self.outer.abort()
        self.inner.abort()

    def sweep(self, now_s: float, serving: Serving) -> None:
        """See whether it gets on."""
        is_left_over = self._ended_s is not None and now_s - self._ended_s > serving.linger_s
        is_stalled = any(side.is_stalled(now_s, serving.write_stalled_s) for side in (self.outer, self.inner))
        if is_left_over or is_stalled or self._is_idle_probe(now_s, serving):
            self.abort()

    def _is_idle_probe(self, now_s: float, serving: Serving) -> bool:
        is_waiting = self.way.looks_first and not self._begun
        return is_waiting and now_s - self.outer.made_s > serving.handshake_s


class Side(asyncio.BufferedProtocol):
    """One end of a passage."""

    def __init__(self, passage: Passage) -> None:
        self.made_s = 0.0
        self.is_gone = False
        self.has_ended = False
        """Whether its peer says no more."""
        self.was_open = False
        self._passage = passage
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        self._stalled_s: float | None = None
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CHUNK_BYTES, low=0)
        self.made_s = self._passage.way.loop.time()
        made = transport.get_extra_info("socket")
        if made is not None:
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._passage.on_made(self)

    @property
    def has_left(self) -> bool:
        """Whether its peer says no more, though not all that it said was read."""
        made = self._transport.get_extra_info("socket") if self._transport is not None else None
        if made is None or not hasattr(socket, "TCP_INFO"):
            return self.has_ended
        try:
            state: int = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return True
        return state != TCP_ESTABLISHED

    @property
    def peername(self) -> object:
        """Where it comes from."""
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._passage.way.doors.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._passage.way.doors.buffer[:nbytes])
        other = self._passage.other(self)
        if other.was_open or self is self._passage.inner:
            other.write(data)
        else:
            self._passage.on_early(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        other = self._passage.other(self)
        if other.was_open or self is self._passage.inner:
            other.end()
            if other.has_ended:
                other.close()
            return not other.has_ended
        self._passage.on_early_end()
        return self._passage.leader is None and not self._passage.is_over

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._transport = None
        self._passage.on_lost(self, exc is not None)

    def pause_writing(self) -> None:
        self._stalled_s, self._waiting = self._passage.way.loop.time(), self._unsent
        self._passage.other(self).hold()

    def resume_writing(self) -> None:
        self._stalled_s = None
        self._passage.other(self).release()

    @property
    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def is_stalled(self, now_s: float, stalled_s: float) -> bool:
        """Whether bytes wait for a peer that has taken none of them for so long."""
        if self._stalled_s is None:
            return False
        waiting = self._unsent
        if waiting < self._waiting:
            self._stalled_s = now_s
        self._waiting = waiting
        return now_s - self._stalled_s > stalled_s

    def hold(self) -> None:
        """Read nothing more for now."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on, unless it is held for something else."""
        self._holds -= 1
        if self._holds == 0 and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def end(self) -> None:
        """Say that there is no more."""
        if self._transport is not None and not self._transport.is_closing():
            with suppress(OSError):
                self._transport.write_eof()

    def close(self) -> None:
        """Send what waits, and end."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()


def reads_only(said: bytes) -> bool:
    """Whether a native client says in its first frame that it only reads."""
    if len(said) < HEADER_BYTES:
        return False
    _, kind, flags, _, _ = HEADER.unpack_from(said)
    return bool(kind == Kind.HELLO and flags & READS)


def _peer_of(side: Side) -> Peer:
    peer = side.peername
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) > 1 else ("", 0)
