"""What is remembered up to a limit."""

from __future__ import annotations

from headwater.memo import Memo


def test_what_is_kept_is_found_and_answered():
    memo: Memo[str, int] = Memo(2)
    assert memo.keep("a", 1) == 1
    assert memo.known["a"] == 1
    assert memo.known == {"a": 1}


def test_when_there_are_as_many_as_allowed_it_starts_anew():
    memo: Memo[int, int] = Memo(3)
    for number in range(10):
        memo.keep(number, number)
        assert len(memo.known) <= 3
        assert memo.known[number] == number
    assert memo.known == {9: 9}


def test_when_the_weight_is_over_its_limit_it_starts_anew():
    memo: Memo[str, int] = Memo(100, 10)
    memo.keep("a", 1, 6)
    memo.keep("b", 2, 4)
    assert memo.known == {"a": 1, "b": 2}
    memo.keep("c", 3, 1)
    assert memo.known == {"c": 3}
    memo.keep("d", 4, 9)
    assert memo.known == {"c": 3, "d": 4}


def test_one_that_is_heavier_than_allowed_is_kept_alone():
    memo: Memo[str, int] = Memo(100, 10)
    memo.keep("a", 1, 1)
    memo.keep("b", 2, 50)
    assert memo.known == {"b": 2}
    memo.keep("c", 3, 1)
    assert memo.known == {"c": 3}


def test_what_was_forgotten_weighs_nothing():
    memo: Memo[str, int] = Memo(100, 10)
    memo.keep("a", 1, 10)
    memo.forget()
    memo.keep("b", 2, 5)
    memo.keep("c", 3, 5)
    assert memo.known == {"b": 2, "c": 3}
