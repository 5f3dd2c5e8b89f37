"""The overview: how much comes in and goes out, how long commits take, who is connected, and what ails the broker."""

from __future__ import annotations

import msgspec
from nicegui import ui

from headwater import units
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.charts import (
    BYTES_PER_SECOND,
    GAP_US,
    MILLISECONDS,
    NUMBER,
    PER_SECOND,
    Chart,
    Plot,
    Point,
    with_gaps,
)
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import Listing, column
from headwater.admin.dashboard.names import Names
from headwater.admin.dashboard.past import SPANS as PAST_SPANS
from headwater.admin.dashboard.past import past, span_toggle
from headwater.admin.dashboard.sampler import Sample
from headwater.clock import SECOND_US
from headwater.events import Event
from headwater.wire.administration import Figures, Health

EVENTS_SHOWN = 12
ROOTS_SHOWN = 8
EVENTS_EVERY_S = 3.0
TILES = ("Published", "Delivered", "Commit p99", "Behind", "Dead letters", "Connections", "Topics", "Stored")
LIVE_S = 600
SPANS = {LIVE_S: "10 min"} | PAST_SPANS
PAST_EVERY_S = 15.0

PLOTS = (
    Plot("Messages", "Messages a second", (("Published", "in_s"), ("Delivered", "out_s")), PER_SECOND),
    Plot("Commits", "How long commits take", (("p50", "commit_p50_s"), ("p99", "commit_p99_s")), MILLISECONDS, 1000),
    Plot("Lag", "Messages that subscriptions have not acked", (("Behind", "lag"), ("Dead letters", "dead")), NUMBER),
    Plot("Connections", "Connections", (("Connections", "connections"),), NUMBER),
    Plot("Bytes", "Bytes a second", (("In", "bytes_in_s"), ("Out", "bytes_out_s")), BYTES_PER_SECOND),
)


