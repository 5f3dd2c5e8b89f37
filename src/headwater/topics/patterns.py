"""Patterns: at which levels the filters of a client have their `+`, and how many such patterns there may be.

A look-up walks the trie of filters along one path for each pattern that begins like the topic: where a filter has no
`+`, the topic's level says which child to take. A million filters of one pattern cost a look-up no more than one filter
does; but `a` or `+` at each of sixteen levels are 65,536 patterns, so 65,536 paths for a topic that none of them needs
to match. So patterns are limited, per client and in all, and with them the cost of a look-up. `#` adds no path: it ends
one.

What a bus does itself, for no client, is not counted.
"""

from __future__ import annotations

from collections import Counter

from headwater.config import Config
from headwater.errors import QuotaExceeded

Pattern = tuple[int, ...]
"""The levels that are `+`, from 0 on."""


def pattern_of(filter: str) -> Pattern:
    """At which levels a filter has its `+`; empty if it has none."""
    if "+" not in filter:
        return ()
    return tuple(place for place, level in enumerate(filter.split("/")) if level == "+")


class Patterns:
    """The patterns of all clients, and how many filters have each."""

    __slots__ = ("_config", "_in_all", "_of")

    def __init__(self, config: Config) -> None:
        self._config = config
        self._of: dict[str, Counter[Pattern]] = {}
        self._in_all: Counter[Pattern] = Counter()

    def check(self, owner: str, filter: str) -> None:
        """QuotaExceeded (429) if a client may not have one more filter like this."""
        pattern = pattern_of(filter)
        if not owner or not pattern or pattern in (its := self._of.get(owner, ())):
            return
        most = self._config.filter_patterns_per_client_max
        if len(its) >= most:
            raise QuotaExceeded(
                f'filters of client "{owner}" have their + at {len(its)} different combinations of levels, and '
                f"filter_patterns_per_client_max is {most}; unsubscribe from some, subscribe to a wider filter that "
                "ends in #, or raise the setting"
            )
        most = self._config.filter_patterns_max
        if pattern not in self._in_all and len(self._in_all) >= most:
            raise QuotaExceeded(
                f"filters of all clients have their + at {len(self._in_all)} different combinations of levels, and "
                f"filter_patterns_max is {most}; subscribe to a filter like those of others, to a wider one that ends "
                "in #, or raise the setting"
            )

    def add(self, owner: str, filter: str) -> None:
        """A client has a filter from now on."""
        pattern = pattern_of(filter)
        if owner and pattern:
            self._of.setdefault(owner, Counter())[pattern] += 1
            self._in_all[pattern] += 1

    def remove(self, owner: str, filter: str) -> None:
        """A client has one filter less of those that were added."""
        pattern = pattern_of(filter)
        if not owner or not pattern:
            return
        its = self._of[owner]
        for counted in (its, self._in_all):
            counted[pattern] -= 1
            if not counted[pattern]:
                del counted[pattern]
        if not its:
            del self._of[owner]
