"""Fan-out: a batch on its way to all whose filters match, in slices where they are many.

A few are told of a batch at once, in the committing role. Where they are many, that would hold up everybody else who
publishes, so a server has the rest done on its loop, some in each turn (`serve`). Promises: what goes to a root's
subscribers goes in the order in which it was committed; each is told once, whoever comes or goes meanwhile; no more
than `WAITING_BYTES_MAX` wait, beyond which the committing role does the rest itself. A client that published is
answered when all were told, so that none publishes faster than is delivered; a thread of this process is not kept so
long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import ClassVar, Protocol

import msgspec

from headwater import threads
from headwater.delivery.selection import Selection
from headwater.store.batch import Batch

AT_ONCE_MAX = 128
"""Subscribers of a batch that are told at once; of more than that, none is."""
TURN_MAX = 1024
"""Of all batches of a group together."""
WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Of batches that wait for their turn;"""
BATCH_WEIGHT = 1024
"""what each weighs besides its bytes."""
NAMES_FOR_ONE = 2
"""Topics that are looked up in place of one subscriber that is told."""
ALL = 1 << 62


class Listener(Hashable, Protocol):
    """Whoever hears of batches that match its filter."""

    wants_places: ClassVar[bool]
    """Whether it has to know which messages of a batch match, or reads for itself."""
    takes_early: ClassVar[bool]
    """Whether it is given what is shown before it is on disk, and then not again."""

    def deliver(self, selection: Selection) -> None:
        """Messages that match are there; all of their batch, if it does not want places."""


class Audience(msgspec.Struct, eq=False):
    """Who is to hear of a batch: those who get all of it, and those who get the messages of some of its topics.

    Of a batch with many topics they are looked up some topics at a time; whoever changes who is subscribed to what has
    that done to its end before.
    """

    whole: Sequence[Listener] = ()
    partly: Sequence[tuple[Listener, list[int]]] = ()
    is_known: bool = True
    _names: Sequence[str] = ()
    """Those that they are yet to be found for,"""
    _found: tuple[int, dict[Listener, list[int]]] | None = None
    """and whom there is for how many of them."""

    @staticmethod
    def of(names: Sequence[str]) -> Audience:
        """Whoever is found for these names."""
        return Audience(is_known=False, _names=names)

    def look_up(self, match: Callable[[str], Sequence[Listener]], limit: int) -> None:
        """Find those of so many topics more."""
        names, (at, hits) = self._names, self._found or (0, {})
        for place in range(at, min(at + limit, len(names))):
            for listener in match(names[place]):
                hits.setdefault(listener, []).append(place)
        self._found = (at + limit, hits)
        if at + limit >= len(names):
            whole: list[Listener] = []
            partly: list[tuple[Listener, list[int]]] = []
            for listener, matched in hits.items():
                if listener.wants_places and len(matched) < len(names):
                    partly.append((listener, matched))
                else:
                    whole.append(listener)
            self.whole, self.partly, self._names, self._found = whole, partly, (), None
            self.is_known = True


class FanOut:
    """A batch, and those who are still to hear of it."""

    __slots__ = ("_at", "_is_early", "_is_for_some", "_whole", "after", "audience", "is_over", "weight")

    def __init__(self, batch: Batch, audience: Audience) -> None:
        self.weight = len(batch.data) + BATCH_WEIGHT
        self.is_over = False
        """Whether all have heard of it."""
        self._is_early = batch.is_early
        self._is_for_some = batch.is_early or batch.is_shown
        self._whole = Selection(batch.root, batch, batch.count)
        self._at = 0
        """How many have heard of it."""
        self.audience = audience
        self.after: list[Callable[[], None]] = []
        """What is to be called then."""

    def carry_on(self, limit: int) -> int:
        """Tell so many more of those who are known, at most; how many there were."""
        whole, batch = self._whole, self._whole.batch
        assert batch is not None
        first, audience = self._at, self.audience
        before = len(audience.whole)
        upto = self._at = min(first + limit, before + len(audience.partly))
        for listener in audience.whole[first:upto]:
            if not self._is_for_some or listener.takes_early is self._is_early:
                listener.deliver(whole)
        for listener, matched in audience.partly[max(0, first - before) : max(0, upto - before)]:
            if not self._is_for_some or listener.takes_early is self._is_early:
                places = batch.body.places_of(matched)
                listener.deliver(Selection(batch.root, batch, len(places), places))
        return upto - first


