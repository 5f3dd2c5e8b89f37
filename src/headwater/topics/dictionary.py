"""The topics of a large batch, by their levels: a filter finds those that it matches without a look at each of them.

Where thousands are subscribed to a topic each, and a batch has thousands of topics, a look at all of them for each
subscriber would be quadratic. Here a filter looks at the topics that have its rarest level, where it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.memo import Memo

DICTIONARY_TOPICS_MIN = 64
"""Smaller ones are looked through."""
ASKED_MIN = 4
"""So many filters look through a dictionary before it is indexed, which pays only for many."""
FILTERS_MAX = 64
"""Filters whose topics in a dictionary are remembered: it comes again, and so do those who ask."""
DICTIONARIES_MAX = 16
DICTIONARIES_TOPICS_MAX = 200_000
"""How many are remembered, and with how many topics together; one alone may have more."""


class Dictionary:
    """Topics, each with its number."""

    __slots__ = ("_asked", "_at", "_found", "_numbers", "topics")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self._asked = 0
        self._numbers: dict[str, int] = {}
        self._at: list[dict[str, list[int]]] = []
        """By depth and level, the numbers of the topics that have it there."""
        self._found: Memo[str, Sequence[int]] = Memo(FILTERS_MAX)

    def find(self, filter: str, wanted: Callable[[str], bool]) -> Sequence[int]:
        """The numbers of the topics that a filter matches, ascending; `wanted` is its test."""
        known = self._found.known.get(filter)
        if known is None:
            known = self._found.keep(filter, self._find(filter, wanted))
        return known

    def _find(self, filter: str, wanted: Callable[[str], bool]) -> Sequence[int]:
        topics = self.topics
        if not self._at:
            self._asked += 1
            if self._asked <= ASKED_MIN:
                return [number for number, topic in enumerate(topics) if wanted(topic)]
            self._index()
        levels = filter.split("/")
        if not {"+", "#"}.intersection(levels):
            number = self._numbers.get(filter)
            return () if number is None else (number,)
        candidates: Sequence[int] = range(len(topics))
        for depth, level in enumerate(levels):
            if level == "#":
                break
            if level != "+":
                there = self._at[depth].get(level, ()) if depth < len(self._at) else ()
                if len(there) < len(candidates):
                    candidates = there
        return [number for number in candidates if wanted(topics[number])]

    def _index(self) -> None:
        self._numbers = {topic: number for number, topic in enumerate(self.topics)}
        found: list[dict[str, list[int]]] = []
        for number, topic in enumerate(self.topics):
            levels = topic.split("/")
            while len(found) < len(levels):
                found.append({})
            for at, level in zip(found, levels, strict=False):
                at.setdefault(level, []).append(number)
        self._at = found


_dictionaries: Memo[int, Dictionary] = Memo(DICTIONARIES_MAX, DICTIONARIES_TOPICS_MAX)
"""By the identity of the names, which are decoded once for equal dictionaries that follow each other."""


def dictionary_of(topics: tuple[str, ...]) -> Dictionary:
    """The dictionary of these topics; remembered, since many ask for the same one."""
    known = _dictionaries.known.get(id(topics))
    if known is None or known.topics is not topics:
        known = _dictionaries.keep(id(topics), Dictionary(topics), len(topics))
    return known
