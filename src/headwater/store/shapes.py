"""Shapes: how bodies of plain messages are laid out, remembered, as those of one publisher tend to be laid out alike.

Promises: what fits a shape has the same counts, topics and lengths as the body that the shape was made of, which was
read and found right; only times and payloads differ. What is remembered is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.memo import Memo

SHAPES_MAX = 32
SHAPE_MESSAGES_MAX = 2048
"""Larger bodies are read each time: what a shape saves is little beside their bytes, and it would take memory."""


class Shape(NamedTuple):
    """All of a body but its times and payloads."""

    head: bytes
    """From its start to the times: counts, topics, index."""
    lengths_at: int
    lengths: bytes
    """Where each payload begins and ends."""
    names: tuple[str, ...]
    indexes: Sequence[int]
    is_each_once: bool
    payloads: tuple[list[int], int]
    end: int


remembered: Memo[int, Shape | None] = Memo(SHAPES_MAX)
"""By the length of the body; None where one came for the first time."""


def shape_of(data: bytes) -> Shape | None:
    """The shape of a body, if it is remembered."""
    shape = remembered.known.get(len(data))
    if shape is None or not data.startswith(shape.head) or not data.startswith(shape.lengths, shape.lengths_at):
        return None
    return shape


def is_worth_a_shape(data: bytes, count: int) -> bool:
    """Whether bodies like this come again and again."""
    if count > SHAPE_MESSAGES_MAX:
        return False
    if len(data) in remembered.known:
        return True
    remembered.keep(len(data), None)
    return False


def remember(data: bytes, shape: Shape) -> None:
    """Bodies that are laid out like this one need not be read again."""
    remembered.known[len(data)] = shape
