"""Numbers, sizes, moments and payloads as people read them.

What came from a message is shown as it is, except for characters that would move or hide what stands around them:
those are spelled out.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec

from headwater.clock import SECOND_US, from_datetime, to_datetime

TRACEBACK = "Traceback (most recent call last)"
PREVIEW_CHARS = 160
TEXT_BYTES_MAX = 64 * 1024
"""Bytes of a payload that are shown."""
NODES_MAX = 2000
"""Parts of a JSON payload that fold; one of more is shown as text."""
HEX_BYTES_MAX = 4 * 1024
HEX_WIDTH = 16
CUT = "… {} more bytes are not shown"


class Payload(msgspec.Struct, frozen=True):
    """A payload in the ways that it can be read; None where it cannot."""

    text: str | None
    json: str | None
    hex: str

    @property
    def best(self) -> str:
        """The way that says most."""
        return "JSON" if self.json is not None else "Text" if self.text is not None else "Hex"


def count(number: float) -> str:
    """A whole number."""
    return f"{number:,.0f}"


def many(number: int, noun: str) -> str:
    """So many of something."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def brief(number: float) -> str:
    """A number in few characters."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= bound:
            short = number / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{short:,.1f}{unit}" if short < 100 else f"{short:,.0f}{unit}"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:,.1f}"


def seconds(number: float) -> str:
    """How long something took."""
    if number < 1e-3:
        return f"{number * 1e6:,.0f} µs"
    return f"{number * 1e3:,.1f} ms" if number < 1 else f"{number:,.1f} s"


def span(number: float) -> str:
    """How long something lasts, roughly."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if number >= unit:
            return f"{number / unit:,.0f} {name}" if number >= 10 * unit else f"{number / unit:,.1f} {name}"
    return f"{max(0, number):,.0f} s"


def moment(time_us: int) -> str:
    """When something happened, UTC."""
    return to_datetime(time_us).strftime("%Y-%m-%d %H:%M:%S")


def recent(time_us: int, now: datetime) -> str:
    """When something happened, UTC; of today the time of day is enough."""
    text = moment(time_us)
    return text[11:] if text[:10] == moment(from_datetime(now))[:10] else text


def precise(time_us: int) -> str:
    """When something happened, UTC, to the microsecond."""
    return to_datetime(time_us).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def ago(time_us: int, now_us: int) -> str:
    """How long ago something happened."""
    return f"{span((now_us - time_us) / SECOND_US)} ago"


def plain(text: str, kept: str = "") -> str:
    """Text without characters that move or hide others: controls, reversed writing, what has no width."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )


def preview(payload: bytes) -> str:
    """The beginning of a payload, on one line."""
    text = as_text(payload[: 4 * PREVIEW_CHARS])
    if text is None:
        text = "0x" + payload[: PREVIEW_CHARS // 2].hex()
    text = plain(" ".join(text.split()))
    return text if len(text) <= PREVIEW_CHARS and len(payload) <= 4 * PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"


def error(text: str) -> str:
    """An error on one line; of a traceback the last line, which says what it was."""
    text = text.strip()
    if text.startswith(TRACEBACK):
        text = text.rpartition("\n")[2]
    return plain(" ".join(text.split()))


def as_text(payload: bytes) -> str | None:
    """A payload that is text; a character that was cut at the end is left out."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        is_cut = error.start >= len(payload) - 3 and error.reason == "unexpected end of data"
        return payload[: error.start].decode() if is_cut and error.start else None


def decoded(payload: bytes) -> Payload:
    """A payload in every way that it can be read."""
    head = payload[:TEXT_BYTES_MAX]
    text = as_text(head)
    left = len(payload) - len(head)
    more = "\n" + CUT.format(count(left)) if left else ""
    return Payload(
        text=None if text is None else plain(text, kept="\n\t") + more,
        json=None if text is None or left else as_json(text),
        hex=hex_dump(payload),
    )


def as_json(text: str) -> str | None:
    """JSON, laid out; None for what is none, and for plain numbers and words, which are text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return plain(json.dumps(json.loads(text), indent=2, ensure_ascii=False), kept="\n")
    except (ValueError, RecursionError):
        return None


Node = list[Any]
"""Of JSON as it is shown: its name, the text of a value or None, its kind, and what is in it."""


def nodes(payload: bytes) -> Node | None:
    """JSON in parts that fold; None if it is none, or too much to be worth it."""
    try:
        found = json.loads(payload, parse_float=_Literal, parse_int=_Literal)
        return _node("", found, [])
    except (ValueError, RecursionError):
        return None


class _Literal(str):
    """A number as it was written."""

    __slots__ = ()


def _node(name: str, value: Any, made: Node) -> Node:
    made.append(None)
    if len(made) > NODES_MAX:
        raise ValueError("too much")
    if isinstance(value, dict):
        return [name, None, "object", [_node(plain(key), one, made) for key, one in value.items()]]
    if isinstance(value, list):
        return [name, None, "array", [_node(str(at), one, made) for at, one in enumerate(value)]]
    if isinstance(value, _Literal) or not isinstance(value, str):
        return [name, str(value) if isinstance(value, _Literal) else json.dumps(value), "value", []]
    return [name, plain(json.dumps(value, ensure_ascii=False)), "text", []]


def hex_dump(payload: bytes) -> str:
    """Offsets, bytes and characters, side by side."""
    head = payload[:HEX_BYTES_MAX]
    lines = []
    for at in range(0, len(head), HEX_WIDTH):
        row = head[at : at + HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{3 * HEX_WIDTH}} {letters}")
    if len(payload) > len(head):
        lines.append(CUT.format(count(len(payload) - len(head))))
    return "\n".join(lines)
