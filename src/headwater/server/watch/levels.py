"""The levels of the topic tree, a page at a time, each with the sums of what is below it.

Nobody sees a level without a topic at or below it that it may subscribe to, and nobody counts what it does not see.
What was summed up is remembered for a while, the longer the more work it was, so that a tree of a million topics can
be looked at again and again: its counts are as of a moment ago.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import msgspec

from headwater import threads
from headwater.clock import SECOND_US
from headwater.core import Core
from headwater.errors import NotFound
from headwater.log import delays
from headwater.log.root import Root
from headwater.log.roots import STAGED
from headwater.pacing import Pacing
from headwater.topics.name import check_topic
from headwater.wire.administration import Level

FRESH_US = SECOND_US // 2
"""How long sums are remembered at least;"""
FRESH_TIMES = 20
"""and so many times as long as it took to find them."""
REMEMBERED_MAX = 64
"""Levels whose sums are remembered;"""
REMEMBERED_ROWS_MAX = 100_000
"""and the levels right below all of them together, unless a single one has more."""
LOOKS_US_MAX = SECOND_US // 10
"""If a checkpoint moves counts while they are summed up, it is done again, unless it has taken so long already."""

Sees = Callable[[str], bool]
"""Whether somebody may subscribe to what a filter matches."""


class _Sum(msgspec.Struct, gc=False):
    """What is at and below a level."""

    topics: int = 0
    messages: int = 0
    is_topic: bool = False
    last_offset: int = 0


class _Below(msgspec.Struct):
    """The levels right below one, by name."""

    names: list[str]
    sums: dict[str, _Sum]
    until_us: int


class Levels:
    """Looks at the tree; from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._roots = core.roots
        self._clock = core.clock
        self._lock = threads.Lock()
        self._known: dict[tuple[str, str], _Below] = {}
        """By the topic, and by whose eyes; "" for those who see everything."""

    def page(self, parent: str, after: str | None, limit: int, sees: Sees, eyes: str) -> list[Level]:
        """The levels right below a topic, or the roots, in order; `eyes` tells apart those who see different things."""
        if not parent:
            return self._page_of_roots(after, limit, sees, eyes)
        name = check_topic(parent, self._core.config)
        root = self._roots.get(name)
        if root is None or _is_hidden(name):
            raise self._missing(parent)
        below = self._below(root, parent, sees, eyes)
        if not below.names and not (sees(parent) and root.has(parent)):
            raise self._missing(parent)
        start = 0 if after is None else bisect_right(below.names, after)
        return [self._level(root, f"{parent}/{one}", one, below.sums[one]) for one in below.names[start:][:limit]]

    def _missing(self, parent: str) -> NotFound:
        return NotFound(f'there is no topic at or below "{parent}"')

    def _page_of_roots(self, after: str | None, limit: int, sees: Sees, eyes: str) -> list[Level]:
        found: list[Level] = []
        for root in sorted(self._roots.all(), key=lambda root: root.name):
            if len(found) == limit:
                break
            if _is_hidden(root.name) or (after is not None and root.name <= after):
                continue
            level = self._level_of_root(root, sees, eyes)
            if level is not None:
                found.append(level)
        return found

    def _level_of_root(self, root: Root, sees: Sees, eyes: str) -> Level | None:
        """A root as somebody sees it; None if it sees nothing there."""
        own = root.topic(root.name) if sees(root.name) else None
        if sees(f"{root.name}/#"):
            total = _Sum(root.topic_count, root.stream.durable - root.purged_upto)
        else:
            sums = self._below(root, root.name, sees, eyes).sums.values()
            total = _Sum(sum(one.topics for one in sums), sum(one.messages for one in sums))
            if own is not None:
                total.topics += 1
                total.messages += own[0]
        if not total.topics:
            return None
        if own is not None:
            total.is_topic, total.last_offset = True, own[1]
        return self._level(root, root.name, root.name, total)

    def _level(self, root: Root, path: str, name: str, total: _Sum) -> Level:
        return Level(
            name=name,
            path=path,
            topics=total.topics,
            messages=total.messages,
            is_topic=total.is_topic,
            last_offset=total.last_offset,
            retained=total.is_topic and root.retained.is_kept(path, self._clock.now_us()),
        )

    # Sums

    def _below(self, root: Root, parent: str, sees: Sees, eyes: str) -> _Below:
        sees_all = sees(f"{parent}/#")
        key = parent, "" if sees_all else eyes
        known = self._known.get(key)
        start_us = self._clock.monotonic_us()
        if known is not None and start_us < known.until_us:
            return known
        sums = self._sum(root, parent, None if sees_all else sees)
        now_us = self._clock.monotonic_us()
        below = _Below(sorted(sums), sums, now_us + max(FRESH_US, FRESH_TIMES * (now_us - start_us)))
        self._remember(key, below)
        return below

    def _sum(self, root: Root, parent: str, sees: Sees | None) -> dict[str, _Sum]:
        until_us = self._clock.monotonic_us() + LOOKS_US_MAX
        while True:
            version = self._roots.checkpoints.version
            found = _summed(root, parent, sees)
            if (
                self._roots.checkpoints.version == version and version % 2 == 0
            ) or self._clock.monotonic_us() > until_us:
                return found

    def _remember(self, key: tuple[str, str], below: _Below) -> None:
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = below
            rows = sum(len(one.names) for one in self._known.values())
            while len(self._known) > 1 and (len(self._known) > REMEMBERED_MAX or rows > REMEMBERED_ROWS_MAX):
                rows -= len(self._known.pop(next(iter(self._known))).names)


def _summed(root: Root, parent: str, sees: Sees | None) -> dict[str, _Sum]:
    prefix = f"{parent}/"
    start = len(prefix)
    found: dict[str, _Sum] = {}
    breath = Pacing()
    for topic, count, last_offset in root.counted(prefix):
        breath.take()
        if sees is not None and not sees(topic):
            continue
        name, slash, _ = topic[start:].partition("/")
        one = found.get(name)
        if one is None:
            one = found[name] = _Sum()
        one.topics += 1
        one.messages += count
        if not slash:
            one.is_topic, one.last_offset = True, last_offset
    return found


def _is_hidden(root: str) -> bool:
    return root in (delays.ROOT, STAGED)
