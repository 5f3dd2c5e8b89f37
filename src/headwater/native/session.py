"""A session of a client that speaks the native protocol.

It handles the frames of its connection, one after another, asks the broker who may, and passes on what is allowed:
publishes to the roots, acks and credit to its pumps, the rest to the bus in a thread. Promises: an error is
answered to whoever asked and disturbs nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from headwater.delivery.listeners import Hearing
from headwater.delivery.live import Live
from headwater.delivery.options import NAMES, Options, check_not_of_channel, stated
from headwater.delivery.replay import Reading
from headwater.delivery.start import check_start
from headwater.errors import Conflict, HeadwaterError, Malformed, NotAllowed, NotFound, QuotaExceeded, ReadOnly
from headwater.log.publish import Part
from headwater.native.connection import NativeConnection
from headwater.native.speech import Speech
from headwater.requests import nobody_hears
from headwater.server import pump as served
from headwater.server.answers import Answers
from headwater.server.connection import Connection
from headwater.server.durable_pump import DurablePump
from headwater.server.live_pump import LivePump
from headwater.server.log import Log
from headwater.server.pump import Pump
from headwater.server.reading_pump import ReadingPump
from headwater.server.session import Fresh, Session
from headwater.server.session_row import SubscriptionOf
from headwater.server.side_pools import SidePool
from headwater.server.slices import Slices
from headwater.store.batch import QUIET, checksum
from headwater.topics.name import check_filter
from headwater.wire import batches, requests
from headwater.wire.contents import Publish
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.operations import OPERATIONS, Trait, read_request
from headwater.wire.request import Change, Request
from headwater.wire.requests import Goodbye, Subscribe, Subscribed, decode, encode, pack_error

SINGLY_MAX = 1000
"""Messages of one frame that are tried one by one, if they cannot all be published."""

log = Log("headwater.server")


READS_ONLY = "this connection only reads (?read=any), wherever that is done; connect without it for anything else"


def check_reads(request: Request[Any]) -> None:
    """ReadOnly (503) if a request is none of those that a connection may make which only reads."""
    is_durable = isinstance(request, Subscribe) and request.kind in ("named", "session")
    if is_durable or not OPERATIONS[type(request)].traits & Trait.READS:
        raise ReadOnly(READS_ONLY)


def _given(request: Subscribe) -> dict[str, Any]:
    """The options of a durable subscription that its client has stated."""
    try:
        return stated(request.options)
    except TypeError:
        known = ", ".join(NAMES)
        raise Malformed(f"options are {sorted(request.options)}; those that there are: {known}") from None


class Checked(NamedTuple):
    """A long publish, which a thread has put together and checked."""

    connection: NativeConnection
    frame: Frame
    found: tuple[Publish, Part | HeadwaterError] | None
    error: BaseException | None
    """What is wrong with the frame itself."""


class NativeSession(Speech, Session):
    """One client's session."""

    __slots__ = ()

    @property
    def slices(self) -> Slices:
        return self.sessions.slices

    # Frames

    def receive(self, message: list[Frame] | Checked) -> None:
        if isinstance(message, Checked):
            self._on_checked(message)
            return
        connection, frames = self.connection, message
        assert connection is None or isinstance(connection, NativeConnection)
        for place, frame in enumerate(frames):
            if connection is None or connection is not self.connection or connection.is_closed:
                return  # what came over it counts no more
            if connection.behind is not None:
                connection.behind += frames[place:]
                return
            if frame.pieces:
                self._check(connection, frame)
                continue
            try:
                if frame.kind == Kind.PUBLISH:
                    self._take(connection, frame, batches.read_publish(frame))
                else:
                    self._on_frame(connection, frame)
            except HeadwaterError as error:
                self._refuse(connection, frame, error)

    def _refuse(self, connection: NativeConnection, frame: Frame, error: HeadwaterError) -> None:
        if frame.id == 0 or frame.kind in (Kind.TAKEN, Kind.CREDIT):
            connection.refuse(error)
        else:
            self.sessions.counts.refuse(error.code)
            self.note(logging.DEBUG, "request-refused", code=error.code, reason=str(error))
            connection.write(pack_error(frame.id, error))

    def _check(self, connection: NativeConnection, frame: Frame) -> None:
        """Have a long publish put together and checked in a thread; what comes behind it waits."""
        connection.behind = []
        connection.hold()
        holding, size = connection.holding, sum(map(len, frame.pieces))
        if holding is not None:
            holding.bytes += size
        checks = self.sessions.entry.checks

        def check() -> tuple[Publish, Part | HeadwaterError]:
            publish = batches.read_publish(frame)
            try:
                return publish, checks.body(
                    publish.root, publish.count, publish.crc, publish.body, publish.producer is None
                )
            except HeadwaterError as error:
                return publish, error

        def then(found: tuple[Publish, Part | HeadwaterError] | None, error: BaseException | None) -> None:
            if holding is not None:
                holding.give_back(size)
            self.tell(Checked(connection, frame, found, error))

        self.sessions.side_pools.checks.do(check, then, self.payer)

    def _on_checked(self, checked: Checked) -> None:
        """A long publish was checked: it goes on its way, and what came behind it follows."""
        connection, frame = checked.connection, checked.frame
        behind, connection.behind = connection.behind, None
        try:
            if connection is not self.connection or connection.is_closed:
                return
            try:
                if checked.error is not None:
                    raise checked.error
                assert checked.found is not None
                self._take(connection, frame, *checked.found)
            except HeadwaterError as error:
                self._refuse(connection, frame, error)
            self.receive(behind or [])
        finally:
            connection.release()

    def _on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        match frame.kind:
            case Kind.ACK:
                number, ranges = batches.read_ranges(frame)
                self._pump(number).tell(served.Ack(frame.id, ranges))
            case Kind.TAKEN:
                _, ranges = batches.read_ranges(frame)
                self._tell(frame.id, served.Taken(ranges))
            case Kind.CREDIT:
                self._tell(frame.id, served.Credit(*batches.read_credit(frame)))
            case Kind.REQUEST:
                connection.request_bytes = len(frame.payload)
                try:
                    request = read_request(frame)
                    if connection.reads_only:
                        check_reads(request)
                    self._on_request(frame.id, request)
                finally:
                    connection.request_bytes = 0
            case Kind.PING:
                connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                self._on_goodbye(connection, decode(frame.payload, Goodbye))

    def _take(
        self, connection: NativeConnection, frame: Frame, publish: Publish, found: Part | HeadwaterError | None = None
    ) -> None:
        """Pass a publish on, which was checked or is now."""
        if connection.reads_only:
            raise ReadOnly(READS_ONLY)
        entry, broker = self.sessions.entry, self.sessions.broker
        checks, producer = entry.checks, publish.producer and broker.producer_of(self.row.user, publish.producer)
        is_quiet = bool(frame.flags & batches.QUIET)
        part: Part | None = None
        try:
            if isinstance(found, HeadwaterError):
                raise found
            if found is None:
                found = checks.body(publish.root, publish.count, publish.crc, publish.body, producer is None)
            part = found
            if producer is not None:
                checks.sequence(publish.producer, publish.sequence)
            if part.columns is not None:  # else it is one message without options
                broker.check_headers(part)
            broker.check_publish(self.row.user, self.row.id, part)
            if is_quiet and frame.flags & batches.ASKS:
                self._ask_around(connection, frame.id, part)
            else:
                entry.take(connection, frame.id, part, QUIET if is_quiet else 0, producer, publish.sequence)
        except HeadwaterError:
            if producer is not None:
                broker.core.roots.refusals.note(publish.root, producer, publish.sequence, connection.share)
            if is_quiet:
                stored = self._take_singly(connection, part) if part is not None and producer is None else 0
                self.sessions.counts.unstored += publish.count - stored
            raise

    def _ask_around(self, connection: Connection, id: int, part: Part) -> None:
        """Pass a question on to whoever hears of it, as soon as they can; NoResponders (503) if nobody does."""
        entry, dispatcher, topic = self.sessions.entry, self.sessions.broker.core.dispatcher, part.topics[0]
        if len(part.topics) > 1:
            raise Malformed(f"a question is one message, and these are {len(part.topics)}; ask one after another")
        hearing = dispatcher.listeners.hearing(topic)
        if hearing:
            entry.take(connection, id, part, QUIET, hearing=hearing)
            return

        def then(is_kept: bool, error: BaseException | None) -> None:
            if connection is not self.connection:
                return
            try:
                if error is None and not is_kept:
                    error = nobody_hears(topic)
                if error is None:
                    entry.take(connection, id, part, QUIET, hearing=Hearing.STORED)
            except HeadwaterError as refused:
                error = refused
            if error is not None:
                self.reply(connection, id, None, error)

        self._for_client(lambda: dispatcher.directory.is_wanted(topic), then)

    def _take_singly(self, connection: Connection, part: Part) -> int:
        """Messages that nobody waits for and that cannot all be published: each by itself, as they are of callers who
        know nothing of each other; how many could be."""
        entry, broker, columns = self.sessions.entry, self.sessions.broker, part.columns
        if columns is None or not 1 < columns.count <= SINGLY_MAX:
            return 0
        stored = 0
        for place in range(columns.count):
            data = columns.slice((place,))
            try:
                one = entry.checks.body(part.root, 1, checksum(data), data, may_join=True)
                broker.check_headers(one)
                broker.check_publish(self.row.user, self.row.id, one)
                entry.take(connection, 0, one, QUIET)
                stored += 1
            except HeadwaterError:
                continue
        return stored

    def _on_goodbye(self, connection: Connection, goodbye: Goodbye) -> None:
        if goodbye.end_session:
            self.sessions.end(self)
        connection.close()

    def _pump(self, number: int) -> Pump:
        pump = self.pumps.get(number)
        if pump is None:
            raise NotFound(f"this session has no subscription {number} at the moment; subscribe again")
        return pump

    def _tell(self, number: int, message: object) -> None:
        """For a subscription that may be gone already, which its client has yet to hear."""
        pump = self.pumps.get(number)
        if pump is not None:
            pump.tell(message)

    def on_lost(self, connection: Connection) -> None:
        if connection is self.connection and connection.is_cut:
            for pump in self.pumps.values():
                pump.is_abandoned = True
        super().on_lost(connection)

    # Answers

    def reply(self, connection: Connection | None, id: int, value: object, error: BaseException | None) -> None:
        """Answer a request on the connection that it came from."""
        if connection is None or connection is not self.connection:
            return
        if error is None:
            connection.write(pack(Kind.REPLY, id, encode(value)))
            return
        if isinstance(error, HeadwaterError):
            self.sessions.counts.refuse(error.code)
            self.note(logging.DEBUG, "request-refused", code=error.code, reason=str(error))
        else:
            log.error("request-failed", session=self.row.id, error=repr(error))
        connection.write(pack_error(id, error))

    def answer_when(self, id: int, future: Future[object]) -> None:
        """Answer a request once rows are on disk."""
        self.sessions.answers.expect(self, self.connection, id, future)

    def _ask(self, id: int, work: Callable[[], Any], side: SidePool | None = None) -> None:
        connection = self.connection
        self._for_client(work, lambda value, error: self.reply(connection, id, value, error), side)

    # Requests

    def _on_request(self, id: int, request: Request[Any]) -> None:
        self.sessions.entry.give_places()  # what was published before this is to be before it
        if isinstance(request, Change) and request.by is not None:
            self.sessions.broker.check_admin(self.row.user, "speak for others", self.row.id)
        match request:
            case Subscribe():
                self._on_subscribe(id, request)
            case requests.Nack() | requests.Reject() | requests.Extend():
                self._pump(request.number).tell(served.Failed(id, request))
            case requests.Leave():
                self._on_leave(id, request.number)
            case requests.Unsubscribe():
                self._on_unsubscribe(id, request)
            case requests.Seek():
                pump = self._durable(request.number)
                seek = self.sessions.broker.core.durables.move
                if isinstance(request.to, dict):
                    places = request.to
                    self._ask(id, lambda: seek(pump.durable, places))
                    return
                to = Answers.moment(request.to, request.to_us)
                check_start(pump.filter, to)
                self._ask(id, lambda: seek(pump.durable, to))
            case requests.Pause():
                pump = self._durable(request.number)
                pause = self.sessions.broker.core.dispatcher.pause
                paused = request.paused
                self._ask(id, lambda: pause(pump.durable, paused))
            case requests.Register():
                raise Malformed("this connection has its session already")
            case _:
                side = self.sessions.side_pools.of(OPERATIONS[type(request)])
                self._ask(id, self.sessions.answers.work_for(self, request), side)

    def _durable(self, number: int) -> DurablePump:
        pump = self._pump(number)
        if not isinstance(pump, DurablePump):
            raise Malformed(f"subscription {number} is not durable: it has no place to move, and cannot be paused")
        return pump

    # Subscribing

    def _on_subscribe(self, id: int, request: Subscribe) -> None:
        sessions = self.sessions
        check_filter(request.filter, sessions.broker.core.config)
        # One that outlives the session takes a rule, also for the session's own answers.
        check = sessions.broker.check_named if request.kind == "named" else sessions.broker.check_subscribe
        check(self.row.user, self.row.id, request.filter)
        if not 0 < request.number < 1 << 32:
            raise Malformed(f"subscription number {request.number} is out of range; use 1 to {(1 << 32) - 1}")
        if min(request.credit_messages, request.credit_bytes) < 0:
            raise Malformed("credit is never less than 0")
        if request.kind in ("named", "session") and self._name_of(request) in self._names:
            self._for_client(lambda: None, lambda _, error: self._subscribe_again(id, request, error))
            return
        existing = self._existing(request)
        if existing is not None:
            self.reply(self.connection, id, existing, None)
            return
        if request.number in self.pumps or request.number in self._numbers:
            raise Conflict(f"this session has a subscription {request.number} already; choose another number")
        if len(self.pumps) + len(self._numbers) >= sessions.serving.subscriptions_per_session_max:
            raise QuotaExceeded(
                f"this session has {len(self.pumps)} subscriptions and readings (follow, replay) open, and "
                f"subscriptions_per_session_max is {sessions.serving.subscriptions_per_session_max}; close those that "
                "nobody reads any more (`with bus.follow(…) as reading:` does), or raise the setting"
            )
        credit = (request.credit_messages, request.credit_bytes)
        if request.kind in ("named", "session"):
            self._subscribe_durable(id, request, credit)
        elif request.kind == "live":
            self._subscribe_live(id, request, credit)
        else:
            self._read(id, request, credit)

    def _subscribe_again(self, id: int, request: Subscribe, error: BaseException | None) -> None:
        """What was being made when it was asked for is there by now, or is not."""
        connection = self.connection
        if connection is None:
            return
        try:
            if error is not None:
                raise error
            self._on_subscribe(id, request)
        except HeadwaterError as refusal:
            self.reply(connection, id, None, refusal)

    def _existing(self, request: Subscribe) -> Subscribed | None:
        """The durable subscription that is asked for, if this session has it already, with the options stated."""
        if request.kind not in ("named", "session"):
            return None
        name = self._name_of(request)
        for pump in self.pumps.values():
            if pump.id == name and pump.filter == request.filter and isinstance(pump, DurablePump):
                self.sessions.broker.core.dispatcher.check_in_use(pump.durable.options, _given(request))
                return Subscribed(number=pump.number, id=name, filter=pump.filter, kind=pump.kind, existed=True)
        return None

    def _name_of(self, request: Subscribe) -> str:
        if request.kind == "session":
            return f"{self.row.id}:{request.filter}"
        if not request.id:
            raise Malformed("a named subscription needs an id")
        if self.sessions.owns(request.id):
            raise NotAllowed(f'"{request.id}" is a session\'s own subscription; choose another id')
        check_not_of_channel(request.id)
        return request.id

    def _subscribe_durable(self, id: int, request: Subscribe, credit: tuple[int, int]) -> None:
        name = self._name_of(request)
        start = Answers.moment(request.start, request.start_us)
        check_start(request.filter, start)
        given = _given(request)
        options = Options(id=name, filter=request.filter, **given)
        numbers = self._numbers
        numbers.add(request.number)
        connection = self.connection
        existed = self.sessions.broker.core.dispatcher.row(name) is not None

        def made(pump: DurablePump | None, error: BaseException | None) -> None:
            numbers.discard(request.number)
            if pump is None:
                self.reply(connection, id, None, error)
                return
            answer = Subscribed(
                number=request.number, id=name, filter=request.filter, kind=request.kind, existed=existed
            )
            one = SubscriptionOf(request.number, request.kind, name, request.filter, *credit)
            self._keep(one, lambda _, error: self.reply(connection, id, answer, error))

        self._attach_durable(
            request.number, request.kind, name, request.filter, credit, made, Fresh(options, given, start)
        )

    def _subscribe_live(self, id: int, request: Subscribe, credit: tuple[int, int]) -> None:
        core, owner = self.sessions.broker.core, self.share

        def make() -> Live:
            return core.listen(request.filter, request.when_full, owner)  # type: ignore[arg-type]  # checked

        def serve(live: Live) -> Pump:
            return LivePump(self, request.number, live, credit)

        self._open(request.number, request.filter, make, serve, self._then_tell(id, request))

    def _read(self, id: int, request: Subscribe, credit: tuple[int, int]) -> None:
        core, owner = self.sessions.broker.core, self.share
        since = None if request.since_us is None else Answers.datetime(request.since_us)

        def make() -> Reading:
            follows = request.kind == "follow"
            upto = None if follows else request.upto
            return core.read(request.filter, request.after, since, upto, follows=follows, owner=owner)

        def serve(reading: Reading) -> Pump:
            return ReadingPump(self, request.number, request.kind, reading, credit)

        self._open(request.number, request.filter, make, serve, self._then_tell(id, request))

    def _then_tell(self, id: int, request: Subscribe) -> Callable[[BaseException | None], None]:
        connection = self.connection
        answer = Subscribed(number=request.number, id=None, filter=request.filter, kind=request.kind)
        return lambda error: self.reply(connection, id, answer, error)

    # Leaving

    def _on_leave(self, id: int, number: int) -> None:
        pump = self.pumps.pop(number, None)
        connection = self.connection
        if pump is None:
            raise NotFound(f"this session has no subscription {number}")
        self._let_go(pump)
        if pump.id is not None and pump.kind == "named":
            self._drop_row(pump.id)
        self._for_client(lambda: None, lambda value, error: self.reply(connection, id, value, error))

    def _on_unsubscribe(self, id: int, request: requests.Unsubscribe) -> None:
        sessions, name = self.sessions, request.id
        remove = sessions.answers.work_to_remove(self, name)
        if remove is not None:
            self._ask(id, sessions.answers.as_asked(self, request, remove))
            return
        row = sessions.broker.core.dispatcher.row(name)
        if row is None:
            raise NotFound(f'there is no subscription "{name}"; bus.subscriptions() lists those that are')
        if sessions.owns(name) and not name.startswith(f"{self.row.id}:"):
            raise NotAllowed(f'"{name}" is another session\'s own subscription')
        sessions.broker.check_subscription(self.row.user, self.row.id, name)
        for pump in tuple(self.pumps.values()):
            if pump.id == name:
                del self.pumps[pump.number]
                self._let_go(pump)
        self._drop_row(name)
        durables = sessions.broker.core.durables
        if sessions.owns(name):
            self._ask(id, lambda: durables.expire(name))
        else:
            self._ask(id, sessions.answers.as_asked(self, request, lambda: durables.delete(name, force=True)))
