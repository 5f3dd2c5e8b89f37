"""Retained values: what topics keep for those who subscribe later, by filter; look at one, and clear it."""

from __future__ import annotations

from nicegui import ui

from headwater import units
from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import key_and_headers, show_facts, show_payload
from headwater.admin.dashboard.dialogs import confirm, detail
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column, row_button
from headwater.topics.name import check_filter
from headwater.wire import requests as wire

SHOWN = 200
"""Values that are listed, by topic; others are found by a filter."""
EVERYTHING = "#"
CLEAR = row_button("clear", "'delete'", "'Clear'", color="negative")
COMMAND = "headwater pub home/kitchen/temp 21.5 --retain"


class RetainedValues:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._found: dict[str, wire.RetainedMessage] = {}
        heading("Retained", "What topics keep for those who subscribe later.")
        with panel():
            self._filter = frame.find("Find by filter: home/#", "Filter", self.update)
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "topic",
                Empty("push_pin", "No topic that matches keeps a value.", COMMAND),
                column("name", "Topic", lambda one: shown.plain(one.topic), OPENER),
                column("preview", "Value", lambda one: shown.preview(one.payload), mono=True, line=True),
                column("size", "Size", lambda one: units.size(len(one.payload)), number=True, wide=True),
                column("since", "Since (UTC)", lambda one: shown.moment(one.time_us), wide=True),
                column("buttons", ""),
                more=lambda one: {"topic": one.topic},
                on_open=self._open,
                label="Retained values",
            )
            if frame.may("operator"):
                self._listing.buttons(CLEAR, clear=self._clear)
        frame.every(1.0, self.update)

    async def update(self) -> None:
        wanted = (self._filter.value or "").strip() or EVERYTHING
        check_filter(wanted, self._frame.admin.bus.config)
        self._frame.check_sight(wanted)
        found: list[wire.RetainedMessage] = await self._frame.admin.ask(wire.Retained(filter=wanted, limit=SHOWN + 1))
        self._found = {one.topic: one for one in found[:SHOWN]}
        self._listing.show(self._found.values())
        self._note.text = f"The first {SHOWN}; a filter finds others." if len(found) > SHOWN else ""

    async def _clear(self, row: Row) -> None:
        topic, name = str(row["topic"]), shown.plain(str(row["topic"]))

        async def doing(admin: Admin) -> str:
            self._frame.check_sight(topic)
            await admin.bus.publish(topic, b"", retain=True)
            return f"{name} keeps nothing now."

        question = f"Clear what {name} keeps? Who subscribes later gets nothing first; its messages stay."
        if await confirm(question, "Clear"):
            await self._frame.do("operator", doing, self.update)

    def _open(self, row: Row) -> None:
        one = self._found.get(str(row["topic"]))
        if one is None:
            return
        with detail(one.topic):
            show_facts(
                ("Offset", shown.count(one.offset)),
                ("Since", shown.precise(one.time_us)),
                ("Size", units.size(len(one.payload))),
                *key_and_headers(one.key, one.headers),
            )
            show_payload(one.payload)
