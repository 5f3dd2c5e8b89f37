"""Events: what happened that somebody should know, in the log and in a short memory that `bus.events()` shows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec

from headwater.clock import SECOND_US, Clock, SteadyClock, StepState, to_datetime

log = logging.getLogger("headwater")


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    kind: str
    """damage, torn, mended, gap, retention, dead, dead-dropped, dead-full, expired, clock, open-to-others, trouble"""
    text: str
    time_us: int

    @property
    def time(self) -> datetime:
        """When it happened, UTC."""
        return to_datetime(self.time_us)

    @property
    def timestamp(self) -> datetime:
        """`time`, by its older name."""
        return self.time


class Tell(Protocol):
    """`Events.add`."""

    def __call__(self, kind: str, text: str, **fields: object) -> None: ...


class Events:
    """The newest events."""

    def __init__(self, clock: Clock, kept: int) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=max(1, kept))
        self.user_of: Callable[[str], str] | None = None
        """Whose a consumer is, where a server knows that."""

    def add(self, kind: str, text: str, **fields: object) -> None:
        """Note something, from any thread. A log that is structured has the fields, if there are any, or the text."""
        self._events.append(Event(kind, text, self._clock.now_us()))
        level = logging.INFO if kind in ("torn", "mended", "dead", "expired") else logging.WARNING
        if self.user_of is not None and "consumer" in fields:
            fields["user"] = self.user_of(str(fields["consumer"]))
        log.log(level, "%s: %s", kind, text, extra={"event": kind, "fields": fields or {"text": text}})

    def trouble(self, text: str) -> None:
        """Something failed that nobody was waiting for."""
        self.add("trouble", text)

    def all(self) -> list[Event]:
        """The newest of them, oldest first."""
        return list(self._events)

    def on_clock_step(self, step_us: int, state: StepState) -> None:
        """The machine's clock was set by more than a little, or what becomes of that is known."""
        settle_s = SteadyClock.STEP_SETTLE_US // SECOND_US
        step = f"the machine's clock was set by {step_us / SECOND_US:+.0f} s"
        said = {
            "noticed": ": time goes on as before (deliver_at, ttl_s, retention, timestamps), and the step counts "
            f"in {settle_s} s if it stays so, or at the next start; if the clock is wrong, set it right",
            "counts": f" more than {settle_s} s ago, and that counts now: what is due or expired by it goes",
            "taken back": ", and is right again: the step never counted",
        }
        self.add("clock", step + said[state])
