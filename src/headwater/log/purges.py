"""What was purged of one root: messages that a filter matches, up to an offset, are hidden from everybody who reads;
all of them, or those with one key.

Promises: whoever reads asks once per topic of a batch, however many purges there are; purges that others cover are
forgotten, and those whose messages are all gone; there are no more of them than `purges_max`. A value is never
changed, so whoever has one knows by `is` whether something was purged since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Sequence

import msgspec

from headwater.errors import QuotaExceeded
from headwater.memo import Memo
from headwater.store import state as rows
from headwater.topics.branch import Branch
from headwater.topics.name import filter_covers, is_wild, matches


class Purge(msgspec.Struct, frozen=True):
    """Messages that are not to be seen any more: those that a filter matches, up to an offset."""

    filter: str
    upto: int
    place: int = 0
    """The number of its row."""
    key: bytes | None = None
    """Of messages with this key alone; None: whatever their keys."""

    def row(self) -> bytes:
        """As it is stored."""
        return rows.pack((self.filter, self.upto) if self.key is None else (self.filter, self.upto, self.key))


class PurgeRow(msgspec.Struct, frozen=True, array_like=True):
    """A purge as it is stored."""

    filter: str
    upto: int
    key: bytes | None = None


_decode = msgspec.msgpack.Decoder(PurgeRow).decode


def purges_in(found: Iterable[tuple[bytes, bytes]]) -> Iterator[Purge]:
    """The purges of rows of the state."""
    for key, value in found:
        row = _decode(value)
        yield Purge(row.filter, row.upto, rows.offset_in(key), row.key)


class Purges:
    """The purges of a root; may be asked from any thread."""

    __slots__ = ("_all", "_by_filter", "_by_key", "_topics_max", "_wild", "highest", "highest_of_keys", "memo")

    def __init__(self, purges: Iterable[Purge] = (), topics_max: int = 100_000) -> None:
        """How far topics are purged is remembered of `topics_max` of them; beyond it that starts anew."""
        self._all = tuple(purges)
        self.highest = max((purge.upto for purge in self._all), default=0)
        """Nothing above this offset was purged."""
        self._by_filter: dict[str, int] = {}
        self._by_key: dict[bytes, list[Purge]] = {}
        for purge in self._all:
            if purge.key is None:
                self._by_filter[purge.filter] = max(purge.upto, self._by_filter.get(purge.filter, 0))
            else:
                self._by_key.setdefault(purge.key, []).append(purge)
        self.highest_of_keys = max((purge.upto for purge in self._all if purge.key is not None), default=0)
        """Nothing above this offset was purged by its key."""
        self._wild: Branch | None = None
        self._topics_max = topics_max
        self.memo: Memo[str, int] = Memo(topics_max)
        """What was found out of topics."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Purge]:
        return iter(self._all)

    # Asking

    @property
    def keys(self) -> KeysView[bytes]:
        """Keys of which messages were purged."""
        return self._by_key.keys()

    def hides(self, topic: str, offset: int, key: bytes | None) -> bool:
        """Whether a message was purged, with its topic or by its key."""
        return offset <= self.upto(topic) or self.hides_key(topic, offset, key)

    def hides_key(self, topic: str, offset: int, key: bytes | None) -> bool:
        """Whether a message was purged by its key."""
        found = self._by_key.get(key, ()) if key is not None else ()
        return any(offset <= purge.upto and matches(purge.filter, topic) for purge in found)

    def upto(self, topic: str) -> int:
        """The highest offset up to which messages of a topic were purged, whatever their keys; 0 if none was."""
        known = self.memo.known.get(topic)
        return self._find(topic) if known is None else known

    def uptos(self, topics: Sequence[str]) -> list[int]:
        """The same, of several."""
        try:
            return list(map(self.memo.known.__getitem__, topics))
        except KeyError:
            return list(map(self.upto, topics))

    def _find(self, topic: str) -> int:
        by_filter, wild = self._by_filter, self._wild
        if wild is None:
            wild = self._grow()
        found = max((by_filter[each] for each in wild.find(topic.split("/"))), default=0) if wild.children else 0
        return self.memo.keep(topic, max(found, by_filter.get(topic, 0)))

    def _grow(self) -> Branch:
        """The tree of the wildcard filters; made when it is first asked for, as most purges are followed by others."""
        wild = Branch([])
        for each in self._by_filter:
            if is_wild(each):
                wild.insert(each)
        self._wild = wild
        return wild

    # Changing

    def joined(self, filter: str, upto: int, purges_max: int, key: bytes | None = None) -> Purges:
        """With one more, up to an offset that is not below any other's; QuotaExceeded if that is one too many."""
        if self._has(filter, upto, key):
            return self
        left = [purge for purge in self._all if not (key in (None, purge.key) and _covers(filter, purge.filter))]
        if len(left) >= max(1, purges_max):
            raise QuotaExceeded(
                f"{len(self._all)} purges of this root are remembered until retention has deleted their messages, and "
                f"purges_max is {purges_max}; nothing was purged: purge a wider filter, which takes the place of those "
                "that it covers, or raise the setting"
            )
        place = max((purge.place for purge in self._all), default=0) + 1
        return Purges((*left, Purge(filter, upto, place, key)), self._topics_max)

    def _has(self, filter: str, upto: int, key: bytes | None) -> bool:
        """Whether all that this would hide is hidden."""
        if not is_wild(filter) and self.upto(filter) >= upto:
            return True
        return any(
            purge.upto >= upto and purge.key in (None, key) and _covers(purge.filter, filter) for purge in self._all
        )

    def since(self, first_offset: int) -> Purges:
        """Without those whose messages are all gone: the oldest that is left has this offset."""
        left = [purge for purge in self._all if purge.upto >= first_offset]
        return self if len(left) == len(self._all) else Purges(left, self._topics_max)


def _covers(outer: str, inner: str) -> bool:
    """Whether a filter matches all that another does; most have no wildcards, and are compared."""
    return outer == inner or (is_wild(outer) and filter_covers(outer, inner))
