"""What nodes have is compared by digests, and the first difference is named."""

from __future__ import annotations

import msgspec

from headwater.cluster.comparison import Difference, compare
from headwater.cluster.digests import Digests
from headwater.cluster.record import Position

SAME = Digests(Position(7, 7, 1), {1: {1: b"a", 50: b"b"}, 2: {1: b"c"}}, b"rows")


def test_nodes_with_the_same_are_the_same():
    found = compare({"n1": SAME, "n2": SAME, "n3": SAME})
    assert found.difference is None
    assert (found.segments, found.rows_compared, found.record) == (3, ("n1", "n2", "n3"), 7)


def test_of_several_differences_the_first_is_named():
    other = msgspec.structs.replace(SAME, segments={1: {1: b"a", 50: b"x"}, 2: {1: b"y"}}, rows=b"others")
    found = compare({"n1": SAME, "n2": SAME, "n3": other})
    assert found.difference == Difference(one="n1", other="n3", stream=1, base=50, odd=("n3",))
    assert str(found.difference) == "n1 and n3 have different bytes in stream 1, segment 50"


def test_a_segment_that_one_node_alone_has_sealed_is_no_difference():
    behind = Digests(Position(3, 3, 1), {1: {1: b"a"}}, b"older rows")
    found = compare({"n1": SAME, "n2": behind, "n3": SAME})
    assert found.difference is None
    assert found.rows_compared == ("n1", "n3")


def test_rows_are_compared_where_nodes_stand_at_one_record_alone():
    other = msgspec.structs.replace(SAME, rows=b"others")
    assert compare({"n1": SAME, "n2": other}).difference == Difference(one="n1", other="n2")
    later = msgspec.structs.replace(other, position=Position(8, 8, 1))
    found = compare({"n1": SAME, "n2": later})
    assert (found.difference, found.rows_compared) == (None, ())


def test_the_node_that_has_something_else_than_most_is_named():
    other = msgspec.structs.replace(SAME, rows=b"others")
    found = compare({"n1": other, "n2": SAME, "n3": SAME})
    assert found.difference == Difference(one="n1", other="n2", odd=("n1",))
    third = msgspec.structs.replace(SAME, rows=b"third")
    found = compare({"n1": other, "n2": SAME, "n3": third})
    assert found.difference is not None
    assert found.difference.odd == ()


def test_another_record_of_the_same_number_is_a_difference():
    forked = msgspec.structs.replace(SAME, position=Position(7, 7, 1, b"another"))
    assert compare({"n1": SAME, "n2": forked}).difference == Difference(one="n1", other="n2")
