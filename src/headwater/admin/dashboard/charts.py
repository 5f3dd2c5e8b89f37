"""Charts: lines over time that stop where nobody sampled, and grow by a point a second where somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nicegui import ui

from headwater.admin.dashboard.sampler import HISTORY_MAX
from headwater.clock import SECOND_US
from headwater.wire.administration import HistoryLines

MUTED = "headwater.muted()"
"""Of axes: no one grey can be read on white and on black."""
COLOURS = ("#0b8ec4", "#c77700", "#4a9a5c")
"""Of lines: three times as light or dark as what they are drawn on, in both themes."""

PER_SECOND = "v => v == null ? '–' : headwater.brief(v) + '/s'"
MILLISECONDS = "v => v == null ? '–' : headwater.brief(v) + ' ms'"
BYTES_PER_SECOND = "v => v == null ? '–' : headwater.brief(v) + 'B/s'"
BYTES = "v => v == null ? '–' : headwater.brief(v) + 'B'"
NUMBER = "v => v == null ? '–' : headwater.brief(v)"

Point = Sequence[float | None]
"""Milliseconds since 1970, and a value for each line."""
GAP_US = 25 * SECOND_US
"""Samples that are further apart are no line: the server's own are ten seconds apart, those of a page one."""


class Plot(NamedTuple):
    """What a chart shows."""

    panel: str
    title: str
    lines: tuple[tuple[str, str], ...]
    """The name of each, and what it is called where it is sampled."""
    form: str
    """A function of JavaScript that writes a value for people."""
    scale: float = 1.0

    def row(self, time_us: int, values: dict[str, float | None]) -> Point:
        """A point of it."""
        found = (values.get(key) for _, key in self.lines)
        return time_us / 1000, *(None if value is None else value * self.scale for value in found)

    def past(self, found: HistoryLines) -> list[Point]:
        """What was sampled, as points of it."""
        rows = [
            (time_us, self.row(time_us, dict(zip(found.lines, values, strict=True))))
            for time_us, values in zip(found.times_us, found.values, strict=True)
        ]
        return with_gaps(rows, round(1.5 * found.every_s * SECOND_US))


def with_gaps(rows: Iterable[tuple[int, Point]], gap_us: int, before_us: int = 0) -> list[Point]:
    """Points, with an empty one before each that is too far from the one before it: there the line stops."""
    points: list[Point] = []
    for time_us, row in rows:
        if before_us and time_us - before_us > gap_us:
            points.append(((before_us + time_us) / 2000, *(None for _ in row[1:])))
        points.append(row)
        before_us = time_us
    return points


class Chart:
    """Lines over the last minutes, or the last day."""

    def __init__(self, plot: Plot, points: Sequence[Point], span_s: int = 0) -> None:
        """`span_s`: how much of the past it shows, also where nothing was sampled; 0: from the first point on."""
        names = [name for name, _ in plot.lines]
        self._chart = ui.echart(options(names, plot.form, points, span_s), renderer="canvas").classes("hw-chart")
        self._chart.props(f'role="img" aria-label="{plot.title}"')

    def push(self, points: Sequence[Point]) -> None:
        """These came; the browser has the others."""
        ui.run_javascript(f"headwater.push({self._chart.id}, {_json(points)}, {HISTORY_MAX})")

    def replace(self, points: Sequence[Point], span_s: int) -> None:
        """Show these instead of all others, over so many seconds."""
        ui.run_javascript(f"headwater.replace({self._chart.id}, {_json(points)}, {span_s})")


def _json(points: Sequence[Point]) -> str:
    rows = (",".join("null" if value is None else f"{value:.6g}" for value in row[1:]) for row in points)
    return "[" + ",".join(f"[{row[0]:.0f},{values}]" for row, values in zip(points, rows, strict=True)) + "]"


def options(lines: Sequence[str], form: str, points: Sequence[Point], span_s: int) -> dict[str, Any]:
    """What the library that draws is told."""
    axis = {"axisLine": {"show": False}, "axisTick": {"show": False}, "axisLabel": {":color": MUTED, "fontSize": 11}}
    return {
        "animation": False,
        "useUTC": True,  # as all times on these pages
        "color": list(COLOURS),
        "grid": {"left": 8, "right": 26, "top": 28, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "itemWidth": 12,
            "itemHeight": 3,
            "icon": "rect",
            "textStyle": {":color": MUTED},
        },
        # As text drawn on the canvas, never as HTML.
        "tooltip": {"trigger": "axis", "renderMode": "richText", ":valueFormatter": form, "confine": True},
        "xAxis": {
            "type": "time",
            **axis,
            "axisLabel": {":color": MUTED, "fontSize": 11, "hideOverlap": True},
            "splitLine": {"show": False},
            "splitNumber": 4,
            ":min": f"ends => headwater.first(ends, {span_s})",
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            **axis,
            "axisLabel": {":color": MUTED, "fontSize": 11, ":formatter": form},
            "splitLine": {"lineStyle": {":color": MUTED, "opacity": 0.18}},
            "splitNumber": 3,
        },
        "dataset": {"source": [list(point) for point in points]},
        "series": [
            {
                "type": "line",
                "name": name,
                "encode": {"x": 0, "y": at},
                "showSymbol": False,
                "lineStyle": {"width": 2},
                "areaStyle": {"opacity": 0.1 if at == 1 else 0},
            }
            for at, name in enumerate(lines, 1)
        ],
    }
