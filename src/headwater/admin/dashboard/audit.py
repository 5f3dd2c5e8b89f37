"""The audit: who changed what, newest first, found by any word of it; for administrators, as with the API."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts
from headwater.admin.dashboard.dialogs import detail
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel, telling
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column
from headwater.admin.dashboard.names import CHANNEL, Names
from headwater.admin.dashboard.pager import PAGE, Pager
from headwater.audit import TOPIC, AuditEntry
from headwater.clock import from_datetime
from headwater.message import Envelope

LOOKED_S = 3.0
"""How long is looked back for what is found; Older goes on from there."""
ADVICE = "The audit is for those whose token has the role admin."
_decode = msgspec.json.Decoder(AuditEntry).decode


class Change(msgspec.Struct, frozen=True):
    """An entry, and where it is."""

    offset: int
    entry: AuditEntry


class Audit:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        heading("Audit", "Who changed what, newest first.")
        if not frame.may("admin"):
            with panel():
                Empty("lock", ADVICE).show(True)
            return
        self._names = Names(frame.admin)
        self._pager = Pager(frame.admin.bus, TOPIC, frame.check_sight)
        self._found: dict[int, Change] = {}
        self._first = 0
        """From which offset on was looked."""
        self._state: tuple[str, int] | None = None
        """What was looked for last, and the newest entry then."""
        self._is_back = False
        """Whether older ones are shown, which stand still."""
        with panel():
            with ui.row().classes("hw-toolbar"):
                self._find = frame.find("Find by who, what, target or value", "Find a change", self.update)
                self._find.classes("hw-place")
                ui.button("Newest", icon="first_page", on_click=self._newest).props("flat dense no-caps")
                self._older = ui.button("Older", icon="chevron_right", on_click=self._look_back)
                self._older.props("flat dense no-caps")
            self._note = ui.label().classes("hw-note").props('role="status"')
            self._listing = Listing(
                "offset",
                Empty("history", "Nothing was changed, or nothing that is found so."),
                column("time", "Time (UTC)", lambda one: shown.moment(from_datetime(one.entry.time)), wide=True),
                column("who", "Who", lambda one: _who(one.entry), who=True),
                column("what", "What", lambda one: shown.plain(one.entry.what), OPENER, word=True),
                column("target", "Target", self._target, mono=True),
                column("before", "Before", lambda one: _brief(one.entry.before), mono=True, line=True, wide=True),
                column("after", "After", lambda one: _brief(one.entry.after), mono=True, line=True, wide=True),
                more=lambda one: {"offset": one.offset},
                on_open=self._open,
                label="Changes",
            )
        frame.every(1.0, self.update)

    async def update(self) -> None:
        """Look again, if there are others or others are wanted; older ones stand still until then."""
        text = self._text()
        if self._is_back and self._state is not None and self._state[0] == text:
            return
        there = await self._frame.admin.bus.topics(TOPIC)
        state = (text, there[0].last_offset if there else 0)
        if state != self._state:
            self._is_back = False
            await self._look(state[1])
            self._state = state

    def _text(self) -> str:
        return (self._find.value or "").strip().lower()

    async def _newest(self) -> None:
        self._state = None
        self._is_back = False
        with telling():
            await self.update()

    async def _look_back(self) -> None:
        self._is_back = True
        with telling():
            await self._look(self._first - 1)

    async def _look(self, last: int) -> None:
        """Show a page of those that are found, from an offset back."""
        text, found = self._text(), list[Change]()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOOKED_S
        while True:
            page = await self._pager.upto(last)
            found += [one for one in map(_change, page.messages) if one is not None and text in _words(one.entry)]
            if page.is_first or len(found) >= PAGE or loop.time() > until_s:
                break
            last = page.first - 1
        self._first = page.first
        self._found = {one.offset: one for one in found}
        await self._names.learn(CHANNEL + one.entry.target for one in found if _is_of_channel(one.entry))
        self._listing.show(found)
        self._older.set_enabled(not page.is_first)
        self._note.text = "" if page.is_first or len(found) >= PAGE else "Looked back for a while; go on with Older."

    def _target(self, one: Change) -> str:
        """What was changed, a channel by its name."""
        entry = one.entry
        if not _is_of_channel(entry):
            return shown.plain(entry.target)
        told = next((found for found in (entry.after, entry.before) if isinstance(found, dict)), {})
        known = self._names.of(CHANNEL + entry.target).removeprefix(CHANNEL)
        return shown.plain(f"channel {told['name']}") if "name" in told else known

    def _open(self, row: Row) -> None:
        one = self._found.get(int(row["offset"]))
        if one is None:
            return
        entry = one.entry
        with detail(f"{entry.what} {entry.target}"):
            show_facts(
                ("Time", shown.precise(from_datetime(entry.time))),
                ("Who", shown.plain(entry.who)),
                ("Via", shown.plain(entry.via)),
                ("Offset", shown.count(one.offset)),
            )
            for name, value in (("Before", entry.before), ("After", entry.after)):
                if value is not None:
                    ui.label(name).classes("hw-panel-title")
                    ui.label(_whole(value)).classes("hw-pre").props('tabindex="0"')


def _is_of_channel(entry: AuditEntry) -> bool:
    return entry.what.startswith("channel-")


def _change(message: Envelope) -> Change | None:
    """An entry; None for what somebody else published there."""
    try:
        return Change(message.offset, _decode(message.payload))
    except msgspec.DecodeError:
        return None


def _words(entry: AuditEntry) -> str:
    """What an entry is found by."""
    return (
        msgspec.json.encode([entry.who, entry.via, entry.what, entry.target, entry.before, entry.after])
        .decode()
        .lower()
    )


def _who(entry: AuditEntry) -> str:
    return shown.plain(entry.who if entry.via == entry.who else f"{entry.who} via {entry.via}")


def _brief(value: Any) -> str:
    return "" if value is None else shown.preview(msgspec.json.encode(value))


def _whole(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return shown.as_json(text) or shown.plain(text)
