"""The life of a message: what became of it in each subscription that takes it, as a timeline where that is told.

With `states = "stream"` a subscription tells each change on `$sys/states/<id>`; of the others is known how it stands
now. It is read when somebody asks for it, in the time and of the number of entries that this may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Frame, telling
from headwater.admin.dashboard.names import Names, consumer_name
from headwater.clock import SECOND_US, from_datetime, to_datetime
from headwater.delivery.life import LifeEntry
from headwater.delivery.own_topics import STATES, own_topic
from headwater.errors import Gap, HeadwaterError
from headwater.message import Envelope, StateInfo, SubscriptionInfo
from headwater.topics.name import matches

SUBSCRIPTIONS_MAX = 20
"""Subscriptions that are looked at for one message."""
READ_S = 2.0
TAKEN = 1000
ENTRIES_MAX = 100
"""Moments that are shown of one subscription."""
EARLIER_US = SECOND_US
"""Clocks of publishers differ: entries are read from so long before it was published."""
TONES = {"acked": "good", "dead": "bad", "nacked": "busy", "timed_out": "busy", "vanished": "busy", "held": "busy"}
SAID = {
    "taken": "was taken",
    "acked": "was acked",
    "nacked": "was nacked",
    "timed_out": "was not acked in time",
    "vanished": "had its consumer vanish",
    "held": "was held back",
    "dead": "became a dead letter",
    "recalled": "was recalled",
    "redriven": "was redriven",
}
UNTOLD = 'How it came to that is told of subscriptions with states="stream".'
FAILURES = {"nacked", "timed_out", "vanished", "dead"}
NOW = {"retry": "It waits to be tried again", "in_flight": "A consumer has it", "dead": "It is a dead letter"}
WAITS = "It waits."
NOBODY = "No durable subscription takes it."
_decode = msgspec.json.Decoder(LifeEntry).decode


class Life:
    """What is shown of one message."""

    def __init__(self, frame: Frame, message: Envelope) -> None:
        self._frame = frame
        self._message = message
        with ui.expansion("What became of it", on_value_change=self._open).props("dense").classes("hw-more"):
            self._place = ui.column().classes("hw-form")
        self._is_loaded = False

    async def _open(self, event: Any) -> None:
        if not event.value or self._is_loaded:
            return
        self._is_loaded = True
        with telling():
            everyone: list[SubscriptionInfo] = await self._frame.admin.bus.subscriptions()
            taking = [one for one in everyone if matches(one.filter, self._message.topic)]
            names = Names(self._frame.admin)
            await names.learn(one.id for one in taking)
            with self._place:
                if not taking:
                    ui.label(NOBODY).classes("hw-note")
                for one in taking[:SUBSCRIPTIONS_MAX]:
                    await self._show(one, names.of(one.id))
                if len(taking) > SUBSCRIPTIONS_MAX:
                    ui.label(f"{len(taking) - SUBSCRIPTIONS_MAX} more subscriptions take it.").classes("hw-note")

    async def _show(self, one: SubscriptionInfo, name: str) -> None:
        entries = await self._told(one.id)
        now = await self._now(one)
        names = {taker.session: consumer_name(taker) for taker in (*one.active, *one.standing_by)}
        with self._place:
            ui.label(name).classes("hw-panel-title")
            ui.label(now if entries or now == WAITS else f"{now} {UNTOLD}").classes("hw-note")
            if not entries:
                return
            with ui.element("ol").classes("hw-life"):
                for entry in entries[-ENTRIES_MAX:]:
                    with ui.element("li").props(f'data-tone="{TONES.get(entry.event, "quiet")}"'):
                        ui.label(shown.precise(from_datetime(entry.time))).classes("hw-life-time")
                        ui.label(f"{SAID.get(entry.event, entry.event)}{_details(entry, names)}")

    async def _now(self, one: SubscriptionInfo) -> str:
        """How it stands."""
        root, offset = self._message.root, self._message.offset
        states: Sequence[StateInfo] = await self._frame.admin.bus.states(one.id)
        found = next((state for state in states if (state.root, state.offset) == (root, offset)), None)
        if found is not None:
            attempts = f", {shown.many(found.attempts, 'attempt')}" if found.attempts else ""
            errors = f": {shown.error(found.errors[-1])}" if found.errors else ""
            return f"{NOW.get(found.state, f'It is {found.state} now')}{attempts}{errors}."
        if offset <= one.floors.get(root, 0):
            return "It is done with, or was passed over."
        return WAITS

    async def _told(self, id: str) -> list[LifeEntry]:
        """The entries about it, oldest first."""
        bus, message = self._frame.admin.bus, self._message
        topic = own_topic(STATES, id, bus.config)
        self._frame.check_sight(topic)
        found: list[LifeEntry] = []
        reading = bus.replay(topic, since=to_datetime(message.time_us - EARLIER_US))
        try:
            async with asyncio.timeout(READ_S):
                while taken := await _taken(reading):
                    found += [entry for entry in map(_entry, taken) if entry is not None and self._is_about(entry)]
        except TimeoutError:
            pass  # what was read by then is shown
        finally:
            await reading.close()
        return found

    def _is_about(self, entry: LifeEntry) -> bool:
        if entry.copies or entry.root != self._message.root:
            return False
        return any(first <= self._message.offset <= last for first, last in entry.ranges)


async def _taken(reading: Any) -> list[Envelope]:
    while True:
        try:
            taken: list[Envelope] = await reading.batch(TAKEN)
            return taken
        except Gap:
            continue


def _entry(message: Envelope) -> LifeEntry | None:
    try:
        return _decode(message.payload)
    except (msgspec.DecodeError, HeadwaterError):
        return None


def _details(entry: LifeEntry, names: Mapping[str, str]) -> str:
    said = [f" by {names.get(entry.consumer, shown.plain(entry.consumer))}"] if entry.consumer else []
    if entry.event not in FAILURES:
        return "".join(said)
    if entry.attempts:
        said.append(f", attempt {entry.attempts}")
    if entry.retry_at is not None:
        said.append(f", again at {shown.moment(from_datetime(entry.retry_at))}")
    if entry.error:
        said.append(f": {shown.error(entry.error)}")
    return "".join(said)
