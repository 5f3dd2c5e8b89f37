"""Payloads against schemas: what fits, and what is said of what does not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import Config
from headwater.errors import Malformed
from headwater.schema.checker import TEXT_MAX, Schema

CONFIG = Config()
READING = {
    "type": "object",
    "properties": {
        "celsius": {"type": "number", "minimum": -273.15},
        "unit": {"enum": ["C", "F"]},
        "class": {"type": "string", "maxLength": 3},
        "at": {"type": "string", "format": "date-time"},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["celsius"],
}
ONE_OF_TWO = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "on"}, "watts": {"type": "number"}},
            "required": ["kind", "watts"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "off"}},
            "required": ["kind"],
            "additionalProperties": False,
        },
        {"type": "null"},
    ]
}


def misfit(schema: object, payload: bytes | str) -> str | None:
    return Schema.of(schema, CONFIG).misfit(payload if isinstance(payload, bytes) else payload.encode())


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (READING, '{"celsius": 21}'),
        (READING, '{"celsius": 21.5, "unit": "C", "class": "äöü", "more": [1, {"x": null}]}'),
        (READING, '{"celsius": 1, "at": "2026-01-01T00:00:00Z", "flags": [true, false]}'),
        (ONE_OF_TWO, '{"kind": "on", "watts": 3}'),
        (ONE_OF_TWO, '{"kind": "off"}'),
        (ONE_OF_TWO, "null"),
        ({}, "[1, 2]"),
        ({"type": "object"}, "{}"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, '[1, "x", 3]'),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "[]"),
        ({"type": "string", "contentEncoding": "base64"}, '"YQ=="'),
        ({"enum": [True, "a", 3, None]}, "true"),
        ({"type": "number", "exclusiveMaximum": 3}, "2.9"),
        ({"type": "integer"}, str(2**80)),
    ],
)
def test_what_fits(schema: object, payload: str):
    assert misfit(schema, payload) is None


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        (READING, "{}", "at $: Object missing required field `celsius`"),
        (READING, '{"celsius": "x"}', "at $.celsius: Expected `float`, got `str`"),
        (READING, '{"celsius": -300}', "at $.celsius: Expected `float` >= -273.15"),
        (READING, '{"celsius": 1, "unit": "K"}', "at $.unit: Invalid enum value 'K'"),
        (READING, '{"celsius": 1, "class": "long"}', "at $.class"),
        (READING, '{"celsius": 1, "at": "2026-01-01T00:00:00"}', "at $.at: Expected `datetime` with a timezone"),
        (READING, '{"celsius": 1, "flags": [true, 1]}', "at $.flags[1]: Expected `bool`, got `int`"),
        (READING, "21.5", "at $: Expected `object`, got `float`"),
        (READING, "", "it is empty"),
        (READING, "\x01sealed", "it is not JSON: invalid character (byte 0)"),
        (READING, '{"celsius": 1} {}', "it is not JSON: trailing characters"),
        (READING, b'{"celsius": 1, "more": "\xff"}', "it is not UTF-8"),
        (READING, '{"more": ' + "[" * 100_000, "it is nested too deeply"),
        (ONE_OF_TWO, '{"kind": "on"}', "at $: Object missing required field `watts`"),
        (ONE_OF_TWO, '{"kind": "up"}', "at $.kind: Invalid value 'up'"),
        (ONE_OF_TWO, '{"kind": "off", "x": 1}', "at $: Object contains unknown field `x`"),
        ({"enum": [1]}, "true", "Expected `int`, got `bool`"),
        ({"type": "integer"}, "1.0", "Expected `int`, got `float`"),
        ({"type": "integer"}, "9" * 5000, "out of range"),
        ({"type": "string", "format": "decimal"}, '"1,5"', "decimal"),
        ({"type": "object", "minProperties": 1}, "{}", "length >= 1"),
        ({"type": "array", "prefixItems": [{}], "maxItems": 1}, "[1, 2]", "at most length 1"),
    ],
)
def test_what_does_not_fit_and_what_is_said_of_it(schema: object, payload: bytes | str, why: str):
    said = misfit(schema, payload)
    assert said is not None
    assert why in said


def test_little_of_a_payload_is_repeated():
    said = misfit({"enum": ["a"]}, json.dumps("x" * 10_000))
    assert said is not None
    assert len(said) == TEXT_MAX


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"anyOf": [READING, {"type": "object", "properties": {"b": {}}}]}, "told apart"),
        ({"anyOf": [{"type": "array"}, {"type": "array", "items": {"type": "null"}}]}, "more than one array-like"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}]}, "cannot be checked"),
        ({"type": "object", "properties": {'"': {}}}, "must not contain"),
    ],
)
def test_what_cannot_be_told_apart_while_it_is_read_is_refused(schema: object, why: str):
    with pytest.raises(Malformed, match=why):
        Schema.of(schema, CONFIG)


SCALARS = st.sampled_from(["null", "boolean", "integer", "number", "string"])
SCHEMAS = st.recursive(
    SCALARS.map(lambda name: {"type": name}),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}),
        st.dictionaries(st.sampled_from(["a", "b", "self", "0"]), inner, min_size=1, max_size=3).flatmap(
            lambda its: st.lists(st.sampled_from(sorted(its)), unique=True).map(
                lambda needed: {"type": "object", "properties": its, "required": needed}
            )
        ),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.sampled_from([0.5, 2.5]) | st.sampled_from(["", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "self", "0"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def fits(schema: Any, value: Any) -> bool:
    """The model: what JSON Schema says, of the part that is drawn here."""
    match schema["type"]:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list) and all(fits(schema["items"], one) for one in value)
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys()
        and all(fits(one, value[name]) for name, one in schema["properties"].items() if name in value)
    )


@given(SCHEMAS, VALUES)
def test_schemas_mean_what_they_say(schema: Any, value: Any):
    assert (misfit(schema, msgspec.json.encode(value)) is None) == fits(schema, value)


@given(st.binary(max_size=40))
def test_whatever_bytes_come_are_answered(payload: bytes):
    said = misfit(READING, payload)
    assert said is None or said.startswith(("at $", "it is "))
