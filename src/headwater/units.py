"""Sizes and durations for people: "64MiB" where a name counts bytes, "7d" where it counts seconds."""

from __future__ import annotations

import re

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)", re.IGNORECASE)
SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
SIZES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
DURATIONS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def number_of(field: str, text: str) -> int | float:
    """What a text says for a setting, in bytes or seconds; ValueError if it is no such text."""
    text = text.strip()
    if is_size(field) and (met := SIZE.fullmatch(text)):
        return float(met[1]) * SIZES[met[2].lower()] if "." in met[1] else int(met[1]) * SIZES[met[2].lower()]
    if is_duration(field) and (met := DURATION.fullmatch(text)):
        return float(met[1]) * DURATIONS_S[met[2]]
    raise ValueError(text)


def whole(value: float) -> int | float:
    """The same as an int where it is one."""
    return int(value) if float(value).is_integer() else value


def is_size(field: str) -> bool:
    """Whether a setting counts bytes."""
    return "bytes" in field.split("_")


def is_duration(field: str) -> bool:
    """Whether a setting counts seconds."""
    return "s" in field.split("_")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
