"""Events: what happened that somebody should know, in the log and in a short memory that `bus.events()` shows."""

from __future__ import annotations

import logging
from collections import deque
from datetime import datetime

import msgspec

from headwater.clock import Clock, to_datetime

log = logging.getLogger("headwater")


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    kind: str
    """damage, torn, gap, retention, dead, dead-dropped, expired, clock, mended, trouble"""
    text: str
    time_us: int

    @property
    def timestamp(self) -> datetime:
        """When it happened, UTC."""
        return to_datetime(self.time_us)


class Events:
    """The newest events."""

    def __init__(self, clock: Clock, kept: int) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=max(1, kept))

    def add(self, kind: str, text: str) -> None:
        """Note something, from any thread."""
        self._events.append(Event(kind, text, self._clock.now_us()))
        level = logging.INFO if kind in ("torn", "dead", "expired") else logging.WARNING
        log.log(level, "%s: %s", kind, text, extra={"event": kind, "fields": {"text": text}})

    def trouble(self, text: str) -> None:
        """Something failed that nobody was waiting for."""
        self.add("trouble", text)

    def all(self) -> list[Event]:
        """The newest of them, oldest first."""
        return list(self._events)
