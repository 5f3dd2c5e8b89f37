"""Schedules: messages that are published again and again; when each is due next, a new one, and their end."""

from __future__ import annotations

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts, show_payload
from headwater.admin.dashboard.dialogs import confirm, detail, form, submit
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column, row_button
from headwater.message import ScheduleInfo
from headwater.wire import requests as wire

SHOWN = 200
"""Schedules that are listed, those due next first; others are found by their name."""
REMOVE = row_button("remove", "'delete'", "'Remove'", color="negative")
COMMAND = 'headwater schedule add jobs/nightly run --cron "0 3 * * *"'


class Schedules:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._found: dict[str, ScheduleInfo] = {}
        with heading("Schedules", "Messages that are published again and again, and when each is due."):
            add = ui.button("New schedule", icon="add", on_click=self._new).props("unelevated no-caps")
            frame.needs("operator", add)
        with panel():
            self._find = frame.find("Find by id or topic", "Find a schedule", self.update)
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "id",
                Empty("event_repeat", "Nothing is published by a schedule.", COMMAND),
                column("name", "Schedule", lambda one: shown.plain(one.id), OPENER),
                column("topic", "Topic", lambda one: shown.plain(one.topic), mono=True, wide=True),
                column("cron", "Cron", lambda one: f"{one.cron} {one.zone}", mono=True, wide=True),
                column("next", "Next (UTC)", lambda one: shown.moment(one.next_us)),
                column(
                    "last", "Last (UTC)", lambda one: shown.moment(one.last_us) if one.last_us else "never", wide=True
                ),
                column("payload", "Payload", lambda one: shown.preview(one.payload), mono=True, line=True, wide=True),
                column("buttons", ""),
                more=lambda one: {"id": one.id},
                on_open=self._open,
                label="Schedules",
            )
            if frame.may("operator"):
                self._listing.buttons(REMOVE, remove=self._remove)
        frame.every(1.0, self.update)

    async def update(self) -> None:
        everyone: list[ScheduleInfo] = await self._frame.admin.bus.schedules()
        text = (self._find.value or "").strip().lower()
        found = [one for one in everyone if text in f"{one.id} {one.topic}".lower()]
        found.sort(key=lambda one: (one.next_us, one.id))
        self._found = {one.id: one for one in found[:SHOWN]}
        self._listing.show(self._found.values())
        left = len(found) - SHOWN
        self._note.text = f"{shown.count(left)} more are not shown; find them by id or topic." if left > 0 else ""

    def _new(self) -> None:
        with form("New schedule") as dialog:
            topic = ui.input("Topic", placeholder="jobs/nightly").props("outlined dense autofocus")
            cron = ui.input("Cron: minute, hour, day, month, day of week", placeholder="0 3 * * *")
            cron.props("outlined dense")
            zone = ui.input("Time zone", value="UTC").props("outlined dense")
            payload = ui.textarea("Payload").props("outlined autogrow input-class=hw-mono")
            name = ui.input("Id; without one, the topic").props("outlined dense")
            retain = ui.checkbox("Retain: new subscribers get it first")

            async def doing(admin: Admin) -> str:
                made: ScheduleInfo = await admin.ask(
                    wire.Schedule(
                        topic=(topic.value or "").strip(),
                        payload=(payload.value or "").encode(errors="replace"),
                        cron=(cron.value or "").strip(),
                        id=(name.value or "").strip() or None,
                        zone=(zone.value or "").strip(),
                        retain=bool(retain.value),
                    )
                )
                return f"{shown.plain(made.id)} is due at {shown.moment(made.next_us)} UTC."

            submit(dialog, "Create", lambda: self._frame.do("operator", doing, self.update))

    async def _remove(self, row: Row) -> None:
        schedule = str(row["id"])
        name = shown.plain(schedule)
        if await confirm(f"Remove the schedule {name}? It publishes nothing more.", "Remove"):
            said = f"{name} is removed."
            await self._frame.change(
                "operator", lambda admin: admin.ask(wire.Unschedule(id=schedule)), said, self.update
            )

    def _open(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is None:
            return
        with detail(one.id):
            show_facts(
                ("Topic", shown.plain(one.topic)),
                ("Cron", f"{one.cron}, time of {shown.plain(one.zone)}"),
                ("Next", f"{shown.moment(one.next_us)} UTC"),
                ("Last", f"{shown.moment(one.last_us)} UTC" if one.last_us else "never"),
                ("Retained", "yes" if one.retain else "no"),
                ("Time to live", "–" if one.ttl_s is None else shown.span(one.ttl_s)),
                ("Made by", shown.plain(one.client) or "whoever owns the folder"),
                *((f"Header {shown.plain(name)}", shown.plain(value)) for name, value in one.headers),
            )
            show_payload(one.payload)
