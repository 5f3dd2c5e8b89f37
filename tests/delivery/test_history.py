"""Messages out of the history before the log: cut, and without what was purged."""

from __future__ import annotations

from headwater.delivery.history import Lot
from headwater.topics.purges import Purge, Purges


def lot() -> Lot:
    payloads = [b"12", b"345", b"6"]
    return Lot("home", 9, [4, 5, 9], ["home/a", "home/b", "home/a"], payloads, [1, 2, 3], [None] * 3, [()] * 3)


def test_purged_messages_are_left_out_the_first_one_of_a_lot_included() -> None:
    for upto, left in [(3, [4, 5, 9]), (4, [5, 9]), (5, [5, 9]), (8, [5, 9]), (9, [5])]:
        purges = Purges([Purge("home/a", upto, 1)], 100)
        assert [message.offset for message in lot().without(purges).messages()] == left, upto


def test_as_many_fit_as_have_no_more_bytes_than_that_and_one_always_does() -> None:
    assert [lot().fitting(size) for size in (0, 2, 4, 5, 6)] == [1, 1, 1, 2, 3]


def test_a_lot_is_cut_behind_so_many_messages() -> None:
    first, rest = lot().cut(1)
    assert ([*first.payloads], [*rest.payloads]) == ([b"12"], [b"345", b"6"])
    assert (first.upto, rest.upto) == (9, 9)
