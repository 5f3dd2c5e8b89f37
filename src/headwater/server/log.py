"""What the server logs: one line an event, as `time LEVEL event key=value …` or as a JSON object.

    log = Log("headwater.server.listener")
    log.info("listening", host="127.0.0.1", port=7411)
    log.at_will(logging.WARNING, "refused", user=user, address=address)

An event is a constant; what varies is in its fields, never in the text. Values are shortened and quoted, so that no
peer can forge a line or move a cursor, and fields that by their name hold a secret are starred. What a peer can cause
as often as it likes goes through `at_will`, which writes a few lines a second and counts the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import IO, Any

from headwater import threads
from headwater.clock import SECOND_US, Clock, SystemClock, to_datetime

LINES_PER_SECOND_MAX = 10
"""Lines of one event that peers can cause in a second; more are counted, and the count is one line."""
EVENTS_MAX = 256
"""Events whose lines are counted apart; further ones share a count."""
VALUE_CHARS_MAX = 1024
"""Longer values are cut."""

SECRETS = re.compile(
    r"secret|password|passphrase|proof|token|credential|authorization|private|stored_key|salted", re.IGNORECASE
)
STARS = "***"
IN_URL = re.compile(r"(://[^:@/\s]*):\S*@")
"""A password in a URL; up to the last @, since it may hold one itself."""
PLAIN = re.compile(r"[\w.:/@%+,;*#$\[\]()<>-]+", re.ASCII)


OF_THE_BUS_AT_WILL = frozenset(("dead",))
"""Events that the bus itself tells of, which clients can cause as often as they like."""


class Log:
    """Logs events with fields under a name below "headwater"."""

    def __init__(self, name: str = "headwater", clock: Clock | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._flood = Flood(self._logger, clock or SystemClock())

    def info(self, event: str, /, **fields: object) -> None:
        """Something that is meant to happen."""
        self.write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Something that an operator may want to change."""
        self.write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Something that failed; within an `except`, with its traceback."""
        self.write(logging.ERROR, event, fields, trace=sys.exc_info()[0] is not None)

    def at_will(self, level: int, event: str, /, **fields: object) -> None:
        """An event that a peer can cause as often as it likes: a few lines a second, then a count of the rest."""
        if self._logger.isEnabledFor(level) and self._flood.admits(event):
            self.write(level, event, fields)

    def flush(self) -> None:
        """Write the counts of what was left out so far."""
        self._flood.flush()

    def write(self, level: int, event: str, fields: dict[str, object], trace: bool = False) -> None:
        """An event at a level that is not known beforehand."""
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, exc_info=trace, extra={"event": event, "fields": fields})


class Flood:
    """Counts lines by event and second, and says how many were left out once the second is over."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threads.Lock()
        self._second = 0
        self._seen: dict[str, int] = {}
        self._is_timed = False

    def admits(self, event: str) -> bool:
        """Whether one more line of this event may be written now."""
        left_out: dict[str, int] = {}
        with self._lock:
            second = self._clock.monotonic_us() // SECOND_US
            if second != self._second:
                left_out = self._left_out()
                self._seen = {}
                self._second = second
            if event not in self._seen and len(self._seen) >= EVENTS_MAX:
                event = "others"
            self._seen[event] = self._seen.get(event, 0) + 1
            admitted = self._seen[event] <= LINES_PER_SECOND_MAX
        self._tell(left_out)
        if not admitted:
            self._tell_later()
        return admitted

    def flush(self) -> None:
        """Say what was left out until now."""
        with self._lock:
            left_out = self._left_out()
            self._seen = {event: min(count, LINES_PER_SECOND_MAX) for event, count in self._seen.items()}
            self._is_timed = False
        self._tell(left_out)

    def _left_out(self) -> dict[str, int]:
        over = {event: count - LINES_PER_SECOND_MAX for event, count in self._seen.items()}
        return {event: count for event, count in over.items() if count > 0}

    def _tell(self, left_out: dict[str, int]) -> None:
        for event, count in left_out.items():
            self._logger.warning("suppressed", extra={"event": "suppressed", "fields": {"of": event, "count": count}})

    def _tell_later(self) -> None:
        """On an event loop the count comes by itself; elsewhere with the next line, or `flush`."""
        if self._is_timed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._is_timed = True
        loop.call_later(1.0, self.flush)


def is_admitted(record: logging.LogRecord, flood: Flood) -> bool:
    """Whether a line may be written that was not asked of `Log`."""
    event = getattr(record, "event", None)
    return record.name != "headwater" or event not in OF_THE_BUS_AT_WILL or flood.admits(str(event))


# How lines look


class Lines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO listening host=127.0.0.1 port=7411`."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record)
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        return f"{_time(record)} {record.levelname} {_quoted(event)}{pairs}"


class JsonLines(logging.Formatter):
    """`{"time":"2026-01-31T12:00:00.000Z","level":"info","event":"listening","host":"127.0.0.1","port":7411}`."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record)
        taken = {"time": _time(record), "level": record.levelname.lower(), "event": event}
        # A field may not pass for what every line has.
        named = {f"{name}_" if name in taken else name: value for name, value in fields.items()}
        return json.dumps(taken | named, separators=(",", ":"))


def configure(as_json: bool = False, level: str = "info", stream: IO[str] | None = None) -> logging.Handler:
    """Send what is logged under "headwater", and what asyncio complains about, to a stream: stderr unless told."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else Lines())
    flood = Flood(logging.getLogger("headwater"), SystemClock())
    handler.addFilter(lambda record: is_admitted(record, flood))
    for name in ("headwater", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper() if name == "headwater" else logging.WARNING)
    # A log that cannot be written is no reason to fail, nor to write about it to the same place.
    logging.raiseExceptions = False
    return handler


def _time(record: logging.LogRecord) -> str:
    return to_datetime(round(record.created * SECOND_US)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parts(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The event and its fields, ready to be shown; of a foreign record, its text is a field."""
    event = getattr(record, "event", None)
    given = getattr(record, "fields", None)
    if not isinstance(event, str) or not isinstance(given, dict):
        event, given = "log", {"logger": record.name, "text": record.getMessage()}
    fields = {str(name): _shown(str(name), value) for name, value in given.items()}
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = _shown("error", record.exc_info[1])
        fields["traceback"] = IN_URL.sub(rf"\1:{STARS}@", logging.Formatter().formatException(record.exc_info))
    return event, fields


def _shown(name: str, value: object) -> str | int | float | bool | None:
    if SECRETS.search(name):
        return STARS
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value[: VALUE_CHARS_MAX // 2 + 1]).hex()
    elif isinstance(value, Mapping):
        text = json.dumps({str(inner): _shown(str(inner), held) for inner, held in value.items()})
    elif isinstance(value, BaseException) and not str(value):
        text = type(value).__name__
    else:
        text = str(value)
    # Before it is cut: of a password that is cut in half, the @ after it would be gone.
    text = IN_URL.sub(rf"\1:{STARS}@", text)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=not value.isprintable())
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
