"""Rebuilding: a new stream of the engine, after the old one was lost, goes on from what one node has.

A row says from which record on the new stream goes; it is written first, so that a node which stands elsewhere takes a
copy, whenever it comes. If it is interrupted, nothing was made that could be read, and the same call does it.
"""

from __future__ import annotations

import msgspec

from headwater.cluster.engine import Engine
from headwater.cluster.record import Position
from headwater.errors import Unavailable

REBUILD = "rebuild"
"""What a node is asked for."""
REBUILT = "rebuilt"
"""The key of the row."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """From where a stream that was made anew goes on: a node that stands elsewhere takes a copy."""

    position: Position
    node: str


def rebuilt(engine: Engine) -> Rebuilt | None:
    """From where the stream goes on; None if it was never made anew, or that cannot be told."""
    try:
        row = engine.row(REBUILT)
        return None if row is None else msgspec.json.decode(row.value, type=Rebuilt)
    except (Unavailable, msgspec.MsgspecError):
        return None


def has_gone_on(position: Position, made: Rebuilt) -> bool:
    """Whether a node has records of the stream that was made anew: the first of them begins another epoch."""
    return position == made.position or position.epoch > made.position.epoch


def make(engine: Engine, node: str, position: Position) -> None:
    """Make a stream that goes on behind this position of a node; raises `Unavailable`."""
    engine.put_row(REBUILT, msgspec.json.encode(Rebuilt(position=position, node=node)))
    engine.unmake()
    engine.make(first=position.sequence + 1)
