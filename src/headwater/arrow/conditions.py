"""Conditions on root, topic, offset and timestamp.

These columns are never null, so a condition is true or false of each message. All conditions of a read hold together
(AND).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

TEXTS = ("root", "topic")
NUMBERS = ("offset", "timestamp")
OFFSET_END = 1 << 62

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
OF_TEXT: dict[str, Callable[[str, Any], bool]] = {
    **COMPARE,
    "in": lambda a, b: a in b,
    "starts": lambda a, b: a.startswith(b),
    "ends": lambda a, b: a.endswith(b),
    "contains": lambda a, b: b in a,
}


class Condition(msgspec.Struct, frozen=True):
    """A comparison of a column with a value."""

    column: str
    test: str
    value: Any = None
    negated: bool = False

    def of_text(self, text: str) -> bool:
        """Whether it holds for a root or a topic."""
        if self.test in {"null", "not null"}:
            return (self.test == "not null") != self.negated
        value: Any = self.value
        if self.test in {"<", "<=", ">", ">="}:  # Spark orders strings by their UTF-8 bytes
            return bool(COMPARE[self.test](text.encode(), value.encode())) != self.negated
        return OF_TEXT[self.test](text, value) != self.negated

    def of_numbers(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For which of these offsets or times it holds."""
        if self.test in {"null", "not null"}:
            held = np.full(len(numbers), self.test == "not null")
        elif self.test == "in":
            held = np.isin(numbers, np.array(self.value, np.int64))
        else:
            held = COMPARE[self.test](numbers, self.value)
        return ~held if self.negated else held


class Conditions(msgspec.Struct, frozen=True):
    """All that was handed over."""

    all: tuple[Condition, ...] = ()

    def on(self, column: str) -> list[Condition]:
        """Those on one column."""
        return [condition for condition in self.all if condition.column == column]

    def wants_root(self, root: str) -> bool:
        """Whether any message of a root can be wanted."""
        starts = [c.value for c in self.on("topic") if c.test in {"=", "starts"} and not c.negated and "/" in c.value]
        return all(condition.of_text(root) for condition in self.on("root")) and all(
            start.partition("/")[0] == root for start in starts
        )

    def topic_test(self, wanted: Callable[[str], bool]) -> Callable[[str], bool]:
        """A test of topics that holds these conditions, too."""
        conditions = self.on("topic")
        if not conditions:
            return wanted
        return lambda topic: wanted(topic) and all(condition.of_text(topic) for condition in conditions)

    def offsets(self) -> tuple[int, int]:
        """The first offset that may be wanted, and the first after all that may be."""
        low, high = 0, OFFSET_END
        for condition in self.on("offset"):
            if condition.negated:
                continue
            least, beyond = _bounds(condition)
            low, high = max(low, least), min(high, beyond)
        return low, max(low, high)


def _bounds(condition: Condition) -> tuple[int, int]:
    value = condition.value
    match condition.test:
        case "=":
            return value, value + 1
        case "<":
            return 0, value
        case "<=":
            return 0, value + 1
        case ">":
            return value + 1, OFFSET_END
        case ">=":
            return value, OFFSET_END
        case "in":
            return min(value, default=0), max(value, default=-1) + 1
        case "null":
            return 0, 0
    return 0, OFFSET_END
