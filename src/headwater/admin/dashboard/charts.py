"""Charts that grow by a point a second: only the new point goes to the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from headwater.admin.dashboard.sampler import HISTORY_MAX

MUTED = "#8494a4"
"""Of axes: readable on white and on black."""
COLOURS = ("#0b8ec4", "#e0922f", "#5aa66b")

Point = Sequence[float | None]
"""Milliseconds since 1970, and a value for each line."""


class Chart:
    """Lines over the last minutes."""

    def __init__(self, title: str, lines: Sequence[str], form: str, points: Sequence[Point]) -> None:
        """`form`: a function of JavaScript that writes a value for people."""
        self._chart = ui.echart(_options(lines, form, points), renderer="canvas").classes("hw-chart")
        self._chart.props(f'role="img" aria-label="{title}"')

    def push(self, points: Sequence[Point]) -> None:
        ui.run_javascript(f"headwater.push({self._chart.id}, {_json(points)}, {HISTORY_MAX})")


def _json(points: Sequence[Point]) -> str:
    rows = (",".join("null" if value is None else f"{value:.6g}" for value in row[1:]) for row in points)
    return "[" + ",".join(f"[{row[0]:.0f},{values}]" for row, values in zip(points, rows, strict=True)) + "]"


def _options(lines: Sequence[str], form: str, points: Sequence[Point]) -> dict[str, Any]:
    axis = {"axisLine": {"show": False}, "axisTick": {"show": False}, "axisLabel": {"color": MUTED, "fontSize": 11}}
    return {
        "animation": False,
        "color": list(COLOURS),
        "grid": {"left": 8, "right": 26, "top": 28, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "itemWidth": 12,
            "itemHeight": 3,
            "icon": "rect",
            "textStyle": {"color": MUTED},
        },
        # As text drawn on the canvas, never as HTML.
        "tooltip": {"trigger": "axis", "renderMode": "richText", ":valueFormatter": form, "confine": True},
        "xAxis": {"type": "time", **axis, "splitLine": {"show": False}, "splitNumber": 4},
        "yAxis": {
            "type": "value",
            "min": 0,
            **axis,
            "axisLabel": {"color": MUTED, "fontSize": 11, ":formatter": form},
            "splitLine": {"lineStyle": {"color": MUTED, "opacity": 0.18}},
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
