"""Upkeep: what a bus does by itself on a timer, and what an operator asks for now and then.

By itself: have delayed messages released (`releases`), delete what retention allows, forget what expired. On demand:
purge, the removal of a root, and backup.
What changes the log runs in the committing role (one thread at a time), called by the one timer queue. What retention
may delete is computed in a thread of its own, as that may take a while, and then deleted in the committing role.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headwater import threads
from headwater.audit import Audit
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.own_topics import ABOUT, own_topic
from headwater.delivery.rows import RowCommit
from headwater.delivery.timers import Timers
from headwater.errors import (
    Closed,
    Conflict,
    HeadwaterError,
    Malformed,
    NotFound,
)
from headwater.events import Events
from headwater.log import delays
from headwater.log.checks import Checks
from headwater.log.publish import Part
from headwater.log.root import Root
from headwater.log.roots import OWN_ROOTS, STAGED, Roots
from headwater.pacing import Pacing
from headwater.releases import Releases
from headwater.store import folder as folders
from headwater.store.log import Log, Stream
from headwater.store.state import Rows, State
from headwater.topics.name import check_filter, filter_covers_root, is_everything_of, root_of

SNAPSHOT_FIRST_S = 60.0
"""How long after its opening the first snapshot of the state is taken, if anything was written since the last."""
STATE_AGAIN_S = 1.0
"""How long a state that failed is left alone before the next try."""
UNBOUNDED = 1 << 62
"""Beyond every offset."""
NAMED_MAX = 3
"""Subscriptions that an error names."""


class Upkeep:
    """The housekeeping of one bus."""

    def __init__(
        self,
        roots: Roots,
        dispatcher: Dispatcher,
        checks: Checks,
        state: State,
        commit: RowCommit,
        timers: Timers,
        config: Config,
        clock: Clock,
        events: Events,
        expire_staged: Callable[[], None],
        unarchived_from: Callable[[str, int], int],
        take_readers: Callable[[], bool],
        take_snapshot: Callable[[], None] | None,
        audit: Audit,
        check_release: Callable[[str, Part], bool],
    ) -> None:
        self._roots = roots
        self._dispatcher = dispatcher
        self._state = state
        self._rows = commit
        self._timers = timers
        self._config = config
        self._clock = clock
        self._events = events
        self._expire_staged = expire_staged
        self._unarchived_from = unarchived_from
        self._take_readers = take_readers
        self._take_snapshot = take_snapshot
        self._audit = audit
        self._releases = Releases(roots, checks, state, timers, clock, events, check_release)
        self._taking: threads.Thread | None = None
        """Takes a snapshot of the state, or took the last one."""
        self._is_closed = False
        self._due: dict[str, Callable[[], None]] = {}
        """What the thread of retention has yet to do: a round, or one root."""
        self._due_lock = threads.Lock()
        self._retaining: threads.Thread | None = None
        self._pacing = Pacing()
        self._failed_us = 0
        """Since when the state takes nothing, on the monotonic clock; 0 while it does."""

    def start(self) -> None:
        """Begin to look after things."""
        self._roots.sweep(self._roots.unswept, self._dispatcher.rows_about)
        self._releases.start()
        self._arm_round()
        self._arm_snapshot(SNAPSHOT_FIRST_S)

    def close(self) -> None:
        """Begin nothing more; returns when nothing is under way."""
        self._is_closed = True
        if self._taking is not None:
            self._taking.join()
        self.join()

    def join(self) -> None:
        """Returns when all that retention had to do is done."""
        thread = self._retaining
        if thread is not None:
            thread.join()

    def on_roll(self, name: str) -> None:
        """A root goes on in another segment: there may be something more to trim. From any thread."""
        root = self._roots.get(name)
        if root is not None:
            self._timers.set(("retention", name), self._clock.monotonic_us(), lambda: self._begin(name, root))

    # The thread of retention

    def _begin(self, key: str, root: Root | None) -> None:
        """Have a root looked at, or all of them."""
        with self._due_lock:
            self._due[key] = self._round if root is None else partial(self._look_after, root)
            if self._retaining is not None or self._is_closed:
                return
            self._retaining = threads.Thread(target=self._retain_all, name="headwater-retention", daemon=True)
            self._retaining.start()

    def _retain_all(self) -> None:
        while True:
            with self._due_lock:
                if not self._due or self._is_closed:
                    self._retaining = None
                    return
                work = self._due.pop(next(iter(self._due)))
            try:
                work()
            except Exception as error:
                self._events.trouble(f"retention failed: {error!r}")

    def _check_going_on(self) -> None:
        """Called again and again by what takes long: it ends with the bus, and lets others have the interpreter."""
        if self._is_closed:
            raise Closed("the bus is being closed")
        self._pacing.take()

    # A state that failed

    def on_state_failed(self) -> None:
        """Nothing can be noted any more: try again soon."""
        self._failed_us = self._failed_us or self._clock.monotonic_us()
        self._arm_state()

    def _arm_state(self) -> None:
        self._timers.set("state", self._clock.monotonic_us() + round(STATE_AGAIN_S * SECOND_US), self._resume)

    def _resume(self) -> None:
        is_mended = False
        try:
            is_mended = self._rows.resume()
        finally:
            if not is_mended:
                self._arm_state()
        if not is_mended:
            return
        since_us, self._failed_us = self._failed_us, 0
        away_s = (self._clock.monotonic_us() - since_us) / SECOND_US
        self._events.add("mended", f"acks and changes are stored again; they were not for {away_s:.1f} s")
        self._roots.commit.run(self._roots.checkpoints.make)
        self._releases.resume()

    # Snapshots of the state: in a thread of their own, as copying takes a while.

    def _arm_snapshot(self, wait_s: float) -> None:
        if self._take_snapshot is not None and self._config.state_snapshots_max:
            due_us = self._clock.monotonic_us() + round(wait_s * SECOND_US)
            self._timers.set("snapshot", due_us, self._begin_snapshot)

    def _begin_snapshot(self) -> None:
        if self._is_closed:
            return
        self._taking = threads.Thread(target=self._take_now, name="headwater-snapshot", daemon=True)
        self._taking.start()

    def _take_now(self) -> None:
        try:
            if self._take_snapshot is not None and self._state.failed is None and self._roots.room.is_left:
                self._take_snapshot()
        except (OSError, HeadwaterError) as error:
            self._events.trouble(f"no snapshot of the state was taken: {error}")
        finally:
            self._arm_snapshot(self._config.state_snapshot_every_s)

    # Retention and expiry

    def _arm_round(self) -> None:
        due_us = self._clock.monotonic_us() + round(self._config.retention_interval_s * SECOND_US)
        self._timers.set("round", due_us, lambda: self._begin("", None))

    def _round(self) -> None:
        try:
            self.go_round()
        finally:
            self._arm_round()

    def go_round(self) -> None:
        """Look at everything that gets old."""
        now_us = self._clock.now_us()
        run = self._roots.commit.run
        try:
            run(self._take_readers)  # those who were here lately are not to expire
            self._dispatcher.expire(self._check_going_on)
        except (OSError, HeadwaterError) as error:
            self._tell("subscriptions", error)
        if self._is_closed:
            return
        self._expire_staged()
        for root in self._roots.all():
            if self._is_closed:
                return
            run(partial(self._expire_retained, root, now_us))
            self._look_after(root)

    def _expire_retained(self, root: Root, now_us: int) -> None:
        if root.retained.expire(now_us):
            root.is_dirty = True

    def _look_after(self, root: Root) -> None:
        try:
            self.retain(root)
        except (OSError, HeadwaterError) as error:
            self._tell(f'"{root.name}"', error)

    def _tell(self, what: str, error: Exception) -> None:
        if not self._is_closed:
            self._events.trouble(f"{what} could not be looked after: {error}")

    def retain(self, root: Root) -> None:
        """Delete the segments of a root that its rule allows to delete; from any thread."""
        if root.name == STAGED:
            return  # what was staged is needed until it is committed, dropped or expired
        run, stream = self._roots.commit.run, root.stream
        soft, hard = self._limits(root)
        if max(soft, hard) < stream.first_offset:
            return
        needed = 0
        if run(self._take_readers):
            needed = self._dispatcher.floors.needed_from(root, max(soft, hard), self._check_going_on)
        run(lambda: self._trim(root, soft, hard, needed))

    def _limits(self, root: Root) -> tuple[int, int]:
        """Up to where messages may be deleted that nobody needs, and all of them."""
        if root.name == delays.ROOT:
            return self._not_waiting(root), 0
        rule = self._config.retention_of(root.name)
        return (
            max(self._older_than(root, rule.age_s), _beyond(root, rule.bytes)),
            max(self._older_than(root, rule.hard_age_s), _beyond(root, rule.hard_bytes)),
        )

    def _trim(self, root: Root, soft: int, hard: int, needed: int) -> None:
        """In the committing role: nobody begins, or goes back, between this look and what is deleted."""
        stream = root.stream
        needed = min(needed, self._dispatcher.floors.lowest.since(stream.number) + 1)
        needed = self._unarchived_from(root.name, needed) if needed else 0
        upto = max(hard, min(soft, needed - 1))
        if upto < stream.first_offset:
            return
        before = stream.first_offset
        self._roots.checkpoints.make()
        first = stream.trim(upto)
        root.is_archived = self._is_archived(root)
        self._state.write(root.forget_purges())
        if first > max(needed, before):
            self._events.add(
                "retention",
                f'messages {max(needed, before)} to {first - 1} of "{root.name}" were deleted unacked or unarchived: '
                "the hard limit of its retention was reached",
            )

    def _is_archived(self, root: Root) -> bool:
        """Whether a lake may have what the log has no more."""
        return self._unarchived_from(root.name, UNBOUNDED) < UNBOUNDED

    def _older_than(self, root: Root, age_s: float) -> int:
        if not age_s:
            return 0
        return root.stream.offset_at(self._clock.now_us() - round(age_s * SECOND_US)) - 1

    def _not_waiting(self, root: Root) -> int:
        """Delayed messages up to this offset have all been released."""
        if root.stream.size[1] < 2:
            return 0  # one segment, which is in use
        return min(delays.waiting(self._state), default=root.stream.durable + 1) - 1

    # What an operator asks for

    def purge(self, filter: str) -> int:
        """Hide what a filter matches, at once and for good; whole segments of it are deleted."""
        check_filter(filter, self._config)
        count = self._roots.commit.run(lambda: self._purge(filter))
        if count:
            self._audit.note("purged", filter, None, {"topics": count})
        return count

    def forget_late(self, id: str, number: int) -> None:
        """Something was told about a subscription: if there is another of its id by now, it is none of that one's."""
        row = self._dispatcher.row(id)
        if row is not None and row.number != number:
            self.forget_about(id)

    def forget_about(self, id: str) -> None:
        """Purge what was told about an earlier subscription of this id; in the committing role."""
        for topic in (own_topic(about, id, self._config) for about in ABOUT):
            root = self._roots.get(root_of(topic))
            if root is not None and root.has(topic):
                self._purge(topic)

    def _purge(self, filter: str) -> int:
        self._roots.checkpoints.make()
        for root in self._roots.all():
            root.is_archived = self._is_archived(root)
        covered = [
            (root, root.joined(filter, root.stream.durable))
            for root in self._roots.all()
            if filter_covers_root(filter, root.name) and root.name not in (delays.ROOT, STAGED)
        ]
        count = 0
        changed: Rows = {}
        emptied = []
        for root, joined in covered:
            before = root.topic_count
            changed.update(root.purge(filter, root.stream.durable, joined))
            count += before - root.topic_count
            if is_everything_of(filter, root.name):
                emptied.append(root)
        self._rows.write(changed)
        self._roots.checkpoints.make()
        for root in emptied:
            root.stream.trim(root.stream.durable)
        return count

    def remove_root(self, name: str, force: bool = False) -> None:
        """Remove a root with all that it has; gives back its place, its files and its rows."""
        if type(name) is not str or type(force) is not bool:
            raise Malformed(f"name is {name!r} and force is {force!r}; use a str and a bool")
        if name in OWN_ROOTS:
            raise Malformed(f'root "{name}" is the broker\'s own and cannot be removed')
        stream = self._roots.commit.run(lambda: self._remove_root(name, force))
        self._audit.note("root-removed", name, {"last_offset": stream.durable}, {"force": force})
        self._roots.sweep([stream.number], self._dispatcher.rows_about)

    def _remove_root(self, name: str, force: bool) -> Stream:
        root = self._roots.get(name)
        if root is None:
            raise NotFound(f'there is no root "{name}"; bus.topics() lists what there is')
        self._take_readers()
        only, holding = self._dispatcher.holders(root)
        if not force and (only or holding):
            named = dict.fromkeys((*only, *holding))
            raise Conflict(
                f'root "{name}" is needed by {_some(list(named))}: they cover nothing else, or have messages of it '
                "to do or among their dead letters; delete them, have them ack, or remove it by force"
            )
        self._roots.remove(root)
        self._dispatcher.leave_root(root)
        lost = f", and with it what was to be done by {_some(holding)}" if holding else ""
        self._events.add("removed", f'root "{name}" was removed with its messages up to {root.stream.durable}{lost}')
        return root.stream

    def backup(self, log: Log, target: str) -> None:
        """Hard links to what no longer changes, and a snapshot of the state."""
        self._roots.commit.run(lambda: self._backup(log, target))
        self._audit.note("backed-up", target)

    def _backup(self, log: Log, target: str) -> None:
        self._take_readers()
        self._rows.run(lambda: self._snapshot(log, target))

    def _snapshot(self, log: Log, target: str) -> None:
        log.seal()
        self._roots.checkpoints.make_all()
        log.copy(target)
        self._state.snapshot(f"{target}/{folders.STATE}")


def _some(ids: list[str]) -> str:
    """Subscriptions by name, the first of them."""
    named = ", ".join(f'"{name}"' for name in ids[:NAMED_MAX])
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return f"subscription{'s' if len(ids) > 1 else ''} {named}{more}"


def _beyond(root: Root, bytes_max: int) -> int:
    return root.stream.beyond(bytes_max) if bytes_max else 0
