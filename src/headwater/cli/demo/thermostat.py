"""The thermostat of the demo: consumers of one durable subscription, that fail, stop and take over from each other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from rich.console import RenderableType
from rich.table import Table

from headwater import Closed, Message, Recalled
from headwater.bus import Bus
from headwater.cli.demo.stage import Worker, meter, pairs
from headwater.cli.following import pause
from headwater.surface import Consumer

ID = "thermostat"
FILTER = "home/+/temp"
ATTEMPTS_MAX = 3
RETRY_S = 0.02
FAILS_ONE_IN = 25


class Handled:
    """What was done, by whichever consumer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offsets: list[int] = []
        self.retries = 0
        self.by: dict[str, int] = {}


class Thermostat(Worker):
    """One consumer, in a thread of its own."""

    def __init__(self, name: str, bus: Bus, handled: Handled, parse: Callable[[bytes], float], pace_s: float) -> None:
        super().__init__(name)
        self._handled = handled
        self._parse = parse
        self._pace_s = pace_s
        self._random = random.Random(name)
        handled.by.setdefault(name, 0)
        self._sub: Consumer = bus.subscribe(
            FILTER, id=ID, start="earliest", max_attempts=ATTEMPTS_MAX, retry_delay_s=RETRY_S, max_in_flight=32
        )
        self.start()

    def stop(self) -> None:
        """Go, with whatever it has in its hands."""
        super().stop()
        self._sub.close()

    def run(self) -> None:
        """Take, and handle."""
        while not self.stopping.is_set():
            try:
                for message in self._sub.batch(8, 0.05):
                    if self.stopping.is_set():
                        return  # messages in hand, not acked: the next consumer gets them
                    self._handle(message)
            except Recalled:
                continue  # what we hold was taken back, since a message before it failed
            except Closed:
                return

    def _handle(self, message: Message) -> None:
        try:
            self._parse(message.payload)
            if message.attempt == 1 and not self._random.randrange(FAILS_ONE_IN):
                raise ValueError("the heating did not answer")
        except ValueError as error:
            self._handled.retries += 1
            message.nack(str(error))
            # Strict order: the messages after this one come again after it.
            raise Recalled(f"message {message.offset} failed") from error
        message.ack()
        with self._handled.lock:
            self._handled.offsets.append(message.offset)
            self._handled.by[self.name] += 1
        pause(self._pace_s)


def parse_strictly(payload: bytes) -> float:
    """What the first thermostat understands."""
    return float(payload)


def parse_kindly(payload: bytes) -> float:
    """What it understands once somebody has read the sensor's manual: E07 means no value."""
    return float("nan") if payload == b"E07" else float(payload)


def picture(bus: Bus, handled: Handled, total: int, active: str) -> Table:
    """How far it has come."""
    info = next((info for info in bus.subscriptions() if info.id == ID), None)
    rows: list[tuple[str, RenderableType]] = [
        ("acked", meter(len(handled.offsets), total)),
        ("by", "  ".join(f"[cyan]{name}[/] {count:,}" for name, count in handled.by.items())),
        ("active", active),
    ]
    if info is not None:
        rows.append(("retrying", f"[yellow]{info.retrying}[/], {handled.retries:,} failures so far"))
        rows.append(("dead letters", f"[red]{info.dead}[/]" if info.dead else "0"))
    return pairs(*rows)


def wait_until(done: Callable[[], bool], limit_s: float) -> bool:
    """Wait for something, not for ever."""
    waited = 0.0
    while not done():
        if waited >= limit_s:
            return False
        pause(0.02)
        waited += 0.02
    return True
