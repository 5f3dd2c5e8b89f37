"""Showing: what nobody waits for reaches live subscriptions at once, and the disk with the next group.

Promises: nothing is shown that may be refused; the order is kept, as nothing is shown while something of its root is on
its way that was not; what is shown has its place in the next group. If the disk fails by then, what was shown is not
stored, and others get its offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from headwater.store.batch import QUIET, Batch, Header
from headwater.store.early import Early
from headwater.topics.publish import Part, Publish
from headwater.topics.root import Root

if TYPE_CHECKING:
    from headwater.topics.roots import Roots

JOINED_BYTES_MAX = 256 * 1024
"""How much goes to disk as one batch of what came one by one."""
JOINED_WEIGHT = 100
"""What a message weighs there besides its payload."""


class Joined(Publish):
    """Messages of one root that came one by one, were shown, and go to disk as one batch.

    The first of them has a place among what is to be committed; as long as that has not begun, and nothing else of the
    root has come, the others join it: no place, no encoding and no checksum for each.
    """

    __slots__ = ("_payloads", "_times", "_topics", "turn")

    def __init__(self, root: str, turn: int) -> None:
        self._topics: list[str] = []
        self._payloads: list[bytes] = []
        self._times: list[int] = []
        part = Part(root, self._topics, self._payloads, (), times=self._times)
        super().__init__(self._topics, [part], 0, None, 0, is_one=False)
        self.flags = QUIET
        self.is_shown = True
        self.turn = turn
        """The group that it is to be committed with."""

    def add(self, early: Early) -> int:
        """One more; what it weighs."""
        self._topics.append(early.topic)
        self._payloads.append(early.payload)
        self._times.append(early.time_us)
        return len(early.payload) + JOINED_WEIGHT


J = TypeVar("J", bound=Joined)


class _Passing:
    """How much of each root is on its way: counted up by whoever gives places, and down by whoever commits."""

    __slots__ = ("_entered", "_left")

    def __init__(self) -> None:
        # Two counts with a writer each, so that neither has to wait for the other.
        self._entered: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def enter(self, root: str) -> None:
        self._entered[root] = self._entered.get(root, 0) + 1

    def leave(self, root: str) -> None:
        self._left[root] = self._left.get(root, 0) + 1

    def any_of(self, root: str) -> bool:
        return self._entered.get(root, 0) != self._left.get(root, 0)


class Showing:
    """What is shown before it is on disk, of all roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._hidden = _Passing()
        """Parts that nobody is told of before they are on disk."""
        self._shown = _Passing()
        """Parts that live subscriptions have before they are on disk."""
        self._next: dict[str, int] = {}
        """By root: where the next message stands that is shown, as long as others that were are not on disk."""
        self._joined: dict[str, Joined] = {}
        """By root: what the next message may join."""

    def show(self, item: Publish, tell: Callable[[Root, Batch], None]) -> bool:
        """Tell of a publish of one root at once, and give it its place in the next group; False if it has to be on
        disk first, or may be refused."""
        part = item.parts[0]
        root, columns = self._roots.get(part.root), part.columns
        if root is None or columns is None or part.retain is not None or item.producer is not None:
            return False
        if not self._may_show(root) or not root.knows_all(columns.names):
            return False
        return self._roots.commit.enqueue_if(item, self._show_now, tell)

    def _may_show(self, root: Root) -> bool:
        return self._roots.has_room and root.stream.failed is None

    def _show_now(self, item: Publish, tell: Callable[[Root, Batch], None]) -> bool:
        """Tell of it, unless something of its root is on its way that was not told of; while nobody gets a place."""
        part = item.parts[0]
        name, columns = part.root, part.columns
        assert columns is not None
        if self._hidden.any_of(name):
            return False
        root = self._roots.get(name)
        assert root is not None
        offset = self._offset(root)
        time_us, data = columns.time_span()[1], columns.data
        header = Header(name, offset, columns.count, time_us, 0, None, 0, item.flags, 0, len(data), part.crc)
        tell(root, Batch(header, data, columns))
        self._next[name] = offset + columns.count
        item.is_shown = True
        return True

    def show_one(self, early: Early, tell: Callable[[Root, Early], None], new: Callable[[str, int], J]) -> J | None:
        """The same for one message without options: what it joins on its way to disk; None if it has to be there
        first, or may be refused."""
        name = early.root
        root = self._roots.get(name)
        if root is None or not self._may_show(root) or not root.knows(early.topic):
            return None
        commit = self._roots.commit
        with commit.places:
            if not commit.is_open or self._hidden.any_of(name):
                return None
            early.offset = offset = self._offset(root)
            tell(root, early)
            joined = self._joined.get(name)
            if joined is None or joined.turn != commit.turn or joined.weight > JOINED_BYTES_MAX:
                joined = new(name, commit.turn)
                commit.append(joined)
                self._joined[name] = joined
            commit.grow(joined, joined.add(early))
            self._next[name] = offset + 1
        return cast("J", joined)  # whoever enters messages makes all of them

    def _offset(self, root: Root) -> int:
        """Where the next message of a root stands."""
        return self._next[root.name] if self._shown.any_of(root.name) else root.stream.durable + 1

    def enter(self, item: Publish) -> None:
        """It has its place; while nobody else gets one."""
        passing = self._shown if item.is_shown else self._hidden
        for part in item.parts:
            passing.enter(part.root)
            self._joined.pop(part.root, None)  # what comes from now on comes after this

    def leave(self, item: Publish) -> None:
        """It was committed, or was not."""
        passing = self._shown if item.is_shown else self._hidden
        for part in item.parts:
            passing.leave(part.root)
