"""What is compared, and how: publishes against the log, in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.work.comparison import LOOKED_AHEAD, unmatched


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("abc", "abc", []),
        ("", "abc", []),
        ("abc", "", [0, 1, 2]),
        ("aXc", "abc", [1]),  # another one in its place
        ("abXc", "abc", [2]),  # one more
        ("ac", "abc", []),  # one less: what is not published cannot be missing
        ("abc", "zzabzzc", []),  # others publish there, too
        ("XaXbX", "ab", [0, 2, 4]),
        ("aaaa", "aa", [2, 3]),
    ],
)
def test_what_is_published_is_looked_for_in_its_order(wanted: str, there: str, found: list[int]):
    assert unmatched([one.encode() for one in wanted], [one.encode() for one in there]) == found


LETTERS = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=30)


@given(LETTERS, LETTERS)
def test_what_is_left_is_there_in_its_order(wanted: list[bytes], there: list[bytes]):
    missing = set(unmatched(wanted, there))
    left = iter(there)
    assert all(one in left for place, one in enumerate(wanted) if place not in missing)


@given(LETTERS)
def test_of_the_same_nothing_is_missing(wanted: list[bytes]):
    assert unmatched(wanted, wanted) == []


def test_where_few_values_come_again_and_again_what_differs_is_found_all_the_same():
    there = [b"on" if number % 7 < 2 else b"off" for number in range(1000)]
    wanted = [b"on" if number % 7 < 2 or number % 100 == 5 else b"off" for number in range(1000) if number % 50 != 49]
    found = unmatched(wanted, there)
    changed = [number for number in range(1000) if number % 100 == 5 and there[number] == b"off"]
    assert len(changed) <= len(found) <= len(changed) + 2


def test_it_is_looked_for_not_too_far_away():
    others = [b"z"] * (LOOKED_AHEAD - 1)
    assert unmatched([b"a"], [*others, b"a"]) == []
    assert unmatched([b"a"], [*others, b"z", b"a"]) == [0]
