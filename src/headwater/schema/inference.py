"""A schema out of a sample: what payloads have in common, said so that none of them is refused.

It names the types that were seen and requires nothing, as a sample does not show what may be missing. A text that was
a date, or a moment with its time zone, in every payload is one; whole numbers are integers. What was of several types
may be any of them; objects with very many names are maps.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, NamedTuple

import msgspec

from headwater.schema.document import TYPES, Node

NAMES_MAX = 200
"""An object in which more were seen has no properties but keys."""
DEPTH_MAX = 16
"""What is deeper is anything that is JSON."""
READ = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Inferred(NamedTuple):
    """What a sample says."""

    node: Node | None
    """The schema; None if no payload is JSON."""
    seen: int
    """Payloads that were looked at, but for empty ones."""
    unread: list[str]
    """Why some are no JSON, a sentence each."""


def infer(payloads: Iterable[bytes]) -> Inferred:
    """The schema that all of these payloads fit which are JSON."""
    seen, part, unread = 0, _Part(), list[str]()
    for payload in payloads:
        if not payload:
            continue  # an empty payload clears a retained value
        seen += 1
        try:
            part.see(msgspec.json.decode(payload), 0)
        except READ as error:
            unread.append(f"{payload[:40]!r}: {error}")
    return Inferred(part.node() if part.kinds else None, seen, unread)


class _Part:
    """What was seen at one place."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self._formats = {"date-time", "date"}
        self._properties: dict[str, _Part] = {}
        self._items: _Part | None = None
        self._is_deep = False

    def see(self, value: Any, depth: int) -> None:
        match value:
            case None:
                self.kinds.add("null")
            case bool():
                self.kinds.add("boolean")
            case int():
                self.kinds.add("integer")
            case float():
                self.kinds.add("number")
            case str():
                self.kinds.add("string")
                self._formats &= _formats_of(value)
            case list():
                self.kinds.add("array")
                self._items = self._items or _Part()
                self._see_all(value, [self._items] * len(value), depth)
            case dict():
                self.kinds.add("object")
                self._see_all(value.values(), [self._properties.setdefault(name, _Part()) for name in value], depth)

    def _see_all(self, values: Iterable[Any], parts: list[_Part], depth: int) -> None:
        self._is_deep = self._is_deep or depth >= DEPTH_MAX
        if not self._is_deep:
            for value, part in zip(values, parts, strict=True):
                part.see(value, depth + 1)

    def join(self, other: _Part) -> None:
        """See what another has seen."""
        self._formats = (
            self._formats & other._formats
            if "string" in self.kinds & other.kinds
            else (self._formats if "string" in self.kinds else other._formats)
        )
        self.kinds |= other.kinds
        self._is_deep = self._is_deep or other._is_deep
        for name, part in other._properties.items():
            self._properties.setdefault(name, _Part()).join(part)
        if other._items is not None:
            self._items = self._items or _Part()
            self._items.join(other._items)

    def node(self) -> Node:
        if self._is_deep or not self.kinds:
            return {}
        kinds = self.kinds - {"integer"} if "number" in self.kinds else self.kinds
        nodes = [self._node_of(kind) for kind in TYPES if kind in kinds]
        return nodes[0] if len(nodes) == 1 else {"anyOf": nodes}

    def _node_of(self, kind: str) -> Node:
        if kind == "string" and len(self._formats) == 1:
            return {"type": kind, "format": next(iter(self._formats))}
        if kind == "array" and self._items is not None:
            return {"type": kind, "items": self._items.node()}
        if kind == "object" and len(self._properties) > NAMES_MAX:
            every = _Part()
            for part in self._properties.values():
                every.join(part)
            return {"type": kind, "additionalProperties": every.node()}
        if kind == "object":
            return {"type": kind, "properties": {name: part.node() for name, part in self._properties.items()}}
        return {"type": kind}


def _formats_of(text: str) -> set[str]:
    """Which of the formats that are columns of their own a text has."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return set()
    if len(text) == len("2026-01-31"):
        return {"date"} if str(date.fromisoformat(text)) == text else set()
    return {"date-time"} if moment.tzinfo is not None and text[10:11] in {"T", "t", " "} else set()
