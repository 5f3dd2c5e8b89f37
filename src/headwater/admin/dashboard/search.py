"""Search: messages by topic, JSON field, text, key and header over a range, with how far it is and a way to stop it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel, telling
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column
from headwater.admin.dashboard.messages import headers_text, show_message
from headwater.admin.search.process import Found, Told
from headwater.admin.search.search import Progress
from headwater.clock import from_datetime
from headwater.errors import Malformed
from headwater.message import Message
from headwater.topics.name import check_filter

MOST = 100
"""Messages that are found at a time; Search on finds more."""
SHOWN_MAX = 1000
SEARCH_S = 60.0
SPANS = {0: "everything", 900: "15 min", 3600: "1 h", 6 * 3600: "6 h", 24 * 3600: "24 h", -1: "from … to"}
TOLD_S = 0.2
WHERE = '$.sensor == "a" and $.celsius > 20'
SUBMIT = "(event) => event.target.matches('input') && emit()"


class Search:
    """The page while it is open."""

    def __init__(self, frame: Frame, filter: str = "") -> None:
        """`filter`: the one to begin with."""
        self._frame = frame
        self._told: Told | None = None
        """What was searched for last."""
        self._places: dict[str, int] = {}
        """Where that goes on, if it has found enough."""
        self._found: list[Message] = []
        self._progress = Progress()
        self._stopping: asyncio.Event | None = None
        heading("Search", "Messages by what is in them, over any range.")
        with panel():
            self._form(filter)
        with panel():
            self._bar = ui.linear_progress(0, show_value=False, size="6px").props('aria-label="How far the search is"')
            self._bar.visible = False
            self._note = ui.label("Nothing is searched yet.").classes("hw-note").props('role="status"')
            self._listing = Listing(
                "place",
                Empty("search_off", "Nothing was found so."),
                column("number", "Offset", lambda one: shown.count(one.offset), OPENER, number=True),
                column("time", "Time (UTC)", self._time, wide=True),
                column("topic", "Topic", lambda one: shown.plain(one.topic), mono=True, line=True),
                column(
                    "key",
                    "Key",
                    lambda one: shown.preview(one.key or b""),
                    mono=True,
                    brief=True,
                    wide=True,
                    optional=True,
                ),
                column("headers", "Headers", headers_text, mono=True, brief=True, wide=True, optional=True),
                column("preview", "Payload", lambda one: shown.preview(one.payload), mono=True, line=True),
                more=lambda one: {"place": f"{one.root}/{one.offset}", "root": one.root, "offset": one.offset},
                on_open=self._open,
                label="Messages that were found",
            )
            with ui.row().classes("hw-toolbar"):
                self._on = ui.button("Search on", icon="expand_more", on_click=self._go_on).props("flat dense no-caps")
            self._on.visible = False
        ui.timer(TOLD_S, self._tell)

    def _form(self, filter: str) -> None:
        with ui.element("div").classes("hw-search") as fields:
            self._filter = ui.input("Topic or filter", value=filter, placeholder="home/#").props(
                "outlined dense stack-label"
            )
            self._where = ui.input("JSON fields", placeholder=WHERE).props(
                "outlined dense stack-label input-class=hw-mono"
            )
            self._where.classes("hw-search-where")
            self._text = ui.input("Text in the payload").props("outlined dense stack-label")
            self._key = ui.input("Text in the key").props("outlined dense stack-label")
            self._header = ui.input("Header", placeholder="name, or name=value").props("outlined dense stack-label")
            self._span = ui.select(SPANS, value=0, label="Range").props("outlined dense stack-label")
            self._since = ui.input("From (UTC)", placeholder="2026-01-31 12:00").props("outlined dense stack-label")
            self._until = ui.input("To (UTC)", placeholder="now").props("outlined dense stack-label")
        for edge in (self._since, self._until):
            edge.bind_visibility_from(self._span, "value", value=-1)
        fields.on("keydown.enter", self._begin, js_handler=SUBMIT)
        with ui.row().classes("hw-toolbar"):
            self._go = ui.button("Search", icon="search", on_click=self._begin).props("unelevated no-caps")
            self._stop = ui.button("Stop", icon="stop", on_click=self._cut).props("flat no-caps")
            self._stop.visible = False

    def _time(self, one: Message) -> str:
        return shown.recent(one.time_us, self._frame.admin.bus.now)

    def _asked(self) -> Told:
        wanted = (self._filter.value or "").strip() or "#"
        check_filter(wanted, self._frame.admin.bus.config)
        since, until = self._range()
        return Told(
            filter=wanted,
            where=(self._where.value or "").strip(),
            text=self._text.value or "",
            key=self._key.value or "",
            header=(self._header.value or "").strip(),
            since_us=None if since is None else from_datetime(since),
            until_us=None if until is None else from_datetime(until),
            most=MOST,
        )

    def _range(self) -> tuple[datetime | None, datetime | None]:
        span_s = int(self._span.value)
        if span_s > 0:
            return self._frame.admin.bus.now - timedelta(seconds=span_s), None
        return (None, None) if span_s == 0 else (_moment(self._since.value), _moment(self._until.value))

    async def _begin(self) -> None:
        if self._stopping is not None:
            return
        with telling():
            self._told = self._asked()
            self._told.asked.check()
            self._found = []
            self._listing.show(())
            await self._search(self._told)

    async def _go_on(self) -> None:
        """With what was searched for, whatever the fields say now."""
        if self._stopping is None and self._told is not None:
            await self._search(msgspec.structs.replace(self._told, after=self._places))

    def _cut(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    async def _search(self, told: Told) -> None:
        frame = self._frame
        self._stopping = asyncio.Event()
        self._progress = Progress()
        self._show_running(True)
        self._note.text = "Searching…"
        try:
            with telling():
                caller = (await frame.visit.look()).name
                frame.check_sight(told.filter)
                readable = frame.admin.bus._readable()
                found = await frame.searches.run(told, caller, readable, SEARCH_S, self._hear, self._stopping)
                self._show(found)
                return
            self._note.text = "Nothing was searched."
        finally:
            self._stopping = None
            self._show_running(False)

    def _show(self, found: Found) -> None:
        self._places = found.places
        self._found = [*self._found, *found.messages][:SHOWN_MAX]
        self._listing.show(self._found)
        self._progress = found.progress
        looked, total = found.progress.looked, found.progress.total
        said = (
            f"{shown.many(len(self._found), 'message')} found, {shown.count(looked)} of {shown.count(total)} looked at."
        )
        if found.gaps:
            said += f" {shown.many(len(found.gaps), 'range')} of offsets among them is gone."
        if not found.is_end:
            said += " There may be more."
        self._note.text = said
        self._on.visible = not found.is_end and len(self._found) < SHOWN_MAX

    def _hear(self, progress: Progress) -> None:
        self._progress = progress

    def _tell(self) -> None:
        """How far it is; only while one runs."""
        if self._stopping is None or not self._progress.total:
            return
        looked, total = self._progress.looked, self._progress.total
        self._bar.value = looked / total
        self._note.text = f"{shown.count(looked)} of {shown.count(total)} looked at, {self._progress.found} found…"

    def _show_running(self, is_running: bool) -> None:
        self._bar.value = 0
        self._bar.visible = is_running
        self._stop.visible = is_running
        self._go.set_enabled(not is_running)
        if is_running:
            self._on.visible = False

    def _open(self, row: Row) -> None:
        place = row["root"], row["offset"]
        one = next((one for one in self._found if (one.root, one.offset) == place), None)
        if one is not None:
            show_message(one, self._frame)


def _moment(text: str | None) -> datetime | None:
    if not text or not text.strip():
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Malformed(f'"{text[:40]}" is no time; write 2026-01-31 12:00, in UTC') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
