"""When a cron line is due, in which zone."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cron import LINE_CHARS_MAX, Cron
from headwater.errors import Malformed

BERLIN = ZoneInfo("Europe/Berlin")


def times(line: str, zone: str, after: datetime, count: int) -> list[str]:
    """The next times, in UTC."""
    cron, found, at_us = Cron(line, zone), [], round(after.timestamp() * 1_000_000)
    for _ in range(count):
        at_us = cron.next_us(at_us)
        found.append(datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%m-%d %H:%M"))
    return found


def test_a_time_that_is_now_is_over():
    assert times("0 3 * * *", "UTC", datetime(2026, 1, 1, 3, tzinfo=UTC), 2) == ["01-02 03:00", "01-03 03:00"]
    assert times("0 3 * * *", "UTC", datetime(2026, 1, 1, 2, 59, 59, 999_999, tzinfo=UTC), 1) == ["01-01 03:00"]


def test_an_hour_that_a_zone_leaves_out_is_made_up_for_and_one_that_it_has_twice_counts_once():
    assert times("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 2) == [
        "03-29 01:00",  # 03:00 there, as there is no 02:30
        "03-30 00:30",
    ]
    for moment in (datetime(2026, 10, 25, 1, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN)):
        assert times("30 2 * * *", "Europe/Berlin", moment, 2) == ["10-25 00:30", "10-26 01:30"]
    assert times("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1), 1) == [
        "10-26 01:30"
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 3 * *", "five fields"),
        ("0 0 3 * * *", "five fields"),
        ("@daily", "five fields"),
        ("", "five fields"),
        (5, "five fields"),
        ("61 * * * *", "bad minute"),
        ("* * * * FRIDAY", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        (f"{'1,' * LINE_CHARS_MAX}1 * * * *", "five fields"),
    ],
)
def test_a_line_that_means_nothing_is_malformed_and_says_which_field(line: object, says: str):
    with pytest.raises(Malformed, match=says):
        Cron(line).next_us(0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "Europe", "", None, 5, "x" * 100])
def test_a_zone_that_nobody_knows_is_malformed(zone: object):
    with pytest.raises(Malformed, match="zone"):
        Cron("0 3 * * *", zone)


FIELD = st.text("0123456789*,-/#L WSUNMO", max_size=8)


@given(st.tuples(FIELD, FIELD, FIELD, FIELD, FIELD).map(" ".join), st.integers(0, 4_000_000_000_000_000))
def test_any_line_is_malformed_or_comes_later(line: str, after_us: int):
    try:
        assert Cron(line, "Europe/Berlin").next_us(after_us) > after_us
    except Malformed:
        pass
