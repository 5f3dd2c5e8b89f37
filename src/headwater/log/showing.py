"""Showing: what nobody waits for reaches live subscriptions at once, and the disk with the next group.

Promises: nothing is shown that may be refused; the order is kept, as nothing is shown while something of its root is on
its way that was not; what is shown has its place in the next group. If the disk fails by then, what was shown is not
stored, and others get its offsets; nothing more is shown until those that were are on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from headwater.counts import Counts
from headwater.log.publish import Part, Publish
from headwater.log.root import Root
from headwater.store.batch import QUIET, Batch, Header

if TYPE_CHECKING:
    from headwater.log.roots import Roots

SHOWN_S = 0.01
"""How long what was shown may wait for company on its way to disk;"""
SHOWN_MESSAGES_MAX = 256
"""and how many messages,"""
SHOWN_BYTES_MAX = 4 * 1024 * 1024
"""and how much."""
BATCH_WEIGHT = 700
"""What a batch weighs besides its bytes, when a group is kept within its limit: the objects that it is on its way."""


class Shown(Publish, kw_only=True):
    """What was shown of one root, on its way to disk together.

    The first of it has a place among what is to be committed; as long as that has not begun, and nothing else of the
    root has come, the others join it: no place for each, and single messages are encoded together.
    """

    is_awaited = False

    root: str
    turn: int
    """The group that it is to be committed with."""
    flags: int = QUIET
    weight: int = 0
    count: int = 0
    """How many messages it is."""

    @property
    def roots(self) -> Sequence[str]:
        return (self.root,)

    def add(self, part: Part) -> None:
        """One publish more."""
        self.parts.append(part)
        self.count += len(part.topics)

    @property
    def is_much(self) -> bool:
        """Whether it is to wait for no more."""
        return self.count >= SHOWN_MESSAGES_MAX or self.weight >= SHOWN_BYTES_MAX


S = TypeVar("S", bound=Shown)


class Untold(Shown, kw_only=True):
    """What was shown, and if it cannot be stored, nobody is told: it is counted."""

    counts: Counts

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.counts.unstored += self.count
        super().finish(error)


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
        self.is_watching = False
        """Whether what is on its way is counted: not before somebody would show something."""
        self.is_held: Callable[[], bool] | None = None
        """Whether nothing may be shown at the moment, as another node might be doing that; None: always."""

    def watch(self) -> bool:
        """Count what is on its way from now on, if nothing is at the moment; whether it is counted."""
        commit = self._roots.commit
        if not self.is_watching:
            with commit.places:
                if commit.is_idle:
                    self.is_watching, commit.on_add = True, self.enter
        return self.is_watching

    def show(self, part: Part, tell: Callable[[Batch], None], new: Callable[[str, int], S]) -> tuple[S, int] | None:
        """Tell of messages of a root at once: what they join on their way to disk, and what they weigh; None if they
        have to be there first, or may be refused."""
        roots, name = self._roots, part.root
        root = roots.get(name)
        if root is None or part.retain is not None or root.stream.failed is not None or not roots.room.is_left:
            return None
        if not root.knows_all(part.names) or (self.is_held is not None and self.is_held()):
            return None
        if not self.is_watching and not self.watch():
            return None
        is_plain = part.is_plain
        if not is_plain:
            part.decode()
        weight = part.weight
        commit = roots.commit
        with commit.places:
            way = self._ways[name]
            offset = way.first_free(root)
            if not offset or not commit.is_open:
                return None
            tell(_one(part, offset) if is_plain else _batch(part, offset))
            shown = self._place(way, name, new)
            shown.add(part)
            commit.grow(shown, weight if is_plain else weight + BATCH_WEIGHT)
            way.next = offset + len(part.topics)
        return shown, weight

    def _place(self, way: _Way, name: str, new: Callable[[str, int], S]) -> S:
        """What is to be committed with the next group, of what was shown of a root."""
        commit = self._roots.commit
        shown = way.latest
        if shown is None or shown.turn != commit.turn:
            shown = way.latest = new(name, commit.turn)
            commit.add(shown, waits=False, is_due=False)
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

    def leave(self, items: Sequence[Publish]) -> None:
        """They were committed, or were not."""
        if not self.is_watching:
            return
        for item in items:
            if isinstance(item, Shown):
                item.parts = []  # it is on disk, or will not be: nothing of it is kept in memory
                way = self._ways[item.root]
                if way.latest is item:  # it was refused before its turn was over
                    way.latest = None
                if item.is_waiting or item.error is not None:
                    way.is_torn = True
                way.shown_out += 1
                continue
            for part in item.parts:
                way = self._ways[part.root]
                way.hidden_out += 1
                if self._roots.get(part.root) is None:
                    self._forget(part.root, way)

    def drop(self, name: str) -> None:
        """Keep nothing of a root that was removed, unless more of it is on its way."""
        with self._roots.commit.places:
            way = self._ways.get(name)
            if way is not None and (way.hidden_in, way.shown_in) == (way.hidden_out, way.shown_out):
                del self._ways[name]

    def _forget(self, name: str, way: _Way) -> None:
        """Keep nothing of a root that was not made: there may be any number of those."""
        with self._roots.commit.places:
            if way.hidden_in == way.hidden_out:
                self._ways.pop(name, None)


def _one(part: Part, offset: int) -> Batch:
    """A single message, which nobody has encoded yet."""
    return Batch.of_one(part.root, offset, part.topics[0], part.payloads[0], part.time_us, part.body or b"")


def _batch(part: Part, offset: int) -> Batch:
    body, columns = part.body, part.columns
    assert body is not None
    assert columns is not None
    time_us = columns.time_span()[1]
    header = Header(part.root, offset, columns.count, time_us, 0, None, 0, QUIET, 0, len(body), part.crc)
    return Batch.of(header, body, columns, is_early=True)
