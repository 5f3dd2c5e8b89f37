"""Answers to requests: what a session may ask of the bus, with the rights that it takes, and how the answer gets back.

Each request is one arm that checks rights, on the loop, and gives the work that is then done in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headwater.audit import acting
from headwater.clock import to_datetime
from headwater.delivery.start import Start
from headwater.errors import Malformed
from headwater.log.publish import Part
from headwater.server.administration import Administration
from headwater.server.bell import Bell
from headwater.server.broker import Broker
from headwater.topics.name import check_filter
from headwater.wire import requests
from headwater.wire.frame import Kind, pack
from headwater.wire.request import Change, Request
from headwater.wire.requests import encode

if TYPE_CHECKING:
    from headwater.server.connection import Connection
    from headwater.server.party import Asker
    from headwater.server.session import Session

DONE = encode(None)
MOMENT_US_MAX = 253_402_300_799_000_000
"""The last moment of the year 9999."""


class Answers:
    """What sessions ask for, and the way back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._bell = Bell(loop, self._answer)
        self._broker = broker
        self._administration = Administration(loop, broker)
        self._done: deque[tuple[Asker, Connection | None, int, Future[object]]] = deque()

    # Rows that are on disk

    def expect(self, session: Asker, connection: Connection | None, id: int, future: Future[object]) -> None:
        """Answer a request once its future is done, which may be in any thread."""
        future.add_done_callback(lambda done: self._on_done((session, connection, id, done)))

    def _on_done(self, done: tuple[Asker, Connection | None, int, Future[object]]) -> None:
        self._done.append(done)
        self._bell.ring()

    def _answer(self) -> None:
        """Tell each client what was written, in one piece."""
        told: dict[Connection, list[bytes]] = {}
        for _ in range(len(self._done)):
            session, connection, number, future = self._done.popleft()
            error = future.exception()
            if error is not None:
                session.reply(connection, number, None, error)
            elif connection is not None and connection is session.connection:
                told.setdefault(connection, []).append(pack(Kind.REPLY, number, DONE))
        for connection, frames in told.items():
            connection.write(b"".join(frames))

    # Values as requests have them

    @staticmethod
    def datetime(time_us: int) -> datetime:
        """A moment; Malformed if it is none."""
        if not 0 <= time_us <= MOMENT_US_MAX:
            raise Malformed(f"{time_us} is no moment; use microseconds since 1970")
        return to_datetime(time_us)

    @staticmethod
    def moment(place: Start, time_us: int | None) -> Start:
        """Where to begin."""
        return place if time_us is None else Answers.datetime(time_us)

    # Requests

    def work_for(self, session: Session, request: Request) -> Callable[[], Any]:
        """What a request asks to be done, if its session may ask for it."""
        work = self._work_for(session, request)
        return self.as_asked(session, request, work) if isinstance(request, Change) else work

    @staticmethod
    def as_asked(session: Session, request: Change, work: Callable[[], Any]) -> Callable[[], Any]:
        """A change of which the audit tells who wanted it."""
        user = session.row.user
        who = user if request.by is None else request.by

        def known() -> Any:
            with acting(who, user):
                return work()

        return known

    def _work_for(self, session: Session, request: Request) -> Callable[[], Any]:
        broker, core, user = self._broker, self._broker.core, session.row.user
        match request:
            case requests.Delay():
                return self._delay(session, request)
            case requests.Stage():
                part = core.desk.body(request.root, request.count, request.crc, request.body)
                broker.check_publish(user, session.row.id, part)
                return lambda: core.staging.stage(
                    self._own(user, request.producer),
                    request.epoch,
                    request.part,
                    request.root,
                    request.count,
                    request.crc,
                    request.body,
                )
            case requests.CommitStage():
                return lambda: core.staging.commit(self._own(user, request.producer), request.epoch, request.parts)
            case requests.DropStage():
                return lambda: core.staging.drop(self._own(user, request.producer), request.epoch)
            case requests.Topics():
                check_filter(request.filter, core.config)
                return lambda: [one for one in core.topics(request.filter) if self._sees(session, one.topic)]
            case requests.Retained():
                broker.check_subscribe(user, session.row.id, request.filter)
                return lambda: [
                    (one.topic, one.offset, one.payload, one.time_us, one.key, one.headers)
                    for one in core.retained(request.filter)
                ]
            case requests.Subscriptions():

                def is_shown(id: str, filter: str) -> bool:
                    return self._sees(session, filter) and not broker.is_of_another(user, session.row.id, id)

                return lambda: core.subscriptions(request.after, request.limit, is_shown)
            case requests.Ends():
                return lambda: {root: end for root, end in core.ends().items() if self._sees(session, f"{root}/#")}
            case requests.Extents():
                broker.check_subscribe(user, session.row.id, request.filter)
                moments = [self.datetime(time_us) for time_us in request.moments_us]
                return lambda: core.extents(request.filter, moments)
            case requests.Events():
                broker.check_admin(user, "read events")
                return core.events.all
            case requests.States():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.dispatcher.use(request.id, lambda subscriber: subscriber.states())
            case requests.DeadLetters():
                broker.check_subscription(user, session.row.id, request.id)
                if request.offset is None:
                    return lambda: core.dead_letters.all(request.id, request.after, request.limit)
                place = request.offset
                return lambda: [core.dead_letters.get(request.id, place)]
            case requests.Redrive():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.dead_letters.redrive(request.id, request.offsets)
            case requests.Mend():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.mending.mend(
                    request.id, self._own(user, request.write), request.letters, request.part
                )
            case requests.RedriveMended():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.mending.redrive(request.id, self._own(user, request.write), request.parts)
            case requests.DropMended():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.mending.drop(request.id, self._own(user, request.write))
            case requests.DropDeadLetters():
                broker.check_subscription(user, session.row.id, request.id)
                return lambda: core.dead_letters.drop(request.id, request.offsets)
            case requests.Purge():
                broker.check_admin(user, f'purge "{request.filter}"')
                return lambda: core.upkeep.purge(request.filter)
            case requests.Backup():
                broker.check_admin(user, "back up the data")
                return lambda: core.backup(request.target)
            case requests.MarkArchived():
                broker.check_admin(user, "say what is archived")
                return lambda: core.mark_archived(request.lake, request.archived)
            case _:
                for extension in broker.extensions:
                    if (work := extension.work_for(session, request)) is not None:
                        return work
                return self._administration.work_for(session, request)

    def _own(self, user: str, producer: str) -> str:
        """A user's producer: nobody else can commit or drop what it staged."""
        return f"{user}/{producer}"  # a user's name has no "/"

    def _sees(self, session: Session, filter: str) -> bool:
        return self._broker.may_subscribe(session.row.user, session.row.id, filter)

    def work_to_remove(self, session: Session, name: str) -> Callable[[], Any] | None:
        """What removes a subscription that an extension has, by its name; None if it is none of theirs."""
        found = (extension.work_to_remove(session, name) for extension in self._broker.extensions)
        return next((work for work in found if work is not None), None)

    def _delay(self, session: Session, request: requests.Delay) -> Callable[[], Any]:
        core = self._broker.core
        root = request.topic.partition("/")[0]
        self._broker.check_publish(session.row.user, session.row.id, Part(root, (request.topic,), (), ()))
        due = self.datetime(request.deliver_at_us)

        def work() -> requests.Delayed:
            item = core.desk.one(
                *(request.topic, request.payload, request.retain, request.key, request.headers, request.ttl_s),
                *(None, None, due),
            )
            return requests.Delayed(core.store(item).time_us)

        return work
