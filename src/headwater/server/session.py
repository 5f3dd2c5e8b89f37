"""A session: what the broker keeps for a client between its connections, whatever language the client speaks.

It has a pump for each subscription: makes them, lets go of them, starts those that fail again, and ends those
whose right is gone. Promises: without a connection its durable subscriptions wait for it to come back; an answer of one
connection never reaches another.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from headwater.actor import Actor, Offload, Unfinished
from headwater.delivery.lane import Remote
from headwater.delivery.options import Options
from headwater.delivery.rows import RowsItem
from headwater.delivery.selection import Selection
from headwater.delivery.start import Ends, Start
from headwater.errors import Closed, Conflict, HeadwaterError, NotAllowed, NotFound
from headwater.errors import Failed as StorageFailed
from headwater.message import ConsumerInfo
from headwater.server import pump as served
from headwater.server.connection import Connection
from headwater.server.durable_pump import DurablePump
from headwater.server.log import Log
from headwater.server.pump import Pump
from headwater.server.session_row import SessionRow, SubscriptionOf
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.access.grant import Grant
    from headwater.server.sessions import Sessions
    from headwater.server.side_pools import SidePool

log = Log("headwater.server")

WAKES_AT_ONCE = 64
"""Pumps of a session that are woken in the turn in which its connection takes more."""
RESTARTS_MAX = 3
"""Times that a pump is started again by itself; then its client is told to subscribe again."""


class Source(Protocol):
    """What a connection's client reads from while it is there."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Source)


class Fresh(NamedTuple):
    """A durable subscription as it is asked for."""

    options: Options
    given: dict[str, Any]
    """What was stated; the rest is as it was, or the default."""
    start: Start | Ends
    with_retained: bool = True


