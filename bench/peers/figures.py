"""Numbers as people read them."""

from __future__ import annotations

THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None, unit: str) -> str:
    """With its unit, three digits."""
    if value is None:
        return "–"
    if unit.endswith("/s"):
        return f"{short(value)}/s"
    if unit == "µs" and value >= 999.5:
        return f"{short(value / 1000)} ms"
    return f"{short(value)} {unit}"


def short(value: float) -> str:
    """Three digits and a letter: 1.23M."""
    for size, letter in THOUSANDS:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)}{letter}"
    return _digits(value)


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
