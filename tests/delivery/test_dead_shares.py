"""Shares of dead letters."""

from __future__ import annotations

from headwater.config import Config
from headwater.delivery.dead_shares import DeadShares


def shares(letters: int = 5, size: int = 100) -> DeadShares:
    made = DeadShares(Config(dead_letters_per_client_max=letters, dead_letter_bytes_per_client_max=size))
    made.load(1, "ann", 2, 20)
    return made


def test_there_is_room_for_so_many_of_these_sizes() -> None:
    found = shares()
    assert found.room("ann", [1] * 9) == 3
    assert found.room("ann", [40, 40, 1]) == 2
    assert found.room("bob", [1] * 9) == 5
    assert found.room("", [1000] * 9) == 9
    assert found.room("ann", []) == 0


def test_what_is_loaded_again_counts_once() -> None:
    found = shares()
    found.load(1, "ann", 3, 30)
    found.load(2, "ann", 1, 10)
    assert found.room("ann", [1] * 9) == 1
    found.drop(1)
    assert found.room("ann", [1] * 9) == 4
    assert not found.is_known(1)


def test_what_is_redriven_counts_until_it_is_done() -> None:
    found = shares()
    found.redrive(1, 2, 20)
    assert (found.redriven(1), found.room("ann", [1] * 9)) == (2, 3)
    found.load(1, "ann", 0, 0)  # as its rows say when it is loaded again
    assert found.room("ann", [1] * 9) == 3
    found.done(1, 1)
    assert (found.redriven(1), found.room("ann", [1] * 9)) == (1, 4)
    found.done(1, 5)  # copies of other messages among them
    assert (found.redriven(1), found.room("ann", [1] * 9)) == (0, 5)


def test_copies_that_are_no_letters_change_nothing() -> None:
    found = shares()
    found.redrive(1, 0, 0)
    found.done(1, 1)
    found.done(7, 1)
    assert found.room("ann", [1] * 9) == 3
    found.redrive(1, 1, 10)
    found.drop_redriven(1)
    assert found.room("ann", [1] * 9) == 4


def test_nobody_s_subscriptions_are_not_counted() -> None:
    found = shares()
    found.load(3, "", 9, 900)
    found.change(3, 1, 1)
    found.redrive(3, 1, 1)
    found.done(3, 1)
    found.drop(3)
    assert found.room("", [1] * 9) == 9
