"""Showing: what nobody waits for reaches live subscriptions at once, and the disk with the next group.

Promises: nothing is shown that may be refused; the order is kept, as nothing is shown while something of its root is on
its way that was not; what is shown has its place in the next group. If the disk fails by then, what was shown is not
stored, and others get its offsets; nothing more is shown until those that were are on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from headwater.log.early import Early
from headwater.log.publish import MESSAGE_WEIGHT, Publish
from headwater.log.root import Root
from headwater.store.batch import QUIET, Batch, Header, checksum
from headwater.store.body import Body, encode_body
from headwater.store.log import Write

if TYPE_CHECKING:
    from headwater.log.roots import Roots

SINGLES_BYTES_MAX = 256 * 1024
"""How much goes to disk as one batch of what came one by one."""
BATCH_WEIGHT = 700
"""What a batch weighs besides its bytes, when a group is kept within its limit: the objects that it is on its way."""


class _Singles:
    """Messages that came one by one, as columns."""

    __slots__ = ("_payloads", "_times", "topics", "weight")

    def __init__(self) -> None:
        self.topics: list[str] = []
        self._payloads: list[bytes] = []
        self._times: list[int] = []
        self.weight = 0

    def add(self, early: Early) -> int:
        """One more; what it weighs."""
        self.topics.append(early.topic)
        self._payloads.append(early.payload)
        self._times.append(early.time_us)
        weight = len(early.payload) + MESSAGE_WEIGHT
        self.weight += weight
        return weight

    def write(self) -> Write:
        """All of them as one batch."""
        body = encode_body(self.topics, self._payloads, self._times)
        return Write(body, checksum(body), len(self.topics), None, 0, QUIET)


class Shown(Publish):
    """What was shown of one root, on its way to disk together: batches as they came, and as one batch those messages
    that came one by one.

    The first of them has a place among what is to be committed; as long as that has not begun, and nothing else of the
    root has come, the others join it: no place for each, and for a single message no encoding and no checksum.
    """

    __slots__ = ("_pieces", "_singles", "root", "turn")

    def __init__(self, root: str, turn: int) -> None:
        super().__init__((), [], 0, None, 0, is_one=False)
        self.root = root
        self.flags = QUIET
        self.turn = turn
        """The group that it is to be committed with."""
        self._pieces: list[Write | _Singles] = []
        self._singles: _Singles | None = None
        """The last piece, if one more message may be added to it."""

    def add(self, body: Body, crc: int) -> None:
        """One more batch."""
        self._pieces.append(Write(body.data, crc, body.count, None, 0, QUIET, body))
        self._singles = None

    def add_one(self, early: Early) -> int:
        """One more message; what it weighs."""
        singles = self._singles
        if singles is None or singles.weight > SINGLES_BYTES_MAX:
            singles = self._singles = _Singles()
            self._pieces.append(singles)
        return singles.add(early)

    @property
    def count(self) -> int:
        """How many messages it is, before it is let go of."""
        return sum(len(piece.topics) if isinstance(piece, _Singles) else piece.count for piece in self._pieces)

    def let_go(self) -> None:
        """Keep nothing of it in memory: it is on disk, or will not be."""
        self._pieces, self._singles = [], None

    def writes(self) -> Iterator[tuple[Write, Sequence[str] | None]]:
        """What is to be appended, in order; with its topics if those would have to be decoded."""
        for piece in self._pieces:
            yield (piece.write(), piece.topics) if isinstance(piece, _Singles) else (piece, None)


S = TypeVar("S", bound=Shown)


class _Way:
    """What of one root is on its way to disk: counted up by whoever gives places, and down by whoever commits; two
    counts with a writer each, so that neither has to wait for the other."""

    __slots__ = ("hidden_in", "hidden_out", "is_torn", "latest", "next", "shown_in", "shown_out")

    def __init__(self) -> None:
        self.hidden_in = self.hidden_out = 0
        """What nobody is told of before it is on disk."""
        self.shown_in = self.shown_out = 0
        """What live subscriptions have before it is on disk."""
        self.next = 0
        """Where the next message stands that is shown, as long as others that were are not on disk."""
        self.is_torn = False
        """Whether something was shown and not stored, so that what was shown after it stands elsewhere than it said."""
        self.latest: Shown | None = None
        """What the next that is shown may join."""

    def first_free(self, root: Root) -> int:
        """Where the next message will stand; 0 if that cannot be told yet. Asked while nobody gets a place."""
        if self.hidden_in != self.hidden_out:
            return 0
        if self.shown_in == self.shown_out:
            self.is_torn = False
            return root.stream.durable + 1
        return 0 if self.is_torn else self.next


class Showing:
    """What is shown before it is on disk, of all roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._ways: defaultdict[str, _Way] = defaultdict(_Way)

    def show(
        self, name: str, body: Body, crc: int, tell: Callable[[Root, Batch], None], new: Callable[[str, int], S]
    ) -> S | None:
        """Tell of a batch of a root at once: what it joins on its way to disk; None if it has to be there first, or may
        be refused."""
        roots = self._roots
        root = roots.get(name)
        if root is None or body.retain is not None or root.stream.failed is not None or not roots.has_room:
            return None
        if not root.knows_all(body.names):
            return None
        commit = roots.commit
        with commit.places:
            way = self._ways[name]
            offset = way.first_free(root)
            if not offset or not commit.is_open:
                return None
            count, data = body.count, body.data
            header = Header(name, offset, count, body.time_span()[1], 0, None, 0, QUIET, 0, len(data), crc)
            tell(root, Batch(header, data, body))
            shown = self._place(way, name, new)
            shown.add(body, crc)
            commit.grow(shown, len(data) + BATCH_WEIGHT)
            way.next = offset + count
        return shown

    def show_one(self, early: Early, tell: Callable[[Root, Early], None], new: Callable[[str, int], S]) -> S | None:
        """The same for one message without options."""
        name = early.root
        roots = self._roots
        root = roots.get(name)
        if root is None or root.stream.failed is not None or not roots.has_room or not root.knows(early.topic):
            return None
        commit = roots.commit
        with commit.places:
            way = self._ways[name]
            offset = way.first_free(root)
            if not offset or not commit.is_open:
                return None
            early.offset = offset
            tell(root, early)
            shown = self._place(way, name, new)
            commit.grow(shown, shown.add_one(early))
            way.next = offset + 1
        return shown

    def _place(self, way: _Way, name: str, new: Callable[[str, int], S]) -> S:
        """What is to be committed with the next group, of what was shown of a root."""
        commit = self._roots.commit
        shown = way.latest
        if shown is None or shown.turn != commit.turn:
            shown = way.latest = new(name, commit.turn)
            commit.append(shown)
        return shown  # type: ignore[return-value]  # whoever enters messages makes all of them

    def enter(self, item: Publish) -> None:
        """It has its place; while nobody else gets one."""
        if isinstance(item, Shown):
            self._ways[item.root].shown_in += 1
            return
        for part in item.parts:
            way = self._ways[part.root]
            way.hidden_in += 1
            way.latest = None  # what comes from now on comes after this

    def leave(self, item: Publish) -> None:
        """It was committed, or was not."""
        if isinstance(item, Shown):
            item.let_go()
            way = self._ways[item.root]
            if item.is_waiting or item.error is not None:
                way.is_torn = True
            way.shown_out += 1
            return
        for part in item.parts:
            way = self._ways[part.root]
            way.hidden_out += 1
            if self._roots.get(part.root) is None:
                self._forget(part.root, way)

    def _forget(self, name: str, way: _Way) -> None:
        """Keep nothing of a root that was not made: there may be any number of those."""
        with self._roots.commit.places:
            if way.hidden_in == way.hidden_out:
                self._ways.pop(name, None)
