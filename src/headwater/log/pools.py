"""Pools: what is remembered for many clients, each of whom loses its own oldest when it has too much.

Promises: no client has more than its share, and all together no more than there is for all; at its share a client
loses what it used longest ago, and where all is taken whoever has most does, so that nobody loses anything to somebody
who has more; no call looks at more than it takes away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Pools(Generic[K]):
    """Keys by their owner, the one used last at the end; those of nobody count in nobody's share."""

    def __init__(self, per_owner_max: int, in_all_max: int) -> None:
        self._per_owner_max = per_owner_max
        self._in_all_max = in_all_max
        self._owners: dict[K, str] = {}
        self._pools: dict[str, OrderedDict[K, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        """Owners by how many keys they have."""
        self._most = 0
        """The most that one has."""

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: K) -> bool:
        return key in self._owners

    def use(self, key: K, owner: str) -> list[K]:
        """Somebody uses a key, its own from now on; the keys that are forgotten for that."""
        before = self._owners.get(key)
        if before == owner:
            self._pools[owner].move_to_end(key)
            return []
        if before is not None:
            self.forget(key)
        self._owners[key] = owner
        pool = self._pools.setdefault(owner, OrderedDict())
        pool[key] = None
        self._resize(owner, len(pool) - 1, len(pool))
        return list(self._overflow(owner))

    def forget(self, key: K) -> None:
        """It is not in use any more."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        pool = self._pools[owner]
        del pool[key]
        self._resize(owner, len(pool) + 1, len(pool))
        if not pool:
            del self._pools[owner]

    def _overflow(self, owner: str) -> Iterator[K]:
        while owner and len(self._pools[owner]) > max(1, self._per_owner_max):
            yield self._forget_oldest(owner)
        while len(self._owners) > max(1, self._in_all_max):
            yield self._forget_oldest(next(iter(self._by_size[self._most])))

    def _forget_oldest(self, owner: str) -> K:
        key = next(iter(self._pools[owner]))
        self.forget(key)
        return key

    def _resize(self, owner: str, before: int, now: int) -> None:
        """Sizes change by one, so that the most is never looked for."""
        if before:
            alike = self._by_size[before]
            del alike[owner]
            if not alike:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, {})[owner] = None
        if now > self._most or (before == self._most and before not in self._by_size):
            self._most = now
