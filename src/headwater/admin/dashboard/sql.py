"""SQL: one select over topics, live and archived, as a table and a chart."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.charts import COLOURS, MUTED
from headwater.admin.dashboard.frame import Frame, heading, panel, telling
from headwater.admin.query.process import Answered

ROWS = 500
"""Rows that are listed."""
POINTS_MAX = 200
"""Rows that are drawn."""
EXAMPLE = "select topic, count(*) as messages, avg(value) as mean from 'home/#' group by topic order by topic"
TIMES = ("timestamp", "date", "time")
NUMBERS = ("int", "uint", "float", "double", "decimal")
SUBMIT = "(event) => (event.ctrlKey || event.metaKey) && emit()"


class Sql:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._task: asyncio.Task[Answered] | None = None
        heading("SQL", "One select over topics, in the log and in the lake: a filter in quotes is a table.")
        with panel():
            self._query = ui.textarea("Query", value="", placeholder=EXAMPLE)
            self._query.props('outlined dense stack-label autogrow input-class=hw-mono spellcheck="false"').style(
                "width: 100%"
            )
            self._query.on("keydown.enter", self._run, js_handler=SUBMIT)
            with ui.row().classes("hw-toolbar"):
                self._go = ui.button("Run", icon="play_arrow", on_click=self._run).props("unelevated no-caps")
                self._stop = ui.button("Stop", icon="stop", on_click=self._cut).props("flat no-caps")
                self._stop.visible = False
            self._note = ui.label("Columns: root, topic, offset, timestamp, key, headers, payload, text, value, json.")
            self._note.classes("hw-note").props('role="status"')
        with panel() as self._panel:
            self._place = ui.column().style("width: 100%; overflow-x: auto")
        self._panel.visible = False

    async def _run(self) -> None:
        query = (self._query.value or "").strip()
        if self._task is not None or not query:
            return
        self._show_running(True)
        try:
            with telling():
                caller = await self._frame.visit.look()
                self._task = asyncio.ensure_future(self._frame.queries.run(query, ROWS, caller))
                self._show(await self._task)
                return
            self._note.text = "There is no answer."
        except asyncio.CancelledError:
            self._note.text = "The query was stopped."
        finally:
            self._task = None
            self._show_running(False)

    def _cut(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _show_running(self, is_running: bool) -> None:
        self._stop.visible = is_running
        self._go.set_enabled(not is_running)
        if is_running:
            self._note.text = "Asking…"

    def _show(self, found: Answered) -> None:
        left = found.total - len(found.rows)
        self._note.text = shown.many(found.total, "row") + (f"; {shown.count(left)} are not shown" if left else "")
        self._panel.visible = True
        self._place.clear()
        with self._place:
            options = chart_of(found)
            if options is not None:
                chart = ui.echart(options, renderer="canvas").classes("hw-chart")
                chart.props('role="img" aria-label="Chart of the answer"')
            ui.table(columns=_columns(found), rows=_rows(found), row_key="#", pagination=0).props(
                'flat dense hide-pagination wrap-cells aria-label="Answer"'
            ).classes("hw-table")


def _columns(found: Answered) -> list[dict[str, Any]]:
    return [
        {
            "name": str(at),
            "label": shown.plain(name),
            "field": str(at),
            "align": "right" if kind.startswith(NUMBERS) else "left",
            "classes": "hw-mono",
        }
        for at, (name, kind) in enumerate(found.columns)
    ]


def _rows(found: Answered) -> list[dict[str, Any]]:
    return [
        {"#": number, **{str(at): told(value) for at, value in enumerate(row)}} for number, row in enumerate(found.rows)
    ]


def told(value: Any) -> str:
    """A value of an answer; a float to ten digits, so that a mean has not all that it was reckoned with."""
    if value is None:
        return ""
    return str(float(f"{value:.10g}")) if isinstance(value, float) else shown.plain(str(value))


def chart_of(found: Answered) -> dict[str, Any] | None:
    """Bars, or lines over time, of the numbers beside the first column; None if there is nothing to draw."""
    kinds = [kind for _, kind in found.columns]
    numbers = [at for at, kind in enumerate(kinds) if at and kind.startswith(NUMBERS)][: len(COLOURS)]
    if not numbers or len(found.rows) < 2:  # one is no chart
        return None
    is_time = kinds[0].startswith(TIMES)
    rows = found.rows[:POINTS_MAX]
    labels = [shown.plain(str(row[0])) for row in rows]
    return {
        "animation": False,
        "color": list(COLOURS),
        "grid": {"left": 8, "right": 16, "top": 32, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "itemWidth": 12,
            "itemHeight": 3,
            "icon": "rect",
            "textStyle": {":color": MUTED},
        },
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {"type": "category", "data": labels, "axisLabel": {":color": MUTED}},
        "yAxis": {
            "type": "value",
            "axisLabel": {":color": MUTED},
            "splitLine": {"lineStyle": {":color": MUTED, "opacity": 0.18}},
        },
        "series": [
            {
                "name": shown.plain(found.columns[at][0]),
                "type": "line" if is_time else "bar",
                "data": [row[at] if isinstance(row[at], int | float) else None for row in rows],
            }
            for at in numbers
        ],
    }
