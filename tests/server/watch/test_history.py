"""The last day of a server: sampled whoever looks, bounded, with gaps, and there after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from headwater.clock import SECOND_US, ManualClock
from headwater.errors import NotFound
from headwater.server.watch import history as kept
from headwater.server.watch.history import History
from headwater.server.watch.ring import Ring
from headwater.store import state as rows
from headwater.store.state import MemoryState
from headwater.wire import administration as wire
from headwater.wire.administration import Figures, Histogram, RootFigures, SubscriptionFigures
from server.harness import Running, code

MINUTE_US = 60 * SECOND_US


class Site:
    """A history over a state in memory, whose figures a test states."""

    def __init__(self, series_max: int = 200) -> None:
        self.clock = ManualClock(1_699_999_800 * SECOND_US)  # where ten minutes begin
        self.state = MemoryState()
        self.connections = 0.0
        self.messages = 0
        self.lags: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.series_max = series_max
        self.history = self.anew()

    def anew(self) -> History:
        return History(self.state, self.clock, self.figures, self.series_max)

    def figures(self) -> Figures:
        counters = dict.fromkeys(("messages_in", "messages_out", "bytes_in", "bytes_out", "messages_dropped"), 0)
        gauges = dict.fromkeys(("connections", "lag", "in_flight", "retrying", "dead"), 0.0)
        return Figures(
            time_us=self.clock.now_us(),
            started_us=1,
            counters=counters | {"messages_in": self.messages},
            gauges=gauges | {"connections": self.connections},
            histograms={"commit": Histogram(bounds_s=(1.0,), counts=(0, 0), sum_s=0.0)},
            roots=tuple(
                RootFigures(root=name, first=1, end=end, bytes=end, segments=1, topics=1)
                for name, end in self.ends.items()
            ),
            subscriptions=tuple(
                SubscriptionFigures(id=name, lag=lag, in_flight=0, retrying=0, dead=0, consumers=0)
                for name, lag in self.lags.items()
            ),
        )

    def pass_by(self, seconds: int, between: Callable[[], None] = lambda: None) -> None:
        for _ in range(seconds // 10):
            self.clock.advance(10)
            between()
            self.history.sample()

    def line(self, line: str, kind: kept.Kind = "broker", name: str = "", points: int = 10_000) -> list[float | None]:
        found = self.history.read(kind, name, points=points)
        return [values[found.lines.index(line)] for values in found.values]


def test_rates_are_of_what_came_between_two_looks_and_numbers_are_as_they_were() -> None:
    site = Site()

    def publish() -> None:
        site.messages += 50
        site.connections += 1

    site.pass_by(40, publish)
    assert site.line("in_s") == [5.0, 5.0, 5.0]
    assert site.line("connections") == [2.0, 3.0, 4.0]
    assert site.line("commit_p99_s") == [None] * 3


def test_what_nobody_sampled_is_a_gap_and_no_line() -> None:
    site = Site()
    site.pass_by(30)
    site.clock.advance(600)
    site.pass_by(20)
    times = site.history.read(points=10_000).times_us
    steps = [(after - before) // SECOND_US for before, after in itertools.pairwise(times)]
    assert steps == [10, 610, 10]


def test_many_intervals_are_put_together_as_the_mean_of_rates_and_the_most_of_numbers() -> None:
    site = Site()

    def publish() -> None:
        site.messages += 100
        site.connections = 7 if site.clock.now_us() // SECOND_US % 600 == 310 else 1

    site.pass_by(600, publish)
    found = site.history.read(points=10)
    assert found.every_s == kept.DAY_S / 10
    assert site.line("in_s", points=10) == [10.0]
    assert site.line("connections", points=10) == [7.0]


def test_a_day_is_kept_and_no_more() -> None:
    site = Site()
    site.pass_by(600)
    begun_us = site.history.read(points=10_000).times_us[0]
    site.clock.advance(kept.DAY_S - 300)
    site.pass_by(20)
    assert site.history.read(points=10_000).times_us[0] > begun_us
    assert len(site.history.read(points=10_000).times_us) == 30


@pytest.mark.parametrize("step_s", [-7200, -300, 7200, 10 * kept.DAY_S])
def test_a_clock_that_is_set_leaves_a_history_that_can_be_read(step_s: int) -> None:
    site = Site()
    site.pass_by(600)
    site.clock.advance(step_s)
    site.pass_by(60)
    assert len(site.history.read(points=10_000).times_us) >= 5
    site.pass_by(600)
    assert len(site.history.read(points=10_000, since_us=site.clock.now_us() - 600 * SECOND_US).times_us) >= 60


def test_roots_and_subscriptions_are_sampled_each_minute() -> None:
    site = Site()
    site.ends, site.lags = {"home": 1}, {"thermostat": 3}

    def publish() -> None:
        site.ends["home"] += 20

    site.pass_by(240, publish)
    assert site.line("in_s", "root", "home") == [2.0] * 4
    assert site.line("lag", "subscription", "thermostat") == [3.0] * 4


def test_a_series_takes_the_place_of_one_that_was_quiet_for_an_hour_and_of_no_other() -> None:
    site = Site(series_max=2)
    site.lags = {"quiet": 1, "busy": 1}
    site.pass_by(180)
    site.lags = {"quiet": 0, "busy": 1, "new": 9}
    site.pass_by(600)
    with pytest.raises(NotFound, match="nothing was sampled"):
        site.history.read("subscription", "new")
    site.pass_by(3600)
    assert site.line("lag", "subscription", "new")
    assert site.line("lag", "subscription", "busy")
    with pytest.raises(NotFound):
        site.history.read("subscription", "quiet")


def test_it_is_there_after_a_restart_with_a_gap_in_between() -> None:
    site = Site()
    site.lags = {"thermostat": 5}
    site.pass_by(1500)
    before = site.history.read(points=10_000)
    lags = site.line("lag", "subscription", "thermostat")
    site.history.close()
    site.clock.advance(60)
    site.history = site.anew()
    assert site.history.read(points=10_000) == before
    assert site.line("lag", "subscription", "thermostat") == lags
    site.pass_by(30)
    assert len(site.history.read(points=10_000).times_us) == len(before.times_us) + 2


def test_a_killed_server_has_lost_minutes_and_rows_of_yesterday_are_deleted() -> None:
    site = Site()
    site.pass_by(1500)
    site.history = site.anew()
    assert len(site.history.read(points=10_000).times_us) == 118
    site.clock.advance(kept.DAY_S)
    site.pass_by(1210)
    oldest_us = site.clock.now_us() - (kept.DAY_S + 600) * SECOND_US
    numbers = [int.from_bytes(key[1:], "big") for key, _ in site.state.scan(rows.HISTORY)]
    assert min(numbers) * 600 * SECOND_US >= oldest_us - 600 * SECOND_US


def test_rows_that_are_damaged_or_of_another_layout_are_left_out() -> None:
    site = Site()
    site.pass_by(1500)
    for at, (key, value) in enumerate(list(site.state.scan(rows.HISTORY))):
        damaged = (
            value[: len(value) // 2]
            if at
            else msgspec.msgpack.encode({"broker": [[1.0]], "root": {}, "subscription": {}})
        )
        site.state.write({key: damaged})
    site.history = site.anew()
    assert site.history.read().times_us == ()


def test_a_ring_keeps_the_newest_and_none_for_what_it_was_not_told() -> None:
    ring = Ring(2, 3)
    ring.put(10, (1.0, None))
    ring.put(12, (3.0, 4.0))
    assert [ring.get(at) for at in range(9, 14)] == [[None] * 2, [1.0, None], [None] * 2, [3.0, 4.0], [None] * 2]
    ring.put(13, (5.0, 6.0))
    assert ring.get(10) == [None] * 2


def test_administrators_read_it_over_the_wire_and_others_do_not() -> None:
    with Running() as running:
        running.server.history.sample()
        found: wire.HistoryLines = running.peer().ask(wire.ReadHistory())
        assert found.lines == kept.LINES["broker"]
        with pytest.raises(NotFound, match='root "home"'):
            running.peer().ask(wire.ReadHistory(kind="root", name="home"))
    with Running(auth="scram") as running:
        running.client("ann", allow=("subscribe #",))
        with code(403):
            running.peer("ann").ask(wire.ReadHistory())
