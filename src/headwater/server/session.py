"""A session: what the broker keeps for a registered client between its connections.

It handles the frames of its connection, one after another, asks the broker who may, and passes on what is allowed:
publishes to the roots, acks and credit to its subscribers, the rest to the bus in a thread. Promises: an error is
answered to whoever asked and disturbs nobody else; without a connection its durable subscriptions wait for it to come
back; an answer of one connection never reaches another.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headwater.actor import Actor, Desk
from headwater.delivery.lane import Remote
from headwater.delivery.live import Live
from headwater.delivery.options import Options, check_not_of_channel
from headwater.delivery.replay import Reading
from headwater.delivery.rows import RowsItem
from headwater.delivery.start import check_start
from headwater.errors import Closed, Conflict, HeadwaterError, Malformed, NotAllowed, NotFound, QuotaExceeded
from headwater.errors import Failed as StorageFailed
from headwater.server import subscriber as served
from headwater.server.answers import Answers
from headwater.server.connection import Connection
from headwater.server.log import Log
from headwater.server.subscriber import DurableSubscriber, LiveSubscriber, ReadingSubscriber, Subscriber
from headwater.topics.name import check_filter
from headwater.wire import batches, requests
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.request import Request
from headwater.wire.requests import Goodbye, Subscribe, Subscribed, decode, encode, pack_error, read_request

if TYPE_CHECKING:
    from headwater.server.sessions import SessionRow, Sessions, SubscriptionOf

log = Log("headwater.server")

RESTARTS_MAX = 3
"""Times that a subscriber is started again by itself; then its client is told to subscribe again."""


S = TypeVar("S", Live, Reading)


class Session(Actor):
    """One client's session."""

    __slots__ = ("_desk", "_names", "_numbers", "_restarts", "connection", "is_ended", "row", "sessions", "subscribers")

    def __init__(self, sessions: Sessions, row: SessionRow) -> None:
        super().__init__(self, sessions.serving.mailbox_max)
        self.sessions = sessions
        self.row = row
        self.connection: Connection | None = None
        self.subscribers: dict[int, Subscriber] = {}
        self.is_ended = False
        self._numbers: set[int] = set()
        """Subscriptions that are being made for the connection."""
        self._names: set[str] = set()
        """Ids of the durable ones among them."""
        self._restarts: dict[int, int] = {}
        self._desk: Desk | None = None

    # Connections come and go

    def attach(self, connection: Connection) -> None:
        """Be served over this connection from now on; one that was there before is told and closed."""
        old = self.connection
        if old is not None:
            old.session = None
            self.connection = None
            old.say_goodbye(Conflict("another connection has taken this session over"))
            self._detach_all()
        self.connection = connection
        connection.session = self

    def on_registered(self, connection: Connection) -> None:
        """The client knows that the session is its own: every durable subscription of it goes on."""
        if connection is not self.connection:
            return
        for one in self.row.subscriptions:
            if one.number not in self.subscribers:
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
        subscriber: DurableSubscriber | None,
        error: BaseException | None,
    ) -> None:
        numbers.discard(one.number)
        if subscriber is None and error is not None:
            self._tell_ended(one.number, error)
            if isinstance(error, NotAllowed):
                self._drop(one)

    def on_lost(self, connection: Connection) -> None:
        """The connection is gone; the session stays, for a while."""
        if connection is self.connection and not self.sessions.is_closing:
            self.connection = None
            self._detach_all()
            self.sessions.on_alone(self)

    def _detach_all(self) -> None:
        """Nobody reads any more: live subscriptions end, durable ones let go of what they hold."""
        subscribers, self.subscribers = self.subscribers, {}
        self._numbers, self._names = set(), set()  # what is being made was for a connection that is gone
        for subscriber in subscribers.values():
            self._let_go(subscriber)

    def _let_go(self, subscriber: Subscriber, after: Callable[[], object] | None = None) -> None:
        subscriber.is_left = True
        leave = subscriber.leave()

        def work() -> None:
            if leave is not None:
                leave()
            if after is not None:
                after()

        self._later(work, lambda _, error: self._note(error))

    def on_writable(self) -> None:
        """The connection takes more."""
        for subscriber in tuple(self.subscribers.values()):
            subscriber.tell(served.WAKE)

    def leaves(self) -> list[Callable[[], object]]:
        """What is left to do in a thread when the server ends."""
        found = [subscriber.leave() for subscriber in self.subscribers.values()]
        self.subscribers = {}
        return [leave for leave in found if leave is not None]

    def end(self) -> None:
        """The session is over: its own subscriptions are deleted, named ones stay."""
        self.is_ended = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.session = None
            connection.say_goodbye(Closed("the session has ended; register anew"))
        self._detach_all()
        self._later(self._delete_own, lambda _, error: self._ended(error))

    def _delete_own(self) -> None:
        """Whatever of it is stored, also what a crash kept from being noted in the session."""
        for name in self.sessions.subscriptions_of(self.row.id):
            try:
                self.sessions.broker.bus.unsubscribe(name)
            except NotFound:
                pass

    def _ended(self, error: BaseException | None) -> None:
        self._note(error)
        if error is None:
            self.sessions.forget(self.row)

    def _drop(self, one: SubscriptionOf) -> None:
        """A subscription whose right is gone: one of the session's own is deleted, a named one stays for others."""
        self._drop_row(one.id)
        if one.kind == "session":
            bus = self.sessions.broker.bus
            self._later(lambda: bus.unsubscribe(one.id), lambda _, error: self._note(error))

    def _note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NotFound | Closed):
            log.error("session-trouble", session=self.row.id, error=repr(error))

    # Frames

    def receive(self, frames: list[Frame]) -> None:
        connection = self.connection
        for frame in frames:
            if connection is None or connection is not self.connection or connection.is_closed:
                return
            try:
                self._on_frame(connection, frame)
            except HeadwaterError as error:
                if frame.id == 0 or frame.kind in (Kind.TAKEN, Kind.CREDIT):
                    connection.refuse(error)
                    return
                connection.write(pack_error(frame.id, error))

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        match frame.kind:
            case Kind.PUBLISH:
                self._on_publish(connection, frame)
            case Kind.ACK:
                number, ranges = batches.read_ranges(frame)
                self._subscriber(number).tell(served.Ack(frame.id, ranges))
            case Kind.TAKEN:
                _, ranges = batches.read_ranges(frame)
                self._tell(frame.id, served.Taken(ranges))
            case Kind.CREDIT:
                self._tell(frame.id, served.Credit(*batches.read_credit(frame)))
            case Kind.REQUEST:
                self._on_request(frame.id, read_request(frame))
            case Kind.PING:
                connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                self._on_goodbye(connection, decode(frame.payload, Goodbye))

    def _on_publish(self, connection: Connection, frame: Frame) -> None:
        entry, broker = self.sessions.entry, self.sessions.broker
        publish = batches.read_publish(frame)
        producer = publish.producer and broker.producer_of(self.row.user, publish.producer)
        try:
            item, names = entry.check(connection, frame.id, publish, bool(frame.flags & batches.QUIET))
            broker.check_publish(self.row.user, self.row.id, publish.root, names)
        except HeadwaterError:
            if producer is not None:
                broker.bus.inside.roots.note_refusal(publish.root, producer, publish.sequence)
            raise
        item.producer = producer
        connection.on_publish(item.weight, item.share)
        entry.commit(item)

    def _on_goodbye(self, connection: Connection, goodbye: Goodbye) -> None:
        if goodbye.end_session:
            self.sessions.end(self)
        connection.close()

    def _subscriber(self, number: int) -> Subscriber:
        subscriber = self.subscribers.get(number)
        if subscriber is None:
            raise NotFound(f"this session has no subscription {number} at the moment; subscribe again")
        return subscriber

    def _tell(self, number: int, message: object) -> None:
        """For a subscription that may be gone already, which its client has yet to hear."""
        subscriber = self.subscribers.get(number)
        if subscriber is not None:
            subscriber.tell(message)

    # Answers

    def reply(self, connection: Connection | None, id: int, value: object, error: BaseException | None) -> None:
        """Answer a request on the connection that it came from."""
        if connection is None or connection is not self.connection:
            return
        if error is None:
            connection.write(pack(Kind.REPLY, id, encode(value)))
            return
        if not isinstance(error, HeadwaterError):
            log.error("request-failed", session=self.row.id, error=repr(error))
        connection.write(pack_error(id, error))

    def answer_when(self, id: int, future: Future[object]) -> None:
        """Answer a request once rows are on disk."""
        self.sessions.answers.expect(self, self.connection, id, future)

    def finish_rows(self, item: RowsItem | None, future: Future[object]) -> None:
        """Have rows written, of which the future tells."""
        if item is None:
            future.set_result(None)
        else:
            self.sessions.broker.bus.inside.rows.kick()

    def _later(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Blocking work: in a thread, after what this session gave before."""
        if self._desk is None:
            self._desk = Desk(self.sessions.loop, self.sessions.executor)
        self._desk.do(work, then)

    def _for_client(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """The same for a request; while too many of them wait, nothing more is read."""
        connection = self.connection
        assert connection is not None
        connection.on_request()

        def done(value: Any, error: BaseException | None) -> None:
            connection.on_answered()
            then(value, error)

        self._later(work, done)

    def _ask(self, id: int, work: Callable[[], Any]) -> None:
        connection = self.connection
        self._for_client(work, lambda value, error: self.reply(connection, id, value, error))

    # Requests

    def _on_request(self, id: int, request: Request) -> None:
        self.sessions.entry.give_places()  # what was published before this is to be before it
        match request:
            case Subscribe():
                self._on_subscribe(id, request)
            case requests.Nack() | requests.Reject() | requests.Extend():
                self._subscriber(request.number).tell(served.Failed(id, request))
            case requests.Leave():
                self._on_leave(id, request.number)
            case requests.Unsubscribe():
                self._on_unsubscribe(id, request.id)
            case requests.Seek():
                subscriber = self._durable(request.number)
                seek = self.sessions.broker.bus.seek_subscriber
                if isinstance(request.to, dict):
                    places = request.to
                    self._ask(id, lambda: seek(subscriber.durable, places))
                    return
                to = Answers.moment(request.to, request.to_us)
                check_start(subscriber.filter, to)
                self._ask(id, lambda: seek(subscriber.durable, to))
            case requests.Pause():
                subscriber = self._durable(request.number)
                pause = self.sessions.broker.bus.inside.dispatcher.pause
                paused = request.paused
                self._ask(id, lambda: pause(subscriber.durable, paused))
            case requests.Register():
                raise Malformed("this connection has its session already")
            case _:
                self._ask(id, self.sessions.answers.work_for(self, request))

    def _durable(self, number: int) -> DurableSubscriber:
        subscriber = self._subscriber(number)
        if not isinstance(subscriber, DurableSubscriber):
            raise Malformed(f"subscription {number} is not durable: it has no place to move, and cannot be paused")
        return subscriber

    # Subscribing

    def _on_subscribe(self, id: int, request: Subscribe) -> None:
        sessions = self.sessions
        check_filter(request.filter, sessions.broker.bus.config)
        sessions.broker.check_subscribe(self.row.user, self.row.id, request.filter)
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
        if request.number in self.subscribers or request.number in self._numbers:
            raise Conflict(f"this session has a subscription {request.number} already; choose another number")
        if len(self.subscribers) + len(self._numbers) >= sessions.serving.subscriptions_per_session_max:
            raise QuotaExceeded(
                f"this session has {len(self.subscribers)} subscriptions, and may have no more "
                "(subscriptions_per_session_max)"
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
        """The durable subscription that is asked for, if this session has it already."""
        if request.kind not in ("named", "session"):
            return None
        name = self._name_of(request)
        for subscriber in self.subscribers.values():
            if subscriber.id == name and subscriber.filter == request.filter:
                return Subscribed(
                    number=subscriber.number, id=name, filter=subscriber.filter, kind=subscriber.kind, existed=True
                )
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
        given: dict[str, Any] = dict(request.options)
        try:
            options = Options(**{**given, "id": name, "filter": request.filter})
        except TypeError:
            known = ", ".join(field for field in Options.__struct_fields__ if field not in ("id", "filter"))
            raise Malformed(f"options are {sorted(given)}; those that there are: {known}") from None
        given.pop("id", None), given.pop("filter", None)
        numbers = self._numbers
        numbers.add(request.number)
        connection = self.connection
        existed = self.sessions.broker.bus.inside.dispatcher.row(name) is not None

        def made(subscriber: DurableSubscriber | None, error: BaseException | None) -> None:
            numbers.discard(request.number)
            if subscriber is None:
                self.reply(connection, id, None, error)
                return
            answer = Subscribed(
                number=request.number, id=name, filter=request.filter, kind=request.kind, existed=existed
            )
            self._keep(request, name, lambda _, error: self.reply(connection, id, answer, error))

        self._attach_durable(request.number, request.kind, name, request.filter, credit, made, (options, given, start))

    def _keep(self, request: Subscribe, name: str, then: Callable[[Any, BaseException | None], None]) -> None:
        from headwater.server.sessions import SubscriptionOf

        one = SubscriptionOf(
            request.number, request.kind, name, request.filter, request.credit_messages, request.credit_bytes
        )
        others = tuple(other for other in self.row.subscriptions if other.id != name)
        self.row = msgspec.structs.replace(self.row, subscriptions=(*others, one))
        self.sessions.keep(self.row, then)

    def _attach_durable(
        self,
        number: int,
        kind: str,
        name: str,
        filter: str,
        credit: tuple[int, int],
        made: Callable[[DurableSubscriber | None, BaseException | None], None],
        fresh: tuple[Options, dict[str, Any], Any] | None = None,
    ) -> None:
        """Have a durable subscription served to this session's connection."""
        inside = self.sessions.broker.bus.inside
        ticket = Remote()
        options, given, start = fresh or (Options(id=name, filter=filter), {}, "latest")
        connection = self.connection
        names = self._names
        names.add(name)

        def attach() -> Any:
            return inside.roots.commit.run(lambda: inside.dispatcher.attach(options, given, start, ticket))

        def attached(durable: Any, error: BaseException | None) -> None:
            names.discard(name)
            if error is None:
                error = self._objection(connection, filter)
                if error is not None:
                    detach = inside.dispatcher.detach
                    self._later(
                        lambda: inside.roots.commit.run(lambda: detach(durable, ticket)),
                        lambda _, error: self._note(error),
                    )
            if error is not None:
                made(None, error)
                return
            subscriber = DurableSubscriber(self, number, kind, durable, ticket, credit)
            self.subscribers[number] = subscriber
            made(subscriber, None)
            subscriber.ring()

        if fresh is None:
            self._later(attach, attached)
        else:
            self._for_client(attach, attached)

    def _objection(self, connection: Connection | None, filter: str) -> HeadwaterError | None:
        """Why something that was made for a connection is not wanted any more: its client left, or lost the right."""
        if self.connection is not connection or self.is_ended:
            return Closed("the connection was lost")
        try:
            self.sessions.broker.check_subscribe(self.row.user, self.row.id, filter)
        except NotAllowed as error:
            return error
        return None

    def _subscribe_live(self, id: int, request: Subscribe, credit: tuple[int, int]) -> None:
        bus = self.sessions.broker.bus

        def make() -> Live:
            live: Live = bus.subscribe(request.filter, when_full=request.when_full)  # type: ignore[arg-type]  # checked
            return live

        self._open(id, request, make, lambda live: LiveSubscriber(self, request.number, live, credit))

    def _read(self, id: int, request: Subscribe, credit: tuple[int, int]) -> None:
        bus = self.sessions.broker.bus
        since = None if request.since_us is None else Answers.datetime(request.since_us)

        def make() -> Reading:
            if request.kind == "follow":
                return bus.follow(request.filter, after=request.after, since=since)
            return bus.replay(request.filter, after=request.after, since=since, upto=request.upto)

        def serve(reading: Reading) -> Subscriber:
            return ReadingSubscriber(self, request.number, request.kind, reading, credit)

        self._open(id, request, make, serve)

    def _open(self, id: int, request: Subscribe, make: Callable[[], S], serve: Callable[[S], Subscriber]) -> None:
        """Have something that lives as long as the connection read for it."""
        connection, numbers = self.connection, self._numbers
        numbers.add(request.number)

        def made(source: S, error: BaseException | None) -> None:
            numbers.discard(request.number)
            if error is None:
                error = self._objection(connection, request.filter)
                if error is not None:
                    self._later(source.close, lambda _, error: self._note(error))
            answer = Subscribed(number=request.number, id=None, filter=request.filter, kind=request.kind)
            self.reply(connection, id, answer, error)
            if error is None:
                subscriber = self.subscribers[request.number] = serve(source)
                subscriber.ring()

        self._for_client(make, made)

    # Leaving

    def _on_leave(self, id: int, number: int) -> None:
        subscriber = self.subscribers.pop(number, None)
        connection = self.connection
        if subscriber is None:
            raise NotFound(f"this session has no subscription {number}")
        self._let_go(subscriber)
        if subscriber.id is not None and subscriber.kind == "named":
            self._drop_row(subscriber.id)
        self._for_client(lambda: None, lambda value, error: self.reply(connection, id, value, error))

    def _on_unsubscribe(self, id: int, name: str) -> None:
        sessions = self.sessions
        remove = sessions.answers.work_to_remove(self, name)
        if remove is not None:
            self._ask(id, remove)
            return
        row = sessions.broker.bus.inside.dispatcher.row(name)
        if row is None:
            raise NotFound(f'there is no subscription "{name}"; bus.subscriptions() lists those that are')
        if sessions.owns(name) and not name.startswith(f"{self.row.id}:"):
            raise NotAllowed(f'"{name}" is another session\'s own subscription')
        sessions.broker.check_subscribe(self.row.user, self.row.id, row.options.filter)
        for subscriber in tuple(self.subscribers.values()):
            if subscriber.id == name:
                del self.subscribers[subscriber.number]
                self._let_go(subscriber)
        self._drop_row(name)
        bus = sessions.broker.bus
        self._ask(id, lambda: bus.unsubscribe(name))

    def _drop_row(self, name: str) -> None:
        others = tuple(one for one in self.row.subscriptions if one.id != name)
        if len(others) != len(self.row.subscriptions):
            self.row = msgspec.structs.replace(self.row, subscriptions=others)
            self.sessions.keep(self.row)

    def on_over(self, subscriber: Subscriber) -> None:
        """History was read to its end."""
        if self.subscribers.get(subscriber.number) is subscriber:
            del self.subscribers[subscriber.number]
            self._let_go(subscriber)

    def on_ended(self, subscriber: Subscriber, error: HeadwaterError) -> None:
        """A subscription ended by itself: its client is told why."""
        if self.subscribers.get(subscriber.number) is subscriber:
            del self.subscribers[subscriber.number]
            subscriber.notice("ended", error)
            self._let_go(subscriber)

    def _tell_ended(self, number: int, error: BaseException) -> None:
        if self.connection is not None:
            said = requests.Notice(what="ended", problem=requests.problem_of(error))
            self.connection.write(pack(Kind.NOTICE, number, encode(said)))

    # Supervision

    def on_failure(self, actor: Actor, error: Exception) -> None:
        """A subscriber of this session has failed, or the session itself at one message."""
        if isinstance(actor, Subscriber) and isinstance(error, HeadwaterError):
            raise error  # an answer to what the client asked of it
        log.error("actor-failed", actor=type(actor).__name__, session=self.row.id, error=repr(error))
        if isinstance(actor, Subscriber):
            self._restart(actor)
        elif self.connection is not None:
            self.connection.refuse(StorageFailed("the server failed at what you sent; connect again"))

    def _restart(self, failed: Subscriber) -> None:
        """From its stored state; if that fails too, the client is told to subscribe again, and the session lives on."""
        if self.subscribers.get(failed.number) is not failed:
            return
        del self.subscribers[failed.number]
        self._let_go(failed)
        times = self._restarts.get(failed.number, 0) + 1
        self._restarts[failed.number] = times
        again = StorageFailed(f'the subscriber of "{failed.filter}" failed; subscribe again')
        if not isinstance(failed, DurableSubscriber) or times > RESTARTS_MAX:
            self._tell_ended(failed.number, again)
            return
        failed.recall_all()

        def made(subscriber: DurableSubscriber | None, _: BaseException | None) -> None:
            if subscriber is None:
                self._tell_ended(failed.number, again)

        self._attach_durable(failed.number, failed.kind, failed.id or "", failed.filter, failed.credit, made)

    # Rights

    def recheck(self) -> None:
        """Rules or clients have changed."""
        broker = self.sessions.broker
        connection = self.connection
        if connection is not None and broker.is_gone(connection):
            connection.say_goodbye(NotAllowed(f'client "{self.row.user}" was removed'))
            self.sessions.end(self)
            return
        for subscriber in tuple(self.subscribers.values()):
            if not broker.may_subscribe(self.row.user, self.row.id, subscriber.filter):
                try:
                    broker.check_subscribe(self.row.user, self.row.id, subscriber.filter)
                except NotAllowed as error:
                    self.on_ended(subscriber, error)
        for one in self.row.subscriptions:
            if not broker.may_subscribe(self.row.user, self.row.id, one.filter):
                self._drop(one)