class Overview:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._shown_us = 0
        self._charts: list[Chart] = []
        self._names = Names(frame.admin)
        with heading("Overview", "What goes through the broker now, and in the last day (UTC)."):
            self._span = span_toggle(SPANS, LIVE_S).on_value_change(self._show_span)
        self._health = ui.row().classes("hw-health")
        with ui.element("div").classes("hw-tiles hw-tiles-8"):
            self._tiles = {name: Tile(name) for name in TILES}
        with ui.element("div").classes("hw-charts"):
            self._places = [panel(plot.panel) for plot in PLOTS]
        with ui.element("div").classes("hw-columns"):
            with panel("Roots"):
                empty = Empty("water_drop", "Nothing was published yet.", "headwater pub home/kitchen/temp 21.5")
                self._roots = Listing(
                    "root",
                    empty,
                    column("root", "Root", lambda one: shown.plain(one.root)),
                    column("messages", "Messages", lambda one: shown.count(one.end - one.first), number=True),
                    column("topics", "Topics", lambda one: shown.count(one.topics), number=True, wide=True),
                    column("size", "Size", lambda one: units.size(one.bytes), number=True),
                )
            with panel("Events"):
                empty = Empty("check_circle", "Nothing happened that somebody should know.")
                self._events = Listing(
                    "key",
                    empty,
                    column("time", "Time (UTC)", self._time),
                    column("kind", "Kind", lambda event: event[1].kind, word=True),
                    column("text", "What", lambda event: shown.plain(event[1].text)),
                    more=lambda event: {"key": f"{event[1].time_us}-{event[0]}"},
                )
        with panel("Slow consumers") as self._slow_panel:
            self._slow = Listing(
                "session",
                Empty("bolt", "Everybody keeps up."),
                column("client", "Client", lambda one: self._names.of(one.session), mono=True),
                column("user", "User", lambda one: shown.plain(one.user), who=True),
                column("waiting", "Waiting", lambda one: units.size(one.waiting_bytes), number=True),
                column("dropped", "Dropped", lambda one: shown.count(one.dropped), number=True),
                more=lambda one: {"session": one.session},
            )
        self._slow_panel.visible = False
        frame.every(1.0, self._update)
        frame.every(EVENTS_EVERY_S, self._update_events)
        frame.every(PAST_EVERY_S, self._update_past)

    def _time(self, event: tuple[int, Event]) -> str:
        return shown.recent(event[1].time_us, self._frame.admin.bus.now)

    async def _update(self) -> None:
        sampler = self._frame.sampler
        sampler.look()
        if sampler.health is not None:
            self._show_health(sampler.health)
        if sampler.figures is not None:
            await self._names.learn(one.session for one in sampler.figures.slow)
            self._show_figures(sampler.figures)
        if not self._charts:
            await self._draw()
        fresh = [sample for sample in sampler.history if sample.time_us > self._shown_us]
        if fresh:
            self._show_sample(fresh[-1])
            if self._span.value == LIVE_S:
                for chart, points in zip(self._charts, self._live_points(fresh), strict=True):
                    chart.push(points)
            self._shown_us = fresh[-1].time_us

    def _live_points(self, samples: list[Sample]) -> list[list[Point]]:
        """Of each chart, behind what it shows."""
        asked = [(sample.time_us, msgspec.structs.asdict(sample)) for sample in samples]
        return [
            with_gaps(((time_us, plot.row(time_us, values)) for time_us, values in asked), GAP_US, self._shown_us)
            for plot in PLOTS
        ]

    async def _all_points(self) -> list[list[Point]]:
        """Of each chart, for the span that is shown: what the server has sampled, and what was looked at since."""
        span_s = int(self._span.value)
        found = await past(self._frame, "broker", "", span_s)
        points = [plot.past(found) for plot in PLOTS]
        if span_s != LIVE_S:
            return points
        self._shown_us = found.times_us[-1] if found.times_us else 0
        since = [sample for sample in self._frame.sampler.history if sample.time_us > self._shown_us]
        live = self._live_points(since)
        self._shown_us = since[-1].time_us if since else self._shown_us
        return [[*before, *after] for before, after in zip(points, live, strict=True)]

    async def _draw(self) -> None:
        """Once the page stands: the library that draws is the largest part of it."""
        for place, plot, points in zip(self._places, PLOTS, await self._all_points(), strict=True):
            with place:
                self._charts.append(Chart(plot, points, int(self._span.value)))

    async def _show_span(self) -> None:
        for chart, points in zip(self._charts, await self._all_points(), strict=True):
            chart.replace(points, int(self._span.value))

    async def _update_past(self) -> None:
        if self._span.value != LIVE_S:
            await self._show_span()

    def _show_sample(self, sample: Sample) -> None:
        tiles = self._tiles
        tiles["Published"].show(f"{shown.brief(sample.in_s)}/s", f"{units.size(sample.bytes_in_s)}/s")
        tiles["Delivered"].show(f"{shown.brief(sample.out_s)}/s", f"{units.size(sample.bytes_out_s)}/s")
        if sample.commit_p99_s is not None and sample.commit_p50_s is not None:
            tiles["Commit p99"].show(shown.seconds(sample.commit_p99_s), f"p50 {shown.seconds(sample.commit_p50_s)}")

    def _show_figures(self, figures: Figures) -> None:
        tiles, gauges = self._tiles, figures.gauges
        tiles["Connections"].show(
            shown.count(gauges.get("connections", 0)), f"{shown.count(gauges.get('sessions', 0))} sessions"
        )
        tiles["Behind"].show(shown.brief(gauges.get("lag", 0)), f"{shown.brief(gauges.get('in_flight', 0))} in flight")
        tiles["Dead letters"].show(
            shown.brief(gauges.get("dead", 0)), f"{shown.brief(gauges.get('retrying', 0))} retrying"
        )
        tiles["Topics"].show(shown.brief(gauges.get("topics", 0)), f"in {shown.count(gauges.get('roots', 0))} roots")
        up_s = (figures.time_us - figures.started_us) / SECOND_US
        tiles["Stored"].show(units.size(gauges.get("stream_bytes", 0)), f"up for {shown.span(up_s)}")
        self._roots.show(figures.roots[:ROOTS_SHOWN])
        self._slow_panel.visible = bool(figures.slow)
        self._slow.show(figures.slow)

    def _show_health(self, health: Health) -> None:
        said = "|".join(f"{check.name}:{check.ok}:{check.detail}" for check in health.checks)
        if self._health.props.get("data-said") == said:
            return
        self._health.props["data-said"] = said
        self._health.clear()
        with self._health:
            for check in health.checks:
                with ui.element("span").classes("hw-check").props(f'data-tone="{"good" if check.ok else "bad"}"'):
                    ui.icon("check_circle" if check.ok else "error").props('aria-hidden="true"')
                    ui.label(check.name if check.ok else f"{check.name}: {check.detail}")
                    ui.tooltip(check.detail)

    async def _update_events(self) -> None:
        events: list[Event] = await self._frame.admin.bus.events()
        self._events.show(enumerate(reversed(events[-EVENTS_SHOWN:])))


class Tile:
    """A number that matters."""

    def __init__(self, name: str) -> None:
        with ui.element("div").classes("hw-tile"):
            ui.label(name).classes("hw-tile-name")
            self._value = ui.label("–").classes("hw-tile-value")
            self._more = ui.label(" ").classes("hw-tile-more")

    def show(self, value: str, more: str) -> None:
        if self._value.text != value:
            self._value.text = value
        if self._more.text != more:
            self._more.text = more
