"""The core: a bus without its public methods, on a folder that it owns.

It wires the parts of a bus together, opens and closes them. The embedded buses, the server, its protocols and channels
use the parts directly; an operation that takes several parts is a method here.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar, cast

import msgspec

from headwater import threads
from headwater.audit import Audit
from headwater.clock import SECOND_US, Clock, SteadyClock, SystemClock, from_datetime
from headwater.config import Config
from headwater.delivery.consumer import Consumer
from headwater.delivery.dead_letters import DeadLetters
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.durables import Durables
from headwater.delivery.history import History
from headwater.delivery.lane import Ticket
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.life import Lives
from headwater.delivery.listeners import Hearing
from headwater.delivery.live import BUS_CLOSED, Ear, Live, Policy
from headwater.delivery.mending import Mending
from headwater.delivery.options import Options
from headwater.delivery.readers import Readers
from headwater.delivery.replay import After, Bell, Reading
from headwater.delivery.retained import FIRST_ROWS, RetainedReading, retained_messages
from headwater.delivery.rows import RowCommit
from headwater.delivery.start import Start
from headwater.delivery.states import States
from headwater.delivery.subscriber import Subscriber
from headwater.delivery.timers import Timers
from headwater.erasure import Erasure
from headwater.errors import Closed, HeadwaterError, Malformed, ReadOnly, Unavailable
from headwater.events import Events
from headwater.log.checks import Checks
from headwater.log.publish import Part, Publish, Unawaited
from headwater.log.root import Root, retained_message
from headwater.log.roots import Roots
from headwater.log.showing import SHOWN_S, Untold
from headwater.message import (
    OF_HISTORY,
    REPLY_TO,
    Extent,
    Message,
    Outgoing,
    PurgeInfo,
    Receipt,
    SubscriptionInfo,
    TopicInfo,
    Unacked,
    this_process,
)
from headwater.payload import Payload
from headwater.requests import REPLY_ROOT, Replies, answer_headers, nobody_hears
from headwater.schedules import Schedules
from headwater.schemas import Schemas
from headwater.staging import Staging
from headwater.store import folder as folders
from headwater.store.data_folder import MEMORY, DataFolder
from headwater.store.data_folder import Replication as Replicated
from headwater.store.files import Files
from headwater.store.log import Counted, Wanted
from headwater.store.rocks import RocksState
from headwater.store.state import State
from headwater.store.state_recovery import Loss
from headwater.topics.name import beginning_of, check_filter, compile_filter, filter_covers_root, root_of
from headwater.upkeep import Upkeep
from headwater.wire.request import Page, page_of

if TYPE_CHECKING:
    from headwater.access.acl import Acl
    from headwater.access.clients import Clients
    from headwater.access.tokens import Tokens
    from headwater.wire.requests import PurgePlace


class Registry(Protocol):
    """What is kept in the state beside messages and subscriptions."""

    def reload(self) -> None:
        """See what another process wrote meanwhile."""


class Replication(Replicated, Protocol):
    """What makes a core that of a cluster's leader."""

    def attach(
        self, refuse: Callable[[HeadwaterError], None], accept: Callable[[], None], on_failed: Callable[[], None]
    ) -> None:
        """Have whoever publishes, and whoever writes rows, hear when nothing is taken, and when everything is again."""

    def refusal(self) -> HeadwaterError | None:
        """What is told to whoever asks for something while nothing is taken."""

    @property
    def is_held(self) -> bool:
        """Whether nothing may be handed out, nor shown, at the moment."""

    def drop(self) -> None:
        """Do nothing more by itself."""


G = TypeVar("G", bound=Registry)
R = TypeVar("R")

TOPICS_LOOKED_AT = 1000
"""Topics that a listing looks at before others have their turn, whether or not they are on it."""


class Doors(TypedDict, total=False):
    """Where a core reads and writes: tests put others there, to bring in faults."""

    files: Files | None
    state: State | None


