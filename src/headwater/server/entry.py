"""The way into the roots: publishes of every session go to the group commit here, and its answers come back.

The group commit is each root's single owner, and what waits for it is its mailbox. Promises: an answer leaves after
the message is on disk; what one group committed is answered with one frame to each connection; a session that brings
more than may be in flight is not read from until there is room.

What nobody waits for is shown to live subscriptions at once, and goes to disk with the next group. A small publish that
comes alone is committed on the loop itself, as long as the disk is quick: a thread would take longer to wake up than
the disk takes to sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headwater.clock import Clock
from headwater.delivery.listeners import Hearing
from headwater.errors import HeadwaterError
from headwater.log.checks import Checks
from headwater.log.items import Call
from headwater.log.publish import Part, Publish
from headwater.log.roots import Roots
from headwater.log.showing import SHOWN_BYTES_MAX, SHOWN_MESSAGES_MAX, SHOWN_S, Shown
from headwater.server.bell import Bell, Wakes
from headwater.server.connection import QUIET_SHARE, SHARES
from headwater.store.batch import QUIET, Batch

if TYPE_CHECKING:
    import asyncio

    from headwater.server.connection import Connection

HERE_BYTES_MAX = 16 * 1024
"""Larger publishes are never committed on the loop."""
HERE_US_MAX = 2000
"""A commit on the loop that takes longer is slow;"""
HERE_COMMITS = 16
"""of about so many,"""
HERE_SLOW_MAX = 0.25
"""if more than this share is slow, a thread waits for the disk"""
HERE_AGAIN_AFTER_US = 250_000
"""for so long."""


AT_ONCE_BYTES_MIN = 128 * 1024
"""A publish so large does not wait for others of this turn: reading those takes as long as writing this one."""
AGAIN_S = 0.002
"""How long a publish waits for a group that others have filled."""


class Served(Publish, kw_only=True):
    """A publish of a client, and how to answer it."""

    is_awaited = False
    is_answered_late = True
    entry: Entry
    connection: Connection
    id: Any
    """What its connection answers it by."""
    is_quiet: bool
    """Whether nobody waits for it."""
    share: int
    """What it counts among the publishes in flight."""

    @property
    def owner(self) -> str:
        return self.connection.share

    def finish(self, error: BaseException | None = None) -> None:
        self.error, self.is_finished = error, True  # no thread waits for it, and it has no future
        entry = self.entry
        entry.done.append(self)
        if not entry.is_here:
            entry.bell.ring()


class Quiet(Shown, kw_only=True):
    """What nobody waits for and was shown of a root, and from whom."""

    is_quiet = True

    entry: Entry
    lost: int = 0
    """Messages of it that were shown and not stored."""
    senders: dict[Connection, tuple[int, int]] = msgspec.field(default_factory=dict)
    """What each connection has brought: how much, and what that counts among its publishes in flight."""

    def note(self, connection: Connection, weight: int) -> None:
        """One publish more of a connection."""
        before, share = self.senders.get(connection, (0, 0))
        self.senders[connection] = (before + weight, share + QUIET_SHARE)

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.lost = self.count
        super().finish(error)
        entry = self.entry
        entry.done.append(self)
        if not entry.is_here:
            entry.bell.ring()


class Shower(Protocol):
    """Who tells live subscriptions of what is not on disk yet."""

    def may_show(self, root: str) -> bool:
        """Whether nothing of a root is to be told before."""

    def show(self, batch: Batch) -> None:
        """Tell of a batch."""


class Entry:
    """Where publishes enter, for all sessions."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, checks: Checks, roots: Roots, shower: Shower, wakes: Wakes, clock: Clock
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._shower = shower
        self._wakes = wakes
        wakes.on_many_reads = self._go_on
        self._quiet_items = 0
        self._quiet_bytes = 0
        self._kick_timer: asyncio.TimerHandle | None = None
        self.is_here = False
        """Whether something is being committed on the loop, after which those who wait are answered."""
        self._here_from_us = 0
        self._here_slow = 0.0
        self.bell = Bell(loop, self._answer)
        self.checks = checks
        self._roots = roots
        self.done: deque[Served | Quiet] = deque()
        """Those that are finished, by the thread that commits, which rings the bell then."""
        self._waiting: deque[Served] = deque()
        """Those that found the group full; bounded by what each connection may have in flight."""
        self._on_empty: list[Callable[[], None]] = []
        self._in_flight = 0
        roots.showing.watch()

    def take(
        self,
        connection: Connection,
        id: Any,
        part: Part,
        flags: int,
        producer: str | None = None,
        sequence: int = 0,
        *,
        hearing: Hearing = Hearing.LIVE,
    ) -> None:
        """What a connection publishes to one root, which it may: shown or committed. Its client hears of it by `id`.
        `hearing` says who waits for it: if that is a durable subscription, it is not to wait for company.

        QuotaExceeded (429), and nothing has happened, if it would go over a limit as of a moment ago: who brings one
        publish after another can stop there. Whoever commits decides. SchemaMismatch (422) if it does not fit.
        """
        if part.misfit is not None:
            raise part.misfit
        # Asked for by identity: a look into a flag takes as long as all else that is asked here.
        if flags & QUIET and producer is None and hearing is not Hearing.STORED and self._showed(connection, part):
            if hearing is not Hearing.LIVE:
                self._loop.call_soon(self._kick)  # once what was shown has left
            return
        is_one, root = len(part.payloads) == 1, self._roots.get(part.root)
        if not (is_one and root is not None and part.retain is None and root.knows(part.topics[0])):
            self._roots.limits.foresee(part)
        is_quiet, weight = bool(flags & QUIET), part.weight
        share = QUIET_SHARE if is_quiet else SHARES
        item = Served(
            part.topics,
            [part],
            producer,
            sequence,
            is_one,
            is_one and producer is None and part.retain is None,
            flags,
            weight=weight,
            entry=self,
            connection=connection,
            id=id,
            is_quiet=is_quiet,
            share=share,
        )
        connection.on_publish(weight, share)
        self._in_flight += 1
        self._waiting.append(item)
        if weight >= AT_ONCE_BYTES_MIN:
            self.give_places()
        elif len(self._waiting) == 1:
            self._loop.call_soon(self._submit)

    def _showed(self, connection: Connection, part: Part) -> bool:
        """Whether what nobody waits for could be shown at once."""
        if self._waiting or not self._shower.may_show(part.root):
            return False
        if part.time_us < 0:
            part.time_us = self._clock.now_us()
        shown = self._roots.showing.show(part, self._shower.show, self._new_quiet)
        if shown is None:
            return False
        self._on_shown(connection, *shown)
        return True

    def _new_quiet(self, root: str, turn: int) -> Quiet:
        self._in_flight += 1
        return Quiet(entry=self, root=root, turn=turn)

    def _on_shown(self, connection: Connection, quiet: Quiet, weight: int) -> None:
        """Something is with the live subscriptions, and has its place in the next group."""
        quiet.note(connection, weight)
        connection.on_publish(weight, QUIET_SHARE)
        # Sent frame by frame: what came in one read could be more than a live subscription may have waiting.
        if self._wakes.rung:
            self._wakes.wake()
        if self._kick_timer is None:
            self._kick_timer = self._loop.call_later(SHOWN_S, self._kick)
        self._quiet_items += 1
        self._quiet_bytes += weight
        if self._quiet_items >= SHOWN_MESSAGES_MAX or self._quiet_bytes >= SHOWN_BYTES_MAX:
            self._kick()

    def _kick(self) -> None:
        self._quiet_items = self._quiet_bytes = 0
        if self._kick_timer is not None:
            self._kick_timer.cancel()
            self._kick_timer = None
        self._roots.commit.kick()

    def _go_on(self) -> None:
        """Do now what waits for the next turn of the loop."""
        if self.bell.is_rung:
            self._answer()
        if self._waiting:
            self._submit()

    def _submit(self) -> None:
        """Have committed what this turn of the loop has brought, together, as far as there is room."""
        if len(self._waiting) != 1 or not self._commit_here(self._waiting[0]):
            self.give_places()

    def give_places(self) -> None:
        """Give what this turn has brought its places now, before something else asks for one."""
        waiting, commit = self._waiting, self._roots.commit
        if not waiting:
            return
        while waiting and not commit.is_full:
            item = waiting.popleft()
            try:
                commit.enqueue(item)
            except HeadwaterError as error:  # nothing is taken at the moment
                self._roots.refusals.refuse(item, error)
        commit.kick()
        if waiting and len(waiting) == self._in_flight:
            # Others have filled the group, so that none of ours will tell when there is room.
            self._loop.call_later(AGAIN_S, self._submit)

    def _commit_here(self, item: Served) -> bool:
        """Commit a small publish that waits alone on the loop, if the disk is quick."""
        if item.weight > HERE_BYTES_MAX or not self._roots.is_near:
            return False
        if self._here_from_us:
            if self._clock.monotonic_us() < self._here_from_us:
                return False
            self._here_from_us = 0
        roots, wakes = self._roots, self._wakes
        self.is_here = roots.checkpoints.is_held = wakes.is_looking = True
        try:
            if not roots.commit.commit_here(item):
                return False
        except BaseException:
            self.bell.ring()  # who was answered by then is told, whatever interrupts this
            raise
        finally:
            self.is_here = roots.checkpoints.is_held = wakes.is_looking = False
            if wakes.rung:
                wakes.wake()
        self._waiting.popleft()
        self._here_slow += ((roots.committer.took_us > HERE_US_MAX) - self._here_slow) / HERE_COMMITS
        if self._here_slow > HERE_SLOW_MAX:
            self._here_from_us, self._here_slow = self._clock.monotonic_us() + HERE_AGAIN_AFTER_US, 0.0
        if roots.checkpoints.is_due and not roots.commit.is_apart:
            roots.commit.submit(Call(roots.checkpoints.make_in_time))
        self._answer()
        return True

    def _answer(self) -> None:
        """Tell each client what became of its publishes."""
        by_connection: dict[Connection, list[Served]] = {}
        for _ in range(len(self.done)):
            item = self.done.popleft()
            self._in_flight -= 1
            if isinstance(item, Quiet):
                for connection, (weight, share) in item.senders.items():
                    connection.on_landed(weight, share)
                item.senders.clear()  # the item may be remembered until the next of its root, and they may leave
            else:
                by_connection.setdefault(item.connection, []).append(item)
            if item.error is not None:
                counts = self._roots.counts
                counts.refuse(getattr(item.error, "code", 0))
                if item.is_quiet:
                    counts.unstored += item.lost if isinstance(item, Quiet) else len(item.topics)
        for connection, items in by_connection.items():
            connection.on_published(items)
        if self._waiting:
            self._submit()
        if not self._in_flight:
            waiting, self._on_empty = self._on_empty, []
            for call in waiting:
                call()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way to disk."""
        return not self._in_flight

    def when_empty(self, call: Callable[[], None]) -> None:
        """Call back once nothing is in flight."""
        if self._in_flight:
            self._on_empty.append(call)
        else:
            call()
