"""Following a folder that another process writes to: history, and then what is new each time we look."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime

from headwater import Gap, Message
from headwater.bus import Bus
from headwater.cli.output import remark
from headwater.clock import SECOND_US, SystemClock
from headwater.delivery.replay import Reading
from headwater.surface import Live

LOT = 1000
"""Messages that are asked of a server at once."""
LOOK_EVERY_S = 0.05
LOOK_SHARE = 5
"""A look that takes long is followed by a pause of so many times that, to leave the machine to others."""


def pause(seconds: float) -> None:
    """Wait, on the one clock."""
    condition = threading.Condition()
    with condition:
        SystemClock().wait(condition, round(seconds * SECOND_US))


def messages_of(reading: Reading) -> Iterator[Message]:
    """Every message of a reading; one that is gone is remarked upon and passed over."""
    while True:
        try:
            yield next(reading)
        except StopIteration:
            return
        except Gap as gap:
            remark(f'messages {gap.first} to {gap.last} of "{gap.root}" are gone: {gap.reason}')


def served(reader: Live | Reading, timeout_s: float | None) -> Iterator[Message | None]:
    """Messages that a server sends, as they come, and None after each lot; ends when none came for so long."""
    while True:
        try:
            lot = reader.batch(LOT, timeout_s)
        except Gap as gap:
            remark(f'messages {gap.first} to {gap.last} of "{gap.root}" are gone: {gap.reason}')
            continue
        if not lot:
            return
        yield from lot
        yield None


class Follower:
    """Reads a folder again and again, each time from where the last reading ended."""

    def __init__(
        self, bus: Bus, filter: str, after: int | Mapping[str, int] | None = None, since: datetime | None = None
    ) -> None:
        self._bus = bus
        self._filter = filter
        self._reading = bus.replay(filter, after=after, since=since)
        self._ends = bus.ends()

    def messages(self, timeout_s: float | None) -> Iterator[Message | None]:
        """Messages as they come, and None whenever there are no more for now; ends when none came for so long."""
        clock = SystemClock()
        heard_us = clock.monotonic_us()
        while True:
            met = False
            for message in messages_of(self._reading):
                met = True
                yield message
            if met:
                yield None
                heard_us = clock.monotonic_us()
            elif timeout_s is not None and clock.monotonic_us() - heard_us >= timeout_s * SECOND_US:
                return
            looked_us = clock.monotonic_us()
            self._look()
            pause(max(LOOK_EVERY_S, LOOK_SHARE * (clock.monotonic_us() - looked_us) / SECOND_US))

    def _look(self) -> None:
        """See what came meanwhile."""
        self._bus.refresh()
        self._reading = self._bus.replay(self._filter, after=self._ends)
        self._ends = self._bus.ends()
