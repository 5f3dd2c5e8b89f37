"""Topic aliases on the way out: numbers that stand for topics, for a client that takes some.

The topics that come first have them for as long as the connection lasts: a client with more topics than numbers gets
the others in full, rather than numbers that change with each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.mqtt.fields import variable_bytes

ALIAS: Final = b"\x23"
ALIAS_BYTES: Final = 8
"""By how much a packet may grow that has a topic and its alias: the property, and what the lengths before it take."""


class Aliases:
    """The numbers that one connection's client knows."""

    __slots__ = ("_known", "_max")

    def __init__(self, aliases_max: int) -> None:
        self._max = aliases_max
        self._known: dict[str, bytes] = {}

    def apply(self, topics: Sequence[str], blocks: Sequence[bytes]) -> tuple[list[str], list[bytes]]:
        """Topics and properties as this client gets them: a topic that it knows is left out."""
        known = self._known
        sent: list[str] = []
        told: list[bytes] = []
        for topic, block in zip(topics, blocks, strict=True):
            alias = known.get(topic)
            sent.append(topic if alias is None else "")
            if alias is None and len(known) < self._max:
                alias = known[topic] = ALIAS + (len(known) + 1).to_bytes(2, "big")
            told.append(block if alias is None else _with(alias, block))
        return sent, told


def _with(alias: bytes, block: bytes) -> bytes:
    """A block of properties with one more; its length goes first, in one byte for each 7 bits."""
    at = 0
    while block[at] >= 0x80:
        at += 1
    rest = block[at + 1 :]
    return variable_bytes(len(alias) + len(rest)) + alias + rest
