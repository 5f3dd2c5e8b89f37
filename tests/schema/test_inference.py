"""Schemas out of samples: each payload of the sample fits, and says what is in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headwater.config import Config
from headwater.schema.checker import Schema
from headwater.schema.document import read
from headwater.schema.inference import DEPTH_MAX, NAMES_MAX, infer

NAMES = some.sampled_from(["a", "b", "c"])
PLAIN = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(allow_nan=False, allow_infinity=False),
    some.sampled_from(["", "x", "2026-01-31", "2026-01-31T08:00:00Z", "2026-02-31", "2026-01-31T08:00:00"]),
)
VALUES = some.recursive(
    PLAIN, lambda inner: some.one_of(some.lists(inner, max_size=3), some.dictionaries(NAMES, inner)), max_leaves=8
)


@given(values=some.lists(VALUES, min_size=1, max_size=6))
def test_every_payload_of_the_sample_fits_what_is_inferred(values):
    payloads = [json.dumps(value).encode() for value in values]
    found = infer(payloads)
    assert found.node is not None
    schema = Schema.stored(read(found.node, Config()).text)
    assert [schema.misfit(payload) for payload in payloads] == [None] * len(payloads)


@pytest.mark.parametrize(
    ("values", "node"),
    [
        (
            [{"celsius": 21}, {"celsius": 21.5, "unit": "C"}],
            {"celsius": {"type": "number"}, "unit": {"type": "string"}},
        ),
        ([{"at": "2026-01-31T08:00:00+01:00"}], {"at": {"type": "string", "format": "date-time"}}),
        ([{"at": "2026-01-31"}, {"at": "2026-01-30"}], {"at": {"type": "string", "format": "date"}}),
        ([{"at": "2026-01-31"}, {"at": "soon"}], {"at": {"type": "string"}}),
        ([{"at": "2026-01-31T08:00:00"}], {"at": {"type": "string"}}),
        ([{"n": 1}, {"n": None}], {"n": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}),
        ([{"n": [1, 2.5]}, {"n": []}], {"n": {"type": "array", "items": {"type": "number"}}}),
        ([{"n": {"b": True}}], {"n": {"type": "object", "properties": {"b": {"type": "boolean"}}}}),
    ],
)
def test_types_are_those_that_were_seen(values, node):
    assert infer(json.dumps(value).encode() for value in values).node == {"type": "object", "properties": node}


def test_what_is_no_json_is_left_out_and_counted():
    found = infer([b"21.5", b"", b"no JSON", b"\xff"])
    assert (found.node, found.seen, len(found.unread)) == ({"type": "number"}, 3, 2)
    assert infer([b"no JSON"]).node is None


def test_an_object_of_very_many_names_is_a_map_and_what_is_very_deep_is_anything():
    wide = {f"device{n}": n for n in range(NAMES_MAX + 1)}
    assert infer([json.dumps(wide).encode()]).node == {"type": "object", "additionalProperties": {"type": "integer"}}
    deep = infer([b"[" * (DEPTH_MAX + 5) + b"]" * (DEPTH_MAX + 5)]).node
    assert deep is not None
    read(deep, Config())