class Core:
    """The parts of a bus, and what it takes several of them to do."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Config | None = None,
        *,
        lake: str | os.PathLike[str] | None = None,
        read_only: bool = False,
        files: Files | None = None,
        state: State | None = None,
        clock: Clock | None = None,
        replication: Replication | None = None,
    ) -> None:
        """`files`, `state` and `clock` are injected by tests, to bring in faults. With `replication` it is the core of
        a cluster's leader, on the folder of its node."""
        self.config = config or Config()
        if lake is not None:
            self.config = msgspec.structs.replace(self.config, lake=os.fspath(lake))
        self.is_read_only = read_only
        self._is_fed = False
        """Whether a core that only reads is told what the owner has written."""
        self._closed = False
        self.takes_writes = not read_only
        """Whether `check_open` has nothing to say to whoever writes."""
        self.live: dict[Live | Ear | Bell | Replies, None] = {}
        """Those who listen or read, and end with it."""
        self._consumers: dict[Ticket, Subscriber] = {}
        self._forgotten: deque[Live | Ear | Bell] = deque()
        """Of readers that were garbage-collected, or that left while nothing is done: removed with the next one, or in
        time."""
        self._registries: dict[object, Registry] = {}
        self._registry_lock = threads.RLock()
        self.clock = SteadyClock(clock or SystemClock())
        self.events = Events(self.clock, self.config.events_kept)
        self.clock.on_step = self.events.on_clock_step
        self.data = DataFolder(
            *(os.fspath(folder), self.config, self.clock, self.events),
            read_only=read_only,
            files=files,
            state=state,
            replication=replication,
        )
        self.folder = self.data.path
        self.id = self.data.id
        self.state = self.data.state
        try:
            self._put_together()
            if replication is not None:
                self._replicate(replication)
        except BaseException:
            if replication is not None:
                replication.drop()
            self.data.abandon()
            raise

    def _put_together(self) -> None:
        config, clock, events, state = self.config, self.clock, self.events, self.state
        self._history = self._open_history()
        self.roots = roots = Roots(self.data.streams, state, config, clock, events.trouble)
        self.rows = RowCommit(state, events.trouble)
        self.timers = Timers(clock, events.trouble)
        if self.is_read_only:
            roots.look()
        else:
            self.data.report(roots.recover())
        self.checks = Checks(config, clock)
        self.letterbox = Letterbox(state, self.rows, roots, self.checks, self.timers, config, clock, events)
        self.lives = Lives(roots, self.checks, self.timers, config, clock, events)
        self.dispatcher = Dispatcher(
            *(
                roots,
                state,
                self.rows,
                self.timers,
                config,
                clock,
                self.reply,
                events.add,
                self.data.notes,
                self.letterbox,
                self.lives,
                self.is_read_only,
            )
        )
        self.audit = Audit(self._publish_own, clock, events.trouble, config.audit_bytes_max)
        self.durables = Durables(self.dispatcher, roots, config, self.audit, lambda: self.check_open(writes=True))
        self.readers = Readers(self.data.files, self.folder, roots, self.durables, events)
        self.staging = Staging(self.checks, roots, state, self.rows, config, clock, events.trouble)
        self.states = States(self.dispatcher, state, roots)
        self.dead_letters = DeadLetters(self.dispatcher, state, roots, self.audit)
        self.mending = Mending(
            self.dispatcher, roots, state, self.rows, config, clock, self.checks.contents, self.audit
        )
        self.schemas = Schemas(
            *(state, roots, self.checks, config, clock, events, self.audit), read_only=self.is_read_only
        )
        self.schedules = Schedules(
            *(state, roots.commit, self.checks, self.timers, config, clock, events, self.audit, self._check_release),
            read_only=self.is_read_only,
        )
        self.erasure = Erasure(
            *(roots, self.dispatcher, self.dead_letters, state, self.rows, config, self.audit),
            self.data.unarchived_from,
        )
        self.upkeep = Upkeep(
            *(roots, self.dispatcher, self.checks, state, self.rows, self.timers, config, clock, events),
            *(self._expire, self.data.unarchived_from, self.readers.take),
            self.data.take_snapshot if isinstance(state, RocksState) else None,
            *(self.audit, self._check_release),
        )
        self.data.streams.on_roll = self.upkeep.on_roll
        roots.committer.hearers = self.dispatcher.listeners
        self.dispatcher.before_create = self.upkeep.forget_about
        self.lives.number_of = lambda name: None if (row := self.dispatcher.row(name)) is None else row.number
        self.letterbox.on_published = self.lives.on_published = self.upkeep.forget_late
        if isinstance(state, RocksState):
            state.on_failed = self.upkeep.on_state_failed
        if not self.is_read_only:
            self.staging.recover()
            self.letterbox.recover()
            self.upkeep.start()
            self.schedules.start()

    def _replicate(self, replication: Replication) -> None:
        commit = self.roots.commit

        def accept() -> None:
            commit.accept()
            self.dispatcher.wake()

        self.rows.refusal = replication.refusal
        self.rows.is_held = self.roots.showing.is_held = lambda: replication.is_held
        replication.attach(commit.refuse, accept, self.upkeep.on_state_failed)

    def _open_history(self) -> History | None:
        """The lake, if there is one to be; it is opened when somebody reads that far back."""
        if not self.config.lake:
            return None
        from headwater.lake.history import LakeHistory

        history = LakeHistory(self.config.lake, self.id, None if self.is_read_only else self._end_of)
        history.check()
        return history

    def _end_of(self, root: str) -> int:
        found = self.roots.get(root)
        return 0 if found is None else found.stream.durable

    def _expire(self) -> None:
        """Drop what was staged too long ago and never committed, and listeners of collected readings; count what
        clients have."""
        self.roots.commit.run(self._let_go)
        self.staging.expire()
        self.mending.expire()
        self.dead_letters.expire(self.clock.now_us(), self.config.dead_letter_age_s)
        self.dispatcher.count_dead()

    # Closing

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def check_open(self, writes: bool = False) -> None:
        """Closed or ReadOnly if that is what it is."""
        if self._closed:
            raise Closed(f'the bus on "{self.folder}" is closed; open it again')
        if writes and self.is_read_only:
            raise ReadOnly(f'the bus on "{self.folder}" was opened to read only; open it without read_only=True')

    def close(self) -> None:
        """Finish what is under way, and release the folder."""
        if self._closed:
            return
        self.roots.commit.refuse_owner()
        self._closed, self.takes_writes = True, False
        self._end_live()
        self.timers.close()
        self.upkeep.close()
        if not self.is_read_only and self.state.failed is not None:
            self.rows.resume()  # the disk may have room by now
        with ExitStack() as closing:  # whatever fails, the rest is closed, in this order
            closing.callback(self.data.close)
            closing.callback(self.rows.close)
            closing.callback(self.dispatcher.close)
            if not self.is_read_only:
                closing.callback(self._end_live)  # those who joined meanwhile
                closing.callback(self.roots.close)
                closing.callback(self.lives.write)

    def drop(self) -> None:
        """Let go of the folder as it is, and tell whoever waits, as nothing more can be stored: of a leader that leads
        no more."""
        self._closed, self.takes_writes = True, False
        self._end_live()
        self.timers.close()
        with ExitStack() as closing:
            closing.callback(self.data.drop)
            closing.callback(self.rows.close)
            closing.callback(self.roots.commit.close)
            closing.callback(self.upkeep.close)
            closing.callback(self._end_live)

    def __enter__(self) -> Core:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def when_given_up(self, tell: Callable[[str], None]) -> None:
        """Have this called, with the reason, once nothing can be stored any more: the process is out of memory. For a
        server, which ends then; who embeds a bus gets `Failed` from all it asks for."""
        self.roots.on_given_up = tell
        self.rows.when_given_up(tell)

    # Messages of its own

    def _publish_own(self, topic: str, payload: bytes) -> None:
        """Store a message about what was done, also where there is little room left."""
        item = self.checks.own((Outgoing(topic=topic, payload=payload),))
        item.is_urgent = True
        self.roots.commit.submit_and_wait(item)

    def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer a request."""
        self.check_open(writes=True)
        topic, headers, is_sent = answer_headers(message)
        item = self.checks.one(topic, payload, headers=headers)
        if not is_sent:
            return self.store(item)
        self.show(item)
        return Receipt(topic, 0, self.clock.now_us())

    def settle(self) -> None:
        """Return once all that was published before is stored, also what nobody waits for."""
        self.roots.commit.run(lambda: None)

    def ask(self, item: Publish, *, may_wait: bool = True) -> None:
        """Put a question to whoever hears of it; NoResponders (503) if nobody does. Where live subscriptions do, nobody
        waits for the disk; else this thread sees to it that it gets there, if it may wait."""
        topic = item.topics[0]
        hearing = self.dispatcher.listeners.hearing(topic)
        if hearing & Hearing.LIVE:
            self.show(item, is_due=Hearing.STORED in hearing)
        elif not hearing and not self.dispatcher.directory.is_wanted(topic):
            raise nobody_hears(topic)
        elif may_wait:
            self.roots.commit.submit_and_wait(item)
        else:
            self.roots.commit.submit(item)

    def show(self, item: Publish, *, is_due: bool = False) -> None:
        """Have live subscriptions told of a message that nobody waits for, if that can be done at once, and have it
        stored soon, or now if it is due."""
        roots, part = self.roots, item.parts[0]
        if self.dispatcher.listeners.may_show_here:
            part.time_us = self.clock.now_us()
            shown = roots.showing.show(part, self.dispatcher.listeners.show, self._new_shown)
            if shown is not None:
                if is_due or shown[0].is_much:
                    roots.commit.kick()
                return
        roots.commit.submit(Unawaited.of(item, roots.counts))

    def _new_shown(self, root: str, turn: int) -> Untold:
        self.timers.set(("shown", root), self.clock.monotonic_us() + round(SHOWN_S * SECOND_US), self.roots.commit.kick)
        return Untold(root=root, turn=turn, counts=self.roots.counts)

    def _check_release(self, author: str, part: Part) -> bool:
        """Whether it can be told if the client of a delayed message, or of a schedule, may publish it; NotAllowed (403)
        if it may not any more, or is gone."""
        user, _, owner_id = author.partition("/")
        if self.acl.closed is not None:
            return False
        self.clients.check_owner(user, owner_id)
        self.acl.check_publish_all(user, part.distinct)
        root = self.roots.get(part.root)
        for name in part.distinct:
            if root is None or not root.has(name):
                self.acl.check_create(user, name)
        for name, value in (pair for pairs in part.headers or () for pair in pairs):
            if name == REPLY_TO and root_of(value) != REPLY_ROOT:
                self.acl.check_publish(user, value)
        return True

    def awaits(self, topic: str) -> bool:
        """Whether this process waits for answers on a topic."""
        return any(isinstance(one, Replies) and one.topic == topic for one in tuple(self.live))

    def store(self, item: Publish) -> Receipt:
        """Store a message that was checked; returns once it is on disk."""
        self.roots.commit.submit_and_wait(item)
        return cast(Receipt, item.result())

    # Subscribing and reading

    def listen(
        self,
        filter: str,
        when_full: Policy = "drop_oldest",
        owner: str = "",
        *,
        with_retained: bool = True,
        is_forgettable: bool = False,
    ) -> Live:
        """A live subscription, which counts in its owner's share; one that is forgettable lives as long as somebody
        holds it."""
        self.check_open(writes=not self._is_fed)
        check_filter(filter, self.config)
        ears: list[Ear] = []

        def leave(live: Live) -> None:
            self._leave(ears[0] if ears else live)

        live = Live(filter, when_full, self.config, self.clock, self.reply, leave)
        if is_forgettable:
            ears.append(Ear(live))
            weakref.finalize(live, self._forgotten.append, ears[0]).atexit = False

        def join() -> None:
            if with_retained:
                live.greet(RetainedReading(self.roots, self.clock, filter, FIRST_ROWS))
            self.join(filter, ears[0] if ears else live, owner)

        self.roots.commit.run(join)
        return live

    def greet_again(self, live: Live) -> None:
        """Have a live subscription given what is retained once more."""
        self.roots.commit.run(lambda: live.greet(RetainedReading(self.roots, self.clock, live.filter)))

    def join(self, filter: str, listener: Live | Ear | Bell | Replies, owner: str = "") -> None:
        """Add a listener to the fan-out; it is ended with the core."""

        def join() -> None:
            self._let_go()
            self.dispatcher.listeners.listen(filter, listener, owner)
            self.live[listener] = None

        self.roots.commit.run(join)

    def consume(self, options: Options, given: dict[str, object], start: Start) -> Consumer:
        """A consumer of a durable subscription, which is made if there is none of this id."""
        self.dead_letters.on_resume(options.id, options.filter, given)

        def join() -> Consumer:
            ticket = Ticket(f"{platform.node()}:{os.getpid()}", this_process())
            subscriber = self.dispatcher.attach(options, given, start, ticket)
            self._consumers[ticket] = subscriber
            return Consumer(subscriber, self.clock, ticket, self._seek, self._pause, self._detach, self._retire)

        return self.roots.commit.run(join)

    def _seek(self, subscriber: Subscriber, to: Start) -> None:
        self.check_open(writes=True)
        self.durables.move(subscriber, to)

    def _pause(self, subscriber: Subscriber, paused: bool) -> None:
        self.check_open(writes=True)
        self.dispatcher.pause(subscriber, paused)

    def read(
        self,
        filter: str,
        after: After = None,
        since: datetime | None = None,
        upto: Mapping[str, int] | None = None,
        *,
        follows: bool,
        owner: str = "",
        columns: Sequence[str] | None = None,
    ) -> Reading:
        """History, up to now or with everything new; then its filter counts in its owner's share. With `columns`, for
        who takes it unsifted."""
        self.check_open(writes=follows and not self._is_fed)
        check_filter(filter, self.config)
        bells: list[Bell] = []

        def leave() -> None:
            for bell in bells:
                self._leave(bell)

        origin = Unacked(OF_HISTORY, self.reply)
        reading = Reading(
            *(self.roots, filter, after, since, follows, self.config, self.clock, origin, leave, upto, self._history),
            columns=columns,
        )
        if follows:
            bell = Bell(reading)
            bells.append(bell)
            # Collected in any thread, whatever locks it holds: no more is done there than to note it.
            weakref.finalize(reading, self._forgotten.append, bell).atexit = False
            self.join(filter, bell, owner)
        return reading

    def _let_go(self) -> None:
        """Remove listeners of readings that were garbage-collected; in the committing role."""
        while self._forgotten:
            bell = self._forgotten.popleft()
            self.live.pop(bell, None)
            self.dispatcher.listeners.leave(bell)

    def _leave(self, reader: Live | Ear | Bell) -> None:
        self.live.pop(reader, None)
        if self._closed or (self.is_read_only and not self._is_fed):
            return
        try:
            self.dispatcher.listeners.leave(reader)
        except Unavailable:  # nothing is done between groups at the moment
            self._forgotten.append(reader)

    def _detach(self, subscriber: Subscriber, ticket: Ticket) -> None:
        subscriber.waiters.set(ticket, None)
        if self._consumers.pop(ticket, None) is not None and not self._closed:
            self.dispatcher.detach(subscriber, ticket)

    def _retire(self, subscriber: Subscriber, ticket: Ticket) -> None:
        subscriber.waiters.set(ticket, None)
        if self._consumers.pop(ticket, None) is not None and not self._closed:
            self.dispatcher.retire(subscriber, ticket)

    def _end_live(self) -> None:
        for subscriber in tuple(self._consumers.values()):
            subscriber.end()
        for reader in tuple(self.live):
            if isinstance(reader, Live):
                reader.end(BUS_CLOSED)
            else:
                reader.end()

    # Queries

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""
        check_filter(filter, self.config)
        wanted, now_us = compile_filter(filter), self.clock.now_us()
        roots = self._covered(filter)
        found = self.roots.look_at(lambda: [info for root in roots for info in root.topics(wanted, now_us)])
        return sorted(found, key=lambda info: info.topic)

    def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        check_filter(filter, self.config)
        return self.roots.look_at(lambda: retained_messages(self.roots, filter, self.clock.now_us()))

    def topics_after(
        self,
        filter: str,
        after: str,
        page: Page[TopicInfo],
        sees: Callable[[str], bool],
        sees_some: Callable[[str], bool],
    ) -> str | None:
        """Put topics that may be seen on a page: root by root and by name, after one. So many are looked at and no
        more; answers after which to go on, None if there are no others. Of `sees_some`, a filter is asked."""
        check_filter(filter, self.config)
        is_wanted, beginning, now_us = compile_filter(filter), beginning_of(filter), self.clock.now_us()
        roots = [(root, place) for root, place in self._covered_after(filter, after) if sees_some(f"{root.name}/#")]

        def wanted(topic: str) -> bool:
            return is_wanted(topic) and sees(topic)

        def found() -> Iterator[tuple[str, TopicInfo | None]]:
            for root, place in roots:
                yield from root.topics_after(place, beginning, wanted, now_us)

        return self._look_on(found, page)

    def retained_after(self, filter: str, after: str, page: Page[Message]) -> str | None:
        """The same with retained messages."""
        check_filter(filter, self.config)
        wanted, beginning, now_us = compile_filter(filter), beginning_of(filter), self.clock.now_us()
        roots = self._covered_after(filter, after)

        def found() -> Iterator[tuple[str, Message | None]]:
            for root, place in roots:
                for topic, row in root.retained.matching_after(place, beginning, wanted, now_us):
                    yield topic, None if row is None else retained_message(row, topic)

        return self._look_on(found, page)

    def _look_on(self, found: Callable[[], Iterator[tuple[str, R | None]]], page: Page[R]) -> str | None:
        """Put on a page what is among the next topics; answers the last of them, None if there are no others."""

        def look() -> tuple[Page[R], str | None]:
            tried, names = page.rest(), found()
            for looked, (topic, one) in enumerate(names, 1):
                if one is not None:
                    tried.add(one)
                if looked == TOPICS_LOOKED_AT or tried.is_full:
                    return tried, topic
            return tried, None

        tried, last = self.roots.look_at(look)
        page.take(tried)
        return last

    def _covered_after(self, filter: str, after: str) -> list[tuple[Root, str]]:
        """Roots that a filter covers and that have something after a topic, by name, each with where to go on in it."""
        first = root_of(after)
        roots = sorted((root for root in self._covered(filter) if root.name >= first), key=lambda root: root.name)
        return [(root, after if root.name == first else "") for root in roots]

    def ends(self) -> dict[str, int]:
        """The newest offset of each root."""
        return {root.name: root.stream.durable for root in self.roots.all()}

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, by name; and where in them each of these moments is."""
        check_filter(filter, self.config)
        times = [from_datetime(moment) for moment in moments]

        def extent(root: Root) -> Extent:
            log, places = root.stream, tuple(root.stream.offset_at(time_us) for time_us in times)
            return Extent(root.name, log.first_offset, log.durable + 1, root.purged_upto, places, log.size[0])

        return sorted(map(extent, self._covered(filter)), key=lambda extent: extent.root)

    def count(
        self, filter: str, name: str, wanted: Wanted, first: int, last: int, messages_max: int, bytes_max: int
    ) -> Counted:
        """How many messages of a root that a filter covers have topics that are wanted, from an offset up to another,
        or until there are so many, or so much was read. Nothing is looked at of a root that is not there."""
        for root in self.roots.covered(filter):
            if root.name == name:
                return root.stream.count(wanted, first, min(last, root.stream.durable), messages_max, bytes_max)
        return Counted(first, 0)

    def purges(self, filter: str = "#") -> list[PurgeInfo]:
        """What is purged of the roots that a filter may match."""
        return list(self._purges(filter))

    def purges_after(self, filter: str, after: PurgePlace | None, limit: int | None) -> list[PurgeInfo]:
        """The same, a page of it."""
        return page_of(self._purges(filter, after), limit)

    def _purges(self, filter: str, after: PurgePlace | None = None) -> Iterator[PurgeInfo]:
        """The same, root by root, and the oldest first. If what comes after something is asked for that a wider purge
        has taken the place of meanwhile, some of what was purged before it comes once more, rather than none."""
        check_filter(filter, self.config)
        first = "" if after is None else after[0]
        for root in sorted((root for root in self._covered(filter) if root.name >= first), key=lambda root: root.name):
            found = [PurgeInfo(root.name, one.filter, one.upto, one.key) for one in root.purges]
            if after is not None and root.name == after[0]:
                last = PurgeInfo(after[0], after[2], after[1], after[3])
                is_there = last in found
                found = found[found.index(last) + 1 :] if is_there else [one for one in found if one.upto >= last.upto]
            yield from found

    def _covered(self, filter: str) -> list[Root]:
        return [root for root in self.roots.all() if filter_covers_root(filter, root.name)]

    def subscriptions(
        self,
        after: str | None = None,
        limit: int | None = None,
        is_shown: Callable[[str, str], bool] = lambda _id, _filter: True,
    ) -> list[SubscriptionInfo]:
        """Every durable subscription that is to be shown, by id; with a limit a page of them, after an id."""
        if self.is_read_only:
            return self.durables.infos(self.readers.waiting(), after, limit)
        self.readers.look()
        return self.dispatcher.listing.infos(after, limit, is_shown)

    def subscriptions_after(
        self, after: str | None, limit: int | None, is_shown: Callable[[str, str], bool]
    ) -> tuple[list[SubscriptionInfo], str | None]:
        """Those to be shown among the next ones, and the id after which to go on, None at the end."""
        self.readers.look()
        return self.dispatcher.listing.infos_after(after, limit, is_shown)

    @property
    def losses(self) -> Sequence[Loss]:
        """Rows of the state that are known to be lost."""
        return self.state.losses if isinstance(self.state, RocksState) else ()

    def refresh(self) -> None:
        """See what the owner wrote meanwhile; for a folder that was opened to read."""
        if self.is_read_only:
            self.data.refresh()
            self.roots.look()
            for registry in self._registries.values():
                registry.reload()

    def feed(self) -> None:
        """Have a core that only reads told what the owner has written, by `see`, from now on: so readings may follow,
        and there are live subscriptions."""
        self._is_fed = True

    def see(self, *, anew: bool = False) -> None:
        """Show what the owner has written since the last time, to those who listen, too; `anew`, if there were rows
        about its roots."""

        def look() -> None:
            self._let_go()
            appended = self.roots.look_on(anew=anew)
            if appended:
                self.dispatcher.listeners.on_durable(appended)

        self.roots.commit.run(look)

    # Registries: made when somebody first asks for them, as embedded hardly anybody does.

    def registry(self, make: Callable[[Core], G]) -> G:
        """The one of its kind; `make` makes it."""
        self.check_open()
        with self._registry_lock:
            found = self._registries.get(make)
            if found is None:
                found = self._registries[make] = make(self)
            return cast(G, found)

    @property
    def clients(self) -> Clients:
        """The clients that may log in."""
        return self.registry(_clients)

    @property
    def acl(self) -> Acl:
        """The rules for what they may do."""
        return self.registry(_acl)

    @property
    def tokens(self) -> Tokens:
        """What opens the HTTP API for them."""
        return self.registry(_tokens)

    # Operations

    def backup(self, target: str | os.PathLike[str], with_keys: bool = False) -> None:
        """A copy of the folder as of now, in a new folder; with_keys, with what opens the secrets in it."""
        self.check_open(writes=True)
        if self.folder == MEMORY:
            raise Malformed("a bus in memory has no files to back up; open one on a folder")
        path = os.fspath(target)
        if self.data.files.list(path):
            raise Malformed(f'"{path}" is not empty; back up into a new folder')
        self.upkeep.backup(self.data.streams, path)
        if with_keys:
            folders.copy_key(self.data.files, self.folder, path)
        self.data.files.close_to_others(path, whole=True)  # RocksDB makes its files as it likes

    def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        """Say how far a lake has each root: retention waits for it as for a durable subscription."""
        self.check_open(writes=True)
        ends = self.ends()
        for root, offset in archived.items():
            if offset > ends.get(root, 0):
                raise Malformed(
                    f'"{root}" ends at {ends.get(root, 0)}, so nothing can be archived up to {offset}: it is another '
                    "bus, or one restored from an older backup; use a new lake for it"
                )
        self.roots.commit.run(lambda: self.data.mark_archived(lake, dict(archived)))


def _clients(core: Core) -> Clients:
    from headwater.access.clients import Clients

    return Clients(core.state, core.clock, read_only=core.is_read_only, audit=core.audit)


def _acl(core: Core) -> Acl:
    from headwater.access.acl import Acl

    return Acl(core.state, config=core.config, read_only=core.is_read_only, audit=core.audit)


def _tokens(core: Core) -> Tokens:
    from headwater.access.tokens import Tokens

    return Tokens(core.state, core.clock, core.clients, read_only=core.is_read_only, audit=core.audit)
