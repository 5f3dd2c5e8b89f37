"""The house of the demo: rooms with sensors that publish retained values, and one that breaks now and then."""

from __future__ import annotations

import math
import random
from collections import defaultdict

from rich.table import Table

from headwater import Closed, Message
from headwater.bus import Bus
from headwater.cli.demo.stage import Worker, sparkline
from headwater.cli.following import pause
from headwater.surface import Live

ROOMS = ("attic", "bath", "cellar", "hall", "kitchen", "study")
SENSORS = ("temp", "humidity", "light")
BROKEN = b"E07"
BROKEN_EVERY = 40
"""Every so many values of the cellar's thermometer it says what no thermostat understands."""


class House(Worker):
    """Publishes until it is told to stop."""

    def __init__(self, bus: Bus, tick_s: float) -> None:
        super().__init__("house")
        self._bus = bus
        self._tick_s = tick_s
        self._random = random.Random(4)
        self.published: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        """One value of each sensor after another."""
        tick = 0
        while not self.stopping.is_set():
            for number, room in enumerate(ROOMS):
                for sensor in SENSORS:
                    try:
                        self._publish(room, sensor, self._value(sensor, number, tick))
                    except Closed:
                        return  # the demo was interrupted
            tick += 1
            pause(self._tick_s)

    def _value(self, sensor: str, room: int, tick: int) -> bytes:
        wave = math.sin(tick / 9 + room)
        if sensor == "temp":
            if room == ROOMS.index("cellar") and tick % BROKEN_EVERY == BROKEN_EVERY // 2:
                return BROKEN
            return f"{19 + 2 * wave + self._random.uniform(-0.2, 0.2):.2f}".encode()
        if sensor == "humidity":
            return f"{50 + 8 * wave + self._random.uniform(-1, 1):.0f}".encode()
        return f"{max(0, 300 * wave + self._random.uniform(0, 40)):.0f}".encode()

    def _publish(self, room: str, sensor: str, value: bytes) -> None:
        topic = f"home/{room}/{sensor}"
        self._bus.publish(topic, value, retain=True)
        self.published[topic] += 1


class Watcher(Worker):
    """A live subscriber that shows what it sees."""

    def __init__(self, live: Live) -> None:
        super().__init__("watcher")
        self._live = live
        self.seen = 0
        self.retained: list[str] = []
        self.is_retained_first = True
        self._last: dict[str, str] = {}
        self._graphs: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Look, and at the end at what is left."""
        while True:
            try:
                found = self._live.batch(100, 0.05)
            except Closed:
                return
            for message in found:
                self._see(message)
            if not found and self.stopping.is_set():
                return

    def _see(self, message: Message) -> None:
        if message.retained:
            self.retained.append(message.topic)
            self.is_retained_first = self.is_retained_first and self.seen == 0
        else:
            self.seen += 1
        value = message.payload.decode()
        self._last[message.topic] = value
        if message.payload != BROKEN:
            self._graphs[message.topic].append(float(value))

    def picture(self) -> Table:
        """The house as of now."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("home/", style="cyan")
        table.add_column("temp", justify="right")
        table.add_column("")
        table.add_column("humidity", justify="right")
        table.add_column("light", justify="right")
        for room in ROOMS:
            temp = self._last.get(f"home/{room}/temp", "")
            table.add_row(
                room,
                f"[red]{temp}[/]" if temp == BROKEN.decode() else f"{temp} °C" if temp else "",
                f"[green]{sparkline(list(self._graphs[f'home/{room}/temp']))}[/]",
                f"{self._last.get(f'home/{room}/humidity', '')} %",
                self._last.get(f"home/{room}/light", ""),
            )
        return table
