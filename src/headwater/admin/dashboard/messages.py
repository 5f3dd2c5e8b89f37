"""The message browser: pages of messages, newest first, from an offset or a moment, or as they come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from nicegui import ui

from headwater import units
from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import key_and_headers, show_facts, show_payload
from headwater.admin.dashboard.dialogs import confirm, detail
from headwater.admin.dashboard.frame import Empty, Frame, telling
from headwater.admin.dashboard.life import Life
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column
from headwater.admin.dashboard.pager import PAGE, Page, Pager
from headwater.clock import to_datetime
from headwater.errors import Malformed
from headwater.message import Envelope
from headwater.receipt import Receipt

DOWNLOADED_MAX = 10_000
"""Messages in a download: the newest."""
PLACE = "an offset, or a time (UTC): 2026-01-31 12:00"
HINT = "offset, or 2026-01-31 12:00 (UTC)"


class Messages:
    """The messages that a filter matches."""

    def __init__(self, frame: Frame, filter: str) -> None:
        self._frame = frame
        self._pager = Pager(frame.admin.bus, filter, frame.check_sight)
        self._page: Page | None = None
        self._shown: list[Envelope] = []
        self._follows = False
        self._is_paused = False
        with ui.row().classes("hw-toolbar"):
            ui.button("Newest", icon="first_page", on_click=self._newest).props("flat dense no-caps")
            self._older = ui.button("Older", icon="chevron_right", on_click=self._older_page).props(
                "flat dense no-caps"
            )
            self._place = ui.input(placeholder=HINT).props('dense outlined clearable aria-label="Go to"')
            self._place.classes("hw-place").on("keydown.enter", self._go)
            ui.button("Go", on_click=self._go).props("flat dense no-caps")
            ui.space()
            ui.button(icon="download", on_click=self._download).props(
                'flat round dense aria-label="Download as JSON lines"'
            ).tooltip(f"The newest {shown.count(DOWNLOADED_MAX)} as JSON lines")
            self._pause = ui.button("Pause", icon="pause", on_click=self._turn).props("flat dense no-caps")
            self._pause.visible = False
            ui.switch("Follow", on_change=self._set_follows).props("dense")
        self._note = ui.label().classes("hw-note").props('role="status"')
        is_one = not set("+#") & set(filter)
        topic = [] if is_one else [column("topic", "Topic", lambda one: shown.plain(one.topic), mono=True, line=True)]
        self._listing = Listing(
            "offset",
            Empty("forum", "No messages here.", f"headwater pub {_quoted(filter)} 'hello'" if is_one else ""),
            column("number", "Offset", lambda one: shown.count(one.offset), OPENER, number=True),
            column("time", "Time (UTC)", self._time, wide=True),
            *topic,
            column(
                "key", "Key", lambda one: shown.preview(one.key or b""), mono=True, brief=True, wide=True, optional=True
            ),
            column("headers", "Headers", headers_text, mono=True, brief=True, wide=True, optional=True),
            column("preview", "Payload", lambda one: shown.preview(one.payload), mono=True, line=True),
            more=lambda one: {"offset": one.offset},
            on_open=self._open,
            label="Messages",
        )
        frame.every(1.0, self._tick)

    def _time(self, one: Envelope) -> str:
        return shown.recent(one.time_us, self._frame.admin.bus.now)

    async def _tick(self) -> None:
        if self._page is None:
            await self._show(await self._pager.newest())
        elif self._is_paused:
            await self._count()
        elif self._follows:
            await self._follow()

    async def _count(self) -> None:
        """What comes while it is paused is counted, and shown when it goes on."""
        assert self._page is not None
        came = (await self._pager.extent()).end - 1 - self._page.last
        self._say(f"Paused; {shown.many(came, 'offset')} of {shown.plain(self._pager.root)} came since.")

    async def _turn(self) -> None:
        self._set_paused(not self._is_paused)
        if not self._is_paused:
            with telling():
                await self._follow()

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._pause.text = "Go on" if is_paused else "Pause"
        self._pause.icon = "play_arrow" if is_paused else "pause"

    async def _follow(self) -> None:
        assert self._page is not None
        page = await self._pager.since(self._page.last)
        if page.last <= self._page.last:
            return
        self._page = page
        if page.is_sampled:
            self._say("Faster than can be shown: these are the newest of each second.")
        elif page.left_out:
            self._say(f"Faster than can be shown: {shown.count(page.left_out)} more came in the last second.")
        else:
            self._say("Following.")
        self._shown = [*page.messages, *self._shown][:PAGE]
        self._listing.show(self._shown)

    async def _show(self, page: Page) -> None:
        self._page = page
        self._older.set_enabled(not page.is_first)
        self._shown = list(page.messages)
        self._listing.show(self._shown)
        if page.messages and len(page.messages) == PAGE:
            self._say("")
        elif page.is_first:
            self._say("These are the oldest." if page.messages else "")
        else:
            self._say(f"Looked back to offset {shown.count(page.first)}; go on with Older.")

    def _say(self, text: str) -> None:
        if self._note.text != text:
            self._note.text = text

    async def _newest(self) -> None:
        await self._try(self._pager.newest())

    async def _older_page(self) -> None:
        if self._page is not None:
            await self._try(self._pager.upto(self._page.first - 1))

    async def _go(self) -> None:
        with telling():
            place = _place((self._place.value or "").strip())
            await self._try(self._pager.at_time(place) if isinstance(place, datetime) else self._pager.upto(place))

    async def _try(self, reading: Any) -> None:
        with telling():
            await self._show(await reading)

    async def _set_follows(self, event: Any) -> None:
        self._follows = bool(event.value)
        self._set_paused(False)
        self._pause.visible = self._follows
        if self._follows:
            await self._try(self._pager.newest())
            extent = await self._pager.extent()
            if self._page is not None:
                self._page = Page(self._page.messages, self._page.first, extent.end - 1, self._page.is_first)
            self._say("Following.")
        else:
            self._say("")

    async def _download(self) -> None:
        with telling():
            found = await self._pager.last(DOWNLOADED_MAX)
            lines = b"".join(msgspec.json.encode(_as_json(one)) + b"\n" for one in found)
            ui.download.content(lines, "messages.jsonl", "application/x-ndjson")

    async def _open(self, row: Row) -> None:
        with telling():
            show_message(await self._pager.one(int(row["offset"])), self._frame)


def _place(text: str) -> int | datetime:
    digits = text.replace(",", "")
    if digits.isdecimal() and len(digits) < 20:
        return int(digits)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Malformed(f'"{text[:40]}" is no place; give {PLACE}') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _quoted(topic: str) -> str:
    return "'" + shown.plain(topic).replace("'", "'\\''") + "'"


def headers_text(message: Envelope) -> str:
    """All headers, on one line."""
    return shown.plain(", ".join(f"{name}={value}" for name, value in message.header_pairs))


def _as_json(message: Envelope) -> dict[str, Any]:
    """A line of a download: the payload as JSON where it is some, else as text, else in base64."""
    line: dict[str, Any] = {
        "topic": message.topic,
        "offset": message.offset,
        "time": to_datetime(message.time_us),
        "headers": message.header_pairs,
    }
    if message.key is not None:
        line["key_base64"] = message.key
    try:
        return line | {"json": msgspec.Raw(msgspec.json.encode(msgspec.json.decode(message.payload)))}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = shown.as_text(message.payload)
    return line | ({"payload_base64": message.payload} if text is None else {"text": text})


def _publish_again(frame: Frame, message: Envelope) -> ui.button:
    """A button that publishes the same once more."""

    async def doing(admin: Admin) -> str | None:
        if not await confirm(f"Publish this to {shown.plain(message.topic)} once more?", "Publish"):
            return None
        pairs = tuple(message.header_pairs)
        receipt: Receipt = await admin.bus.publish(message.topic, message.payload, key=message.key, headers=pairs)
        return f"Published as offset {shown.count(receipt.offset)}."

    async def publish() -> None:
        frame.check_sight(message.topic)
        await frame.do("operator", doing)

    return ui.button("Publish again", icon="send", on_click=publish).props("flat dense no-caps")


def show_message(message: Envelope, frame: Frame) -> None:
    """One message, in full."""
    with detail(message.topic):
        show_facts(
            ("Offset", shown.count(message.offset)),
            ("Published", shown.precise(message.time_us)),
            ("Size", units.size(len(message.payload))),
            *key_and_headers(message.key, message.header_pairs),
        )
        show_payload(message.payload)
        Life(frame, message)
        with ui.row().classes("hw-toolbar"):
            frame.needs("operator", _publish_again(frame, message))
