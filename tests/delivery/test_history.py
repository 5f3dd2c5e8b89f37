"""Messages out of the history before the log, without what was purged."""

from __future__ import annotations

from headwater.delivery.history import Lot
from headwater.log.purges import Purge, Purges


def lot() -> Lot:
    payloads = [b"12", b"345", b"6"]
    return Lot("home", 9, [4, 5, 9], ["home/a", "home/b", "home/a"], payloads, [1, 2, 3], [None] * 3, [()] * 3)


def test_purged_messages_are_left_out_the_first_one_of_a_lot_included() -> None:
    for upto, left in [(3, [4, 5, 9]), (4, [5, 9]), (5, [5, 9]), (8, [5, 9]), (9, [5])]:
        purges = Purges([Purge("home/a", upto, 1)], 100)
        assert [message.offset for message in lot().without(purges).messages()] == left, upto
