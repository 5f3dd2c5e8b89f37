"""A connection: a client that speaks the native protocol.

It splits what arrives into frames, lets through only what the handshake's table allows, and hands the rest on.
Promises: a client that breaks the rules gets one ERROR frame and is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError, Malformed, TimedOut
from headwater.server.connection import Connection, Elsewhere
from headwater.server.party import Host
from headwater.wire import handshake
from headwater.wire.batches import pack_published
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import IN_USE
from headwater.wire.reader import FrameReader
from headwater.wire.requests import Goodbye, encode, pack_error, problem_of

if TYPE_CHECKING:
    from headwater.native.greeting import Greeting
    from headwater.server.entry import Served

PING = pack(Kind.PING)
GREETING = handshake.Phase.GREETING
REGISTERED = handshake.Phase.REGISTERED
EARLY = "a login or a registration was not answered yet; nothing may be sent before it is"

SPEAKS_HTTP = "this is HTTP, and this port is for clients of Headwater; the API is at 7480 if no other was said"
OTHER_PROTOCOLS = {
    b"\x16\x03": "this is TLS, and this port speaks none: begin the address with headwater://",
    b"GET ": SPEAKS_HTTP,
    b"POST": SPEAKS_HTTP,
}
"""What others begin with, and what they are told, or the server's log."""
MQTT_CONNECT = b"\x10"
SPEAKS_MQTT = "this is MQTT, and this port is for clients of Headwater; MQTT is at 1883 if no other was said"


class NativeConnection(Connection):
    """One client's connection."""

    __slots__ = ("_reader", "behind", "greeting", "reads_only", "state")

    def __init__(self, listener: Host, greeting: Greeting, *, is_inner: bool = False) -> None:
        super().__init__(listener, is_inner=is_inner)
        self.state = handshake.Phase.GREETING
        self.greeting = greeting
        """Who handles its frames until the handshake is through."""
        self.reads_only = False
        """Whether it asked to be served by any node, and so changes nothing."""
        self.behind: list[Frame] | None = None
        """What came behind a long publish that is being checked; None while none is."""
        self._reader = FrameReader(listener.serving.hello_bytes_max)

    @property
    def language(self) -> str:
        return "Headwater"

    def take(self, data: memoryview) -> None:
        reader, session = self._reader, self.session
        had_begun = reader.partial is not None
        try:
            frames = reader.feed(data)
        except HeadwaterError:
            if self.state is GREETING and (advice := _other_protocol(data)):
                raise Malformed(advice) from None
            raise
        waiting = 0 if reader.partial is None else reader.waiting_bytes
        if had_begun or waiting:
            self.note_begun(waiting, is_another=not had_begun or len(frames) > 0)
        if session is None:
            self._greet(frames)
        elif frames:
            if self.state is not REGISTERED:
                raise Malformed(EARLY)
            for frame in frames:
                if frame.kind not in IN_USE:
                    handshake.step(self.state, frame)
            session.tell(frames)
        if reader.error is not None and not self.is_closed:
            raise reader.error
        if waiting:
            self.check_holding()

    def _greet(self, frames: list[Frame]) -> None:
        for place, frame in enumerate(frames):
            if self.is_closed:
                return
            if self._holds:
                # A login or a registration is not through: what comes behind it must not be taken for what comes after.
                raise Malformed(EARLY)
            self.state = handshake.step(self.state, frame)
            self.greeting.on_frame(self, frame)
            if self.session is not None:
                if frames[place + 1 :]:
                    raise Malformed(EARLY)
                return

    def let_go(self) -> None:
        super().let_go()
        self._reader.let_go()

    def drop_partial(self) -> None:
        self._reader.let_go()

    def open(self, frame_bytes_max: int) -> None:
        """The handshake is through: frames may be long from here on, and more may wait to be sent."""
        self._reader.bytes_max = frame_bytes_max
        self._reader.is_pieced = True
        self._limit_writes(self.listener.serving.write_bytes_max)

    def answers(self, items: Sequence[Served]) -> bytes:
        frames = b""
        done: list[tuple[int, bool, int, int]] = []
        for item in items:
            if item.is_quiet:
                continue
            if item.error is not None:
                frames += pack_error(item.id, item.error)
            else:
                _, first, time_us, is_repeat = item.runs[0]
                done.append((item.id, is_repeat, first, time_us))
        return frames + pack_published(done) if done else frames

    def look_after(self, now_s: float) -> None:
        silent_s, serving = now_s - self.heard_s, self.listener.serving
        if self.is_dripping(now_s):
            self.refuse(Malformed("a frame has begun and does not get on (frame_s)"))
        elif silent_s > 2 * serving.keepalive_s:
            self.say_goodbye(TimedOut("nothing was heard of you, not even an answer to PING"))
        elif silent_s > serving.keepalive_s and self.session is not None:
            self.write(PING)

    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        """Say what was wrong, and close."""
        self.listener.on_refused(self, error)
        self.write(pack_error(id, error))
        self.close()

    def say_goodbye(
        self, error: HeadwaterError | None = None, reconnect: bool = False, elsewhere: Elsewhere | None = None
    ) -> None:
        """Say why the connection ends, and where to go on, and close it."""
        problem = problem_of(error) if error is not None else None
        address = elsewhere.native if elsewhere is not None else ""
        self.write(pack(Kind.GOODBYE, 0, encode(Goodbye(problem=problem, reconnect=reconnect, address=address))))
        self.close()


def _other_protocol(data: memoryview) -> str:
    """What to say to a client that speaks something else, as its first bytes tell; nothing if they do not."""
    first = bytes(data[:16])
    if first.startswith(MQTT_CONNECT) and b"MQTT" in first:
        return SPEAKS_MQTT
    return next((advice for begins, advice in OTHER_PROTOCOLS.items() if first.startswith(begins)), "")
