"""The link to a server: one connection after another, and requests that are answered over them.

    IDLE ── open ──▶ UP ── lost ──▶ DOWN ── connected ──▶ UP
                     │               │
                     └──── close, or given up ────▶ CLOSED

Promises: a request is answered once, or fails once; one whose connection was lost is sent again if that can do no
harm, and else fails with an error that says so; whoever asked to hear of a new connection hears of it before anything
that arrives on it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count
from typing import Any, Protocol

import msgspec

from headwater.client.clock import ServedClock
from headwater.client.connection import FIRST_ID, Connection, Greeted, connect, decode_answer
from headwater.client.kept_session import KeptSession
from headwater.client.places import Places
from headwater.client.url import Address
from headwater.config import Connecting
from headwater.delivery.options import OnResume
from headwater.errors import Closed, Disconnected, HeadwaterError, SteppedDown, TimedOut, Unavailable
from headwater.message import this_process
from headwater.wire import requests as wire
from headwater.wire.frame import Frame, Kind
from headwater.wire.handshake import Limits
from headwater.wire.operations import OPERATIONS, REPLIES, Trait
from headwater.wire.request import A, Request
from headwater.wire.requests import Goodbye, Problem, Registered, error_of, pack_request

IDS = (1 << 32) - FIRST_ID
"""Request numbers that there are."""
ANSWERS = frozenset((int(Kind.REPLY), int(Kind.ERROR)))
STEADY_S = 1.0
"""A connection that lasted for so long was a good one: the next delay is a short one again."""
FINAL = frozenset((401, 403, 409))
"""Codes of errors after which reconnecting is of no use."""


class LinkState(Enum):
    """How a link is."""

    IDLE = "was not opened"
    UP = "is up"
    DOWN = "is down"
    CLOSED = "is closed"


class Watcher(Protocol):
    """Callbacks of a link."""

    def on_up(self, registered: Registered) -> None:
        """There is a new connection."""

    def on_down(self) -> None:
        """The connection was lost."""

    def on_end(self, error: HeadwaterError) -> None:
        """There will be no more connections."""

    def on_writable(self) -> None:
        """The transport takes bytes again after back-pressure."""

    def on_batch_frame(self, frame: Frame) -> None:
        """A frame about messages has arrived."""


class _Asked(msgspec.Struct, eq=False):
    """A request that waits for its answer."""

    request: Request[Any] | None
    future: asyncio.Future[Any]
    was_repeated: bool = False

    @property
    def is_repeatable(self) -> bool:
        return self.request is not None and Trait.AGAIN in OPERATIONS[type(self.request)].traits


class Link:
    """A way to a server that reconnects by itself."""

    def __init__(
        self, address: Address, settings: Connecting, clock: ServedClock, watcher: Watcher, *, is_shared: bool = False
    ) -> None:
        """With `is_shared`, threads beside the loop's read and write, too."""
        self.address = address
        self._places = Places(address)
        self.session: str | None = None
        self.state = LinkState.IDLE
        self.limits: Limits
        self.connections = 0
        """How many there were."""
        self.bus = ""
        """The id of the bus that the last connection reached."""
        self.on_resume: OnResume = "keep"
        """What is asked for the dead letters of its session, whenever it is resumed."""
        self.client_id = ""
        """What the server calls this client, on the last connection."""
        self._settings = settings
        self._clock = clock
        self._watcher = watcher
        self._is_shared = is_shared
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._numbers = count()
        self._asked: dict[int, _Asked] = {}
        self._again: list[_Asked] = []
        self._up = asyncio.Event()
        self._up_s = 0.0
        self._tries = 0
        self._reconnecting: asyncio.Task[None] | None = None
        self._ended: HeadwaterError | None = None
        self._trouble: HeadwaterError | None = None
        """Why the last connection was lost, or could not be made."""

    # Opening and closing

    async def open(self, kept: KeptSession | None = None) -> None:
        """Connect for the first time, with the session that is wanted; what goes wrong is raised."""
        if kept is not None and kept.id is not None:
            self.session = kept.id
        else:
            kept = None
        self._begin(await self._first(kept))

    async def _first(self, kept: KeptSession | None) -> Greeted:
        """A connection with the first place that lets this client in. Where one answers that it cannot for now, as
        while the nodes of a cluster change who leads, all are asked again for as long as a connection may take."""
        if self._places.count == 1:
            return await self._connect(kept)
        until_s = self._loop.time() + self._settings.connect_timeout_s
        refusal: HeadwaterError | None = None
        while True:
            for _ in range(self._places.count):
                try:
                    return await self._connect(kept)
                except Disconnected as error:
                    last: HeadwaterError = error
                except (Unavailable, TimedOut) as error:
                    last = refusal = error
                self._places.next()
            if refusal is None or self._loop.time() >= until_s:
                raise refusal or last
            await asyncio.sleep(self._delay_s())

    async def _connect(self, kept: KeptSession | None = None) -> Greeted:
        here = this_process()
        wanted = wire.Register(
            session=self.session,
            expire_after_s=self._settings.session_expire_after_s,
            waits=kept is not None,
            on_resume=self.on_resume,
            host=here.host[: wire.HOST_CHARS_MAX],
            pid=here.pid,
        )
        place, silence_s = self._places.now, self._settings.silence_s_max if self._places.count > 1 else None
        greeted = await connect(place, self._settings, wanted, self._clock.correct, kept, silence_s)
        found = greeted.registered.bus
        if self._places.count > 1 and self.bus and found and found != self.bus:
            greeted.connection.close(Goodbye(end_session=True))
            raise Disconnected(
                f"{place} serves another bus (id {found}) than the one before it (id {self.bus}); name nodes of one "
                "cluster alone"
            )
        return greeted

    def _begin(self, greeted: Greeted) -> None:
        self.limits = greeted.welcome.limits
        self.session, self.bus = greeted.registered.session, greeted.registered.bus
        self.client_id = greeted.welcome.client_id
        self._connection = greeted.connection
        self._numbers = count()
        self.state = LinkState.UP
        self.connections += 1
        self._up_s = self._loop.time()
        self._watcher.on_up(greeted.registered)
        self._ask_again(greeted.registered)
        self._up.set()
        greeted.connection.use(self._on_frame, self._on_lost, self._watcher.on_writable)
        if self._is_shared:
            greeted.connection.share()

    def _ask_again(self, registered: Registered) -> None:
        """What was asked before; a subscription that the session has by now is no longer asked for."""
        again, self._again = self._again, []
        there = {found.number: found for found in registered.subscriptions}
        for asked in again:
            if asked.future.done():
                continue
            found = there.get(asked.request.number) if isinstance(asked.request, wire.Subscribe) else None
            if found is not None:
                asked.future.set_result(found)
                continue
            asked.was_repeated = True
            self._send_request(asked)

    def close(self, end_session: bool = True) -> Connection | None:
        """Say goodbye; nothing is asked any more. The connection, which has yet to send what waits."""
        connection, self._connection = self._connection, None
        if self.state is not LinkState.CLOSED:
            self._end(Closed(f"the connection to {self.address} is closed; connect again"))
        if connection is not None:
            connection.close(Goodbye(end_session=end_session))
        return connection

    def leave_at_end(self, end_session: bool) -> None:
        """Say goodbye at the end of the process, whose loop may be closed: the bytes leave if the socket takes them."""
        if self._connection is not None:
            self._connection.close(Goodbye(end_session=end_session))

    def _end(self, error: HeadwaterError) -> None:
        self.state = LinkState.CLOSED
        self._ended = error
        if self._reconnecting is not None and self._reconnecting is not asyncio.current_task(self._loop):
            self._reconnecting.cancel()
        asked, self._asked = self._asked, {}
        again, self._again = self._again, []
        for one in (*asked.values(), *again):
            if not one.future.done():
                one.future.set_exception(error)
        self._up.set()
        self._watcher.on_end(error)

    # Reconnecting

    def _on_lost(self, error: HeadwaterError) -> None:
        if self.state is not LinkState.UP:
            return
        connection, self._connection = self._connection, None
        self.state = LinkState.DOWN
        self._trouble = error
        self._up.clear()
        self._part()
        self._watcher.on_down()
        goodbye = connection.goodbye if connection is not None else None
        self._places.on_lost(goodbye)
        if _is_final(error) and not (goodbye is not None and goodbye.reconnect):
            self._end(error)
            return
        self._reconnecting = self._loop.create_task(self._reconnect())

    def _part(self) -> None:
        """Requests whose answer will not come: to be sent again if they are idempotent, else failed."""
        asked, self._asked = self._asked, {}
        for one in asked.values():
            if one.future.done():
                continue
            if one.is_repeatable:
                self._again.append(one)
            else:
                what = type(one.request).__name__ if one.request is not None else "it"
                one.future.set_exception(
                    Disconnected(
                        f"the connection to {self.address} was lost before {what} was answered; whether it was done is "
                        "not known: look, and ask again if need be"
                    )
                )

    async def _reconnect(self) -> None:
        settings = self._settings
        began_s = self._loop.time()
        if began_s - self._up_s >= STEADY_S:
            self._tries = 0
        while True:
            await asyncio.sleep(self._delay_s())
            try:
                greeted = await self._connect()
            except HeadwaterError as error:
                self._trouble = error
                if _is_final(error):
                    self._end(error)
                    return
                self._places.next()
            else:
                self._begin(greeted)
                return
            limit_s = settings.reconnect_s_max
            if limit_s is not None and self._loop.time() - began_s >= limit_s:
                self._end(
                    Disconnected(
                        f"{self.address} could not be reached for {limit_s} s (reconnect_s_max), given up; the last "
                        f"error was: {self._trouble}"
                    )
                )
                return

    def _delay_s(self) -> float:
        """At once at first, then longer and longer, half of it drawn so that clients do not come back in step."""
        settings = self._settings
        grown_s = settings.reconnect_delay_s * 2.0 ** min(self._tries // self._places.count, 30)
        self._tries += 1
        longest_s = min(grown_s, settings.reconnect_delay_s_max)
        return longest_s * random.uniform(0.5, 1.0)

    # Requests

    async def request(self, request: Request[A], timeout_s: float | None = None) -> A:
        """What a request is answered with; waits for a connection if there is none."""
        if timeout_s is None and Trait.LONG not in OPERATIONS[type(request)].traits:
            timeout_s = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.until_up()
                answer: A = await self._ask(request)
                return answer
        except TimeoutError:
            if self.state is not LinkState.UP:
                raise Disconnected(
                    f"{self.address} cannot be reached since {timeout_s} s; the last error was: {self._trouble}"
                ) from None
            raise TimedOut(
                f"{self.address} did not answer {type(request).__name__} within {timeout_s} s (request_timeout_s)"
            ) from None

    async def until_up(self) -> None:
        """Return once there is a connection."""
        while self.state is not LinkState.UP:
            self.check_open()
            await self._up.wait()

    def check_open(self) -> None:
        """Raises why there is no more connection, if that is so."""
        if self._ended is not None:
            raise renewed(self._ended)

    async def _ask(self, request: Request[Any]) -> Any:
        asked = _Asked(request, self._loop.create_future())
        self._send_request(asked)
        try:
            return await asked.future
        except HeadwaterError as error:
            if asked.was_repeated and isinstance(request, wire.Unsubscribe) and error.code == 404:
                return None  # the first time did it
            raise renewed(error) from None

    def ask(self, pack: Callable[[int], Sequence[bytes]]) -> asyncio.Future[Any]:
        """Send a frame that is answered with an empty REPLY; fails with the connection."""
        asked = _Asked(None, self._loop.create_future())
        if self.state is LinkState.UP:
            self._send_asked(asked, pack)
        else:
            asked.future.set_exception(self._ended or self._trouble or Disconnected("there is no connection"))
        return asked.future

    def _send_request(self, asked: _Asked) -> None:
        request = asked.request
        assert request is not None
        self._send_asked(asked, lambda number: (pack_request(number, request),))

    def _send_asked(self, asked: _Asked, pack: Callable[[int], Sequence[bytes]]) -> None:
        number = self.new_id()
        pieces = pack(number)  # what cannot be packed is not asked, now or on the next connection
        self._asked[number] = asked
        self.send(pieces)

    def new_id(self) -> int:
        """A number for the next frame that is answered; from any thread."""
        return FIRST_ID + next(self._numbers) % IDS

    def send(self, pieces: Sequence[bytes]) -> bool:
        """Send a frame, if there is a connection: whether there is."""
        if self._connection is None:
            return False
        self._connection.send(pieces)
        return True

    def send_now(self, pieces: Sequence[bytes]) -> bool:
        """Send a frame in this thread, whichever it is; False if that cannot be at once, and nothing was done."""
        connection = self._connection
        return connection is not None and connection.send_now(pieces)

    def read_until(self, is_there: Callable[[], bool], timeout_s: float | None) -> None:
        """Read in this thread, which is none of the loop's, until something is there, as long as that can be."""
        connection = self._connection
        if connection is not None:
            connection.read_until(is_there, timeout_s)

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self.state is LinkState.UP

    @property
    def is_writable(self) -> bool:
        """Whether there is a connection, without back-pressure."""
        return self._connection is not None and self._connection.is_writable

    # Received frames

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.ERROR and self._leads_no_more(frame):
            return
        if frame.kind in ANSWERS:
            asked = self._asked.pop(frame.id, None)
            if asked is not None:
                self._answer(asked, frame)
                return
            if frame.kind == Kind.REPLY:
                return  # whoever asked has given up
        self._watcher.on_batch_frame(frame)

    def _leads_no_more(self, frame: Frame) -> bool:
        """Whether the node at the other end has ceased to lead, and does not know what becomes of what is under way:
        that is parted with it, and goes to the next as after any lost connection."""
        problem: Problem = decode_answer(frame, Problem, self.address)
        if problem.kind != SteppedDown.__name__ or self._connection is None:
            return False
        self._connection.fail(Disconnected(problem.text))
        return True

    def _answer(self, asked: _Asked, frame: Frame) -> None:
        if asked.future.done():
            return
        try:
            asked.future.set_result(self._read_answer(asked, frame))
        except HeadwaterError as error:
            asked.future.set_exception(error)

    def _read_answer(self, asked: _Asked, frame: Frame) -> Any:
        if frame.kind == Kind.ERROR:
            raise error_of(decode_answer(frame, Problem, self.address))
        type_ = REPLIES[type(asked.request)] if asked.request is not None else None
        return decode_answer(frame, type_, self.address) if type_ is not None else None


def _is_final(error: HeadwaterError) -> bool:
    return error.code in FINAL and not error.retryable


def renewed(error: HeadwaterError) -> HeadwaterError:
    """The same error with a traceback of its own: one that many wait for is raised to each of them."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made
