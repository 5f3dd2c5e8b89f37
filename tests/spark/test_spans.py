"""Cutting a read into partitions: every offset once, in order, none too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.spans import (
    PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN,
    Span,
    cuts_by_count,
    pack,
    partition_bytes,
    share,
)

RUNS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), max_size=20)


def spans_of(runs: list[tuple[int, int]], root: str) -> list[Span]:
    found, first = [], 1
    for count, size in runs:
        found.append(Span(root, first, first + count - 1, bytes=size))
        first += count
    return found


@given(RUNS, RUNS, st.integers(1, 200), st.none() | st.integers(9, 30))
def test_partitions_have_every_offset_once_and_in_order(home, office, bytes_max, messages_max):
    spans = spans_of(home, "home") + spans_of(office, "office")
    packed = pack(spans, bytes_max, messages_max)
    assert all(packed)
    offsets = [(span.root, offset) for part in packed for span in part for offset in range(span.first, span.last + 1)]
    assert offsets == [(span.root, offset) for span in spans for offset in range(span.first, span.last + 1)]
    for part in packed:
        if messages_max is not None:
            assert sum(span.count for span in part) <= messages_max
        elif len(part) > 1:
            assert sum(span.bytes for span in part) <= bytes_max


def test_neighbours_in_a_partition_are_one_span():
    assert pack(spans_of([(3, 5), (4, 5)], "home"), 10, None) == [(Span("home", 1, 7, bytes=10),)]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 20))
def test_cuts_by_count_cover_a_range(first, count, most):
    found = list(cuts_by_count(first, first + count - 1, most))
    assert [offset for start, end in found for offset in range(start, end + 1)] == list(range(first, first + count))
    assert all(end - start + 1 <= most for start, end in found)


def test_partitions_suit_the_cores_within_bounds():
    assert partition_bytes(0, 2) == PARTITION_BYTES_MIN
    assert partition_bytes(40 << 20, 2) == 20 << 20
    assert partition_bytes(10 << 30, 2) == PARTITION_BYTES_MAX


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=8), st.integers(1, 500))
def test_a_limit_is_shared_and_used_up(backlog, limit):
    shares = share(backlog, limit)
    assert shares.keys() == backlog.keys()
    assert all(0 <= shares[root] <= backlog[root] for root in backlog)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
