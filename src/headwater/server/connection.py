"""A connection: bytes of one client, in and out.

It splits what arrives into frames, lets through only what the handshake's table allows, and hands the rest on; what it
sends waits in the transport, whose fill decides whether more is taken for it. Promises: a client that breaks the rules
gets one ERROR frame and is closed; nothing is read from one that does not take its answers.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from headwater.errors import HeadwaterError, Malformed, TimedOut
from headwater.server.party import Host, Party
from headwater.wire import handshake
from headwater.wire.frame import Frame, FrameReader, Kind, pack
from headwater.wire.handshake import IN_USE
from headwater.wire.requests import Goodbye, encode, pack_error, problem_of

JOINED_BYTES_MAX = 16 * 1024
"""Smaller bodies are copied behind their head; larger ones are handed to the transport on their own."""
FRAME_BYTES_PER_S = 64 * 1024
"""A frame that comes at this speed may take as long as it likes."""
SHARES = 16
"""A publish counts so much among those in flight; one that nobody waits for counts 1, as a slow disk need not hold up
what live subscriptions have at once."""
PING = pack(Kind.PING)
REGISTERED = handshake.State.REGISTERED
EARLY = "a login or a registration was not answered yet; nothing may be sent before it is"


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_holds",
        "_is_full",
        "_publish_bytes",
        "_publishes",
        "_reader",
        "_requests",
        "_transport",
        "_unsent_bytes",
        "address",
        "begun_s",
        "client_id",
        "closed_s",
        "frame_s",
        "greeting",
        "has_secret",
        "heard_s",
        "is_closed",
        "is_writable",
        "listener",
        "session",
        "state",
        "user",
        "written_s",
    )

    def __init__(self, listener: Host) -> None:
        self.listener = listener
        self.state = handshake.State.GREETING
        self.address = ""
        self.user = ""
        self.has_secret = False
        """Whether its user is in the registry of clients, and is to leave when removed from it."""
        self.client_id = ""
        self.session: Party | None = None
        self.greeting: object | None = None
        """What the listener keeps until the handshake is through."""
        self.begun_s = 0.0
        self.heard_s = 0.0
        self.frame_s = 0.0
        """When a frame last ended, or one began."""
        self.closed_s = 0.0
        """When it was closed, though bytes may wait to be sent."""
        self.written_s = 0.0
        """When the client last took something, or the transport last had room."""
        self.is_writable = True
        self.is_closed = False
        self._holds = 0
        self._publishes = 0
        self._publish_bytes = 0
        self._requests = 0
        self._is_full = False
        self._unsent_bytes = 0
        self._reader = FrameReader(listener.serving.hello_bytes_max)
        self._transport: asyncio.Transport | None = None

    # The transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._limit_writes(self.listener.serving.hello_bytes_max)
        self.begun_s = self.heard_s = self.listener.loop.time()
        self.listener.on_connection(self)

    def _limit_writes(self, bytes_max: int) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=bytes_max, low=bytes_max // 4)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_s = self.listener.loop.time()
        try:
            had_begun = self._reader.waiting_bytes
            frames = self._reader.feed(self.listener.buffer[:nbytes])
            if frames or not had_begun:
                self.frame_s = self.heard_s
            self._take(frames)
            if self._reader.error is not None and not self.is_closed:
                raise self._reader.error
        except HeadwaterError as error:
            self.refuse(error)
        self.listener.wakes.wake_now()
        self.listener.attention.on_read(self)

    def _take(self, frames: list[Frame]) -> None:
        if frames and self.session is not None:
            if self.state is not REGISTERED:
                raise Malformed(EARLY)
            for frame in frames:
                if frame.kind not in IN_USE:
                    handshake.step(self.state, frame)
            self.session.tell(frames)
            return
        for place, frame in enumerate(frames):
            if self.is_closed:
                return
            if self._holds:
                # A login or a registration is not through: what comes behind it must not be taken for what comes after.
                raise Malformed(EARLY)
            self.state = handshake.step(self.state, frame)
            self.listener.on_frame(self, frame)
            if self.session is not None:
                if frames[place + 1 :]:
                    raise Malformed(EARLY)
                return

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.listener.on_lost(self)

    def pause_writing(self) -> None:
        self.is_writable = False
        self.written_s = self.listener.loop.time()
        self._unsent_bytes = self.waiting_bytes
        self.hold()

    def resume_writing(self) -> None:
        self.is_writable = True
        self.release()
        if self.session is not None:
            self.session.on_writable()

    # Flow: whoever has too much on its hands holds the connection, and nothing is read until all let go.

    def hold(self) -> None:
        """Read nothing more for now."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on, unless somebody else holds."""
        self._holds -= 1
        if self._holds == 0 and self._transport is not None and not self.is_closed:
            self.heard_s = self.frame_s = self.listener.loop.time()
            self._transport.resume_reading()

    @property
    def is_held(self) -> bool:
        """Whether nothing is read at the moment."""
        return self._holds > 0

    def on_publish(self, weight: int, share: int = SHARES) -> None:
        """One more publish is on its way to disk."""
        self._publishes += share
        self._publish_bytes += weight
        serving = self.listener.serving
        if not self._is_full and (
            self._publishes >= serving.publishes_in_flight_max * SHARES
            or self._publish_bytes >= serving.publish_bytes_in_flight_max
        ):
            self._is_full = True
            self.hold()

    def on_published(self, weight: int, shares: int, answers: bytes) -> None:
        """Publishes are on disk, or refused."""
        self._publishes -= shares
        self._publish_bytes -= weight
        self.write(answers)
        serving = self.listener.serving
        if (
            self._is_full
            and self._publishes < serving.publishes_in_flight_max * SHARES
            and self._publish_bytes < serving.publish_bytes_in_flight_max
        ):
            self._is_full = False
            self.release()

    def on_request(self) -> None:
        """One more request is worked on."""
        self._requests += 1
        if self._requests == self.listener.serving.requests_in_flight_max:
            self.hold()

    def on_answered(self) -> None:
        """A request is answered."""
        if self._requests == self.listener.serving.requests_in_flight_max:
            self.release()
        self._requests -= 1

    # Others send.

    def open(self, frame_bytes_max: int) -> None:
        """The handshake is through: frames may be long from here on, and more may wait to be sent."""
        self._reader.bytes_max = frame_bytes_max
        self._limit_writes(self.listener.serving.write_bytes_max)

    def write(self, data: bytes) -> None:
        """Send bytes, in the order of these calls."""
        if data and not self.is_closed and self._transport is not None:
            self._transport.write(data)

    def write_batch(self, head: bytes, body: bytes) -> None:
        """Send a head and the body that others may be sent too."""
        if self.is_closed or self._transport is None:
            return
        if len(body) <= JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def is_stalled(self, now_s: float) -> bool:
        """Whether bytes wait for a client that has taken none of them for too long."""
        if self.is_writable:
            return False
        waiting = self.waiting_bytes
        if waiting < self._unsent_bytes:
            self.written_s = now_s
        self._unsent_bytes = waiting
        return now_s - self.written_s > self.listener.serving.write_stalled_s

    def is_dripping(self, now_s: float) -> bool:
        """Whether a frame has begun that does not get on."""
        waiting = self._reader.waiting_bytes
        return bool(waiting) and now_s - self.frame_s > self.listener.serving.frame_s + waiting / FRAME_BYTES_PER_S

    def look_after(self, now_s: float) -> None:
        """See, every now and then, whether the other side is still there and takes what it is sent."""
        serving = self.listener.serving
        if self.is_closed:
            if now_s - self.closed_s > serving.linger_s:
                self.abort()
        elif self.is_stalled(now_s):
            self.abort()
        elif self.is_held:
            return
        elif self.is_dripping(now_s):
            self.refuse(Malformed("a frame has begun and does not end (frame_s)"))
        elif now_s - self.heard_s > 2 * serving.keepalive_s:
            self.say_goodbye(TimedOut("nothing was heard of you, not even an answer to PING"))
        elif now_s - self.heard_s > serving.keepalive_s and self.session is not None:
            self.write(PING)

    @property
    def waiting_bytes(self) -> int:
        """What was written and not sent yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None and not self.is_closed else 0

    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        """Say what was wrong, and close."""
        self.listener.on_refused(self, error)
        self.write(pack_error(id, error))
        self.close()

    def say_goodbye(self, error: HeadwaterError | None = None, reconnect: bool = False) -> None:
        """Say why the connection ends, and close it."""
        problem = problem_of(error) if error is not None else None
        self.write(pack(Kind.GOODBYE, 0, encode(Goodbye(problem=problem, reconnect=reconnect))))
        self.close()

    def close(self) -> None:
        """Send what waits, then end."""
        if not self.is_closed and self._transport is not None:
            self.is_closed = True
            self.closed_s = self.listener.loop.time()
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self.is_closed = True
            self._transport.abort()

    @property
    def peer_certificate(self) -> Any:
        """The TLS connection, if it is one."""
        return self._transport.get_extra_info("ssl_object") if self._transport is not None else None

    @property
    def peer(self) -> object:
        """Where it comes from."""
        return self._transport.get_extra_info("peername") if self._transport is not None else None
