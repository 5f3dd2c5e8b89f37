"""A connection: bytes to and from one client, whatever protocol it speaks.

What is sent waits in the transport, whose fill decides whether more is taken for the client; who has too much on its
hands holds the connection, and nothing is read from it until all let go. Promises: nothing is read from a client that
does not take its answers; however many publishes it has under way, no more than the limits are.
"""

from __future__ import annotations

import asyncio
import select
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headwater.errors import HeadwaterError, Unauthenticated
from headwater.server.bell import READS_IN_TURN
from headwater.server.outbox import GATHER_READ_BYTES_MIN, GATHERED_BYTES_MAX
from headwater.server.party import Host, Party, Waiter

if TYPE_CHECKING:
    from headwater.access.grant import Grant
    from headwater.server.accepting import Peer
    from headwater.server.entry import Served
    from headwater.server.holdings import Holding, Holdings
    from headwater.server.turns import Turns

JOINED_BYTES_MAX = 16 * 1024
"""Smaller bodies are copied behind their head; larger ones are handed to the transport on their own."""
SHARES = 16
"""A publish counts so much among those in flight;"""
QUIET_SHARE = 1
"""one that nobody waits for this, as a slow disk need not hold up what live subscriptions have at once."""

FRAME_BYTES_PER_S = 64 * 1024
"""A frame that comes at this speed may take as long as it likes."""

EXPIRED = "the token has expired; come back with another"


LEFT = getattr(select, "POLLRDHUP", 0)
"""What the system says of a peer that sends no more;"""
GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
"""of one that is not there any more."""


class Elsewhere(NamedTuple):
    """Where clients are to go on, each as host:port; empty where that is not known."""

    native: str = ""
    mqtt: str = ""
    mqtts: str = ""


