"""Dead letters: messages that a subscription gave up on; look at them, hand them back, or drop them."""

from __future__ import annotations

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import key_and_headers, show_facts, show_payload
from headwater.admin.dashboard.dialogs import confirm, detail
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import OPENER, Listing, Row, column, row_button
from headwater.admin.dashboard.names import Names
from headwater.message import DeadLetter, SubscriptionInfo

SHOWN = 200
"""Letters that are listed; others are found by their text."""
LOOKED_MAX = 1_000
"""Letters that are looked through."""
EMPTY = "No dead letters: whatever failed was retried and done."


class DeadLetters:
    """The page while it is open."""

    def __init__(self, frame: Frame, id: str = "") -> None:
        """`id`: the subscription to begin with."""
        self._frame = frame
        self._wanted = id
        self._names = Names(frame.admin)
        self._letters: dict[str, DeadLetter] = {}
        self._counts: dict[str, int] = {}
        """Of each subscription that has any."""
        heading("Dead letters", "What subscriptions gave up on, with the errors that made them.")
        with panel():
            with ui.row().classes("hw-toolbar"):
                self._id = ui.select([], label="Subscription").props("outlined dense").classes("hw-choice")
                self._id.on_value_change(self.update)
                self._find = frame.find("Find in topic, error or payload", "Find a dead letter", self.update)
                self._find.classes("hw-place")
                ui.space()
                redrive = ui.button("Redrive selected", icon="replay", on_click=self._redrive_selected)
                drop = ui.button("Drop selected", icon="delete", on_click=self._drop_selected)
                everything = ui.button("Redrive all", icon="restart_alt", on_click=self._redrive_all)
                for button in (redrive, everything, drop):
                    button.props("flat dense no-caps")
                drop.props("color=negative")
                frame.needs("operator", redrive, drop, everything)
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "key",
                Empty("mark_email_read", EMPTY),
                column("offset", "Offset", lambda one: shown.count(one.offset), OPENER, number=True),
                column("topic", "Topic", lambda one: shown.plain(one.topic), mono=True),
                column("attempts", "Attempts", lambda one: str(one.attempts), number=True, wide=True),
                column("dead", "Given up (UTC)", lambda one: shown.moment(one.dead_at_us), wide=True),
                column("error", "Last error", lambda one: shown.error(one.errors[-1]) if one.errors else ""),
                column("buttons", ""),
                more=lambda one: {"key": _key(one)},
                on_open=self._open,
                selection=True,
                label="Dead letters",
            )
            if frame.may("operator"):
                self._listing.buttons(
                    row_button("redrive", "'replay'", "'Redrive'"), redrive=lambda row: self._redrive([str(row["key"])])
                )
        frame.every(2.0, self.update)

    async def update(self) -> None:
        await self._update_choice()
        chosen = self._id.value
        bus = self._frame.admin.bus
        found: list[DeadLetter] = await bus.dead_letters(chosen, limit=LOOKED_MAX) if chosen else []
        for topic in {letter.topic for letter in found}:
            self._frame.check_sight(topic)
        text = (self._find.value or "").strip().lower()
        found = [letter for letter in found if not text or text in _searched(letter)]
        self._letters = {_key(letter): letter for letter in found[:SHOWN]}
        self._listing.show(self._letters.values())
        total = self._counts.get(chosen or "", 0)
        self._note.text = left_out(len(found) if text or total <= LOOKED_MAX else total, total, text)

    async def _update_choice(self) -> None:
        """Only subscriptions that have any, the fullest first."""
        everyone: list[SubscriptionInfo] = await self._frame.admin.bus.subscriptions()
        full = sorted((one for one in everyone if one.dead), key=lambda one: -one.dead)
        await self._names.learn(one.id for one in full)
        self._counts = {one.id: one.dead for one in full}
        options = {one.id: f"{self._names.of(one.id)} ({shown.count(one.dead)})" for one in full}
        current = self._id.value or self._wanted
        if current and current not in options:
            options[current] = f"{self._names.of(current)} (0)"
        value = current or next(iter(options), None)
        if options != self._id.options or value != self._id.value:
            self._id.set_options(options, value=value)

    async def _redrive_selected(self) -> None:
        await self._redrive([str(row["key"]) for row in self._listing.selected])

    async def _redrive(self, keys: list[str]) -> None:
        places = self._places(keys)
        if not places:
            ui.notify("Tick those that are to be redriven.")
            return

        async def doing(admin: Admin) -> str:
            return f"{await admin.bus.redrive(self._id.value, places)} redriven."

        await self._frame.do("operator", doing, self.update)
        self._listing.table.selected = []

    async def _redrive_all(self) -> None:
        chosen = self._id.value
        if not chosen:
            return
        letters = shown.many(self._counts.get(chosen, 0), "dead letter")
        question = f"Hand all {letters} of {self._names.of(chosen)} back to it, also those that are not found above?"
        if not await confirm(question, "Redrive all"):
            return

        async def doing(admin: Admin) -> str:
            return f"{await admin.bus.redrive(chosen)} redriven."

        await self._frame.do("operator", doing, self.update)

    async def _drop_selected(self) -> None:
        places = self._places([str(row["key"]) for row in self._listing.selected])
        if not places:
            ui.notify("Tick those that are to be dropped.")
            return
        if not await confirm(f"Drop {shown.many(len(places), 'dead letter')}? They cannot be had back.", "Drop"):
            return

        async def doing(admin: Admin) -> str:
            return f"{await admin.bus.drop_dead_letters(self._id.value, places)} dropped."

        await self._frame.do("operator", doing, self.update)
        self._listing.table.selected = []

    def _places(self, keys: list[str]) -> list[tuple[str, int]]:
        letters = [self._letters[key] for key in keys if key in self._letters]
        return [(letter.topic.partition("/")[0], letter.offset) for letter in letters]

    def _open(self, row: Row) -> None:
        letter = self._letters.get(str(row["key"]))
        if letter is None:
            return
        with detail(letter.topic):
            show_facts(
                ("Offset", shown.count(letter.offset)),
                ("Published", shown.precise(letter.time_us)),
                ("Given up", shown.precise(letter.dead_at_us)),
                ("Attempts", str(letter.attempts)),
                *((f"Error {at}", shown.plain(error, kept="\n\t")) for at, error in enumerate(letter.errors, 1)),
                *key_and_headers(letter.key, letter.header_pairs),
            )
            show_payload(letter.payload)


def left_out(found: int, total: int, text: str) -> str:
    """What is not shown of so many that were found, and of how many was looked."""
    said = []
    if found > SHOWN:
        said.append(f"{shown.count(found - SHOWN)} more are not shown; find them by their text.")
    if text and total > LOOKED_MAX:
        said.append(f"The first {shown.count(LOOKED_MAX)} of {shown.count(total)} were looked through.")
    return " ".join(said)


def _key(letter: DeadLetter) -> str:
    return f"{letter.topic.partition('/')[0]}/{letter.offset}"


def _searched(letter: DeadLetter) -> str:
    return f"{letter.topic} {' '.join(letter.errors)} {shown.preview(letter.payload)}".lower()
