"""Subscriptions: how far behind each is, its messages in flight and failed with their errors; seek, pause, delete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from nicegui import ui

from headwater.admin.client import Admin, Start
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts
from headwater.admin.dashboard.dialogs import confirm, confirm_twice, dead_letters_of, detail, form, submit
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, BAR, OPENER, Listing, column
from headwater.admin.dashboard.names import Names, consumer_name
from headwater.admin.dashboard.past import OF_SUBSCRIPTION, Past
from headwater.errors import Malformed
from headwater.message import StateInfo, SubscriptionInfo
from headwater.wire.administration import SubscriptionDetail
from headwater.wire.request import Option

SHOWN = 200
"""Subscriptions that are listed, furthest behind first; others are found by their name."""
STATES_SHOWN = 200
STATE_TONES = {"retry": "busy", "dead": "bad"}
ORDERS = {
    "strict": "strict: none overtakes one that failed",
    "key": "key: the same for each key",
    "none": "none: as fast as it goes",
}
ATTEMPTS = 5
EMPTY = "Nobody subscribes durably yet."
COMMAND = "headwater sub 'home/#' --id watcher --start earliest"


class Subscriptions:
    """The page while it is open."""

    def __init__(self, frame: Frame, id: str = "") -> None:
        """`id`: the one to begin with."""
        self._frame = frame
        self._wanted = id
        self._names = Names(frame.admin)
        self._most = 1
        """How far behind the last of them is."""
        with heading("Subscriptions", "Who gets what, how far they are, and what failed."):
            add = ui.button("New subscription", icon="add", on_click=self._new).props("unelevated no-caps")
            frame.needs("operator", add)
        with panel():
            self._find = frame.find("Find by id or filter", "Find a subscription", self.update)
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "id",
                Empty("inbox", EMPTY, COMMAND),
                column("name", "Subscription", self._name, OPENER),
                column("filter", "Filter", lambda one: shown.plain(one.filter), mono=True, wide=True),
                column("lag", "Behind", lambda one: shown.count(one.lag), BAR, number=True),
                column("in_flight", "In flight", lambda one: shown.count(one.in_flight or 0), number=True, wide=True),
                column("retrying", "Retrying", lambda one: shown.count(one.retrying), number=True, wide=True),
                column("dead", "Dead", lambda one: shown.count(one.dead), number=True),
                column("state", "State", lambda one: _state(one)[0], BADGE),
                more=lambda one: {"id": one.id, "share": one.lag / self._most, "tone": _state(one)[1]},
                on_open=lambda row: _Shown(frame, str(row["id"]), str(row["name"])),
                label="Subscriptions",
            )
        frame.every(1.0, self.update)

    async def update(self) -> None:
        everyone: list[SubscriptionInfo] = await self._frame.admin.bus.subscriptions()
        everyone.sort(key=lambda one: (-one.lag, one.id))
        await self._names.learn(one.id for one in everyone)
        wanted, self._wanted = self._wanted, ""
        if wanted:
            _Shown(self._frame, wanted, self._names.of(wanted))
        text = (self._find.value or "").strip().lower()
        found = [one for one in everyone if text in f"{one.id} {one.filter} {self._name(one)}".lower()]
        self._most = max([1, *(one.lag for one in found)])
        self._listing.show(found[:SHOWN])
        left = len(found) - SHOWN
        self._note.text = f"{shown.count(left)} more are not shown; find them by id or filter." if left > 0 else ""

    def _name(self, one: SubscriptionInfo) -> str:
        return self._names.of(one.id)

    def _new(self) -> None:
        with form("New subscription") as dialog:
            name = ui.input("Id").props("outlined dense autofocus")
            topics = ui.input("Filter", placeholder="home/+/temp").props("outlined dense")
            start = ui.select(
                {"latest": "from now on", "earliest": "from the beginning"}, value="latest", label="Start"
            )
            start.props("outlined dense")
            order = ui.select(ORDERS, value="strict", label="Order").props("outlined dense")
            attempts = ui.number("Attempts before it is a dead letter; 0: no limit", value=ATTEMPTS, min=0, step=1)
            attempts.props("outlined dense")

            async def doing(admin: Admin) -> str:
                chosen: dict[str, Option] = {"order": order.value, "max_attempts": int(attempts.value or 0)}
                await admin.subscriptions.create(name.value or "", topics.value or "", start=start.value, **chosen)
                return f"{shown.plain(name.value)} is there."

            submit(dialog, "Create", lambda: self._frame.do("operator", doing, self.update))


def _state(one: SubscriptionInfo) -> tuple[str, str]:
    if one.paused:
        return "paused", "quiet"
    if not one.consumers:
        return "nobody takes", "busy" if one.lag else "quiet"
    return shown.many(one.consumers, "consumer"), "busy" if one.retrying else "good"


def _tries(one: StateInfo) -> str:
    """How often it failed, and how often its consumer was gone with it."""
    return f"{one.attempts} + {one.deliveries} gone" if one.deliveries else str(one.attempts)


def _errors(one: StateInfo) -> str:
    """What went wrong, each once."""
    return "; ".join(dict.fromkeys(map(shown.error, one.errors)))


class _Shown:
    """One subscription, in a dialog that is kept up to date."""

    def __init__(self, frame: Frame, id: str, name: str) -> None:
        self._frame = frame
        self._id = id
        self._name = name
        self._takers: dict[str, str] = {}
        """By their sessions."""
        self._sessions = Names(frame.admin)
        with detail(name, "hw-wide-dialog") as self._dialog:
            self._facts = ui.column().classes("hw-grow")
            self._said = ""
            with ui.row().classes("hw-toolbar"):
                self._pause = ui.button("Pause", icon="pause", on_click=self._toggle).props("flat dense no-caps")
                self._to = ui.input(placeholder="earliest, latest, offset or time").props(
                    'outlined dense aria-label="Seek to"'
                )
                self._to.classes("hw-place").on("keydown.enter", self._seek)
                seek = ui.button("Seek", icon="redo", on_click=self._seek).props("flat dense no-caps")
                dead_letters_of(id, self._dialog)
                ui.space()
                delete = ui.button("Delete", icon="delete", on_click=self._delete).props(
                    "flat dense no-caps color=negative"
                )
            frame.needs("operator", self._pause, seek, delete)
            ui.label("Messages in flight and failed").classes("hw-panel-title")
            self._states = Listing(
                "key",
                Empty("done_all", "None: everything it was handed is done."),
                column("topic", "Topic", lambda one: shown.plain(one.topic or f"{one.root}/…"), mono=True),
                column("offset", "Offset", lambda one: shown.count(one.offset), number=True),
                column("state", "State", lambda one: one.state.replace("_", " "), BADGE),
                column("since", "Since (UTC)", lambda one: self._moment(one.since_us), wide=True, optional=True),
                column("consumer", "By", lambda one: self._by(one.consumer), wide=True, who=True, optional=True),
                column("attempts", "Attempts", _tries, number=True, wide=True),
                column("retry_at", "Again (UTC)", lambda one: self._moment(one.retry_at_us), wide=True, optional=True),
                column("errors", "Errors", _errors),
                more=lambda one: {"key": f"{one.root}/{one.offset}", "tone": STATE_TONES.get(one.state, "quiet")},
                label="Messages in flight and failed",
            )
            self._is_paused = False
            self._lag = self._dead = 0
            Past(frame, "subscription", id, OF_SUBSCRIPTION)
            frame.every(1.0, self._update)

    async def _update(self) -> None:
        found: SubscriptionDetail = await self._frame.admin.subscriptions.show(self._id)
        info = found.info
        self._is_paused = info.paused
        self._lag, self._dead = info.lag, info.dead
        self._pause.text = "Resume" if info.paused else "Pause"
        facts = (
            ("Filter", shown.plain(info.filter)),
            ("Order", info.order),
            ("Behind", shown.many(info.lag, "message")),
            (
                "Done up to",
                ", ".join(f"{shown.plain(root)} {shown.count(at)}" for root, at in info.floors.items()) or "–",
            ),
            ("Taken by", ", ".join(map(consumer_name, info.active)) or ", ".join(found.sessions) or "nobody"),
            *([("Standing by", ", ".join(map(consumer_name, info.standing_by)))] if info.standing_by else []),
            ("Options", _options(found.options)),
        )
        if str(facts) != self._said:
            self._said = str(facts)
            self._facts.clear()
            with self._facts:
                show_facts(*facts)
        self._takers = {one.session: consumer_name(one) for one in (*info.active, *info.standing_by) if one.session}
        states: list[StateInfo] = await self._frame.admin.bus.states(self._id)
        # What was acked out of order is done, and only waits for those before it.
        told = [one for one in states if one.state != "acked"][:STATES_SHOWN]
        await self._sessions.learn({one.consumer for one in told if one.consumer} - self._takers.keys())
        self._states.show(told)

    def _moment(self, time_us: int | None) -> str:
        return "" if time_us is None else shown.recent(time_us, self._frame.admin.bus.now)

    def _by(self, consumer: str | None) -> str:
        """Who has it: by machine and process, if it is one that takes from it now."""
        return self._takers.get(consumer or "") or self._sessions.of(consumer or "")

    async def _toggle(self) -> None:
        async def doing(admin: Admin) -> str | None:
            if self._is_paused:
                await admin.subscriptions.resume(self._id)
                return "It goes on."
            waiting = shown.many(self._lag, "message")
            question = f"Pause {self._name}? Nothing is lost; {waiting} and what comes wait until it is resumed."
            if not await confirm(question, "Pause"):
                return None
            await admin.subscriptions.pause(self._id)
            return "Paused: it hands out nothing."

        await self._frame.do("operator", doing, self._update)

    async def _seek(self) -> None:
        async def doing(admin: Admin) -> str | None:
            to = _start(str(self._to.value or "").strip())
            if not await confirm(_lost_by_seek(self._name, to, shown.many(self._lag, "message")), "Seek"):
                return None
            await admin.subscriptions.seek(self._id, to)
            return "It goes on from there."

        await self._frame.do("operator", doing, self._update)

    async def _delete(self) -> None:
        lost = f"{shown.many(self._lag, 'message')} that wait and {shown.many(self._dead, 'dead letter')}"
        question = f"Delete {self._name}, its place, {lost}? This cannot be taken back."

        async def doing(admin: Admin) -> str | None:
            async def delete(force: bool) -> str:
                await admin.subscriptions.delete(self._id, force=force)
                self._dialog.close()
                return f"{self._name} is deleted."

            return await confirm_twice(question, "Delete", delete)

        await self._frame.do("operator", doing)


def _options(options: Mapping[str, Option]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(options.items()) if value is not None) or "–"


def _lost_by_seek(name: str, to: Start, waiting: str) -> str:
    """What a seek costs, as a question."""
    if to == "earliest":
        return f"Have {name} go on from the beginning? Everything that it has done is handed out again."
    if to == "latest":
        lost = f"{waiting} that it has not done, in flight and in retry included: they are never handed out"
        return f"Have {name} go on with what is published next? That passes over {lost}."
    again = "What it has done from there on is handed out again"
    return f"Have {name} go on from {to}? {again}; of {waiting} that it has not done, those before it are passed over."


def _start(text: str) -> Start:
    if text in {"earliest", "latest"}:
        return "earliest" if text == "earliest" else "latest"
    if text.isdecimal() and len(text) < 20:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Malformed('give "earliest", "latest", an offset, or a time (UTC): 2026-01-31 12:00') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
