"""The past of one root or subscription, as charts of the last hour, six hours or day."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from nicegui import ui

from headwater.admin.client import Kind
from headwater.admin.dashboard.charts import BYTES, NUMBER, PER_SECOND, Chart, Plot
from headwater.admin.dashboard.frame import Frame
from headwater.admin.dashboard.tree import before
from headwater.clock import SECOND_US, to_datetime
from headwater.errors import NotFound
from headwater.wire.administration import HistoryLines

SPANS = {3600: "1 h", 6 * 3600: "6 h", 24 * 3600: "24 h"}
POINTS = 360
EVERY_S = 30.0
LINE_MIN = 2
"""Points of a line: one alone is not seen."""

OF_ROOT = (
    Plot("Messages", "Messages a second", (("Published", "in_s"),), PER_SECOND),
    Plot("Size", "Bytes on disk", (("Size", "bytes"),), BYTES),
)
OF_TOPIC = Plot("Messages", "Messages a second at and below the topic", (("Published", "in_s"),), PER_SECOND)
RATE_EVERY_S = 2.0
OF_SUBSCRIPTION = (
    Plot("Behind", "Messages that it has not acked", (("Behind", "lag"), ("In flight", "in_flight")), NUMBER),
    Plot("Failed", "Messages that failed", (("Retrying", "retrying"), ("Dead letters", "dead")), NUMBER),
)


def span_toggle(spans: dict[int, str], value: int) -> ui.toggle:
    """Which span is shown."""
    return ui.toggle(spans, value=value).props('dense no-caps unelevated aria-label="Span"').classes("hw-spans")


async def past(frame: Frame, kind: Kind, name: str, span_s: int) -> HistoryLines:
    """What was sampled in so many seconds until now."""
    since = to_datetime(round(frame.admin.bus.now.timestamp() * SECOND_US) - span_s * SECOND_US)
    found: HistoryLines = await frame.admin.history(kind, name, since=since, points=POINTS)
    return found


class Past:
    """The charts while they are seen."""

    def __init__(self, frame: Frame, kind: Kind, name: str, plots: Sequence[Plot]) -> None:
        self._frame, self._kind, self._name, self._plots = frame, kind, name, plots
        self._charts: list[Chart] = []
        with ui.row().classes("hw-toolbar"):
            ui.label("The last day (UTC)").classes("hw-panel-title")
            self._span = span_toggle(SPANS, 3600).on_value_change(self.update)
        self._note = ui.label("Nothing to draw yet: a sample is taken once a minute.").classes("hw-note")
        self._place = ui.element("div").classes("hw-charts")
        frame.every(EVERY_S, self.update)

    async def update(self) -> None:
        """Show what there is."""
        found, span_s = None, int(self._span.value)
        with suppress(NotFound):
            found = await past(self._frame, self._kind, self._name, span_s)
        self._note.visible = found is None or len(found.times_us) < LINE_MIN
        if found is None or (self._note.visible and not self._charts):
            return
        if not self._charts:
            with self._place:
                self._charts = [Chart(plot, plot.past(found), span_s) for plot in self._plots]
        else:
            for chart, plot in zip(self._charts, self._plots, strict=True):
                chart.replace(plot.past(found), span_s)


class TopicRate:
    """How many messages a second come at and below a topic, from now on: the server keeps the past of roots alone."""

    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame, self._topic = frame, topic
        self._before: tuple[int, int] | None = None
        ui.label("Messages a second, at and below it, since this is open").classes("hw-note")
        self._chart = Chart(OF_TOPIC, [])
        frame.every(RATE_EVERY_S, self._update)

    async def _update(self) -> None:
        parent, _, name = self._topic.rpartition("/")
        found = await self._frame.admin.levels(parent, after=before(name), limit=1)
        if not found or found[0].name != name:
            return
        now = round(self._frame.admin.bus.now.timestamp() * SECOND_US), found[0].messages
        if self._before is not None and now[0] > self._before[0]:
            rate = max(0, now[1] - self._before[1]) * SECOND_US / (now[0] - self._before[0])
            self._chart.push([(now[0] / 1000, rate)])
        self._before = now