class FanOuts:
    """Fan-outs of all roots: those that are done at once, and those that are under way."""

    def __init__(self, look_up: Callable[[Audience, int], None]) -> None:
        """`look_up` goes on with finding an audience, for so many topics."""
        self._look_up = look_up
        self._lock = threads.Lock()
        """Held for a look at what is under way, or a change of it."""
        self._delivering = threads.Lock()
        """Held by whoever carries on with what is under way;"""
        self._by = 0
        """the thread of that."""
        self.by_root: dict[str, deque[FanOut]] = {}
        """Those that are under way, of which some are still to hear of what a root has brought."""
        self._turns: deque[str] = deque()
        """The same roots, in the order in which they have their turns."""
        self._bytes = 0
        self._ring: Callable[[], None] | None = None

    # For those who bring batches: one at a time for each root.

    def tell(self, batch: Batch, audience: Audience, left: int) -> tuple[int, FanOut | None]:
        """The one way out: have all who are to hear of a batch given their selection of it, at once if they are not
        more than `left`; how many more may be told at once, and the fan-out, if it is not over yet."""
        if self._ring is None and not audience.is_known:
            self._look_up(audience, ALL)
        count = len(audience.whole) + len(audience.partly) if audience.is_known else ALL
        if batch.root not in self.by_root and ((count <= AT_ONCE_MAX and count <= left) or self._ring is None):
            is_early, whole = batch.is_early, Selection(batch.root, batch, batch.count)
            is_for_some = is_early or batch.is_shown
            for listener in audience.whole:
                if not is_for_some or listener.takes_early is is_early:
                    listener.deliver(whole)
            for listener, matched in audience.partly:
                if not is_for_some or listener.takes_early is is_early:
                    places = batch.body.places_of(matched)
                    listener.deliver(Selection(batch.root, batch, len(places), places))
            return left - count, None
        return left, self._wait(batch, audience)

    def _wait(self, batch: Batch, audience: Audience) -> FanOut | None:
        fan_out = FanOut(batch, audience)
        # Who shows something early is about to give it its place, and brings no more of the root until this is over.
        may_finish = not batch.is_early and self._by != threads.get_ident()
        batch.is_early = False  # whoever carries on, it goes through the buffers of those who take it
        with self._lock:
            if batch.root not in self.by_root:
                self.by_root[batch.root] = deque()
                self._turns.append(batch.root)
            self.by_root[batch.root].append(fan_out)
            self._bytes += fan_out.weight
            is_over_limit, ring = self._bytes > WAITING_BYTES_MAX, self._ring
        if ring is not None:
            ring()
        if ring is None or (is_over_limit and may_finish):
            self.finish()
        return fan_out

    def when_over(self, fan_outs: Sequence[FanOut], call: Callable[[], None]) -> None:
        """Call back once all have heard of these, in whatever thread that is."""
        if not fan_outs:
            call()
            return
        first, others = fan_outs[0], fan_outs[1:]
        with self._lock:
            if not first.is_over:
                first.after.append(partial(self.when_over, others, call))
                return
        self.when_over(others, call)

    # For whoever carries on

    def serve(self, ring: Callable[[], None] | None) -> None:
        """Have what takes longer done by somebody who is rung, from any thread, and then calls `carry_on` until nothing
        is left; without anybody, all is done at once."""
        with self._lock:
            self._ring = ring
        if ring is None:
            self.finish()

    @property
    def is_served(self) -> bool:
        """Whether somebody carries on with what takes longer: a server, on its loop."""
        return self._ring is not None

    def carry_on(self, limit: int) -> None:
        """Tell so many more, at most, of the batch whose root has its turn."""
        if not self._delivering.acquire(blocking=False):
            return  # somebody does it all
        self._by = threads.get_ident()
        try:
            self._carry_on(limit)
        finally:
            self._by = 0
            self._delivering.release()

    def finish(self) -> None:
        """Tell all who are left."""
        if self._by == threads.get_ident():
            return  # somebody who was told has brought more
        with self._delivering:
            self._by = threads.get_ident()
            try:
                while self.by_root:
                    self._carry_on(ALL)
            finally:
                self._by = 0

    def _carry_on(self, limit: int) -> None:
        with self._lock:
            if not self._turns:
                return
            self._turns.rotate(-1)
            root = self._turns[-1]
            waiting = self.by_root[root]
            fan_out = waiting[0]
        if not fan_out.audience.is_known:
            self._look_up(fan_out.audience, NAMES_FOR_ONE * limit)
            return
        if fan_out.carry_on(limit) == limit:
            return
        # Only now: whoever comes with more of this root is to come after it.
        with self._lock:
            waiting.popleft()
            self._bytes -= fan_out.weight
            if not waiting:
                del self.by_root[root]
                self._turns.remove(root)
            fan_out.is_over = True
        for call in fan_out.after:
            call()
