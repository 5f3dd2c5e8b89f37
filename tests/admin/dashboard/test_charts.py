"""Charts: lines that stop where nobody sampled."""

from __future__ import annotations

from headwater.admin.dashboard.charts import NUMBER, Plot, options, with_gaps
from headwater.clock import SECOND_US
from headwater.wire.administration import HistoryLines

PLOT = Plot("Lag", "Messages", (("Behind", "lag"), ("Dead", "dead")), NUMBER, 10.0)


def test_points_are_of_the_lines_that_are_shown_and_scaled() -> None:
    found = HistoryLines(
        every_s=10.0, lines=("dead", "in_s", "lag"), times_us=(0, 10 * SECOND_US), values=((1, 9, 2), (None, 9, 4))
    )
    assert PLOT.past(found) == [(0.0, 20.0, 10.0), (10_000.0, 40.0, None)]


def test_a_line_stops_where_intervals_are_missing() -> None:
    found = HistoryLines(
        every_s=10.0,
        lines=("lag", "dead"),
        times_us=(0, 10 * SECOND_US, 40 * SECOND_US),
        values=((1, 1), (1, 1), (2, 2)),
    )
    assert PLOT.past(found)[2:] == [(25_000.0, None, None), (40_000.0, 20.0, 20.0)]


def test_a_line_that_grows_stops_where_the_page_did_not_look() -> None:
    row = (60_000.0, 1.0)
    assert with_gaps([(60 * SECOND_US, row)], 25 * SECOND_US, before_us=30 * SECOND_US) == [(45_000.0, None), row]
    assert with_gaps([(60 * SECOND_US, row)], 25 * SECOND_US, before_us=50 * SECOND_US) == [row]
    assert with_gaps([(60 * SECOND_US, row)], 25 * SECOND_US) == [row]


def test_times_are_utc_as_in_the_tables_beside_them() -> None:
    assert options(["Behind"], NUMBER, [], 600)["useUTC"] is True
