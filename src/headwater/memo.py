"""A bounded cache that is cleared when it is full.

That costs less than to keep entries in the order of their last use (LRU), and whatever is cached here can be computed
again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """At most so many entries and, where they are weighed, at most such a weight; one alone may weigh more.

    `known` is a plain dict, for others to read: that is done for each message, and as fast as it can be.
    """

    __slots__ = ("_most", "_weight", "_weight_max", "known")

    def __init__(self, most: int, weight_max: int = 0) -> None:
        self.known: dict[K, V] = {}
        self._most = most
        self._weight_max = weight_max
        self._weight = 0

    def keep(self, key: K, value: V, weight: int = 0) -> V:
        """Remember this, and forget all the rest if there is no room for it."""
        known = self.known
        if len(known) >= self._most or (weight and self._weight + weight > self._weight_max):
            self.forget()
        if weight:
            self._weight += weight
        known[key] = value
        return value

    def forget(self) -> None:
        """Everything."""
        self.known.clear()
        self._weight = 0