class Session(Actor):
    """One client's session."""

    __slots__ = (
        "_asked",
        "_held_back",
        "_is_asked",
        "_is_dismissed",
        "_names",
        "_numbers",
        "_offload",
        "_restarts",
        "_to_redrive",
        "_without_room",
        "connection",
        "grant",
        "is_ended",
        "pumps",
        "row",
        "sessions",
        "subscriptions",
    )

    def __init__(self, sessions: Sessions, row: SessionRow) -> None:
        super().__init__(self, sessions.serving.mailbox_max)
        self.sessions = sessions
        self.row = msgspec.structs.replace(row, subscriptions=())
        self.subscriptions: dict[str, SubscriptionOf] = {one.id: one for one in row.subscriptions}
        """By their ids, those that go on when it is resumed, each stored in a row of its own."""
        self.connection: Connection | None = None
        self.grant: Grant | None = None
        """What the token of its last connection allows, besides rules."""
        self.pumps: dict[int, Pump] = {}
        self.is_ended = False
        self._is_dismissed = False
        """Whether its connection is to go once it was answered."""
        self._numbers: set[int] = set()
        """Subscriptions that are being made for the connection."""
        self._to_redrive: set[str] = set()
        """Those whose dead letters come first, as its client has asked when it came back."""
        self._names: set[str] = set()
        """Ids of the durable ones among them."""
        self._restarts: dict[int, int] = {}
        self._held_back: deque[Pump] | None = None
        """Those that may have something to send, and could not,"""
        self._without_room: deque[Pump] | None = None
        """and those of durable subscriptions, who need room, too."""
        self._offload: Offload | None = None
        self._asked: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] | None = None
        """Requests that wait for those before them, and for the client to take its answers."""
        self._is_asked = False
        """Whether one of them is worked on."""

    @property
    def name(self) -> str:
        return self.row.id

    @property
    def payer(self) -> str:
        return self.row.share or self.row.user

    def note(self, level: int, event: str, **fields: object) -> None:
        """A line in the log about it."""
        connection = self.connection
        address = "-" if connection is None else connection.address
        log.at_will(level, event, session=self.row.id, user=self.row.user or "-", address=address, **fields)

    # What its client's language says

    @property
    @abstractmethod
    def room(self) -> int:
        """How many more messages of durable subscriptions its client takes, whatever the credit of each."""

    @property
    @abstractmethod
    def share_max(self) -> int:
        """How many messages it takes at once of a subscription that others take from, too."""

    @abstractmethod
    def deliver(self, pump: Pump, selection: Selection) -> int:
        """Send messages; how many bytes that took of the credit."""

    @abstractmethod
    def recall(self, pump: Pump, ranges: Sequence[Range]) -> None:
        """Say that messages were taken back."""

    @abstractmethod
    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None:
        """Tell the client something about a subscription."""

    @abstractmethod
    def answer_when(self, id: int, future: Future[object]) -> None:
        """Answer what the client asked for once rows are on disk."""

    @property
    def _who(self) -> ConsumerInfo:
        """What is told of its client where it is asked who takes from a subscription."""
        connection, row = self.connection, self.row
        if connection is None:
            return ConsumerInfo(user=row.user, session=row.id)
        return ConsumerInfo(connection.host or connection.address, connection.pid, row.user, row.id)

    @property
    def share(self) -> str:
        """Whose share what its connection makes counts in."""
        return self.connection.share if self.connection is not None else ""

    # Connections come and go

    def attach(self, connection: Connection) -> None:
        """Be served over this connection from now on; one that was there before is told and closed."""
        old = self.connection
        if old is not None:
            by = connection.address
            self.note(logging.INFO, "session-taken-over", by=by, reason="another connection has resumed it")
            old.session = None
            self.connection = None
            old.say_goodbye(Conflict("another connection has taken this session over"))
            self._detach_all()
        self.connection = connection
        self._is_dismissed = False
        self._to_redrive = set()
        self.grant = connection.grant
        connection.session = self

    def redrive_all(self) -> None:
        """Have the dead letters of each subscription that it has come first, as it goes on."""
        self._to_redrive = set(self.subscriptions)

    def on_registered(self, connection: Connection) -> None:
        """The client knows that the session is its own: every durable subscription of it goes on."""
        if connection is self.connection and not connection.waits:
            self._attach_all(tuple(self.subscriptions.values()))

    def _attach_all(self, subscriptions: Sequence[SubscriptionOf]) -> None:
        for one in subscriptions:
            if one.number not in self.pumps:
                numbers = self._numbers
                numbers.add(one.number)
                self._attach_durable(
                    one.number,
                    one.kind,
                    one.id,
                    one.filter,
                    (one.credit_messages, one.credit_bytes),
                    partial(self._resumed, one, numbers),
                )

    def _resumed(
        self,
        one: SubscriptionOf,
        numbers: set[int],
        pump: DurablePump | None,
        error: BaseException | None,
    ) -> None:
        numbers.discard(one.number)
        if pump is None and error is not None:
            if numbers is self._numbers:  # else it was for a connection that is gone
                self.notice(one.number, "ended", error)
            if isinstance(error, NotAllowed):
                self._drop(one)
            elif isinstance(error, NotFound):
                self._drop_row(one.id)

    def on_lost(self, connection: Connection) -> None:
        """The connection is gone; the session stays, for a while."""
        if connection is self.connection and not self.sessions.is_closing:
            self.note(logging.DEBUG, "session-alone", kept_s=self.row.expire_after_s)
            self.connection = None
            self._detach_all()
            self.sessions.on_alone(self)

    def _detach_all(self) -> None:
        """Nobody reads any more: live subscriptions end, durable ones let go of what they hold."""
        while self._asked:  # whoever asked is gone; what was asked for comes before what is done about that
            self.later(*self._asked.popleft())
        pumps, self.pumps = self.pumps, {}
        self._held_back = self._without_room = None
        self._numbers, self._names = set(), set()  # what is being made was for a connection that is gone
        for pump in pumps.values():
            self._let_go(pump)

    def _let_go(self, pump: Pump, after: Callable[[], object] | None = None) -> None:
        pump.is_left = True
        leave = pump.leave()

        def work() -> None:
            if leave is not None:
                leave()
            if after is not None:
                after()

        self.later(work, lambda _, error: self._note(error))

    def on_writable(self) -> None:
        """The connection takes more: those who could not send are woken, who has waited for longest first."""
        self._work_on()
        for waiting, needs_room in ((self._held_back, False), (self._without_room, True)):
            for count in range(len(waiting) if waiting is not None else 0):
                if self.connection is None or not self.connection.is_writable or (needs_room and self.room <= 0):
                    break
                assert waiting is not None
                pump = waiting.popleft()
                pump.is_held_back = False
                if count < WAKES_AT_ONCE:
                    pump.tell(served.WAKE)
                else:
                    pump.ring()  # others have their turn
        self._held_back, self._without_room = self._held_back or None, self._without_room or None

    def hold_back(self, pump: Pump) -> None:
        """A pump may have something to send, and cannot: it is woken when the connection takes more."""
        if pump.is_held_back:
            return
        pump.is_held_back = True
        if isinstance(pump, DurablePump):
            if self._without_room is None:
                self._without_room = deque()
            self._without_room.append(pump)
        else:
            if self._held_back is None:
                self._held_back = deque()
            self._held_back.append(pump)

    def leaves(self) -> list[Callable[[], object]]:
        """What is left to do in a thread when the server ends."""
        found = [pump.leave() for pump in self.pumps.values()]
        self.pumps = {}
        return [leave for leave in found if leave is not None]

    def end(self) -> None:
        """The session is over: its own subscriptions are deleted, named ones stay."""
        self.is_ended = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.session = None
            connection.say_goodbye(Closed("the session has ended; register anew"))
        self._detach_all()
        self.later(self.erase, lambda _, error: self._note(error))

    def on_forgotten(self) -> None:
        """It is none of the server's sessions any more."""

    def erase(self) -> None:
        """Delete what of it is stored, also what a crash kept from being noted in the session, and then the session
        itself; in any thread but the loop's."""
        for name in self.sessions.subscriptions_of(self.row.id):
            try:
                self.sessions.broker.core.durables.expire(name, self.row.user)
            except NotFound:
                pass
        self.sessions.forget(self)

    def _drop(self, one: SubscriptionOf) -> None:
        """A subscription whose right is gone: one of the session's own is deleted, a named one stays for others."""
        self._drop_row(one.id)
        if one.kind == "session":
            durables = self.sessions.broker.core.durables
            self.later(lambda: durables.expire(one.id), lambda _, error: self._note(error))

    def _note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NotFound | Closed):
            log.error("session-trouble", session=self.row.id, error=repr(error))

    def finish_rows(self, item: RowsItem | None, future: Future[object]) -> None:
        """Have rows written, of which the future tells."""
        if item is None:
            future.set_result(None)
        else:
            self.sessions.broker.core.rows.kick()

    def later(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Blocking work: in a thread, after what this session gave before."""
        if self._offload is None:
            self._offload = Offload(self.sessions.loop, self.sessions.executor.of(self.payer))
        self._offload.do(work, then)

    def _for_client(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None], side: SidePool | None = None
    ) -> None:
        """The same for a request, or out of its turn in a side pool; while too many of them wait, nothing more is read.

        Those in turn are worked on one at a time, and none while the client does not take its answers: else a few
        bytes could ask for more than memory holds. Work that gives a future is done when that is, and takes no thread
        meanwhile."""
        connection = self.connection
        assert connection is not None
        size = connection.on_request()

        def answer(value: Any, error: BaseException | None) -> None:
            connection.on_answered(size)
            then(value, error)
            if self._is_dismissed and not connection.is_asking:
                self._say_goodbye(connection)

        def later_done(found: asyncio.Future[Any]) -> None:
            error = found.exception() if not found.cancelled() else Closed("it was given up")
            answer(None if error is not None else found.result(), error)

        def done(value: Any, error: BaseException | None) -> None:
            if isinstance(value, Unfinished) and self.connection is connection:
                self.later(value.go_on, done)
                return
            try:
                if isinstance(value, Unfinished):
                    answer(None, Closed("the connection was lost"))
                elif isinstance(value, Future):
                    asyncio.wrap_future(value, loop=self.sessions.loop).add_done_callback(later_done)
                else:
                    answer(value, error)
            finally:
                if side is None:
                    self._is_asked = False
                    self._work_on()

        if side is not None:
            side.do(work, done, self.payer)
            return
        if self._asked is None:
            self._asked = deque()
        self._asked.append((work, done))
        self._work_on()

    def _work_on(self) -> None:
        """Begin with the next request, unless its answer would have to wait for the client."""
        while self._asked and not self._is_asked:
            connection = self.connection
            if connection is not None and not connection.is_writable:
                return  # until `on_writable`
            self._is_asked = True
            asked = self._asked.popleft()
            if not self._asked:
                self._asked = None
            self.later(*asked)

    def _keep(self, one: SubscriptionOf, then: Callable[[Any, BaseException | None], None]) -> None:
        """Store that the session takes from a subscription."""
        self.sessions.hold(self, one, then)

    def _attach_durable(
        self,
        number: int,
        kind: str,
        name: str,
        filter: str,
        credit: tuple[int, int],
        made: Callable[[DurablePump | None, BaseException | None], None],
        fresh: Fresh | None = None,
    ) -> None:
        """Have a durable subscription served to this session's connection."""
        dispatcher = self.sessions.broker.core.dispatcher
        ticket = Remote(self.row.id, self._who)
        one = fresh or Fresh(Options(id=name, filter=filter), {}, "latest")
        connection, owner = self.connection, self.share
        names = self._names
        names.add(name)
        is_asked = name in self._to_redrive
        self._to_redrive.discard(name)

        def attach() -> Any:
            self.sessions.broker.core.dead_letters.on_resume(name, filter, one.given, is_asked=is_asked)
            try:
                return dispatcher.attach(
                    *(one.options, one.given, one.start, ticket),
                    with_retained=one.with_retained,
                    resumes=fresh is None,
                    owner=owner,
                )
            except Conflict as error:
                raise self.sessions.broker.unrevealing(self.row.user, self.row.id, name, error) from None

        def attached(durable: Any, error: BaseException | None) -> None:
            names.discard(name)
            if error is None:
                error = self._objection(connection, number, filter)
                if error is not None:
                    self.later(lambda: dispatcher.detach(durable, ticket), lambda _, error: self._note(error))
            if error is not None:
                made(None, error)
                return
            pump = DurablePump(self, number, kind, durable, ticket, credit)
            self.pumps[number] = pump
            made(pump, None)
            pump.ring()

        if fresh is None:
            self.later(attach, attached)
        else:
            self._for_client(attach, attached)

    def _objection(self, connection: Connection | None, number: int, filter: str) -> HeadwaterError | None:
        """Why something that was made for a connection is not wanted any more: its client left, or lost the right."""
        if self.connection is not connection or self.is_ended:
            return Closed("the connection was lost")
        try:
            self.sessions.broker.check_subscribe(self.row.user, self.row.id, filter)
        except NotAllowed as error:
            return error
        return None

    def _open(
        self,
        number: int,
        filter: str,
        make: Callable[[], S],
        serve: Callable[[S], Pump],
        then: Callable[[BaseException | None], None],
    ) -> None:
        """Have something that lives as long as the connection read for it."""
        connection, numbers = self.connection, self._numbers
        numbers.add(number)

        def made(source: S, error: BaseException | None) -> None:
            numbers.discard(number)
            if error is None:
                error = self._objection(connection, number, filter)
                if error is not None:
                    self.later(source.close, lambda _, error: self._note(error))
            if error is not None:
                then(error)
                return
            pump = self.pumps[number] = serve(source)
            then(None)
            pump.ring()

        self._for_client(make, made)

    # Leaving

    def _drop_row(self, name: str) -> None:
        self.sessions.let_go(self, name)

    def on_over(self, pump: Pump) -> None:
        """History was read to its end."""
        if self.pumps.get(pump.number) is pump:
            del self.pumps[pump.number]
            self._let_go(pump)

    def on_ended(self, pump: Pump, error: HeadwaterError) -> None:
        """A subscription ended by itself: its client is told why."""
        if self.pumps.get(pump.number) is pump:
            del self.pumps[pump.number]
            self.notice(pump.number, "ended", error)
            self._let_go(pump)
            if pump.id is not None and self.sessions.broker.core.dispatcher.row(pump.id) is None:
                self._drop_row(pump.id)

    # Supervision

    def on_failure(self, actor: Actor, error: Exception) -> None:
        """A pump of this session has failed, or the session itself at one message."""
        if isinstance(actor, Pump) and isinstance(error, HeadwaterError):
            raise error  # an answer to what the client asked of it
        log.error("actor-failed", actor=type(actor).__name__, session=self.row.id, error=repr(error))
        if isinstance(actor, Pump):
            self._restart(actor)
        elif self.connection is not None:
            self.connection.refuse(StorageFailed("the server failed at what you sent; connect again"))

    def _restart(self, failed: Pump) -> None:
        """From its stored state; if that fails too, the client is told to subscribe again, and the session lives on."""
        if self.pumps.get(failed.number) is not failed:
            return
        del self.pumps[failed.number]
        self._let_go(failed)
        times = self._restarts.get(failed.number, 0) + 1
        self._restarts[failed.number] = times
        again = StorageFailed(f'the subscription to "{failed.filter}" failed; subscribe again')
        if not isinstance(failed, DurablePump) or times > RESTARTS_MAX:
            self.notice(failed.number, "ended", again)
            return
        failed.recall_all()

        def made(pump: DurablePump | None, _: BaseException | None) -> None:
            if pump is None:
                self.notice(failed.number, "ended", again)

        self._attach_durable(failed.number, failed.kind, failed.id or "", failed.filter, failed.credit, made)

    # Rights

    @property
    def objection(self) -> NotAllowed | None:
        """Why it may do nothing any more: its client was removed, or has another secret than it came with."""
        broker, connection = self.sessions.broker, self.connection
        found = None if connection is None else broker.objection(connection)
        if found is None and broker.is_disowned(self.row.user, self.row.owner_id):
            found = NotAllowed(f'client "{self.row.user}" was removed')
        return found

    def may_take(self, pump: Pump) -> bool:
        """Whether it may still have what one of its subscriptions brings."""
        return self.sessions.broker.may_subscribe(self.row.user, self.row.id, pump.filter)

    def doubt(self) -> None:
        """What it was allowed so far is to be asked for again."""
        for pump in self.pumps.values():
            pump.doubt()

    def recheck(self) -> Iterator[None]:
        """Rules or clients have changed: look at each subscription, a step each."""
        broker = self.sessions.broker
        connection = self.connection
        objection = None if connection is None else broker.objection(connection)
        if connection is not None and objection is not None:
            self._dismiss(connection)
        if broker.is_disowned(self.row.user, self.row.owner_id):
            self.sessions.end(self)
        if self.is_ended or objection is not None:
            return
        for pump in tuple(self.pumps.values()):
            yield
            if not broker.may_subscribe(self.row.user, self.row.id, pump.filter):
                try:
                    broker.check_subscribe(self.row.user, self.row.id, pump.filter)
                except NotAllowed as error:
                    self.on_ended(pump, error)
        for one in tuple(self.subscriptions.values()):
            yield
            if not self.sessions.has(self.row.id):
                return  # it has ended meanwhile
            if self.connection is None and broker.methods.takes_tokens:
                return  # what a token may grant is seen when the client comes back, and brings one
            if not broker.may_subscribe(self.row.user, self.row.id, one.filter):
                self._drop(one)

    def _dismiss(self, connection: Connection) -> None:
        """A connection is not to be served any more: it is heard no further, and told what it still waits for, as it
        may be the answer to the very change that ends it; not for long."""
        self._is_dismissed = True
        if connection.is_asking:
            connection.hold()
            self.sessions.loop.call_later(self.sessions.serving.call_s, self._say_goodbye, connection)
        else:
            self._say_goodbye(connection)

    def _say_goodbye(self, connection: Connection) -> None:
        objection = self.sessions.broker.objection(connection)
        if connection is self.connection and not connection.is_closed and objection is not None:
            connection.say_goodbye(objection)
