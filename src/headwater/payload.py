"""Payloads as users give them, and the bytes that are published.

    bytes, bytearray, memoryview    as they are
    str                             UTF-8
    what JSON has, dataclasses,     JSON, with the header content-type: application/json, unless the caller has one
    msgspec.Structs, pydantic
    models, dates, UUIDs …

None is refused: it may mean an empty payload, which clears what is retained, or JSON's null, and only the caller knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Protocol
from uuid import UUID

import msgspec

from headwater.errors import Malformed

CONTENT_TYPE = "content-type"
JSON = "application/json"
TEXT_MAX = 200
"""Of what went wrong, characters that an error repeats."""


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Model(Protocol):
    """What says of itself how it is written as JSON: a pydantic model."""

    def model_dump_json(self) -> str: ...


Bytes = bytes | bytearray | memoryview
Payload = (
    Bytes
    | str
    | float
    | Mapping[str, object]
    | Sequence[object]
    | AbstractSet[object]
    | Dataclass
    | msgspec.Struct
    | Model
    | Enum
    | date
    | time
    | timedelta
    | Decimal
    | UUID
)
"""What can be published as it is, as text or as JSON."""
PLAIN = frozenset((bytes, bytearray, memoryview, str))
"""Types of those that are no JSON."""


def encode(payload: object) -> tuple[bytes, bool]:
    """The bytes to be published, and whether they are JSON; Malformed (422) for what cannot be written."""
    if isinstance(payload, Bytes):
        return bytes(payload), False
    if isinstance(payload, str):
        try:
            return payload.encode(), False
        except UnicodeEncodeError as error:
            raise Malformed(f"the payload cannot be written as UTF-8: {error}") from None
    if payload is None:
        raise Malformed(
            'the payload is None; publish b"" for an empty one (with retain=True it clears what is retained), or '
            '"null" for the null of JSON'
        )
    if isinstance(payload, float) and not math.isfinite(payload):
        raise Malformed(f"the payload is {payload}, which JSON does not have; publish it as text: str(value)")
    return _json(payload), True


def _json(payload: object) -> bytes:
    dump = getattr(payload, "model_dump_json", None)
    try:
        if dump is not None and not isinstance(payload, type):
            text: str = dump()
            return text.encode()
        return msgspec.json.encode(payload, enc_hook=_plain)
    except Exception as error:  # what a model's own code raises is of any type
        raise Malformed(
            f"the payload, of type {type(payload).__name__}, cannot be written as JSON: {str(error)[:TEXT_MAX]}; "
            "publish bytes, text, or what JSON has"
        ) from error


def _plain(part: object) -> object:
    """A part of a payload that msgspec does not know: a model, a number or moment of pandas, NumPy or a class of the
    user's own."""
    if isinstance(part, type):
        raise TypeError(f"a part of it is of type {type(part).__name__}")
    dump = getattr(part, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(part, datetime):
        return part.isoformat() if part == part else None  # noqa: PLR0124  # NaT, which pandas has for none
    if getattr(part, "ndim", None) == 0 and hasattr(part, "dtype"):
        return part.item()  # type: ignore[attr-defined]  # what NumPy has instead of a number
    for plain in (int, float, str):
        if isinstance(part, plain):
            return plain(part)
    raise TypeError(f"a part of it is of type {type(part).__name__}")


def encoded(payload: object, headers: Mapping[str, str] | Sequence[tuple[str, str]]) -> tuple[bytes, Any]:
    """The bytes to be published, and the headers that go with them."""
    data, is_json = encode(payload)
    return data, said_json(headers) if is_json else headers


def said_json(headers: Mapping[str, str] | Sequence[tuple[str, str]]) -> Any:
    """Headers of a payload that is JSON: they say so, unless they say what else it is."""
    try:
        pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
        if any(name.lower() == CONTENT_TYPE for name, _ in pairs):
            return pairs
    except (TypeError, ValueError, AttributeError):
        return headers  # whoever checks them says what is wrong
    return (*pairs, (CONTENT_TYPE, JSON))
