"""Conditions on fields of JSON payloads, as people write them: `$.sensor == "a" and $.celsius > 20`.

    condition   comparison, or several with "and" between them: all have to hold
    comparison  a path, and unless it is enough that the field is there, an operator with a JSON value
    path        $ is the payload; .name or ["any name"] leads into an object, [0] into an array, [*] into each of it
    operator    == != < <= > >= contains

A number equals a number however it is written, and nothing else; < and > compare numbers, or texts. `!=` holds where
the field is there and is something else. `contains` is of a text, or of an array that has the value. With [*] it is
enough that it holds for one.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headwater.errors import Malformed

CHARS_MAX = 1000
COMPARISONS_MAX = 16
STEPS_MAX = 32
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SAME = {"=": "==", "<>": "!="}
HOWTO = 'write $.sensor == "a", $.celsius > 20, or several with "and"'
STEP = re.compile(r"""\.(?P<name>[^\W\d][\w-]*)|\[(?P<at>\d{1,9})\]|\[(?P<each>\*)\]|\[(?=(?P<quote>["']))""")
OPERATOR = re.compile(r"\s*(==|!=|<>|<=|>=|=|<|>|contains\b)\s*")
AND = re.compile(r"\s*(?:and\b|&&)\s*", re.IGNORECASE)
SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'")
_decoder = json.JSONDecoder()

Step = str | int
Path = tuple[Step | None, ...]
"""None stands for each element of an array."""


class Comparison(msgspec.Struct, frozen=True):
    """One field, and what it has to be."""

    path: Path
    operator: str = ""
    """Empty where it is enough that it is there."""
    value: Any = None

    @property
    def needle(self) -> bytes | None:
        """Bytes that a payload has, for which it holds, unless it spells some of its characters as escapes."""
        if isinstance(self.value, str) and self.operator in {"==", "contains"}:
            quoted = msgspec.json.encode(self.value)
            return quoted if self.operator == "==" else quoted[1:-1] or None
        name = next((step for step in reversed(self.path) if isinstance(step, str)), None)
        return None if name is None else msgspec.json.encode(name)

    def holds_of(self, found: Any, depth: int = 0) -> bool:
        """Whether it holds for what is at the end of the rest of the path."""
        for at in range(depth, len(self.path)):
            step = self.path[at]
            if step is None:
                return isinstance(found, list) and any(self.holds_of(one, at + 1) for one in found)
            if isinstance(step, str):
                if not isinstance(found, dict) or step not in found:
                    return False
            elif not isinstance(found, list) or step >= len(found):
                return False
            found = found[step]
        return self._holds(found)

    def _holds(self, found: Any) -> bool:
        if not self.operator:
            return True
        if self.operator == "contains":
            if isinstance(found, str):
                return isinstance(self.value, str) and self.value in found
            return isinstance(found, list) and any(_equal(one, self.value) for one in found)
        if self.operator in {"==", "!="}:
            return _equal(found, self.value) is (self.operator == "==")
        if _kind(found) is not _kind(self.value) or _kind(found) not in {float, str}:
            return False
        return OPERATORS[self.operator](found, self.value)


def _kind(value: Any) -> type:
    """What of JSON's kinds it is; numbers are one."""
    return float if type(value) is int else type(value)


def _equal(found: Any, value: Any) -> bool:
    return _kind(found) is _kind(value) and bool(found == value)


class Condition:
    """Tells of a payload whether all comparisons hold for it."""

    def __init__(self, comparisons: tuple[Comparison, ...]) -> None:
        self.comparisons = comparisons
        names = list(dict.fromkeys(one.path[0] if one.path else None for one in comparisons))
        self._decode: Callable[[bytes], Any] = msgspec.json.decode
        self._fields: tuple[str, ...] | None = None
        if all(isinstance(name, str) for name in names):
            # Of an object the fields that are asked for alone are made; the others are only passed over.
            self._fields = tuple(f"field{at}" for at in range(len(names)))
            known = dict(zip(names, self._fields, strict=True))
            shape = msgspec.defstruct(
                "Fields",
                [(field, Any, msgspec.UNSET) for field in self._fields],
                rename={field: str(name) for name, field in known.items()},
                gc=False,
            )
            self._decode = msgspec.json.Decoder(shape).decode
            self._asked = [(known[one.path[0]], one) for one in comparisons if one.path]
        by_value = [one.needle for one in comparisons if isinstance(one.value, str)]
        needles = [needle for needle in (*by_value, *(one.needle for one in comparisons)) if needle]
        self.needle: bytes | None = needles[0] if needles else None
        """What a payload has in it for which this holds, unless it has escapes."""

    def holds(self, payload: bytes) -> bool:
        """Whether it holds; not for what is no JSON."""
        try:
            found = self._decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if self._fields is None:
            return all(one.holds_of(found) for one in self.comparisons)
        for field, one in self._asked:
            value = getattr(found, field)
            if value is msgspec.UNSET or not one.holds_of(value, 1):
                return False
        return True


def parse(text: str) -> Condition:
    """The condition that somebody wrote; Malformed (422), with what is meant, if it is none."""
    if len(text) > CHARS_MAX:
        raise Malformed(f"a condition has at most {CHARS_MAX} characters, and this has {len(text)}")
    comparisons = tuple(_comparisons(text))
    if len(comparisons) > COMPARISONS_MAX:
        raise Malformed(f"a condition has at most {COMPARISONS_MAX} comparisons, and this has {len(comparisons)}")
    return Condition(comparisons)


def _comparisons(text: str) -> Iterator[Comparison]:
    at = 0
    while True:
        path, at = _path(text, len(text) - len(text[at:].lstrip()))
        found = OPERATOR.match(text, at)
        if found is None:
            yield Comparison(path)
        else:
            value, at = _value(text, found.end())
            word = SAME.get(found[1], found[1])
            if word in {"<", "<=", ">", ">="} and _kind(value) not in {float, str}:
                raise Malformed(f"{word} compares numbers or texts, not {json.dumps(value)[:40]}; {HOWTO}")
            yield Comparison(path, word, value)
        if not text[at:].strip():
            return
        found = AND.match(text, at)
        if found is None:
            raise _unreadable(text, at)
        at = found.end()


def _path(text: str, at: int) -> tuple[Path, int]:
    if not text.startswith("$", at):
        if re.match(r"[^\W\d]", text[at:]):
            raise Malformed(f"a field begins with $.: write $.{text[at:].split(maxsplit=1)[0][:40]}; {HOWTO}")
        raise _unreadable(text, at)
    at += 1
    steps: list[Step | None] = []
    while (found := STEP.match(text, at)) is not None:
        at = found.end()
        if found["quote"]:
            name, at = _value(text, at)
            if not text.startswith("]", at):
                raise _unreadable(text, at)
            at += 1
            steps.append(str(name))
        else:
            steps.append(None if found["each"] else int(found["at"]) if found["at"] else found["name"])
    if len(steps) > STEPS_MAX:
        raise Malformed(f"a path has at most {STEPS_MAX} steps, and this has {len(steps)}")
    return tuple(steps), at


def _value(text: str, at: int) -> tuple[Any, int]:
    single = SINGLE.match(text, at)
    if single is not None:
        return single[1].replace("\\'", "'"), single.end()
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        word = text[at : at + 40].split()
        if word and re.match(r"[^\W\d]", word[0]):
            raise Malformed(f'a text stands in quotes: write "{word[0]}"; {HOWTO}') from None
        raise _unreadable(text, at) from None


def _unreadable(text: str, at: int) -> Malformed:
    left = text[at:].strip()
    where = f'at "{left[:40]}"' if left else "at its end"
    return Malformed(f"the condition cannot be read {where}; {HOWTO}")
