"""Answers to requests: what a session may ask of the bus, with the rights that it takes, and how the answer gets back.

An operation's right is checked on the loop, as the table of `wire.operations` says; its verb gives the work that is
then done in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.actor import Unfinished
from headwater.audit import acting
from headwater.clock import to_datetime
from headwater.delivery.dead_letters import Allow
from headwater.delivery.start import Start
from headwater.errors import Malformed
from headwater.log.publish import Part
from headwater.message import ConsumerInfo, Message, SubscriptionInfo, TopicInfo
from headwater.schedules import Owner
from headwater.server.bell import Bell
from headwater.server.broker import Broker
from headwater.server.subscriptions import Subscriptions
from headwater.server.watch.presence import Presence
from headwater.store.log import Counted
from headwater.topics.name import check_filter, compile_filter, root_of
from headwater.wire import administration, requests
from headwater.wire.frame import Kind, pack
from headwater.wire.operations import OPERATIONS, Operation, Right
from headwater.wire.request import PAGE_MAX, Change, Page, Request, page_of
from headwater.wire.requests import encode

if TYPE_CHECKING:
    from headwater.server.connection import Connection
    from headwater.server.party import Asker
    from headwater.server.session import Session

Work = Callable[[], Any]
DONE = encode(None)
COUNT_BYTES = 2 * 1024 * 1024
"""What is read to count messages before others have their turn;"""
COUNT_BYTES_MAX = 64 * 1024 * 1024
"""and at most for one request, which may be asked again from where that ended."""
MOMENT_US_MAX = 253_402_300_799_000_000
"""The last moment of the year 9999."""


class Answers:
    """What sessions ask for, and the way back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._bell = Bell(loop, self._answer)
        self._broker = broker
        self.presence = Presence(loop, broker)
        subscriptions = Subscriptions(broker, self.presence)
        self._told: dict[str, object] = {"answers": self, "presence": self.presence, "subscriptions": subscriptions}
        """Those whose verbs are told who asks;"""
        self._offered: dict[str, object] = {}
        """and what extensions offer beside the broker."""
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

    def work_for(self, session: Session, request: Request[Any]) -> Work:
        """What a request asks to be done, if its session may ask for it."""
        operation = OPERATIONS[type(request)]
        self._check(session, request, operation)
        owner, _, verb = operation.verb.rpartition(".")
        if owner in self._told:
            work: Work = getattr(self._told[owner], verb)(session, request)
        else:
            fields = {name: getattr(request, name) for name in operation.fields}
            work = partial(self.verb(operation.verb), **fields)
        return self.as_asked(session, request, work) if isinstance(request, Change) else work

    def verb(self, name: str) -> Callable[..., Any]:
        """What does an operation, of the broker or of an extension, that is not told who asks."""
        first, _, rest = name.partition(".")
        offered = self._offered.get(first)
        found: Callable[..., Any] = attrgetter(name)(self._broker) if offered is None else attrgetter(rest)(offered)
        return found

    def offer(self, name: str, who: object, *, is_told: bool = False) -> None:
        """Let operations of the table name what an extension has; with `is_told`, its verbs are told who asks."""
        (self._told if is_told else self._offered)[name] = who

    def _check(self, session: Session, request: Any, operation: Operation) -> None:
        """NotAllowed (403) without the right that an operation takes; the other rights are up to its verb."""
        broker, user, own = self._broker, session.row.user, session.row.id
        match operation.right:
            case Right.ADMIN:
                broker.check_admin(user, operation.what.format(request), own)
            case Right.SUBSCRIBE:
                check_filter(request.filter, broker.core.config)
                broker.check_subscribe(user, own, request.filter)
            case Right.LOOK_AFTER | Right.REDRIVE:
                broker.check_subscription(user, own, request.id)

    @staticmethod
    def as_asked(session: Session, request: Change[Any], work: Work) -> Work:
        """A change of which the audit tells who wanted it."""
        user = session.row.user
        who = user if request.by is None else request.by

        def known() -> Any:
            with acting(who, user):
                return work()

        return known

    # Verbs that have to know who asks, or how it is put on the wire

    def stage(self, session: Session, request: requests.Stage) -> Work:
        core, user = self._broker.core, session.row.user
        arrived = core.checks.body(request.root, request.count, request.crc, request.body)
        self._broker.check_headers(arrived)
        self._broker.check_later(user, session.row.id, arrived)
        own, owner = self._own(user, request.producer), session.row.owner_id
        part, root, count, crc = request.part, request.root, request.count, request.crc
        share = session.connection.share if session.connection is not None else ""
        return lambda: core.staging.stage(
            *(own, request.epoch, part, root, count, crc, request.body), owner=owner, share=share
        )

    def commit_stage(self, session: Session, request: requests.CommitStage) -> Work:
        user, owner = session.row.user, session.row.owner_id
        own, commit = self._own(user, request.producer), self._broker.core.staging.commit
        allow = partial(self._broker.check_again, user, session.row.id)
        return lambda: commit(own, request.epoch, request.parts, owner=owner, allow=allow)

    def drop_stage(self, session: Session, request: requests.DropStage) -> Work:
        own = self._own(session.row.user, request.producer)
        return lambda: self._broker.core.staging.drop(own, request.epoch)

    def topics(self, session: Session, request: requests.Topics) -> Work:
        core, page = self._broker.core, Page[TopicInfo](request.limit)
        check_filter(request.filter, core.config)
        sees = partial(self._sees, session)
        sees_some = partial(self._broker.may_see_some, session.row.user, session.row.id)

        def look(after: str) -> str | None:
            return core.topics_after(request.filter, after, page, sees, sees_some)

        return page_by_page(look, page, request.after)

    def retained(self, session: Session, request: requests.Retained) -> Work:
        core, page = self._broker.core, Page[Message](request.limit)

        def told() -> list[tuple[object, ...]]:
            return [(one.topic, one.offset, one.payload, one.time_us, one.key, one.header_pairs) for one in page.rows]

        return page_by_page(lambda after: core.retained_after(request.filter, after, page), page, request.after, told)

    def list_subscriptions(self, session: Session, request: requests.Subscriptions) -> Work:
        broker, user = self._broker, session.row.user
        is_admin = broker.is_admin(user, session.row.id)

        def is_shown(id: str, filter: str) -> bool:
            return self._sees(session, filter) and not broker.is_of_another(user, session.row.id, id)

        found: list[SubscriptionInfo] = []
        limit = PAGE_MAX if request.limit is None else min(request.limit, PAGE_MAX)

        def work(after: str | None) -> Any:
            some, last = broker.core.subscriptions_after(after, limit - len(found), is_shown)
            found.extend(some if is_admin else [without_others(one, user) for one in some])
            return found if last is None or len(found) == limit else Unfinished(partial(work, last))

        return partial(work, request.after)

    def states(self, session: Session, request: requests.States) -> Work:
        states = self._broker.core.states
        return lambda: page_of(states.each(request.id, request.after), request.limit)

    def ends(self, session: Session, request: requests.Ends) -> Work:
        core = self._broker.core
        return lambda: {root: end for root, end in core.ends().items() if self._sees(session, f"{root}/#")}

    def extents(self, session: Session, request: requests.Extents) -> Work:
        moments = [self.datetime(time_us) for time_us in request.moments_us]
        return lambda: self._broker.core.extents(request.filter, moments)

    def count(self, session: Session, request: requests.Count) -> Work:
        core = self._broker.core
        for one in request.among:
            check_filter(one, core.config)
        tests = [compile_filter(one) for one in request.among]
        is_wanted = compile_filter(request.filter)

        def wanted(topic: str) -> bool:
            return is_wanted(topic) and (not tests or any(test(topic) for test in tests))

        def work(so_far: Counted) -> Any:
            messages, size = request.messages - so_far.messages, min(request.bytes, COUNT_BYTES_MAX) - so_far.bytes
            at_once = min(size, COUNT_BYTES)
            found = core.count(request.filter, request.root, wanted, so_far.end, request.last, messages, at_once)
            told = Counted(found.end, so_far.messages + found.messages, so_far.bytes + found.bytes)
            is_done = found.messages >= messages or found.bytes >= size or found.bytes < COUNT_BYTES
            return told if is_done else Unfinished(partial(work, told))

        return partial(work, Counted(request.first, 0))

    def dead_letters(self, session: Session, request: requests.DeadLetters) -> Work:
        letters, place = self._broker.core.dead_letters, request.offset
        if place is None:
            limit = min(PAGE_MAX if request.limit is None else request.limit, PAGE_MAX)
            return lambda: letters.all(request.id, request.after, limit)
        return lambda: [letters.get(request.id, place)]

    def redrive(self, session: Session, request: requests.Redrive) -> Work:
        allow = self._allow(session)
        return lambda: self._broker.core.dead_letters.redrive(request.id, request.offsets, allow)

    def mend(self, session: Session, request: requests.Mend) -> Work:
        own, allow = self._own(session.row.user, request.write), self._allow(session)
        share = session.connection.share if session.connection is not None else ""
        return lambda: self._broker.core.mending.mend(request.id, own, request.letters, request.part, allow, share)

    def redrive_mended(self, session: Session, request: requests.RedriveMended) -> Work:
        own, allow = self._own(session.row.user, request.write), self._allow(session)
        return lambda: self._broker.core.mending.redrive(request.id, own, request.parts, allow)

    def drop_mended(self, session: Session, request: requests.DropMended) -> Work:
        own = self._own(session.row.user, request.write)
        return lambda: self._broker.core.mending.drop(request.id, own)

    def change_rule(self, session: Session, request: administration.ChangeRule) -> Work:
        acl = self._broker.acl
        change: Any = {"allow": acl.allow, "deny": acl.deny, "remove": acl.remove}[request.change]
        return lambda: change(request.user, request.action, request.filter)

    def list_levels(self, session: Session, request: administration.ListLevels) -> Work:
        broker, page = self._broker, self._broker.overview.levels.page
        if broker.is_admin(session.row.user, session.row.id):
            return lambda: page(request.parent, request.after, request.limit, lambda _: True, "")
        eyes = broker.eyes(session.row.user, session.row.id)
        return lambda: page(request.parent, request.after, request.limit, partial(self._sees, session), eyes)

    def list_schemas(self, session: Session, request: administration.ListSchemas) -> Work:
        schemas, sees = self._broker.core.schemas, partial(self._sees, session)
        return lambda: page_of(schemas.each(request.after, sees), request.limit)

    def _allow(self, session: Session) -> Allow:
        """What is asked about letters that are handed out again."""
        return partial(self._broker.check_letter, session.row.user, session.row.id)

    def _own(self, user: str, producer: str) -> str:
        """A user's producer: nobody else can commit or drop what it staged."""
        return f"{user}/{producer}"  # a user's name has no "/"

    def _sees(self, session: Session, filter: str) -> bool:
        return self._broker.may_subscribe(session.row.user, session.row.id, filter)

    def work_to_remove(self, session: Session, name: str) -> Callable[[], Any] | None:
        """What removes a subscription that an extension has, by its name; None if it is none of theirs."""
        found = (extension.work_to_remove(session, name) for extension in self._broker.extensions)
        return next((work for work in found if work is not None), None)

    def delay(self, session: Session, request: requests.Delay) -> Work:
        core, user = self._broker.core, session.row.user
        part = Part(root_of(request.topic), (request.topic,), (), (), headers=(request.headers,))
        self._broker.check_headers(part)
        self._broker.check_later(user, session.row.id, part)
        due = self.datetime(request.deliver_at_us)
        by = self._broker.author(user, session.row.owner_id)
        owner = session.connection.share if session.connection is not None else ""

        def work() -> requests.Delayed:
            item = core.checks.one(
                *(request.topic, request.payload, request.retain, request.key, request.headers, request.ttl_s),
                *(None, None, due, by),
            )
            item.made_by = owner
            return requests.Delayed(core.store(item).time_us)

        return work

    def schedule(self, session: Session, request: requests.Schedule) -> Work:
        broker, user, asked = self._broker, session.row.user, request
        part = Part(root_of(asked.topic), (asked.topic,), (), (), headers=(asked.headers,))
        broker.check_headers(part)
        broker.check_later(user, session.row.id, part)
        owner = self._owner_of(session, asked.by)
        return lambda: broker.core.schedules.add(
            asked.topic,
            asked.payload,
            cron=asked.cron,
            id=asked.id,
            zone=asked.zone,
            retain=asked.retain,
            key=asked.key,
            headers=asked.headers,
            ttl_s=asked.ttl_s,
            owner=owner,
        )

    def schedules(self, session: Session, request: requests.Schedules) -> Work:
        schedules, owner = self._broker.core.schedules, self._owner_of(session)
        return lambda: page_of(schedules.each(request.after, owner), request.limit)

    def unschedule(self, session: Session, request: requests.Unschedule) -> Work:
        schedules, owner = self._broker.core.schedules, self._owner_of(session)
        return lambda: schedules.remove(request.id, owner)

    def _owner_of(self, session: Session, by: str | None = None) -> Owner:
        """Who asks about schedules; `by` is whom an administrator asks for."""
        broker, user = self._broker, session.row.user
        is_admin = broker.is_admin(user, session.row.id)
        author = broker.author(user, session.row.owner_id)
        return Owner(user if by is None else by, author, session.share, is_admin)


def without_others(info: SubscriptionInfo, user: str) -> SubscriptionInfo:
    """What a client is told that does not look after the whole: of other clients' consumers only that they are."""
    told = {
        part: tuple(one if one.user == user else ConsumerInfo() for one in getattr(info, part))
        for part in ("active", "standing_by")
    }
    return msgspec.structs.replace(info, **told)


def page_by_page(
    look: Callable[[str], str | None], page: Page[Any], after: str, told: Callable[[], Any] | None = None
) -> Work:
    """Look at topics until a page is full or there are no others. Others have their turn after each look, which is at
    so many topics, as they may all be such as are not asked for, or may not be seen."""

    def work() -> Any:
        last = look(after)
        if last is not None and not page.is_full:
            return Unfinished(page_by_page(look, page, last, told))
        return page.rows if told is None else told()

    return work
