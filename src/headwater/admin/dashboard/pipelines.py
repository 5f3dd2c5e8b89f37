"""Pipelines: those that the server runs; and of each root, what is in the hot log and what the lake has, drawn as one
line from the first offset on."""

from __future__ import annotations

from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, Listing, column
from headwater.wire.administration import Pipeline

SHOWN = 100
JOBS = 'headwater serve --lake var/lake --set pipelines.archive="archive --every 30s"'
TONES = {"running": "good", "waiting": "bad", "beginning": "busy"}


class Pipelines:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._lines: dict[tuple[str, str], _Line] = {}
        """By root and lake."""
        heading("Pipelines", "What the server runs on Spark, and how far each root is archived in its lake.")
        with panel():
            self._jobs = Listing(
                "name",
                Empty("schema", "The server runs no pipelines.", JOBS),
                column("name", "Pipeline", lambda one: shown.plain(one.name)),
                column("state", "State", lambda one: one.state, BADGE),
                column("since", "Since (UTC)", lambda one: shown.moment(one.since_us), wide=True),
                column("restarts", "Restarts", lambda one: shown.count(one.restarts), number=True, wide=True),
                column("rows", "Rows", lambda one: shown.count(one.rows), number=True, wide=True),
                column("lag", "Lag", lambda one: "" if one.lag is None else shown.count(one.lag), number=True),
                column("command", "Command", lambda one: shown.plain(one.command), mono=True, line=True, wide=True),
                column("error", "Last error", lambda one: shown.error(one.error), optional=True),
                more=lambda one: {"tone": TONES.get(one.state, "quiet")},
                label="Pipelines that the server runs",
            )
        with panel():
            with ui.row().classes("hw-legend"):
                for kind, text in (("lake", "in the lake"), ("both", "in both"), ("hot", "in the hot log alone")):
                    with ui.row().classes("hw-legend-entry"):
                        ui.element("span").classes(f"hw-range-key hw-range-{kind}").props('aria-hidden="true"')
                        ui.label(text)
            self._place = ui.column().classes("hw-ranges")
            self._empty = Empty("waves", "Nothing was published yet.", "headwater pub home/kitchen/temp 21.5")
            self._advice = Empty("archive", "No root is archived.", "headwater pipeline archive --lake var/lake")
        frame.every(2.0, self.update)

    async def update(self) -> None:
        self._jobs.show(await self._frame.admin.jobs())
        found: list[Pipeline] = await self._frame.admin.pipelines()
        found = sorted(found, key=lambda one: (-one.lag, one.root))[:SHOWN]
        there = {(one.root, one.lake): one for one in found}
        for gone in self._lines.keys() - there.keys():
            self._lines.pop(gone).delete()
        for place, one in there.items():
            if place not in self._lines:
                with self._place:
                    self._lines[place] = _Line(one.root)
            self._lines[place].show(one)
        self._empty.show(not found)
        self._advice.show(bool(found) and not any(one.lake for one in found))


class _Line:
    """One root."""

    def __init__(self, root: str) -> None:
        with ui.element("div").classes("hw-range-row") as self._whole:
            with ui.row().classes("hw-range-head"):
                ui.label(shown.plain(root)).classes("hw-topic hw-grow")
                self._said = ui.label().classes("hw-note")
            with ui.element("div").classes("hw-range").props('role="img"') as self._bar:
                self._parts = {
                    kind: ui.element("span").classes(f"hw-range-part hw-range-{kind}")
                    for kind in ("lake", "both", "hot")
                }
            self._ends = ui.label().classes("hw-note hw-range-ends")

    def show(self, one: Pipeline) -> None:
        """Draw it: the lake from 1 to what is archived, the log from its first offset to its end."""
        last = max(one.end - 1, one.archived)
        parts = {
            "lake": max(0, min(one.archived, one.first - 1)),
            "both": max(0, one.archived - one.first + 1),
            "hot": max(0, last - max(one.archived, one.first - 1)),
        }
        known = sum(parts.values()) or 1
        for kind, part in self._parts.items():
            part.style(f"width: {100 * parts[kind] / known:.3f}%")
        said = f"lake {shown.plain(one.lake)} · {shown.count(one.lag)} to archive" if one.lake else "no lake"
        text = (
            f"hot from {shown.count(one.first)} to {shown.count(one.end - 1)}"
            if one.end > one.first
            else "the hot log is empty"
        )
        if one.archived:
            text += f" · archived up to {shown.count(one.archived)}"
        self._bar.props["aria-label"] = f"{said}; {text}"
        self._bar.update()
        self._said.text, self._ends.text = said, text

    def delete(self) -> None:
        self._whole.delete()
