"""Places as text: root:offset, as dead letters and states of messages are paged by."""

from __future__ import annotations

from headwater.errors import Malformed

DIGITS_MAX = 19


def place_text(root: str, offset: int) -> str:
    """A place as text."""
    return f"{root}:{offset}"


def place_of(text: str) -> tuple[str, int]:
    """The place that a text is; Malformed (422) if it is none."""
    root, _, digits = text.rpartition(":")
    if not root or not digits.isascii() or not digits.isdigit() or len(digits) > DIGITS_MAX:
        raise Malformed(f'"{text}" is no place; use root:offset, as in a `next`')
    return root, min(int(digits), 2**63 - 1)
