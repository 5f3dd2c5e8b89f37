"""Typed columns: what payloads say, by the schemas of their topics."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater.config import Config
from headwater.lake.evolution import grown, type_in
from headwater.lake.values import FIELDS_MAX, Values, value_type
from headwater.message import SchemaInfo
from headwater.schema.checker import Schema
from headwater.schema.document import read
from headwater.spark.pipelines.archive import Archive
from headwater.spark.source import MESSAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = {
    "type": "object",
    "properties": {
        "celsius": {"type": "number"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"room": {"type": "string"}, "floor": {"type": "integer"}}},
        "log": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "by": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "day": {"type": "string", "format": "date"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "unit": {"enum": ["C", "F", None]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}]},
    },
    "required": ["celsius"],
}


def info(filter: str, schema: object) -> SchemaInfo:
    return SchemaInfo(filter, read(schema, Config()).text, 0)


def told(schemas: list[SchemaInfo], messages: list[tuple[str, bytes]], kind: Any = None) -> list[tuple[Any, Any]]:
    """The value, without its nulls, and the misfit of each message."""
    kind = kind or value_type(schemas)
    topics = pa.array([topic for topic, _ in messages]).dictionary_encode()
    columns = Values(schemas, pa.schema([("value", kind)])).columns(topics, pa.array([one for _, one in messages]))
    assert columns["value"].type == kind
    columns["value"].validate(full=True)
    values = [one and {name: it for name, it in one.items() if it is not None} for one in columns["value"].to_pylist()]
    return list(zip(values, columns["misfit"].to_pylist(), strict=True))


def test_each_kind_of_property_is_a_column():
    schema = info("home/#", READING)
    kind = value_type([schema])
    assert kind is not None
    assert {field.name: str(field.type) for field in kind} == {
        "celsius": "double",
        "count": "int64",
        "tags": "list<item: string>",
        "place": "struct<room: string, floor: int64>",
        "log": "list<item: struct<x: int64>>",
        "by": "map<string, int64>",
        "any": "string",
        "either": "string",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "raw": "binary",
        "unit": "string",
        "pair": "string",
    }
    full = {
        "celsius": 1,
        "count": 3,
        "tags": ["a", "b"],
        "place": {"room": "r", "floor": 2},
        "log": [{"x": 1}, {}],
        "by": {"a": 1},
        "any": {"b": [1]},
        "either": 5,
        "at": "2026-01-01T01:00:00.5+01:00",
        "day": "2026-01-02",
        "raw": "YQ==",
        "unit": None,
        "pair": [1, "x"],
        "more": 1,
    }
    messages = [full, {"celsius": 2}, {"celsius": 3, "tags": [], "by": {}, "at": None, "any": None, "place": {}}]
    found = told([schema], [("home/x", json.dumps(one).encode()) for one in messages])
    assert [why for _, why in found] == [None] * 3
    assert [value for value, _ in found] == [
        {
            "celsius": 1.0,
            "count": 3,
            "tags": ["a", "b"],
            "place": {"room": "r", "floor": 2},
            "log": [{"x": 1}, {"x": None}],
            "by": [("a", 1)],
            "any": '{"b": [1]}',
            "either": "5",
            "at": datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "raw": b"a",
            "pair": '[1, "x"]',
        },
        {"celsius": 2.0},
        {"celsius": 3.0, "tags": [], "by": [], "place": {"room": None, "floor": None}},
    ]


def test_what_does_not_fit_says_why_and_topics_without_a_schema_say_nothing():
    schema = info("home/+", READING)
    found = told(
        [schema],
        [
            ("home/x", b'{"celsius": "warm"}'),
            ("home/x", b"hello"),
            ("home/x", b""),
            ("garden/x", b"hello"),
            ("home/x", b'{"celsius": 1, "count": %d}' % 2**70),
            ("home/x", b'{"celsius": 1, "count": %d}' % (2**63 - 1)),
        ],
    )
    assert [value for value, _ in found] == [None] * 5 + [{"celsius": 1.0, "count": 2**63 - 1}]
    whys = [why for _, why in found]
    assert whys[0] == "at $.celsius: Expected `float`, got `str`"
    assert "it is not JSON" in whys[1]
    assert whys[2:4] == [None, None]
    assert "it fits, and is no column" in whys[4]


def test_schemas_of_a_root_have_their_columns_together():
    schemas = [
        info(
            "home/+/temp", {"type": "object", "properties": {"celsius": {"type": "number"}, "by": {"type": "string"}}}
        ),
        info(
            "home/+/door",
            {"type": "object", "properties": {"open": {"type": "boolean"}, "celsius": {"type": "integer"}}},
        ),
        info("home/+/count", {"type": "integer"}),
        info(
            "home/#", {"type": "object", "properties": {"by": {"type": "integer"}, "By": {"type": "null"}, "a.b": {}}}
        ),
    ]
    kind = value_type(schemas)
    assert kind is not None
    assert {field.name: str(field.type) for field in kind} == {
        "celsius": "double",
        "by": "string",  # text in one, a number in another: JSON
        "open": "bool",
        "value": "int64",
    }
    found = told(
        schemas[:3],
        [
            ("home/a/temp", b'{"celsius": 1.5, "by": "ann", "open": 3}'),
            ("home/a/door", b'{"celsius": 2, "open": true, "by": 3}'),
            ("home/a/count", b"7"),
        ],
        kind,
    )
    assert found == [
        ({"celsius": 1.5, "by": "ann"}, None),
        ({"celsius": 2.0, "open": True}, None),
        ({"value": 7}, None),
    ]


def test_a_schema_without_properties_gives_no_columns_and_one_with_very_many_so_many():
    assert value_type([]) is None
    assert value_type([info("#", {})]) is None
    assert value_type([info("#", {"enum": ["a"]})]) == pa.struct([("value", pa.string())])
    many = {"type": "object", "properties": {f"p{n}": {} for n in range(FIELDS_MAX + 5)}}
    assert len(list(value_type([info("#", many)]) or ())) == FIELDS_MAX


def test_columns_are_added_and_those_that_are_there_stay():
    there = pa.struct(
        [("a", pa.float64()), ("p", pa.struct([("x", pa.int64())])), ("l", pa.list_(pa.struct([("x", pa.int64())])))]
    )
    wanted = pa.struct(
        [
            *(("A", pa.string()), ("new", pa.bool_()), ("p", pa.struct([("y", pa.string()), ("x", pa.string())]))),
            ("l", pa.list_(pa.struct([("z", pa.string())]))),
        ]
    )
    both = grown(there, wanted)
    assert both == pa.struct(
        [
            ("a", pa.float64()),
            ("p", pa.struct([("x", pa.int64()), ("y", pa.string())])),
            ("l", pa.list_(pa.struct([("x", pa.int64()), ("z", pa.string())]))),
            ("new", pa.bool_()),
        ]
    )
    assert grown(both, wanted) == both
    assert grown(both, there) == both
    # What has another type by now keeps its column, with nulls from then on.
    schema = info("#", {"type": "object", "properties": {"a": {"type": "string"}, "new": {"type": "boolean"}}})
    assert told([schema], [("x", b'{"a": "x", "new": true}')], both) == [({"new": True}, None)]


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00Z", "YQ==", "C"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*READING["properties"], "x"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(ODD, max_size=5), st.binary(max_size=20))
@settings(max_examples=200)
def test_whatever_payloads_say_columns_are_made(odd: list[Any], raw: bytes):
    schemas = [info("home/#", READING), info("garden/#", {})]
    payloads = (
        [json.dumps(one).encode() for one in odd]
        + [json.dumps({"celsius": 1, "at": one}).encode() for one in odd]
        + [raw]
    )
    kind = value_type(schemas)
    topics = pa.array([topic for topic in ("home/x", "garden/x") for _ in payloads]).dictionary_encode()
    columns = Values(schemas, pa.schema([("value", kind)])).columns(topics, pa.array(payloads * 2, pa.binary()))
    columns["value"].validate(full=True)
    schema = Schema.of(READING, Config())
    for payload, value, why in zip(payloads, columns["value"], columns["misfit"].to_pylist(), strict=False):
        assert value.is_valid <= (schema.misfit(payload) is None)
        assert not payload or value.is_valid == (why is None)


# In Spark


def test_the_archive_and_reads_have_typed_columns_and_they_grow(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = str(tmp_path / "data"), str(tmp_path / "lake")
    with headwater.open(data) as bus:
        bus.publish("home/a/temp", b"21.5")
        job = Archive(spark, lake, {"data": data})
        list(job.round())
        assert type_in(job.lake.table("home")) is None
        bus.schema("home/+/temp", READING, check="none")
        bus.publish_many([("home/a/temp", {"celsius": n, "place": {"floor": n}}) for n in range(3)])
        bus.publish("home/x", b"hello")
        list(job.round())
        place = {"type": "object", "properties": {"floor": {"type": "integer"}, "door": {"type": "boolean"}}}
        more = {
            "type": "object",
            "properties": {"celsius": {"type": "string"}, "place": place, "new": {"type": "string"}},
        }
        bus.schema("home/+/temp", more, check="none")
        bus.publish("home/a/temp", {"celsius": "warm", "place": {"floor": 9, "door": True}, "new": "n"})
        bus.remove_schema("home/+/temp")
        bus.publish("home/a/temp", b"{}")
        bus.schema("home/+/temp", more, check="none")
        bus.publish("home/a/temp", {})
        list(job.round())

        def rows() -> list[tuple[Any, ...]]:
            found = job.lake.table("home").scan().to_arrow().sort_by("offset").to_pylist()
            return [(one["offset"], one["payload"][:5], bare(one["value"]), one["misfit"]) for one in found]

        archived = rows()
        assert archived == [
            (1, b"21.5", None, None),  # archived before there was a schema
            *((n + 2, b'{"cel', {"celsius": float(n), "place": {"floor": n}}, None) for n in range(3)),
            (5, b"hello", None, None),
            (6, b'{"cel', {"place": {"floor": 9, "door": True}, "new": "n"}, None),
            (7, b"{}", {}, None),
            (8, b"{}", {}, None),
        ]
        assert [one.files_before for one in job.compact(1)] == [3]
        assert rows() == archived

        reader = spark.read.format("headwater").option("data", data).option("topics", "home/#").option("typed", "true")
        frame = reader.load()
        assert frame.columns == [*MESSAGE, "value", "misfit"]
        assert [field.dataType.simpleString() for field in frame.schema.fields[: len(MESSAGE)]] == list(
            MESSAGE.values()
        )
        assert frame.where("value.new = 'n'").count() == 1
        misfits = {
            row.offset: row.misfit for row in frame.select("offset", "misfit").where("misfit is not null").collect()
        }
        assert misfits[1] == "at $: Expected `object`, got `float`"
        assert set(misfits) == {1, 2, 3, 4}
        with_lake = reader.option("lake", lake).load()
        assert (
            with_lake.select("offset", "value", "misfit").collect()
            == frame.select("offset", "value", "misfit").collect()
        )
        assert spark.read.format("headwater").option("data", data).load().columns == list(MESSAGE)
        none = (
            spark.read.format("headwater").option("data", data).option("topics", "x/#").option("typed", "true").load()
        )
        assert none.columns == list(MESSAGE)


def bare(value: Any) -> Any:
    """A value without its nulls; pyiceberg reads a list of objects that is none as an empty one."""
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items() if one is not None and one != []}
    return value


@pytest.mark.parametrize("table", ["subscriptions", "dead_letters"])
def test_other_tables_have_no_typed_columns(table: str):
    from headwater.errors import Malformed
    from headwater.spark.options import read_options

    with pytest.raises(Malformed, match="typed"):
        read_options({"data": "x", "table": table, "typed": "true"})
