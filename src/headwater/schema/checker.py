"""What checks payloads against a schema: a type of msgspec, made of its stored form, which decodes what fits.

Objects of known properties become Structs, so a payload is checked while it is read, at some hundred nanoseconds; of
what a schema says nothing about, no objects are made. What msgspec cannot tell apart while it reads is refused when a
schema is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Union
from uuid import UUID

import msgspec

from headwater.config import Config
from headwater.errors import Malformed
from headwater.schema.document import Document, Node, read

TEXT_MAX = 200
"""Of what is wrong with a payload, characters that are told."""
BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
SIZES = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), "min_length"),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), "max_length"),
}
META = {**BOUNDS, **SIZES, "multipleOf": "multiple_of"}
FORMATS: dict[str, Any] = {
    "date-time": Annotated[datetime, msgspec.Meta(tz=True)],
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
PLAIN: dict[str, Any] = {"null": None, "boolean": bool, "integer": int, "number": float}
UNFIT = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""What a decoder raises for what it cannot take."""
UNBUILT = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError, KeyError, AttributeError)
"""What is raised for a type that cannot be made."""
NOT_JSON = "JSON is malformed: "


class Schema:
    """What payloads have to be, ready to be asked."""

    __slots__ = ("_decode", "document")

    def __init__(self, document: Document) -> None:
        self.document = document
        try:
            self._decode = msgspec.json.Decoder(_type(document.node)).decode
        except UNBUILT as error:
            raise Malformed(f"the schema cannot be checked: {str(error)[:TEXT_MAX]}") from None

    @classmethod
    def of(cls, given: object, config: Config) -> Schema:
        """That of a Python type or a JSON Schema; Malformed (422) says what is wrong with it."""
        return cls(read(given, config))

    @classmethod
    def stored(cls, text: str) -> Schema:
        """That of a stored form, whatever the limits were when it was made."""
        try:
            return cls(Document(msgspec.json.decode(text), text))
        except msgspec.DecodeError as error:
            raise Malformed(f"the stored schema cannot be read: {error}") from None

    def misfit(self, payload: bytes) -> str | None:
        """What is wrong with a payload, and where; None if it fits."""
        try:
            if not payload.isascii():
                payload.decode()
            self._decode(payload)
        except UnicodeDecodeError:
            return "it is not UTF-8, as JSON is"
        except msgspec.ValidationError as error:
            why, _, path = str(error).rpartition(" - at `")
            return _cut(f"at {path[:-1]}: {why}" if why else f"at $: {error}")
        except RecursionError:
            return "it is nested too deeply"
        except UNFIT as error:
            if not payload:
                return "it is empty, which it may be with retain alone, to clear what is retained"
            return _cut(f"it is not JSON: {str(error).removeprefix(NOT_JSON)}")
        return None


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _type(node: Node) -> Any:
    """The type of a schema in its stored form."""
    if "enum" in node:
        return Literal[tuple(node["enum"])]
    if "anyOf" in node:
        return _union(node["anyOf"])
    name = node.get("type")
    if name is None:
        return msgspec.Raw
    if name == "string":
        kind = bytes if "contentEncoding" in node else FORMATS[node["format"]] if "format" in node else str
        return _limited(kind, node)
    if name == "array":
        return _row(node) if "prefixItems" in node else _limited(list[_type(node["items"])], node)  # type: ignore[misc]
    if name == "object":
        if "properties" in node:
            return _object(node)
        return _limited(dict[str, _type(node["additionalProperties"])], node)  # type: ignore[misc]
    return _limited(PLAIN[name], node)


def _limited(kind: Any, node: Node) -> Any:
    limits = {META[word]: value for word, value in node.items() if word in META}
    return Annotated[kind, msgspec.Meta(**limits)] if limits else kind


def _object(node: Node, tag_field: str | None = None) -> Any:
    """A Struct; in a union one that is known by a property of its own."""
    properties, required = dict(node["properties"]), node.get("required", ())
    tag = properties.pop(tag_field)["enum"][0] if tag_field is not None else None
    names = {f"f{place}": name for place, name in enumerate(properties)}
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (field, _type(properties[name])) if name in required else (field, _type(properties[name]), None)
        for field, name in names.items()
    ]
    return msgspec.defstruct(
        *("Object", fields),
        tag_field=tag_field,
        tag=tag,
        rename=names,
        kw_only=True,
        gc=False,
        forbid_unknown_fields=not node.get("additionalProperties", True),
    )


def _row(node: Node) -> Any:
    """An array with a value for each place."""
    needed = node["minItems"]
    fields: list[Any] = [
        (f"f{place}", _type(one)) if place < needed else (f"f{place}", _type(one), None)
        for place, one in enumerate(node["prefixItems"])
    ]
    return msgspec.defstruct("Row", fields, array_like=True, gc=False, forbid_unknown_fields="maxItems" in node)


def _union(nodes: Sequence[Node]) -> Any:
    objects = [node for node in nodes if node.get("type") == "object"]
    tag_field = _tag_field(objects) if len(objects) > 1 else None
    kinds = [_object(node, tag_field) if tag_field and node in objects else _type(node) for node in nodes]
    return Union[tuple(kinds)]  # noqa: UP007  # there is no other way to write one of a list


def _tag_field(objects: Sequence[Node]) -> str:
    """The property by which objects are told apart: each has a value of its own there, and has to have it."""
    for name in objects[0].get("properties", ()):
        tags = {_tag(node, name) for node in objects}
        if None not in tags and len(tags) == len(objects) and len(set(map(type, tags))) == 1:
            return str(name)
    raise Malformed(
        "the schema has alternatives that are objects and cannot be told apart; give each a property that is required "
        'and has a const of its own, such as "kind"'
    )


def _tag(node: Node, name: str) -> str | int | None:
    """What an object's property has to be, if that is one text or number."""
    values = node.get("properties", {}).get(name, {}).get("enum", ())
    if len(values) != 1 or name not in node.get("required", ()) or type(values[0]) not in (str, int):
        return None
    tag: str | int = values[0]
    return tag
