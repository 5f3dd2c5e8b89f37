"""Columns that are read on request: when a message was appended and expires, whether it is retained, its producer."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

import headwater
import headwater.bus
from client.served import Served
from headwater import Outgoing
from headwater.clock import ManualClock
from headwater.errors import Malformed
from headwater.spark.options import read_options
from headwater.spark.reading import BatchReader
from headwater.spark.source import HeadwaterSource

EVERY = "append_time,expires_at,retained,producer"


def rows(columns: str, **place: str) -> list[dict[str, Any]]:
    source = HeadwaterSource({**place, "columns": columns})
    schema = StructType.fromDDL(str(source.schema()))
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, BatchReader)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_what_is_asked_for_is_there_and_nothing_else(spark, tmp_path):
    clock = ManualClock()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        bus.publish("home/a", b"1", retain=True)
        bus.publish_many([Outgoing("home/a", b"2"), Outgoing("home/a", b"3", ttl_s=100_000_000)])
        clock.advance(60)
        bus.publish("home/b", b"4", producer="importer", sequence=1)
    found = rows(EVERY, data=str(tmp_path / "data"))
    assert [row["retained"] for row in found] == [True, False, False, False]
    assert [row["producer"] for row in found] == [None, None, None, "importer"]
    assert [row["expires_at"] is None for row in found] == [True, True, False, True]
    assert (found[2]["expires_at"] - found[2]["timestamp"]).total_seconds() == 100_000_000
    assert (found[3]["append_time"] - found[0]["append_time"]).total_seconds() == pytest.approx(60, abs=1)
    assert [row["append_time"] >= row["timestamp"] for row in found] == [True] * 4
    assert "producer" not in rows("retained", data=str(tmp_path / "data"))[0]
    frame = spark.read.format("headwater").option("data", str(tmp_path / "data")).option("columns", EVERY).load()
    assert [row.producer for row in frame.where("retained or producer is not null").collect()] == [None, "importer"]
    with Served(tmp_path / "data") as server:
        served = rows("expires_at,retained", url=server.url)
        assert [row["retained"] for row in served] == [True, False, False, False]
        assert served[2]["expires_at"] == found[2]["expires_at"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"data": "x", "columns": "payload"}, "use any of"),
        ({"url": "headwater://a:1", "columns": "producer"}, "a server does not send"),
        ({"data": "x", "lake": "l", "columns": "retained"}, 'leave out "lake"'),
    ],
)
def test_what_cannot_be_read_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(Malformed, match=told):
        read_options(given)
