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
from headwater.topics.publish import MESSAGE_WEIGHT, Part, Publish
from headwater.topics.root import Root

if TYPE_CHECKING:
    from headwater.topics.roots import Roots

JOINED_BYTES_MAX = 256 * 1024
"""How much goes to disk as one batch of what came one by one."""


class Shown(Publish):
    """What was shown of one root, on its way to disk together: batches as they came, and as one batch those messages
    that came one by one.

    The first of them has a place among what is to be committed; as long as that has not begun, and nothing else of the
    root has come, the others join it: no place for each, and for a single message no encoding and no checksum.
    """

    __slots__ = ("_payloads", "_room", "_times", "_topics", "root", "turn")

    def __init__(self, root: str, turn: int) -> None:
        super().__init__((), [], 0, None, 0, is_one=False)
        self.root = root
        self.flags = QUIET
        self.is_shown = True
        self.turn = turn
        """The group that it is to be committed with."""
        self._room = 0
        """What may still be added to the last part, if that is of messages that came one by one."""

    def add(self, part: Part) -> None:
        """One more batch."""
        self.parts.append(part)
        self._room = 0

    def add_one(self, early: Early) -> int:
        """One more message; what it weighs."""
        weight = len(early.payload) + MESSAGE_WEIGHT
        if self._room <= 0:
            self._topics: list[str] = []
            self._payloads: list[bytes] = []
            self._times: list[int] = []
            self._room = JOINED_BYTES_MAX
            self.parts.append(Part(self.root, self._topics, self._payloads, (), times=self._times))
        self._topics.append(early.topic)
        self._payloads.append(early.payload)
        self._times.append(early.time_us)
        self._room -= weight
        return weight


S = TypeVar("S", bound=Shown)


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
        self._latest: dict[str, Shown] = {}
        """By root: what the next that is shown may join."""

    def show(self, part: Part, tell: Callable[[Root, Batch], None], new: Callable[[str, int], S]) -> S | None:
        """Tell of a batch without options at once: what it joins on its way to disk; None if it has to be there first,
        or may be refused."""
        name, columns = part.root, part.columns
        root = self._roots.get(name)
        if root is None or columns is None or part.retain is not None or not self._may_show(root):
            return None
        if not root.knows_all(columns.names):
            return None
        commit = self._roots.commit
        with commit.places:
            if not commit.is_open or self._hidden.any_of(name):
                return None
            offset, count, data = self._offset(root), columns.count, columns.data
            header = Header(name, offset, count, columns.time_span()[1], 0, None, 0, QUIET, 0, len(data), part.crc)
            tell(root, Batch(header, data, columns))
            shown = self._place(name, new)
            shown.add(part)
            commit.grow(shown, len(data))
            self._next[name] = offset + count
        return shown

    def show_one(self, early: Early, tell: Callable[[Root, Early], None], new: Callable[[str, int], S]) -> S | None:
        """The same for one message without options."""
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
            shown = self._place(name, new)
            commit.grow(shown, shown.add_one(early))
            self._next[name] = offset + 1
        return shown

    def _may_show(self, root: Root) -> bool:
        return self._roots.has_room and root.stream.failed is None

    def _place(self, name: str, new: Callable[[str, int], S]) -> S:
        """What is to be committed with the next group, of what was shown of a root."""
        commit = self._roots.commit
        shown = self._latest.get(name)
        if shown is None or shown.turn != commit.turn:
            shown = new(name, commit.turn)
            commit.append(shown)
            self._latest[name] = shown
        return cast("S", shown)  # whoever enters messages makes all of them

    def _offset(self, root: Root) -> int:
        """Where the next message of a root stands."""
        return self._next[root.name] if self._shown.any_of(root.name) else root.stream.durable + 1

    def enter(self, item: Publish) -> None:
        """It has its place; while nobody else gets one."""
        if isinstance(item, Shown):
            self._shown.enter(item.root)
            return
        for part in item.parts:
            self._hidden.enter(part.root)
            self._latest.pop(part.root, None)  # what comes from now on comes after this

    def leave(self, item: Publish) -> None:
        """It was committed, or was not."""
        if isinstance(item, Shown):
            self._shown.leave(item.root)
            return
        for part in item.parts:
            self._hidden.leave(part.root)