class Connection(asyncio.BufferedProtocol):
    """One client's line."""

    __slots__ = (
        "_begun_bytes",
        "_begun_until_s",
        "_gathered",
        "_gathered_bytes",
        "_holds",
        "_is_full",
        "_is_held_for",
        "_publish_bytes",
        "_publishes",
        "_requests",
        "_transport",
        "_unsent_bytes",
        "address",
        "begun_s",
        "buffer",
        "bytes_in",
        "bytes_out",
        "claimed",
        "client_id",
        "closed_s",
        "credential",
        "expires_s",
        "grant",
        "has_tls",
        "heard_s",
        "holding",
        "host",
        "is_closed",
        "is_cut",
        "is_in_line",
        "is_inner",
        "is_known",
        "is_own",
        "is_passed_on",
        "is_writable",
        "listener",
        "network",
        "pid",
        "request_bytes",
        "session",
        "stated",
        "turns",
        "user",
        "waiter",
        "waits",
        "written_s",
    )

    def __init__(self, listener: Host, *, is_inner: bool = False) -> None:
        self.listener = listener
        self.is_inner = is_inner
        """Whether it came through the door that only the server's own processes know."""
        self.is_own = False
        """Whether it is that of the process that serves HTTP: it is nobody's client, and asks for everybody."""
        self.is_passed_on = False
        """Whether another process passes it on, which is yet to say for whom."""
        self.stated: Peer | None = None
        """Where another node that passes it on says that it comes from."""
        self.buffer = listener.buffer
        """What is read into: a small part of the listener's buffer as long as nobody knows who it is."""
        self.address = ""
        self.network = ""
        """Whom its share is counted with: the address, or the network that somebody with one of its addresses has."""
        self.user = ""
        self.claimed = ""
        """Who it says it is, until it has shown that, and if it cannot."""
        self.credential: object = None
        """Of a user in the registry of clients: what it was checked against. With another one it is to leave."""
        self.grant: Grant | None = None
        """What the token that it came with allows, besides rules."""
        self.expires_s = 0.0
        """When that token does, and the connection ends; 0 without one."""
        self.client_id = ""
        self.host = ""
        """The name of its machine, as the client tells it,"""
        self.pid = 0
        """and the number of its process there; 0 if it does not."""
        self.waits = False
        """Whether the subscriptions of its session go on only as each is subscribed to again."""
        self.session: Party | None = None
        self.waiter: Waiter | None = None
        """Who is at work on finding out who it is."""
        self.turns: Turns | None = None
        """In whose order it is heard as long as nobody knows who it is, and leaves; None if in nobody's."""
        self.is_known = True
        self.has_tls = False
        """Whether it is encrypted."""
        self.is_in_line = False
        """Whether it waits for others who were to be found out about first."""
        self.begun_s = 0.0
        self.bytes_in = self.bytes_out = 0
        """Read and written since then, as the client's protocol has them: without TLS."""
        self.heard_s = 0.0
        self.closed_s = 0.0
        """When it was closed, though bytes may wait to be sent."""
        self.written_s = 0.0
        """When the client last took something, or the transport last had room."""
        self.is_writable = True
        self.is_closed = False
        self.is_cut = False
        """Whether the other side ended it without a word."""
        self.holding: Holding | None = None
        """What its client's connections hold; None until it is registered, and for the server's own processes."""
        self.request_bytes = 0
        """How large the request is that is being handed on."""
        self._is_held_for = False
        """Whether it is among its client's connections."""
        self._begun_bytes = 0
        """How much has come of a frame that has not ended,"""
        self._begun_until_s = 0.0
        """and until when the rest has to get on."""
        self._holds = 0
        self._publishes = 0
        self._publish_bytes = 0
        self._requests = 0
        self._is_full = False
        """Since others last had their turn."""
        self._unsent_bytes = 0
        self._gathered: list[bytes] | None = None
        self._gathered_bytes = 0
        self._transport: asyncio.Transport | None = None

    # What its language says

    @property
    @abstractmethod
    def language(self) -> str:
        """What it speaks, and in which version, as people call it."""

    @abstractmethod
    def take(self, data: memoryview) -> None:
        """Bytes have come; raises what is wrong with them."""

    def drop_partial(self) -> None:
        """Hold nothing of a frame that has not ended, and take nothing more: for who says `note_begun`."""

    @abstractmethod
    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        """Say what was wrong, and close."""

    @abstractmethod
    def say_goodbye(
        self, error: HeadwaterError | None = None, reconnect: bool = False, elsewhere: Elsewhere | None = None
    ) -> None:
        """Say why it ends, and where to go on, and close it."""

    @abstractmethod
    def answers(self, items: Sequence[Served]) -> bytes:
        """What the client is told about publishes that are on disk, or refused."""

    @abstractmethod
    def look_after(self, now_s: float) -> None:
        """See whether the client is still there, and gets on."""

    def sweep(self, now_s: float) -> None:
        """See what has become of it; called about once a second."""
        if self.is_closed:
            if now_s - self.closed_s > self.listener.serving.linger_s:
                self.abort()
        elif self.is_stalled(now_s):
            self.abort()
        elif self.expires_s and now_s >= self.expires_s:
            self.expire()
        elif not self.is_held:
            self.look_after(now_s)

    def expire(self) -> None:
        """The token that it came with counts no more: it may come back with another."""
        self.say_goodbye(Unauthenticated(EXPIRED), reconnect=True)

    # The transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.has_tls = transport.get_extra_info("sslcontext") is not None
        self._limit_writes(self.listener.serving.hello_bytes_max)
        self.begun_s = self.heard_s = self.listener.loop.time()
        self.listener.on_connection(self)

    def _limit_writes(self, bytes_max: int) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=bytes_max, low=bytes_max // 4)

    def limit_reads(self, buffer: memoryview) -> None:
        """Read no more than this at once; where there is TLS, no more than that waits to be read either."""
        self.buffer = buffer
        limit = getattr(self._transport, "set_read_buffer_limits", None)
        if limit is not None:
            limit(high=len(buffer))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        listener = self.listener
        self.heard_s = listener.loop.time()
        self.bytes_in += nbytes
        data = listener.buffer[:nbytes]
        if self.is_known or self.turns is None or self.turns.is_heard(self, data):
            self.hear(data)
        if nbytes == len(listener.buffer):
            self._on_full_read()

    def hear(self, data: memoryview | bytes) -> None:
        """Take what was read, and have sent what follows from it."""
        listener = self.listener
        outbox, wakes = listener.outbox, listener.wakes
        outbox.is_open = len(data) >= GATHER_READ_BYTES_MIN
        wakes.is_looking = True
        try:
            self.take(memoryview(data))
        except HeadwaterError as error:
            self.refuse(error)
        finally:
            wakes.is_looking = False
            if wakes.rung:
                wakes.wake()
            if outbox.is_open:
                outbox.post()
        wakes.reads += 1
        if wakes.reads >= READS_IN_TURN:
            wakes.interrupt()
        listener.attention.on_read(self)

    def _on_full_read(self) -> None:
        """There is more, and the loop would read on for as long as this client sends: others have their turn first."""
        if not self._holds:
            self.hold()
            self.listener.loop.call_soon(self.release)

    def eof_received(self) -> bool:
        """The client sends no more. True keeps the transport until it is this connection's turn to leave."""
        return not self.is_closed and self.turns is not None and not self.turns.is_leaving(self)

    def leave(self) -> None:
        """Close the transport, as it would have been when the client ended its side."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = not self.is_closed
        self.is_closed = True
        self.listener.on_lost(self)
        self.let_go()

    def let_go(self) -> None:
        """It is gone: hold nothing that came, and nobody who holds it, so that nothing is left to the collector."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.cancel()
        self._gathered, self._gathered_bytes = None, 0
        self._transport = None
        self._drop_begun()
        if self.holding is not None and self._is_held_for:
            self._is_held_for = False
            self.holding.leave(self)

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
            self.heard_s = self.listener.loop.time()
            self.on_released()
            self._transport.resume_reading()

    def on_released(self) -> None:
        """It is read on: a frame that has begun has all its time again."""
        self._begun_until_s = self.heard_s + self.listener.serving.frame_s

    # What it holds of what has come

    def hold_for(self, holdings: Holdings) -> None:
        """It is known whose it is: what it holds is its client's from now on."""
        self.holding = holdings.of(self.share)
        self._is_held_for = True
        self.holding.begin(self._begun_bytes)

    def note_begun(self, size: int, *, is_another: bool) -> None:
        """So much has come of a frame that has not ended: of another one than before, or more of the same. It has
        `frame_s` to get on, and what comes of it at `FRAME_BYTES_PER_S` gives it that back."""
        more = size - self._begun_bytes
        if size:
            until_s = self.heard_s + self.listener.serving.frame_s
            if not is_another:
                until_s = min(until_s, self._begun_until_s + more / FRAME_BYTES_PER_S)
            self._begun_until_s = until_s
        if more:
            self._begun_bytes = size
            if self.holding is not None:
                self.holding.begin(more)

    def _drop_begun(self) -> None:
        """What has come of a frame is of no use any more, however long the end of the connection takes."""
        begun, self._begun_bytes = self._begun_bytes, 0
        if begun:
            self.drop_partial()
            if self.holding is not None:
                self.holding.begin(-begun)

    def check_holding(self) -> None:
        """Have it wait if its client's connections hold too much; QuotaExceeded (429) if that would be for ever."""
        holding = self.holding
        if holding is not None and holding.bytes > holding.bytes_max and self._begun_bytes and not self.is_closed:
            holding.wait(self)

    def is_dripping(self, now_s: float) -> bool:
        """Whether a frame has begun that does not get on."""
        return self._begun_bytes > 0 and now_s > self._begun_until_s

    @property
    def is_held(self) -> bool:
        """Whether nothing is read at the moment."""
        return self._holds > 0

    def on_publish(self, weight: int, share: int = SHARES) -> None:
        """One more publish is on its way to disk."""
        self._publishes += share
        self._publish_bytes += weight
        holding = self.holding
        if holding is not None:
            holding.bytes += weight
            if holding.bytes > holding.bytes_max and weight:
                holding.wait(self)
        serving = self.listener.serving
        if not self._is_full and (
            self._publishes >= serving.publishes_in_flight_max * SHARES
            or self._publish_bytes >= serving.publish_bytes_in_flight_max
        ):
            self._is_full = True
            self.hold()

    def on_published(self, items: Sequence[Served]) -> None:
        """Publishes are on disk, or refused."""
        self.write(self.answers(items))
        self.on_landed(sum([item.weight for item in items]), sum([item.share for item in items]))

    def on_landed(self, weight: int, share: int) -> None:
        """So much is not on its way to disk any more."""
        self._publishes -= share
        self._publish_bytes -= weight
        if self.holding is not None:
            self.holding.give_back(weight)
        serving = self.listener.serving
        if (
            self._is_full
            and self._publishes < serving.publishes_in_flight_max * SHARES
            and self._publish_bytes < serving.publish_bytes_in_flight_max
        ):
            self._is_full = False
            self.release()

    def on_request(self) -> int:
        """One more request is worked on; how large it is."""
        self._requests += 1
        size, holding = self.request_bytes, self.holding
        if holding is not None and size:
            holding.bytes += size
            if holding.bytes > holding.bytes_max:
                holding.wait(self)
        if self._requests == self.listener.serving.requests_in_flight_max:
            self.hold()
        return size

    @property
    def is_asking(self) -> bool:
        """Whether it waits for the answer to a request."""
        return self._requests > 0

    def on_answered(self, size: int) -> None:
        """A request is answered, which was so large."""
        if self.holding is not None and size:
            self.holding.give_back(size)
        if self._requests == self.listener.serving.requests_in_flight_max:
            self.release()
        self._requests -= 1

    # Others send.

    def write(self, data: bytes) -> None:
        """Send bytes, in the order of these calls."""
        if not data or self.is_closed or self._transport is None:
            return
        self.bytes_out += len(data)
        if self.listener.outbox.is_open:
            self._gather((data,), len(data))
        else:
            self._transport.write(data)

    def write_batch(self, head: bytes, body: bytes) -> None:
        """Send a head and the body that others may be sent too."""
        if self.is_closed or self._transport is None:
            return
        self.bytes_out += len(head) + len(body)
        if self.listener.outbox.is_open:
            self._gather((head, body), len(head) + len(body))
        elif len(body) <= JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def _gather(self, pieces: Sequence[bytes], size: int) -> None:
        if self._gathered is None:
            self._gathered = []
            self.listener.outbox.add(self)
        self._gathered += pieces
        self._gathered_bytes += size
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self.post()

    def post(self) -> None:
        """Send what was gathered."""
        pieces, size = self._gathered, self._gathered_bytes
        if pieces is None:
            return
        self._gathered, self._gathered_bytes = None, 0
        if self.is_closed or self._transport is None:
            return
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def is_stalled(self, now_s: float) -> bool:
        """Whether bytes wait for a client that has taken none of them for too long."""
        if self.is_writable:
            return False
        waiting = self.waiting_bytes
        if waiting < self._unsent_bytes:
            self.written_s = now_s
        self._unsent_bytes = waiting
        return now_s - self.written_s > self.listener.serving.write_stalled_s

    @property
    def waiting_bytes(self) -> int:
        """What was written and not sent yet."""
        if self._transport is None or self.is_closed:
            return 0
        return self._transport.get_write_buffer_size() + self._gathered_bytes

    def close(self) -> None:
        """Send what waits, then end."""
        if not self.is_closed and self._transport is not None:
            self.post()
            self.is_closed = True
            self.closed_s = self.listener.loop.time()
            self._drop_begun()
            self._transport.close()

    def finish(self) -> None:
        """Say no more, and end once the client does, or has had its time: what it still sends is passed over, as a
        reset for it would overtake what was said last."""
        if self.is_closed or self._transport is None:
            return
        if not self._transport.can_write_eof():
            self.close()
            return
        self.post()
        self.is_closed = True
        self.closed_s = self.listener.loop.time()
        self._drop_begun()
        self._transport.write_eof()
        self._transport.resume_reading()
        party, self.session = self.session, None
        if party is not None:
            party.on_lost(self)

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self.is_closed = True
            self._transport.abort()

    @property
    def share(self) -> str:
        """Whose share what it makes counts in: its user's; without authentication, its address's and client id's. Empty
        for the server's own processes, who speak for others."""
        if self.is_inner:
            return ""
        return self.user if self.listener.serving.auth != "none" else f"{self.address}/{self.client_id}"

    @property
    def peer_certificate(self) -> Any:
        """The TLS connection, if it is one."""
        return self._transport.get_extra_info("ssl_object") if self._transport is not None else None

    @property
    def is_hung_up(self) -> bool:
        """Whether the client has gone, which is not noticed as long as nothing is read from it."""
        made = self._transport.get_extra_info("socket") if self._transport is not None else None
        descriptor = made.fileno() if made is not None and not self.is_closed else -1
        return descriptor >= 0 and self._is_over(hung_up(descriptor))

    def _is_over(self, events: int) -> bool:
        """Whether there is nobody, by what the system says of the other end."""
        return events != 0

    @property
    def peer(self) -> object:
        """Where it comes from."""
        if self.stated is not None:
            return self.stated
        return self._transport.get_extra_info("peername") if self._transport is not None else None


def hung_up(descriptor: int) -> int:
    """What the system says of the other end of a socket: LEFT, GONE, or 0 while it is there."""
    asked = select.poll()
    asked.register(descriptor, LEFT)
    found = asked.poll(0)
    return found[0][1] & (LEFT | GONE) if found else 0
