"""Cron lines: when a line is due next, in a zone. The rules are those of Debian's cron, as `cronsim` has them."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from headwater.clock import SECOND_US, from_datetime
from headwater.errors import Malformed

if TYPE_CHECKING:
    from cronsim import CronSim

LINE_CHARS_MAX = 256
"""A longer line: Malformed (422)."""
ZONE_CHARS_MAX = 64
FIELDS = "minute hour day-of-month month day-of-week"
EXAMPLE = '"0 3 * * *" is every day at three'
ODD = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""What a line that makes no sense may raise instead."""
AGAIN_MAX = 240
"""Times that may come before the one that was asked for: those of the hour that a zone has twice."""


class Cron:
    """A line, in a zone."""

    def __init__(self, line: object, zone: object = "UTC") -> None:
        if not isinstance(line, str) or len(line) > LINE_CHARS_MAX or len(line.split()) != len(FIELDS.split()):
            shown = line[:LINE_CHARS_MAX] if isinstance(line, str) else line
            raise Malformed(f"cron is {shown!r}; write five fields ({FIELDS}): {EXAMPLE}")
        self.line = " ".join(line.split())
        self.zone = _zone(zone)

    def next_us(self, after_us: int) -> int:
        """The first time after a moment; Malformed (422) for what no clock will ever say."""
        from cronsim import CronSimError

        try:
            return self._next_us(after_us)
        except (CronSimError, *ODD) as error:
            raise Malformed(f'cron "{self.line}": {_lowered(error)}; the fields are {FIELDS}: {EXAMPLE}') from None

    def _next_us(self, after_us: int) -> int:
        times = self._times(after_us)
        for _ in range(AGAIN_MAX):
            found: datetime | None = next(times, None)
            if found is None:
                break
            if (found_us := from_datetime(found)) > after_us:
                return found_us
        raise Malformed(f'cron "{self.line}" never comes: there is no such day; {EXAMPLE}')

    def _times(self, after_us: int) -> CronSim:
        from cronsim import CronSim

        return CronSim(self.line, datetime.fromtimestamp(after_us // SECOND_US, self.zone))


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # few name one

    try:
        if not isinstance(name, str) or not 0 < len(name) <= ZONE_CHARS_MAX:
            raise ValueError
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        shown = name[:ZONE_CHARS_MAX] if isinstance(name, str) else name
        raise Malformed(f'zone is {shown!r}, which is not known here; write "UTC", "Europe/Berlin" …') from None


def _lowered(error: Exception) -> str:
    text = str(error) or "it makes no sense"
    return text[:1].lower() + text[1:]
