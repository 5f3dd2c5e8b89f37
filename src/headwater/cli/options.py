"""Options that many commands share, and how offsets and moments are written."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

import headwater
from headwater.clock import SystemClock, to_datetime
from headwater.errors import Malformed

DATA = "headwater-data"

Data = Annotated[
    str, typer.Option("--data", envvar="HEADWATER_DATA", metavar="FOLDER", help="The folder that holds the data.")
]
Json = Annotated[bool, typer.Option("--json", help="For machines: JSON, one object a line.")]
Hex = Annotated[bool, typer.Option("--hex", help="Show payloads in hexadecimal, also those that are text.")]
Raw = Annotated[bool, typer.Option("--raw", help="Write payloads only, byte for byte, each followed by a newline.")]

RELATIVE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ms|s|m|h|d)")
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def own(data: str) -> headwater.Bus:
    """The bus on a folder, to change it."""
    return headwater.open(data)


def look(data: str) -> headwater.Bus:
    """The bus on a folder, to look at it; also while another process owns it."""
    return headwater.open(data, read_only=True)


def moment(text: str, *, ago: bool = False) -> datetime:
    """A moment: 2026-01-31T12:00[+01:00], or 90s, 5m, 2h, 1d from now (with `ago`, before now)."""
    relative = RELATIVE.fullmatch(text.strip())
    if relative:
        sign, number, unit = relative.groups()
        seconds = float(number) * UNITS_S[unit]
        if sign == "-" or (ago and not sign):
            seconds = -seconds
        try:
            return to_datetime(SystemClock().now_us()) + timedelta(seconds=seconds)
        except OverflowError:
            raise Malformed(f'"{text}" lies outside of the calendar') from None
    try:
        given = datetime.fromisoformat(text.strip())
        return given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Malformed(
            f'"{text}" is no moment; write 2026-01-31T12:00, with a zone if it is not the local one, or 90s, 5m, 2h, 1d'
        ) from None


def start(text: str) -> str | int | datetime:
    """Where a subscription begins: earliest, latest, an offset, or a moment."""
    if text in ("earliest", "latest"):
        return text
    return int(text) if text.isdecimal() else moment(text, ago=True)


def after(given: list[str]) -> int | dict[str, int] | None:
    """Where a replay begins: an offset, or one for each of several roots, as in home=1200."""
    if not given:
        return None
    if len(given) == 1 and given[0].isdecimal():
        return int(given[0])
    places = {}
    for text in given:
        root, equals, offset = text.rpartition("=")
        if not equals or not offset.isdecimal():
            raise Malformed(f'--after "{text}" is no offset; write --after 1200, or --after home=1200 for each root')
        places[root] = int(offset)
    return places
