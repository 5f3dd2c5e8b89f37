"""The stored form of schemas: what is taken of Python types and of JSON Schema, and what is refused."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from headwater.config import Config
from headwater.errors import Malformed, TooLarge
from headwater.schema.document import PARTS_MAX, read

CONFIG = Config()


class Unit(Enum):
    C = "C"
    F = "F"


@dataclasses.dataclass
class AsDataclass:
    celsius: float
    unit: Unit = Unit.C
    tags: set[str] = dataclasses.field(default_factory=set)


class AsStruct(msgspec.Struct):
    celsius: float
    unit: Unit = Unit.C
    tags: set[str] = msgspec.field(default_factory=set)


class AsTypedDict(TypedDict):
    celsius: float
    unit: NotRequired[Unit]
    tags: NotRequired[list[str]]


class AsModel(pydantic.BaseModel):
    celsius: float
    unit: Unit = Unit.C
    tags: list[str] = []


class Node(msgspec.Struct):
    below: Node | None = None


def stored(given: object, config: Config = CONFIG) -> Any:
    return read(given, config).node


def plain(node: Any) -> Any:
    """The same without what is said to people."""
    if isinstance(node, dict):
        return {name: plain(one) for name, one in node.items() if name not in ("title", "description")}
    return node


@pytest.mark.parametrize("type_", [AsDataclass, AsStruct, AsTypedDict, AsModel])
def test_every_kind_of_class_has_the_same_form(type_: object):
    assert plain(stored(type_)) == {
        "type": "object",
        "properties": {
            "celsius": {"type": "number"},
            "unit": {"enum": ["C", "F"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["celsius"],
    }


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (float, {"type": "number"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | float, {"type": "number"}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        ('{"type": "string"}', {"type": "string"}),
        (True, {}),
        ({}, {}),
        ({"const": "x", "type": "string"}, {"enum": ["x"]}),
        (
            {"type": ["string", "null"], "maxLength": 3},
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        ),
        ({"anyOf": [{"type": "integer"}, {}]}, {}),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": {}}, "required": ["a"]}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": False}, {"type": "array", "items": {}, "maxItems": 0}),
        ({"type": "integer", "minimum": 1.0}, {"type": "integer", "minimum": 1}),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, {"type": "null"}),
        ({"type": "string", "default": 3, "$comment": "x", "description": "y"}, {"type": "string", "description": "y"}),
    ],
)
def test_what_says_the_same_is_stored_in_one_form(given: object, form: object):
    assert stored(given) == form
    assert stored(read(given, CONFIG).text) == form  # and that is its own form


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "string", "pattern": "(a+)+$"}, "pattern"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"allOf": []}, "allOf.* is not known"),
        ({"tpye": "string"}, "tpye.* is not known"),
        ({"minimum": 3}, "no type"),
        ({"type": "string", "minimum": 3}, "says nothing about a string"),
        ({"type": "text"}, "use one of null, boolean"),
        ({"type": []}, "no type in its list"),
        ({"type": "string", "format": "email"}, "format"),
        ({"type": "string", "format": "date", "maxLength": 3}, "format and more"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "number", "multipleOf": 0}, "multipleOf"),
        ({"type": "integer", "minimum": 0.5}, "whole number"),
        ({"type": "integer", "maximum": 2**70}, "64 bits"),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": 1}, "one of them"),
        ({"enum": []}, "list what it may be"),
        ({"enum": [1.5]}, "1.5 in its enum"),
        ({"enum": ["a"], "type": "integer"}, "is of type"),
        ({"enum": ["a"], "maxLength": 3}, "says it all"),
        ({"anyOf": []}, "list the alternatives"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use number"),
        ({"type": "array", "prefixItems": [{}], "items": {}}, "false, or nothing"),
        ({"type": "array", "prefixItems": [{}], "minItems": 2}, "no more for minItems"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}, "use one of them"),
        ({"type": "object", "properties": {"a": 3}}, r"\$\.a is 3"),
        ({"type": "object", "properties": [1]}, "schemas by name"),
        ({"type": "object", "required": "a"}, "names of properties"),
        ({"$ref": "https://example.org/schema"}, "stands in itself"),
        ({"$ref": "#/$defs/a"}, "not there"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no end"),
        (Node, "no end"),
        (Annotated[str, msgspec.Meta(pattern="x")], "pattern"),
        ({"type": "string", "title": 3}, "use text"),
        (False, "give a dataclass"),
        (3, "give a dataclass"),
        (AsDataclass(1.0), "give a dataclass"),
        (object, "give a dataclass"),
        ({"type": datetime}, "written as JSON"),
        ("{", "read as JSON"),
        ("[" * 60_000, "read as JSON"),
        (b"\xff", "read as JSON"),
    ],
)
def test_what_cannot_be_checked_is_refused_and_not_passed_over(given: object, why: str):
    with pytest.raises(Malformed, match=why):
        read(given, CONFIG)


def test_how_much_a_schema_is_has_limits_whatever_refers_to_what():
    deep: Any = {"type": "integer"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    with pytest.raises(Malformed, match="schema_depth_max"):
        read(deep, CONFIG)
    with pytest.raises(TooLarge, match="schema_bytes_max"):
        read({"enum": [str(n) for n in range(20_000)]}, CONFIG)
    # Ten of ten of ten … of one: small as text, and too many once each stands in its place.
    laughs: dict[str, Any] = {"n8": {"type": "integer"}}
    for level in range(8):
        laughs[f"n{level}"] = {"type": "array", "prefixItems": [{"$ref": f"#/$defs/n{level + 1}"}] * 10}
    with pytest.raises(TooLarge, match=str(PARTS_MAX)):
        read({"$ref": "#/$defs/n0", "$defs": laughs}, CONFIG)
    longer = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/b"}] * 5}}}
    longer["$defs"]["b"] = {"type": "string", "description": "x" * 200}  # type: ignore[index]  # it is a dict
    with pytest.raises(TooLarge, match="schema_bytes_max"):
        read(longer, Config(schema_bytes_max=900))
    chain = {"$ref": "#/$defs/n0", "$defs": {f"n{n}": {"$ref": f"#/$defs/n{n + 1}"} for n in range(1000)}}
    with pytest.raises(Malformed, match="schema_depth_max"):
        read(chain, CONFIG)


def test_a_model_is_checked_as_it_is_written():
    class Aliased(pydantic.BaseModel):
        celsius: float = pydantic.Field(alias="c")

    assert list(stored(Aliased)["properties"]) == ["celsius"]
