"""Cursors that clients keep: what comes out of one goes back in, and nonsense is told from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.admin.api.cursor import Cursor
from headwater.errors import Malformed

OFFSETS = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, 253_402_300_799_000_000)


@given(places=st.dictionaries(st.text(), OFFSETS), since_us=st.none() | TIMES)
def test_what_a_cursor_says_is_what_it_reads(places: dict[str, int], since_us: int | None):
    again = Cursor.read("#", str(Cursor("#", places, since_us)), None)
    assert again.after == (places or None)
    assert str(again) == str(Cursor("#", places, since_us))


@given(offset=OFFSETS)
def test_within_one_root_it_is_an_offset(offset: int):
    cursor = Cursor("home/#", {"home": offset})
    assert str(cursor) == str(offset)
    assert Cursor.read("home/#", str(cursor), None).after == {"home": offset}


@given(text=st.text(min_size=1))
def test_anything_else_is_malformed(text: str):
    try:
        Cursor.read("home/#", text, None)
    except Malformed:
        return
    assert text.isascii()


@pytest.mark.parametrize("text", ["W251bGwse30", "W10=", "bnVsbA==", "W251bGwseyJhIjotMX1d", "-1", "1.5", "²"])
def test_what_only_looks_like_one_is_malformed(text: str):
    with pytest.raises(Malformed):
        Cursor.read("home/#", text, None)
