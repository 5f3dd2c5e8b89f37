"""The comparison: whether all nodes have the same, by their digests, and where the first difference is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

import msgspec

from headwater.cluster.digests import Digests


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What two nodes have that should be the same."""

    one: str
    other: str
    """The nodes, by their names."""
    stream: int | None = None
    """Of a segment that is different: its stream, and"""
    base: int | None = None
    """its first offset. None: it is the rows that differ."""
    odd: tuple[str, ...] = ()
    """Nodes that have something else than most; empty if most do not have the same."""

    def __str__(self) -> str:
        if self.stream is None:
            return f"{self.one} and {self.other} have different rows at the same record"
        return f"{self.one} and {self.other} have different bytes in stream {self.stream}, segment {self.base}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    difference: Difference | None
    segments: int
    """Sealed segments that at least two nodes have, and that were compared."""
    rows_compared: tuple[str, ...]
    """The nodes whose rows were compared: those that stand at one record. Empty if no two do."""
    record: int = 0
    """Which record that is."""


def compare(found: Mapping[str, Digests]) -> Comparison:
    """Compare what nodes have; of several differences, the one of the first stream and offset."""
    seen: dict[tuple[int, int], tuple[str, bytes]] = {}
    compared: set[tuple[int, int]] = set()
    different: list[tuple[int, int, str, str]] = []
    for node, digests in sorted(found.items()):
        for stream, segments in digests.segments.items():
            for base, digest in segments.items():
                if (stream, base) not in seen:
                    seen[stream, base] = node, digest
                    continue
                compared.add((stream, base))
                other, theirs = seen[stream, base]
                if theirs != digest:
                    different.append((stream, base, other, node))
    together, record, rows = _rows(found)
    difference: Difference | None = None
    if different:
        stream, base, one, other = min(different)
        odd = _odd({node: digests.segments.get(stream, {}).get(base) for node, digests in found.items()})
        difference = Difference(one=one, other=other, stream=stream, base=base, odd=odd)
    elif rows is not None:
        odd = _odd({node: (found[node].rows, found[node].position) for node in together})
        difference = Difference(one=rows[0], other=rows[1], odd=odd)
    return Comparison(difference=difference, segments=len(compared), rows_compared=together, record=record)


def _odd(of: Mapping[str, Hashable]) -> tuple[str, ...]:
    """Nodes that have something else than most of those that have it at all."""
    there = {node: what for node, what in of.items() if what is not None}
    most, count = Counter(there.values()).most_common(1)[0]
    return tuple(sorted(node for node, what in there.items() if what != most)) if 2 * count > len(there) else ()


def _rows(found: Mapping[str, Digests]) -> tuple[tuple[str, ...], int, tuple[str, str] | None]:
    """The nodes that most stand with at one record, which that is, and two of them whose rows differ."""
    by_record: dict[int, list[str]] = {}
    for node, digests in sorted(found.items()):
        by_record.setdefault(digests.position.number, []).append(node)
    record, together = max(by_record.items(), key=lambda one: len(one[1]), default=(0, []))
    if len(together) < 2:  # it takes two to be compared
        return (), 0, None
    first, *others = together
    ours = found[first]
    for other in others:
        if found[other].rows != ours.rows or found[other].position != ours.position:
            return tuple(together), record, (first, other)
    return tuple(together), record, None
