"""The dispatcher: who is subscribed to what, and who is to be told.

One for all subscriptions, with no thread of its own: appends call `on_durable` from the thread that commits, acks and
takes come from the consumers' threads, and everything that has to happen later is in the one timer queue. A durable
subscription without a consumer is rows in the state and nothing else.

`on_durable` and everything that changes the tree of filters run in the committing role, so that a subscriber
joins between two groups: no gap, no repeat. Where very many are to be told, `fan_outs` does that in slices, and in the
same order. `show` alone runs in a publisher's thread: it tells live subscriptions
of a batch that nobody waits for while an earlier group may still be on its way to disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Flag, auto
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery import rows as stored
from headwater.delivery.backlog import Backlog
from headwater.delivery.dead_shares import DeadShares
from headwater.delivery.fan_out import ALL, TURN_MAX, Audience, FanOut, FanOuts, Listener
from headwater.delivery.floors import CHECK_EVERY, Lowest, Needs, first_needed
from headwater.delivery.options import Options
from headwater.delivery.retained import FIRST_ROWS, RETAINED_BYTES, RetainedReading
from headwater.delivery.rows import Resting, RetainedRef, RetainedRest, RowCommit, SubscriptionRow, Waiting
from headwater.delivery.start import Ends, Start, floor_for
from headwater.delivery.subscriber import Subscriber
from headwater.delivery.timers import Timers
from headwater.errors import Conflict, Malformed, NotFound, QuotaExceeded
from headwater.log.group_commit import Call
from headwater.log.publish import Publish
from headwater.log.root import Root, retained_message
from headwater.log.roots import Roots
from headwater.memo import Memo
from headwater.message import Message, Receipt, SubscriptionInfo
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.notes import Notes
from headwater.store.state import Rows, State
from headwater.topics.name import filter_covers_root, is_everything_of, matches, root_of_filter
from headwater.topics.patterns import Patterns
from headwater.topics.tree import Trees

R = TypeVar("R")

RESTING_ROOTS_MAX = 64
"""Subscriptions with a place in more roots are counted anew whenever somebody asks."""
INFOS_AT_ONCE = 1000
"""Subscriptions that are looked at, and told of, together."""
LEARN_MIN = 32
"""Where so many are asked for, the rows of all are counted at once."""
NAMES_AT_ONCE = 256
"""Topics of a batch whose listeners are looked up at once; those of more, some at a time."""
FLOORS_SYNCED_AFTER = 16
"""Goes in which retention moves floors until they are synced."""
RESTING_ASKED_MAX = 1000
"""Topics of which it is remembered whether a subscription that nobody takes from covers them."""
NAMES_MATCHED_MAX = 64
"""Dictionaries of topics whose listeners are remembered, as the same devices tend to report together."""


class Hearing(Flag):
    """Who hears of a topic."""

    NOBODY = 0
    LIVE = auto()
    """Somebody who is given what is shown before it is on disk."""
    STORED = auto()
    """Somebody who is not."""


EVERYBODY = Hearing.LIVE | Hearing.STORED


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
        reply: Callable[[Message, bytes], Receipt],
        on_event: Callable[[str, str], None],
        notes: Notes,
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
        self._trees: Trees[Listener] = Trees(config)
        self._tree_lock = threads.Lock()
        """Held for a look at the trees, or a change of them, and nothing else."""
        self._matched: Memo[tuple[str, ...], Audience] = Memo(NAMES_MATCHED_MAX)
        self._sought: list[Audience] = []
        """Those that are being looked up."""
        self.fan_outs = FanOuts(self._look_up)
        self._served: dict[str, Subscriber] = {}
        self._rested: dict[str, Resting] = {}
        """Subscriptions that nobody takes from, in numbers, as far as somebody wanted to know; they are rows alone."""
        self.version = 0
        """Rises when there are other subscriptions than before."""
        self._lock = threads.RLock()
        known = [self._decode(value) for _, value in state.scan(rows.SUBSCRIPTION)]
        self._count = len(known)
        self.lowest = Lowest()
        self._backlog = Backlog(config, clock)
        self._by_owner = Counter(row.owner for row in known)
        self._patterns = Patterns(config)
        """Of filters of durable subscriptions, whether or not somebody takes from them, and of those who listen."""
        for row in known:
            self._patterns.add(row.owner, row.options.filter)
        self._waited_for: Memo[str, bool] = Memo(RESTING_ASKED_MAX)
        """Whether a durable subscription covers a topic, as of a version of them."""
        self._waited_version = 0
        self._owners: dict[Listener, tuple[str, str]] = {}
        """Those who listen for a client: whom, and to what. Durable subscriptions count whether or not they do."""
        self._shares = DeadShares(config)
        last = state.get(rows.COUNTERS)
        self._last_number = int.from_bytes(last, "big") if last is not None else 0

    # Telling: in the committing role.

    def on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> dict[str, FanOut]:
        """Messages are on disk: tell those whose filters match. Answers, by root, what is not over yet of that."""
        late: dict[str, FanOut] = {}
        if self._trees.is_empty:
            return late
        names: tuple[str, ...] | None = None
        left = TURN_MAX
        for batches in appended.values():
            for batch in batches:
                if batch.body.names is not names:  # those of one publisher tend to have the same topics
                    names = batch.body.names
                    audience = self._audience(names)
                left, fan_out = self.fan_outs.tell(batch, audience, left)
                if fan_out is not None:
                    late[batch.root] = fan_out
        return late

    def finish_after(self, late: Mapping[str, FanOut], item: Publish) -> None:
        """Have a publish answered once all were told of it."""

        def finish() -> None:
            if item.is_waiting:
                item.finish()

        self.fan_outs.when_over([late[part.root] for part in item.parts if part.root in late], finish)

    def may_show(self, root: str) -> bool:
        """Whether what a root brings may be shown at once: else it comes after what is still being delivered."""
        return not self.fan_outs.is_under_way(root)

    def show(self, batch: Batch) -> None:
        """Tell live subscriptions of messages that nobody waits for and that are not on disk yet; from any thread."""
        audience = self._audience((batch.topic,) if batch.topic is not None else batch.body.names)
        self.fan_outs.tell(batch, audience, TURN_MAX)

    @property
    def may_show_here(self) -> bool:
        """Whether whoever publishes may show it in a thread of its own: not where a server's loop serves live
        subscriptions."""
        return not self.fan_outs.is_served

    def hearing(self, topic: str) -> Hearing:
        """Who would be told of a message now."""
        found = Hearing.NOBODY
        for listener in self._audience((topic,)).whole:
            found |= Hearing.LIVE if listener.takes_early else Hearing.STORED
            if found == EVERYBODY:
                break
        return found

    def is_kept(self, topic: str) -> bool:
        """Whether a durable subscription gets a message, be it that nobody takes from it at the moment; looks through
        all of them, once for each topic as long as they stay the same."""
        version = self.version
        if self._waited_version != version:
            self._waited_for.forget()
            self._waited_version = version
        known = self._waited_for.known.get(topic)
        if known is None:
            found = any(matches(row.options.filter, topic) for row in self.each_row())
            known = self._waited_for.keep(topic, found)
        return known

    def _audience(self, names: tuple[str, ...]) -> Audience:
        """Who is to hear of a batch with these topics, and of which of them."""
        with self._tree_lock:
            if len(names) == 1:
                return Audience(self._trees.match(names[0]))
            known = self._matched.known.get(names)
            if known is None:
                known = self._matched.keep(names, Audience(names=names))
                if len(names) <= NAMES_AT_ONCE:
                    known.look_up(self._trees.match, NAMES_AT_ONCE)
                else:
                    self._sought.append(known)
            return known

    def _look_up(self, audience: Audience, limit: int) -> None:
        """Go on with finding those who are to hear of a batch with many topics."""
        with self._tree_lock:
            if not audience.is_known:
                audience.look_up(self._trees.match, limit)
                if audience.is_known:
                    self._sought.remove(audience)

    def _before_change(self) -> None:
        """Who is subscribed to what changes now: what was published before is for those who were."""
        for audience in self._sought:
            audience.look_up(self._trees.match, ALL)
        self._sought.clear()
        self._matched.forget()

    def listen(self, filter: str, listener: Listener, owner: str = "") -> None:
        """Tell a listener from now on; its filter counts in its owner's share."""

        def listen() -> None:
            if owner:
                self._patterns.check(owner, filter)
                self._patterns.add(owner, filter)
                self._owners[listener] = owner, filter
            self._listen(filter, listener)

        self._roots.commit.run(listen)

    def leave(self, listener: Listener) -> None:
        """Tell it no more. A fan-out to very many that is under way may still tell it once; it pays no heed to that."""

        def leave() -> None:
            if (owned := self._owners.pop(listener, None)) is not None:
                self._patterns.remove(*owned)
            self._leave(listener)

        self._roots.commit.run(leave)

    def _listen(self, filter: str, listener: Listener) -> None:
        with self._tree_lock:
            self._before_change()
            self._trees.add(filter, listener)

    def _leave(self, listener: Listener) -> None:
        with self._tree_lock:
            self._before_change()
            self._trees.remove_all(listener)

    def read_retained(self, filter: str, first_rows: int = 0) -> RetainedReading:
        """What a subscriber gets that is retained now, of which the first rows are looked at; in the committing
        role."""
        reading = RetainedReading(self._roots, self._clock, filter, self._covered(filter))
        if first_rows and reading.is_unread:
            reading.read_on(first_rows)
        return reading

    def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        now_us = self._clock.now_us()
        return [
            retained_message(row, topic)
            for root in self._covered(filter)
            for topic, row in root.retained.find(filter, now_us)
        ]

    # Durable subscriptions

    def _decode(self, value: bytes) -> SubscriptionRow:
        return msgspec.msgpack.decode(value, type=SubscriptionRow)

    def _key(self, id: str) -> bytes:
        return rows.SUBSCRIPTION + id.encode("utf-8", "surrogatepass")

    def row(self, id: str) -> SubscriptionRow | None:
        """A subscription as it is stored."""
        if type(id) is not str:
            raise Malformed(f"id is {id!r}; use a str")
        value = self._state.get(self._key(id))
        return None if value is None else self._decode(value)

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
            subscriber.attach(consumer)
            if subscriber.consumers == 1:
                self._listen(options.filter, subscriber)
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
            if there.filter != options.filter or msgspec.structs.replace(there, **given) != there:
                stated = ", ".join(f"{name} {value!r}" for name, value in msgspec.structs.asdict(there).items())
                raise Conflict(f"there is another subscription of this id: {stated}; choose another id, or delete it")
            return False

    def ends(self, filter: str, *, is_quiet: bool = False) -> Ends:
        """Where the roots that a filter covers end, once what has its place before this is on disk; if that is
        so already, `is_quiet` says so. Never waits."""
        found = Ends()

        def look() -> None:
            found.by_root = {root.name: root.stream.durable for root in self._covered(filter)}
            found.is_known = True

        commit = self._roots.commit
        if is_quiet or commit.is_full:
            look()
        else:
            commit.submit(Call(look))
        return found

    def _create(self, options: Options, start: Start | Ends, with_retained: bool, owner: str) -> SubscriptionRow:
        if self._count >= self._config.subscriptions_max:
            raise QuotaExceeded(
                f"there are {self._count} durable subscriptions, and subscriptions_max is "
                f"{self._config.subscriptions_max}; delete some with unsubscribe, or raise the setting"
            )
        if owner and self._by_owner[owner] >= self._config.subscriptions_per_client_max:
            raise QuotaExceeded(
                f'client "{owner}" has made {self._by_owner[owner]} durable subscriptions, and '
                f"subscriptions_per_client_max is {self._config.subscriptions_per_client_max}; delete some with "
                "unsubscribe, or raise the setting"
            )
        self._patterns.check(owner, options.filter)
        floors = {root: floor_for(root, options.filter, start) for root in self._covered(options.filter)}
        # As stored, should it be more: of a subscription that could not be said to be made, and was.
        stored_number = int.from_bytes(self._state.get(rows.COUNTERS) or b"", "big")
        number, now_us = max(self._last_number, stored_number) + 1, self._clock.now_us()
        row = SubscriptionRow(number=number, options=options, created_us=now_us, used_us=now_us, owner=owner)
        changed: Rows = {self._key(options.id): rows.pack(row), rows.COUNTERS: number.to_bytes(4, "big")}
        for root, floor in floors.items():
            changed[rows.key_pair(rows.FLOOR, number, root.stream.number)] = floor.to_bytes(8, "big")
            self.lowest.note(root.stream.number, floor)
        if (start == "latest" or isinstance(start, Ends)) and with_retained:
            below = {root.stream.number: floor for root, floor in floors.items()}
            copies, rests = self._retained_copies(options.filter, below)
            changed.update(stored.copy_rows(number, copies) | stored.rest_rows(number, rests))
        self._commit.write(changed)
        self._last_number = number
        self._count += 1
        self._by_owner[owner] += 1
        self._patterns.add(owner, options.filter)
        self.version += 1
        return row

    def _covered(self, filter: str) -> list[Root]:
        name = root_of_filter(filter)
        if name is not None:
            root = self._roots.get(name)
            return [] if root is None else [root]
        return [root for root in self._roots.all() if filter_covers_root(filter, root.name)]

    def send_retained(self, id: str) -> None:
        """Hand a subscription the retained messages once more, before what comes next."""

        def work(subscriber: Subscriber) -> None:
            wanted, number = subscriber.options.filter, subscriber.number
            ends = {root.stream.number: root.stream.durable for root in self._covered(wanted)}
            if subscriber.has_rests:
                subscriber.want_again(ends)
                return
            copies, rests = self._retained_copies(wanted, ends)
            if copies or rests:
                changed = stored.copy_rows(number, copies) | stored.rest_rows(number, rests)
                subscriber.add_copies(changed, copies, rests=rests)

        self._roots.commit.run(lambda: self.use(id, work))

    def _retained_copies(
        self, filter: str, upto: dict[int, int]
    ) -> tuple[dict[int, dict[int, Waiting]], dict[int, RetainedRest]]:
        """By stream and offset; those above the offset of their stream come by themselves. So many are looked at as
        nobody notices, and of each stream it is told what is left to look at."""
        found: dict[int, dict[int, Waiting]] = {}
        rests: dict[int, RetainedRest] = {}
        left, now_us = FIRST_ROWS, self._clock.now_us()
        for root in self._covered(filter):
            number, after = root.stream.number, "" if root.retained.count else None
            if after is not None and left > 0:
                page = root.retained.page(filter, after, now_us, left, RETAINED_BYTES)
                for topic, row in page.found:
                    if row.offset <= upto[number]:
                        found.setdefault(number, {})[row.offset] = RetainedRef(topic, row.key)
                left, after = left - page.looked, page.last
            if after is not None:
                rests[number] = RetainedRest(after, upto[number])
        return found, rests

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
        options.check(self._config)
        served = self._served.get(name)
        if served is not None and served.consumers:
            raise Conflict(
                f'subscription "{name}" is in use with other options; close its consumers first, or leave them out'
            )
        self._forget(name)
        row = msgspec.structs.replace(row, options=options)
        self._commit.write({self._key(name): rows.pack(row)})
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
            self.lowest.note,
            self._notes,
            self._shares,
            is_read_only=self._is_read_only,
        )

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

    def _let_go(self, subscriber: Subscriber) -> None:
        """Keep how far its floors rose past what does not match; nothing is lost if a crash forgets it."""
        if not self._is_read_only and self._commit.failed is None:
            self._commit.write(subscriber.risen_floors())
        self._remember(subscriber.options.id, subscriber.resting())
        subscriber.end()

    def _remember(self, id: str, resting: Resting) -> None:
        if len(resting.floors) <= RESTING_ROOTS_MAX:
            self._rested[id] = resting
        else:
            self._rested.pop(id, None)

    def detach(self, subscriber: Subscriber, consumer: object, *, vanished: bool = False) -> None:
        """A consumer leaves; with the last one, the subscription goes back to being rows."""
        self._roots.commit.run(lambda: self._detach(subscriber, consumer, vanished))

    def _detach(self, subscriber: Subscriber, consumer: object, vanished: bool) -> None:
        with self._lock:
            subscriber.detach(consumer, vanished=vanished)
            if subscriber.consumers == 0:
                self._leave(subscriber)
                if self._served.get(subscriber.options.id) is subscriber:
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
        self._commit.write({self._key(subscriber.options.id): rows.pack(subscriber.row)})

    def pause(self, subscriber: Subscriber, paused: bool) -> None:
        """Hand out nothing, or go on; remembered."""
        with self._lock:
            subscriber.pause(paused)
            self._keep(subscriber, paused=paused)

    def delete(self, id: str, *, unless_used: bool = False) -> None:
        """A subscription and everything about it is gone, and its consumers are told."""
        self._roots.commit.run(lambda: self._delete(id, unless_used))

    def _delete(self, id: str, unless_used: bool) -> None:
        with self._lock:
            row = self.row(id)
            if row is None:
                raise NotFound(f'there is no subscription "{id}"; bus.subscriptions() lists those that are')
            subscriber = self._served.get(id)
            if subscriber is not None:
                if unless_used and subscriber.consumers:
                    raise Conflict(
                        f'{subscriber.consumers} consumers take from subscription "{id}"; close them, or force it'
                    )
                del self._served[id]
                self._leave(subscriber)
                subscriber.end()
            self._commit.flush()
            changed = stored.every_row(self._state, row.number)
            changed[self._key(id)] = None
            self._commit.write(changed)
            self._count -= 1
            self._by_owner[row.owner] -= 1
            if self._by_owner[row.owner] <= 0:
                del self._by_owner[row.owner]
            self._patterns.remove(row.owner, row.options.filter)
            self._shares.drop(row.number)
            self.version += 1
            self._rested.pop(id, None)
            self._backlog.forget(row.number)

    def count_dead(self) -> None:
        """Count the dead letters of subscriptions that nobody has used since the bus was opened; from any thread."""
        for row in self.each_row():
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
        for number, row in enumerate(self.each_row()):
            if not number % CHECK_EVERY:
                check()
            after_s = row.options.expire_after_s
            served = self._served.get(row.options.id)
            if after_s is None:
                continue
            unused_s = (now_us - row.used_us) / SECOND_US
            if served is not None and served.consumers:
                if unused_s > after_s / 4:
                    self._note_use(served)
            elif unused_s > after_s:
                abandoned.append(row)
        return [row.options.id for row in abandoned if self._roots.commit.run(partial(self._expire, row))]

    def _expire(self, row: SubscriptionRow) -> bool:
        """Delete one that is as it was found: nobody has come meanwhile."""
        name, served = row.options.id, self._served.get(row.options.id)
        if self.row(name) != row or (served is not None and served.consumers):
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
        for row in self.all_rows():
            if not filter_covers_root(row.options.filter, root.name):
                continue
            if root_of_filter(row.options.filter) is not None:
                only.append(row.options.id)
            dead = next(self._state.scan(rows.key_pair(rows.DEAD, row.number, number)), None)
            if dead is not None or self.use(row.options.id, lambda one: one.holds(number, last)):
                holding.append(row.options.id)
        return only, holding

    def leave_root(self, root: Root) -> None:
        """A root was removed: nobody is served from it any more; in the committing role."""
        with self._lock:
            self._commit.flush()
            for subscriber in self._served.values():
                subscriber.leave_root(root)
            self._rested.clear()
            self._backlog.forget_root(root.stream.number)

    def rows_about(self, stream: int) -> Iterator[bytes]:
        """Keys of all that subscriptions have of a stream."""
        for row in self.each_row():
            yield from stored.rows_about(self._state, row.number, stream)

    # Looking

    @property
    def count(self) -> int:
        """How many durable subscriptions there are."""
        return self._count

    def served(self, id: str) -> Subscriber | None:
        """A subscription that is being served."""
        return self._served.get(id)

    def resting(self, row: SubscriptionRow) -> Resting:
        """A subscription that nobody takes from, in numbers; its rows are counted where they are not known."""
        name = row.options.id
        known = self._rested.get(name)
        if known is None:
            known = stored.resting_of(self._state, row.number)
            if name not in self._served and name not in self._rested:
                self._remember(name, known)
        return known

    def all_rows(self) -> list[SubscriptionRow]:
        """Every durable subscription, by id."""
        return list(self.each_row())

    def each_row(self) -> Iterator[SubscriptionRow]:
        """The same, one after another."""
        return (self._decode(value) for _, value in self._state.scan(rows.SUBSCRIPTION))

    def infos(
        self,
        after: str | None = None,
        limit: int | None = None,
        wanted: Callable[[str, str], bool] = lambda _id, _filter: True,
    ) -> list[SubscriptionInfo]:
        """Durable subscriptions as users see them, by id, those whose id and filter are wanted; a page after an id."""
        found: list[SubscriptionInfo] = []
        while True:
            some, after = self.infos_after(after, None if limit is None else limit - len(found), wanted)
            found += some
            if after is None or len(found) == limit:
                return found

    def infos_after(
        self, after: str | None, limit: int | None, wanted: Callable[[str, str], bool]
    ) -> tuple[list[SubscriptionInfo], str | None]:
        """Those among the next ones, which are so many and no more, and the id after which to go on, None at the end;
        for a listing in which others have their turn."""
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")
        start = None if after is None else self._key(after) + b"\0"
        self._commit.flush()
        some: list[SubscriptionRow] = []
        last: SubscriptionRow | None = None
        for looked, (_, value) in enumerate(self._state.scan(rows.SUBSCRIPTION, start), 1):
            row = self._decode(value)
            if wanted(row.options.id, row.options.filter):
                some.append(row)
            if looked == INFOS_AT_ONCE or len(some) == limit:
                last = row
                break
        return self._page(some), None if last is None else last.options.id

    def _page(self, asked: Sequence[SubscriptionRow]) -> list[SubscriptionInfo]:
        """Some of them. Those that nobody takes from are told from their rows, and what waits for them is counted with
        one look at each root; nobody is held up meanwhile."""
        resting: dict[str, Resting] = {}
        for row in asked:
            if row.options.id in self._served or self._is_read_only:  # there, others change what is stored
                continue
            known = self._at_rest(row, len(asked))
            if not known.acked and not known.failed:
                resting[row.options.id] = known
        pending = self._pending([row for row in asked if row.options.id in resting], resting)
        found = []
        for row in asked:
            name = row.options.id
            try:
                if name in resting:
                    found.append(self._told(row, resting[name], pending.get(name, 0)))
                else:
                    found.append(self.info(row))
            except NotFound:
                continue  # deleted since
        return found

    def _told(self, row: SubscriptionRow, resting: Resting, pending: int) -> SubscriptionInfo:
        options, lag = row.options, pending + resting.copies
        floors = {root.name: resting.floors.get(root.stream.number, 0) for root in self._covered(options.filter)}
        return SubscriptionInfo(
            *(options.id, options.filter, options.order, lag, 0, 0, resting.dead, 0, row.paused, floors)
        )

    def _at_rest(self, row: SubscriptionRow, count: int) -> Resting:
        """One that nobody takes from, in numbers; if many are asked for, all that are not known are learnt at once."""
        if row.options.id not in self._rested and count >= LEARN_MIN:
            self._learn()
        return self.resting(row)

    def _learn(self) -> None:
        """Count the rows of all subscriptions, in the order in which they are stored."""
        floors: dict[int, dict[int, int]] = {}
        for key, value in self._state.scan(rows.FLOOR):
            number, stream = rows.pair_in(key)
            floors.setdefault(number, {})[stream] = int.from_bytes(value[:8], "big")
        acked, failed, copies, dead = (
            Counter(rows.pair_in(key)[0] for key, _ in self._state.scan(kind))
            for kind in (rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD)
        )
        for row in self.each_row():
            name, at = row.options.id, row.number
            if name not in self._served and name not in self._rested:
                self._remember(name, Resting(floors.get(at, {}), acked[at], failed[at], copies[at], dead[at]))

    def _pending(self, asked: Sequence[SubscriptionRow], resting: Mapping[str, Resting]) -> dict[str, int]:
        """How many messages wait for each of these, in all roots."""
        behind: dict[Root, dict[str, tuple[SubscriptionRow, int]]] = {}
        count: Counter[str] = Counter()
        for row in asked:
            name, wanted = row.options.id, row.options.filter
            for root in self._covered(wanted):
                floor, end = _floor_in(root, resting[name]), root.stream.durable
                if floor >= end:
                    continue
                if is_everything_of(wanted, root.name) and not root.purges:
                    count[name] += end - floor
                else:
                    behind.setdefault(root, {})[name] = row, floor
        for root, there in behind.items():
            count.update(self._backlog.count(root, there, self._at_rest_in if len(asked) >= LEARN_MIN else None))
        return count

    def _at_rest_in(self, root: Root) -> Iterator[tuple[SubscriptionRow, int]]:
        """Subscriptions that nobody takes from and that have messages of a root to be counted, with their floors."""
        for row in self.each_row():
            known = self._rested.get(row.options.id)
            if known is None or known.acked or known.failed or not filter_covers_root(row.options.filter, root.name):
                continue
            floor = _floor_in(root, known)
            if floor < root.stream.durable:
                yield row, floor

    def info(self, row: SubscriptionRow, positions: dict[int, int] | None = None) -> SubscriptionInfo:
        """A subscription as users see it; with positions, as it would be there, though it may not be stored."""

        def look(subscriber: Subscriber) -> SubscriptionInfo:
            if positions is not None:
                subscriber.suppose(positions)
            lag, in_flight, retrying, dead = subscriber.counts()
            is_owner = not self._is_read_only
            return SubscriptionInfo(
                row.options.id,
                row.options.filter,
                row.options.order,
                lag,
                in_flight if is_owner else None,
                retrying,
                dead,
                subscriber.consumers if is_owner else None,
                subscriber.row.paused,
                subscriber.floors(),
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

    # What retention has to leave

    def needed_from(self, root: Root, upto: int | None = None, check: Callable[[], None] = lambda: None) -> int:
        """The first offset of a root that some durable subscription has not acked, and wants; with `upto`, nothing
        behind that is looked at. From any thread, and it takes its time: `check` is called again and again, and may
        raise. Whoever acts on it does so in the committing role, and asks `lowest` before.

        The floors that this relies on are stored: after a crash nobody shall miss what it never wanted.
        """
        stream = root.stream
        end = stream.durable
        last = end if upto is None else min(upto, end)
        self.lowest.begin(stream.number)
        self._commit.flush()
        low, floors = self._low_floors(root, last, check)
        if not low:
            return last + 1
        needs = Needs(self._config, ((row.options.id, row.options.filter) for row in low), floors, check)
        numbers = {row.options.id: row.number for row in low}

        def is_done(id: str, offset: int) -> bool:
            served = self._served.get(id)
            if served is not None:
                return not served.undone(root.name, [offset])
            return self._state.get(rows.key_message(rows.ACKED, numbers[id], stream.number, offset)) is not None

        needed = first_needed(root, needs, last, is_done, self._config, self._clock, check)
        self._raise_floors(root, low, floors, needed - 1, check)
        return needed

    def _low_floors(
        self, root: Root, last: int, check: Callable[[], None]
    ) -> tuple[list[SubscriptionRow], dict[str, int]]:
        """Subscriptions that cover a root and have not acked all up to an offset; and their floors, by id."""
        low: list[SubscriptionRow] = []
        floors: dict[str, int] = {}
        covering = (row for row in self.each_row() if filter_covers_root(row.options.filter, root.name))
        while some := list(islice(covering, CHECK_EVERY)):
            check()
            with self._lock:
                for row in some:
                    floor = self._floor_of(row, root.stream.number)
                    if floor is not None and floor < last:
                        low.append(row)
                        floors[row.options.id] = floor
        return low, floors

    def _floor_of(self, row: SubscriptionRow, stream: int) -> int | None:
        """Where a subscription stands in a stream, as it is served or stored; None if it is gone."""
        served = self._served.get(row.options.id)
        if served is not None:
            return served.floor(stream)
        value = self._state.get(rows.key_pair(rows.FLOOR, row.number, stream))
        if value is not None:
            return int.from_bytes(value[:8], "big")
        return 0 if self._state.get(self._key(row.options.id)) is not None else None

    def _raise_floors(
        self,
        root: Root,
        low: Sequence[SubscriptionRow],
        floors: Mapping[str, int],
        floor: int,
        check: Callable[[], None],
    ) -> None:
        """None of these wants anything between where it stood and a floor: note that, where it still stands there.

        Nobody who comes or goes meanwhile waits for the disk: rows get their places while they are right, and are
        synced afterwards.
        """
        stream, goes = root.stream.number, range(0, len(low), CHECK_EVERY)
        for turn, at in enumerate(goes, 1):
            check()
            with self._lock:
                self._commit.check()
                item = self._commit.enqueue(
                    self._raised(low[at : at + CHECK_EVERY], floors, stream, floor), is_owed=False
                )
            if turn % FLOORS_SYNCED_AFTER == 0 or turn == len(goes):
                self._commit.drive(item)

    def _raised(self, some: Sequence[SubscriptionRow], floors: Mapping[str, int], stream: int, floor: int) -> Rows:
        changed: Rows = {}
        for row in some:
            name = row.options.id
            before, served = floors[name], self._served.get(name)
            if before >= floor:
                continue
            if served is not None:
                changed.update(served.pass_over(stream, before, floor))
            elif self._floor_of(row, stream) == before:
                changed[rows.key_pair(rows.FLOOR, row.number, stream)] = floor.to_bytes(8, "big")
                known = self._rested.get(name)
                if known is not None:
                    raised = {**known.floors, stream: max(floor, known.floors.get(stream, 0))}
                    self._rested[name] = msgspec.structs.replace(known, floors=raised)
        return changed

    def close(self) -> None:
        """Everybody who waits is told; floors that rose past what does not match are kept."""
        with self._lock:
            for name, subscriber in list(self._served.items()):
                if subscriber.consumers and self._commit.failed is None:
                    self._note_use(subscriber)
                self._forget(name)


def _floor_in(root: Root, resting: Resting) -> int:
    """Where a subscription stands in a root; what retention has deleted nobody is behind with."""
    return max(resting.floors.get(root.stream.number, 0), root.stream.first_offset - 1)
