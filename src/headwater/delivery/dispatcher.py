"""The dispatcher: durable subscriptions, from the first subscriber to the last, and all parts that deliver.

One for all subscriptions, with no thread of its own: appends tell the `listeners` from the thread that commits, acks
and takes come from the consumers' threads, and everything that has to happen later is in the one timer queue. A durable
subscription without a consumer is rows in the state and nothing else; with its first consumer it is loaded and served,
and listens. Promises: it does so in the committing role, between two groups, so that it misses nothing and gets nothing
twice; what was said of a subscription that is deleted is gone with it, in one write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery import rows as stored
from headwater.delivery.at_rest import AtRest
from headwater.delivery.backlog import Backlog
from headwater.delivery.dead_shares import DeadShares
from headwater.delivery.directory import Directory
from headwater.delivery.floors import Floors
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.life import Lives
from headwater.delivery.listeners import Listeners
from headwater.delivery.listing import Listing
from headwater.delivery.needs import CHECK_EVERY
from headwater.delivery.options import Options
from headwater.delivery.own_topics import ABOUT, own_topic
from headwater.delivery.retained import retained_copies
from headwater.delivery.rows import RowCommit, SubscriptionRow
from headwater.delivery.start import Ends, Start, floor_for
from headwater.delivery.subscriber import Subscriber
from headwater.delivery.timeouts import OnRetry
from headwater.delivery.timers import Timers
from headwater.errors import Conflict, NotFound, Unavailable
from headwater.events import Tell
from headwater.log.items import Call
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import Message, Receipt, SubscriptionInfo
from headwater.payload import Payload
from headwater.store import state as rows
from headwater.store.notes import Notes
from headwater.store.state import Rows, State
from headwater.topics.name import filter_covers_root, root_of_filter

R = TypeVar("R")

CONSUMERS_TOLD = 100
"""Consumers of a subscription of whom it is told who they are; how many there are is told of all."""
LEAVE_AGAIN_S = 1.0
"""After how long a consumer is let go again, where that could not be."""


class Dispatcher:
    """All subscriptions of a bus."""

    def __init__(
        self,
        roots: Roots,
        state: State,
        commit: RowCommit,
        timers: Timers,
        config: Config,
        clock: Clock,
        reply: Callable[[Message, Payload], Receipt],
        on_event: Tell,
        notes: Notes,
        letterbox: Letterbox,
        lives: Lives,
        is_read_only: bool = False,
    ) -> None:
        self._is_read_only = is_read_only
        self._roots = roots
        self._state = state
        self._commit = commit
        self._timers = timers
        self._config = config
        self._clock = clock
        self._reply = reply
        self._on_event = on_event
        self._notes = notes
        self._letterbox = letterbox
        self._lives = lives
        self.before_create: Callable[[str], None] = lambda _id: None
        """Called in the committing role when a subscription is about to be made: nothing is left then of what was told
        about one of this id before it."""
        self.on_deleted: Callable[[], None] = lambda: None
        """Called when one is gone about which somebody is told, who may not be told about the next of its id."""
        self.on_retry: OnRetry | None = None
        """Hears of messages that timed out, and that are handed out again; from any thread."""
        self.listeners = Listeners(config, roots.commit.run)
        self._served: dict[str, Subscriber] = {}
        self._leaving: deque[Callable[[], None]] = deque()
        """What lets those consumers go that left while nothing was done between groups."""
        self.in_session: set[str] = set()
        """Ids of those that go with the session of the process, and do not expire before that is over."""
        self.directory = Directory(state, config, self.listeners.patterns)
        self.row = self.directory.row
        """A subscription as it is stored, by its id."""
        self.at_rest = AtRest(state, self.directory, self._served)
        self._lock = threads.RLock()
        self._backlog = Backlog(config, clock)
        self.floors = Floors(state, commit, self.directory, self.at_rest, self._served, self._lock, config, clock)
        self.listing = Listing(
            roots,
            commit,
            self.directory,
            self.at_rest,
            self._backlog,
            self.info,
            self._served,
            is_read_only=is_read_only,
        )
        self._shares = DeadShares(config)

    # Durable subscriptions

    def attach(
        self,
        options: Options,
        given: dict[str, object],
        start: Start | Ends,
        consumer: object,
        *,
        with_retained: bool = True,
        resumes: bool = False,
        owner: str = "",
    ) -> Subscriber:
        """Have a consumer served, the subscription made if there is none of this id, unless it resumes one.

        `given` are the options that the caller stated; the others are as stored, or the defaults. A new subscription
        that starts with the latest gets the retained messages first, unless it is not to; it counts in its owner's
        share.
        """
        return self._roots.commit.run(
            lambda: self._attach(options, given, start, consumer, with_retained, resumes, owner)
        )

    def _attach(
        self,
        options: Options,
        given: dict[str, object],
        start: Start | Ends,
        consumer: object,
        with_retained: bool,
        resumes: bool,
        owner: str,
    ) -> Subscriber:
        with self._lock:
            self._finish_leaving()
            served = self._served.get(options.id)
            if served is not None and served.consumers.retired is not None:
                self._detach(served, served.consumers.retired, vanished=False)
            row = self.row(options.id)
            if row is None:
                if resumes:
                    raise NotFound(f'subscription "{options.id}" was deleted; subscribe again to begin anew')
                options.check(self._config)
                row = self._create(options, start, with_retained, owner)
            else:
                row = self._reopen(row, options.filter, given)
            subscriber = self._served.get(options.id)
            if subscriber is None:
                subscriber = self._served[options.id] = self._load(row)
            subscriber.consumers.attach(consumer)
            if subscriber.consumers.count == 1:
                self.listeners.add(options.filter, subscriber.waiters)
            self._note_use(subscriber)
            return subscriber

    def create(self, options: Options, given: Mapping[str, object], start: Start, owner: str = "") -> bool:
        """A subscription that nobody takes from yet; False if it is there, and just like that.

        `given` are the options that the caller stated.
        """
        return self._roots.commit.run(lambda: self._make(options, given, start, owner))

    def _make(self, options: Options, given: Mapping[str, object], start: Start, owner: str) -> bool:
        with self._lock:
            options.check(self._config)
            row = self.row(options.id)
            if row is None:
                self._create(options, start, True, owner)
                return True
            there = row.options
            asked = msgspec.structs.replace(there, **{**given, "filter": options.filter})
            if asked != there:
                other = there.unlike(asked)
                raise Conflict(
                    f'there is another subscription "{options.id}": {other}; choose another id, or delete it'
                )
            return False

    def ends(self, filter: str, *, is_quiet: bool = False) -> Ends:
        """Where the roots that a filter covers end, once what has its place before this is on disk; if that is
        so already, `is_quiet` says so. Never waits."""
        found = Ends()

        def look() -> None:
            found.by_root = {root.name: root.stream.durable for root in self._roots.covered(filter)}
            found.is_known = True

        commit = self._roots.commit
        if is_quiet or commit.is_full:
            look()
        else:
            commit.submit(Call(look))
        return found

    def _create(self, options: Options, start: Start | Ends, with_retained: bool, owner: str) -> SubscriptionRow:
        self.directory.check_new(options, owner)
        self.before_create(options.id)
        floors = {root: floor_for(root, options.filter, start) for root in self._roots.covered(options.filter)}
        number, now_us = self.directory.next_number(), self._clock.now_us()
        row = SubscriptionRow(number=number, options=options, created_us=now_us, used_us=now_us, owner=owner)
        changed = self.directory.new_rows(row)
        for root, floor in floors.items():
            changed[rows.key_pair(rows.FLOOR, number, root.stream.number)] = floor.to_bytes(8, "big")
            self.floors.lowest.note(root.stream.number, floor)
        if (start == "latest" or isinstance(start, Ends)) and with_retained:
            below = {root.stream.number: floor for root, floor in floors.items()}
            copies, rests = retained_copies(self._roots, options.filter, below, now_us)
            changed.update(stored.copy_rows(number, copies) | stored.rest_rows(number, rests))
        self._commit.write(changed)
        self.directory.note_made(row)
        return row

    def send_retained(self, id: str) -> None:
        """Hand a subscription the retained messages once more, before what comes next."""

        def work(subscriber: Subscriber) -> None:
            wanted, number = subscriber.options.filter, subscriber.number
            ends = {root.stream.number: root.stream.durable for root in self._roots.covered(wanted)}
            if subscriber.retained.rests:
                subscriber.retained.want_again(ends)
                return
            copies, rests = retained_copies(self._roots, wanted, ends, self._clock.now_us())
            if copies or rests:
                changed = stored.copy_rows(number, copies) | stored.rest_rows(number, rests)
                subscriber.add_copies(changed, copies, rests)

        self._roots.commit.run(lambda: self.use(id, work))

    def check_in_use(self, options: Options, given: Mapping[str, object]) -> None:
        """Conflict (409) if other options are stated for a subscription that somebody takes from."""
        wanted = msgspec.structs.replace(options, **given)
        if wanted != options:
            wanted.check(self._config)
            raise Conflict(
                f'subscription "{options.id}" is in use with other options: {options.unlike(wanted)}; close its '
                "consumers first, or leave that out"
            )

    def _reopen(self, row: SubscriptionRow, filter: str, given: dict[str, object]) -> SubscriptionRow:
        name = row.options.id
        if row.options.filter != filter:
            raise Conflict(
                f'subscription "{name}" has the filter "{row.options.filter}", not "{filter}"; use that, another id, '
                f'or unsubscribe("{name}") first'
            )
        options = msgspec.structs.replace(row.options, **given)
        if options == row.options:
            return row
        served = self._served.get(name)
        if served is not None and served.consumers.count:
            self.check_in_use(row.options, given)
        options.check(self._config)
        self._forget(name)
        row = msgspec.structs.replace(row, options=options)
        self._commit.write({self.directory.key(name): rows.pack(row)})
        return row

    def _load(self, row: SubscriptionRow) -> Subscriber:
        self._commit.flush()
        if self._commit.is_owing:  # what is stored is older than what was said to its last consumers
            self._commit.check()
        return Subscriber(
            row,
            self._roots,
            self._state,
            self._commit,
            self._timers,
            self._config,
            self._clock,
            self._reply,
            self._on_event,
            self.floors.lowest.note,
            self._notes,
            self._shares,
            self._letterbox,
            self._lives,
            self._tell_of_retry,
            is_read_only=self._is_read_only,
        )

    def _tell_of_retry(self, event: str, subscription: str, root: str, offsets: Sequence[int], by: str) -> None:
        if self.on_retry is not None:
            self.on_retry(event, subscription, root, offsets, by)

    def use(self, id: str, work: Callable[[Subscriber], R]) -> R:
        """Look at or change a subscription, whether or not it has consumers; one without is loaded for this alone."""
        with self._lock:
            subscriber = self._served.get(id)
            if subscriber is not None:
                return work(subscriber)
            row = self.row(id)
            if row is None:
                raise NotFound(f'there is no subscription "{id}"; bus.subscriptions() lists those that are')
            subscriber = self._load(row)
            try:
                return work(subscriber)
            finally:
                self._let_go(subscriber)

    def wake(self) -> None:
        """Have all consumers look again, as what was held may be handed out; without a lock, by any thread."""
        for subscriber in tuple(self._served.values()):
            subscriber.waiters.wake()

    def _let_go(self, subscriber: Subscriber) -> None:
        """Keep how far its floors rose past what does not match; nothing is lost if a crash forgets it."""
        if not self._is_read_only and self._commit.failed is None:
            with suppress(Unavailable):
                self._commit.write(subscriber.progress.risen_floors())
        self.at_rest.remember(subscriber.options.id, subscriber.progress.resting())
        subscriber.end()

    def detach(self, subscriber: Subscriber, consumer: object, *, vanished: bool = False) -> None:
        """A consumer leaves; with the last one, the subscription goes back to being rows."""
        self._leave(lambda: self._detach(subscriber, consumer, vanished))

    def retire(self, subscriber: Subscriber, consumer: object) -> None:
        """Nobody holds a consumer any more: it leaves, at the latest when another one comes."""

        def retire() -> None:
            if not subscriber.consumers.retire(consumer):
                self._detach(subscriber, consumer, vanished=False)

        self._leave(retire)

    def _leave(self, work: Callable[[], None]) -> None:
        """Let a consumer go. While nothing is done between groups, it is let go later: who takes from a subscription
        and is not there any more would keep others from it."""
        try:
            self._roots.commit.run(work)
        except Unavailable:
            self._leaving.append(work)
            self._arm_leaving()

    def _arm_leaving(self) -> None:
        due_us = self._clock.monotonic_us() + round(LEAVE_AGAIN_S * SECOND_US)
        self._timers.set("leaving", due_us, self._leave_again)

    def _leave_again(self) -> None:
        try:
            self._roots.commit.run(self._finish_leaving)
        except Unavailable:
            self._arm_leaving()

    def _finish_leaving(self) -> None:
        """Let those go who left while that could not be; in the committing role."""
        while self._leaving:
            self._leaving.popleft()()

    def _detach(self, subscriber: Subscriber, consumer: object, vanished: bool) -> None:
        with self._lock:
            subscriber.consumers.detach(consumer, vanished=vanished)
            if subscriber.consumers.count == 0:
                self.listeners.remove(subscriber.waiters)
                if self._served.get(subscriber.options.id) is subscriber:
                    with suppress(Unavailable):  # then it is as if it was used a moment less
                        self._note_use(subscriber)
                    self._forget(subscriber.options.id)

    def _forget(self, id: str) -> None:
        subscriber = self._served.pop(id, None)
        if subscriber is not None:
            self._let_go(subscriber)

    def _note_use(self, subscriber: Subscriber) -> None:
        if subscriber.options.expire_after_s is not None:
            self._keep(subscriber, used_us=self._clock.now_us())

    def _keep(self, subscriber: Subscriber, **changes: object) -> None:
        subscriber.row = msgspec.structs.replace(subscriber.row, **changes)
        self._commit.write({self.directory.key(subscriber.options.id): rows.pack(subscriber.row)})

    def pause(self, subscriber: Subscriber, paused: bool) -> None:
        """Hand out nothing, or go on; remembered."""
        with self._lock:
            subscriber.pause(paused)
            self._keep(subscriber, paused=paused)

    def delete(self, id: str, *, unless_used: bool = False, kept_for: str | None = None) -> None:
        """A subscription and everything about it is gone, and its consumers are told. Its dead letters are kept for a
        while, if they are for somebody whose session it went with."""
        self._roots.commit.run(lambda: self._delete(id, unless_used, kept_for))

    def _delete(self, id: str, unless_used: bool, kept_for: str | None = None) -> None:
        with self._lock:
            row = self.row(id)
            if row is None:
                raise NotFound(f'there is no subscription "{id}"; bus.subscriptions() lists those that are')
            subscriber = self._served.get(id)
            if subscriber is not None:
                if unless_used and subscriber.consumers.count:
                    consumers = subscriber.consumers.count
                    raise Conflict(f'subscription "{id}" is in use (consumers: {consumers}); close them, or force it')
                del self._served[id]
                self.listeners.remove(subscriber.waiters)
                subscriber.end()
            self._commit.flush()
            changed = stored.every_row(self._state, row.number)
            changed[self.directory.key(id)] = None
            letters = self._keep_letters(row, kept_for, changed) if kept_for is not None else 0
            self._commit.write(changed)
            self.directory.note_deleted(row)
            self._shares.drop_redriven(row.number) if letters else self._shares.drop(row.number)
            self.at_rest.known.pop(id, None)
            self._backlog.forget(row.number)
            if any(self.listeners.hears_alone(own_topic(about, id, self._config)) for about in ABOUT):
                self.on_deleted()

    def _keep_letters(self, row: SubscriptionRow, user: str, changed: Rows) -> int:
        """Have the dead letters stay of a subscription that goes with its session; how many there are."""
        letters = [key for key in changed if key.startswith(rows.DEAD)]
        if not letters or not self._config.dead_letter_age_s:
            return 0
        for key in letters:
            del changed[key]
        name, now_us = row.options.id, self._clock.now_us()
        kept = stored.KeptRow(number=row.number, id=name, user=user, owner=row.owner, ended_us=now_us)
        changed[stored.kept_key(kept)] = rows.pack(kept)
        self._on_event(
            "dead-kept",
            f'the session of subscription "{name}" is over, and {len(letters)} dead letters of it are kept for '
            f'{self._config.dead_letter_age_s:.0f} s (dead_letter_age_s); see bus.dead_letters("{name}")',
        )
        return len(letters)

    def drop_kept(self, row: stored.KeptRow, changed: Rows, letters: int, size: int) -> None:
        """Some of the letters that a session has left are gone, or all of them, and then nothing is left of it."""
        with self._lock:
            self._commit.write(changed)
            if stored.kept_key(row) in changed:
                self._shares.drop(row.number)
            else:
                self._shares.change(row.number, -letters, -size)

    def count_dead(self) -> None:
        """Count the dead letters of subscriptions that nobody has used since the bus was opened; from any thread."""
        for kept in stored.all_kept(self._state):
            if kept.owner and not self._shares.is_known(kept.number):
                sizes = [len(value) for _, value in self._state.scan(rows.key_u32(rows.DEAD, kept.number))]
                self._shares.load(kept.number, kept.owner, len(sizes), sum(sizes))
        for row in self.directory.each():
            if not row.owner or self._shares.is_known(row.number):
                continue
            sizes = [len(value) for _, value in self._state.scan(rows.key_u32(rows.DEAD, row.number))]
            with self._lock:
                if not self._shares.is_known(row.number) and self.row(row.options.id) is not None:
                    self._shares.load(row.number, row.owner, len(sizes), sum(sizes))

    def expire(self, check: Callable[[], None] = lambda: None) -> list[str]:
        """Delete subscriptions that nobody used for as long as they were to be kept. From any thread; `check` is called
        again and again, and may raise."""
        now_us = self._clock.now_us()
        abandoned = []
        for number, row in enumerate(self.directory.each()):
            if not number % CHECK_EVERY:
                check()
            after_s = row.options.expire_after_s
            served = self._served.get(row.options.id)
            if after_s is None:
                continue
            unused_s = (now_us - row.used_us) / SECOND_US
            if served is not None and served.consumers.count:
                if unused_s > after_s / 4:
                    self._note_use(served)
            elif row.options.id in self.in_session:
                if unused_s > after_s / 4:
                    self.use(row.options.id, self._note_use)
            elif unused_s > after_s:
                abandoned.append(row)
        return [row.options.id for row in abandoned if self._roots.commit.run(partial(self._expire, row))]

    def _expire(self, row: SubscriptionRow) -> bool:
        """Delete one that is as it was found: nobody has come meanwhile."""
        name, served = row.options.id, self._served.get(row.options.id)
        if self.row(name) != row or (served is not None and served.consumers.count):
            return False
        self._delete(name, unless_used=True)
        self._on_event("expired", f'subscription "{name}" was unused for its expire_after_s and is gone')
        return True

    # Removed roots

    def holders(self, root: Root) -> tuple[list[str], list[str]]:
        """Subscriptions that cover nothing but a root, and those that have yet to do with messages of it."""
        only, holding = [], []
        number, last = root.stream.number, root.stream.durable
        self._commit.flush()
        for row in self.directory.each():
            if not filter_covers_root(row.options.filter, root.name):
                continue
            if root_of_filter(row.options.filter) is not None:
                only.append(row.options.id)
            dead = next(self._state.scan(rows.key_pair(rows.DEAD, row.number, number)), None)
            if dead is not None or self.use(row.options.id, lambda one: one.progress.holds(number, last)):
                holding.append(row.options.id)
        return only, holding

    def leave_root(self, root: Root) -> None:
        """A root was removed: nobody is served from it any more; in the committing role."""
        with self._lock:
            self._commit.flush()
            for subscriber in self._served.values():
                subscriber.leave_root(root)
            self.at_rest.known.clear()
            self._backlog.forget_root(root.stream.number)

    def rows_about(self, stream: int) -> Iterator[bytes]:
        """Keys of all that subscriptions have of a stream."""
        for row in self.directory.each():
            yield from stored.rows_about(self._state, row.number, stream)
        for kept in stored.all_kept(self._state):
            yield from stored.rows_about(self._state, kept.number, stream)

    # Looking

    def served(self, id: str) -> Subscriber | None:
        """A subscription that is being served."""
        return self._served.get(id)

    def info(self, row: SubscriptionRow, positions: dict[int, int] | None = None) -> SubscriptionInfo:
        """A subscription as users see it; with positions, as it would be there, though it may not be stored."""

        def look(subscriber: Subscriber) -> SubscriptionInfo:
            if positions is not None:
                subscriber.suppose(positions)
            lag, in_flight, retrying, dead = subscriber.progress.counts()
            is_owner = not self._is_read_only
            active, standing_by = subscriber.consumers.told(CONSUMERS_TOLD)
            return SubscriptionInfo(
                row.options.id,
                row.options.filter,
                row.options.order,
                lag,
                in_flight if is_owner else None,
                retrying,
                dead,
                subscriber.consumers.count if is_owner else None,
                subscriber.row.paused,
                subscriber.progress.floors(),
                active,
                standing_by,
            )

        if positions is None:
            served = self._served.get(row.options.id)
            return look(served) if served is not None else self.use(row.options.id, look)
        with self._lock:
            subscriber = self._load(row)
            try:
                return look(subscriber)
            finally:
                subscriber.end()

    def close(self) -> None:
        """Everybody who waits is told; floors that rose past what does not match are kept."""
        with self._lock:
            for name, subscriber in list(self._served.items()):
                if subscriber.consumers.count and self._commit.failed is None:
                    self._note_use(subscriber)
                self._forget(name)
