"""What the reader in Spark's own process is told, over the pipe that it has."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import headwater
from headwater.arrow.conditions import Condition, Conditions
from headwater.spark import spans
from headwater.spark.options import read_options
from headwater.spark.planner import pattern_of, pattern_of_topics, python_reads, serve
from headwater.store.body import Body
from headwater.topics.name import compile_filter
from spark.test_reading import SMALL, fill
from topics.test_name import FILTERS, TOPICS

Answer = dict[str, Any]


def asked(*requests: Answer) -> list[tuple[Answer, bytes]]:
    """What is answered, each with the bytes that follow it."""
    lines = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
    out = io.BytesIO()
    serve(io.BytesIO(lines), out)
    out.seek(0)
    found = []
    while line := out.readline():
        said: Answer = json.loads(line)
        found.append((said, out.read(said.get("bytes", 0) + 4 * said.get("deltas", 0))))
    return found


def answer(ask: str, **request: Any) -> Answer:
    ((said, data),) = asked({"ask": ask, **request})
    assert not data
    return said


@pytest.fixture
def folder(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        bus.purge("home/3/#")
    return str(tmp_path / "data")


def test_a_plan_says_where_each_span_stands_and_what_is_not_to_be_seen(folder):
    said = answer("plan", options={"data": folder, "topics": "home/#"}, conditions=[], ends=None)
    assert said["ends"] == {"home": 301}
    (partition,) = said["partitions"]
    (span,) = partition["spans"]
    assert (span["root"], span["first"], span["last"]) == ("home", 1, 300)
    assert span["folder"] == f"{folder}/streams/1-home"
    assert [purge["upto"] for purge in span["purges"]] == [300]
    assert re.fullmatch(span["purges"][0]["topics"], "home/3/temp")
    assert "seed" not in json.dumps(said), "it never leaves the folder"


def test_a_plan_ends_where_an_earlier_one_did(folder):
    options = {"data": folder}
    with headwater.open(folder, SMALL) as bus:
        bus.publish("home/late", b"x")
        bus.publish("other/late", b"x")
    said = answer("plan", options=options, conditions=[], ends={"home": 301})
    assert [span["last"] for part in said["partitions"] for span in part["spans"]] == [300]
    assert said["ends"] == {"home": 301}


def test_a_read_is_cut_for_the_cores_of_the_cluster(folder, monkeypatch):
    monkeypatch.setattr(spans, "PARTITION_BYTES_MIN", 1)
    counts = [
        len(answer("plan", options={"data": folder}, conditions=[], ends=None, cores=cores)["partitions"])
        for cores in (1, 8)
    ]
    assert counts[0] < counts[1]


def test_conditions_prune_offsets_roots_and_topics(folder):
    conditions = [
        {"column": "offset", "test": ">", "value": 290},
        {"column": "topic", "test": "in", "value": ["home/1/temp", "home/2/temp"]},
    ]
    said = answer("plan", options={"data": folder}, conditions=conditions, ends=None)
    (partition,) = said["partitions"]
    assert [span["first"] for span in partition["spans"]] == [291]
    assert re.fullmatch(partition["topics"], "home/2/temp", re.DOTALL)
    assert not re.fullmatch(partition["topics"], "home/2/temp2", re.DOTALL)
    said = answer(
        "plan", options={"data": folder}, conditions=[{"column": "root", "test": "=", "value": "x"}], ends=None
    )
    assert said["partitions"] == []


def test_bodies_are_handed_over_as_they_are(folder):
    (partition,) = answer("plan", options={"data": folder}, conditions=[], ends=None)["partitions"]
    (span,) = partition["spans"]
    begun, *pieces, ended = asked({"ask": "pieces", "options": {"data": folder}, "span": span["span"], "offset": 7})
    assert begun[0]["more"]
    assert ended == ({}, b"")
    offset = 7
    for said, data in pieces:
        assert said["first"] <= offset
        assert Body(data).count == said["last"] + 1 - said["first"]
        offset = said["last"] + 1
    assert offset == 301


def test_what_is_wrong_is_told_and_the_next_request_is_answered(folder):
    first, second = asked(
        {"ask": "describe", "options": {"data": folder, "topicz": "x"}, "schema": None},
        {"ask": "describe", "options": {"data": folder}, "schema": None},
    )
    assert 'headwater.errors.Malformed: Malformed(422): no option "topicz"; did you mean "topics"?' in first[0]["error"]
    assert second[0]["reader"] == "jvm"


def test_a_stream_is_planned_by_its_own_reader(folder):
    options = {"data": folder, "maxMessagesPerTrigger": "100"}
    told = [
        said
        for said, _ in asked(
            {"ask": "stream", "options": options},
            {"ask": "initial"},
            {"ask": "limit"},
            {"ask": "latest", "start": '{"home": 1}', "rows": 100},
            {"ask": "partitions", "start": '{"home": 1}', "end": '{"home": 101}'},
            {"ask": "commit", "end": '{"home": 101}'},
            {"ask": "report"},
            {"ask": "metrics", "end": '{"home": 101}'},
            {"ask": "stop"},
        )
    ]
    assert told[1:4] == [{"place": '{"home": 1}'}, {"rows": 100}, {"place": '{"home": 101}'}]
    assert [span["last"] for part in told[4]["partitions"] for span in part["spans"]] == [100]
    assert told[5:7] == [{}, {"place": '{"home": 301}'}]
    names = ("messagesBehind", "minOffsetsBehindLatest", "maxOffsetsBehindLatest")
    assert told[7:] == [{"metrics": {**dict.fromkeys(names, "200"), "avgOffsetsBehindLatest": "200.0"}}, {}]


@pytest.mark.parametrize("name", ["value", "misfit"])
def test_columns_of_what_payloads_say_are_left_to_the_python_reader_though_only_a_schema_asks_for_them(folder, name):
    kind = StructType([StructField("celsius", DoubleType())]) if name == "value" else StringType()
    schema = StructType([StructField("offset", LongType()), StructField(name, kind)])
    assert answer("describe", options={"data": folder}, schema=schema.json())["reader"] == "python"


def test_it_ends_with_who_asks_it_and_what_it_prints_is_no_answer(folder):
    request = json.dumps({"ask": "describe", "options": {"data": folder}, "schema": None})
    command = [sys.executable, "-m", "headwater.spark.planner"]
    done = subprocess.run(command, input=request + "\n", capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["place"].startswith(folder)


@pytest.mark.parametrize("options", [{"typed": "true"}, {"lake": "lake"}, {"table": "subscriptions"}])
def test_what_the_python_reader_alone_does_is_left_to_it(options):
    asked = {"data": "x", **options}
    assert python_reads(read_options(asked)) is not None
    with pytest.raises(headwater.Malformed, match='"reader" is "jvm"'):
        python_reads(read_options({**asked, "reader": "jvm"}))


@given(FILTERS, TOPICS)
def test_a_pattern_matches_what_its_filter_does(filter: str, topic: str):
    assert bool(re.fullmatch(pattern_of(filter), topic, re.DOTALL)) == compile_filter(filter)(topic)


@given(FILTERS, TOPICS, st.sampled_from(["=", "starts", "in"]), TOPICS)
def test_a_pattern_holds_conditions_too(filter: str, topic: str, test: str, value: str):
    condition = Condition("topic", test, [value] if test == "in" else value)
    found = re.fullmatch(pattern_of_topics([filter, "jobs/+/never/so"], Conditions((condition,))), topic, re.DOTALL)
    assert bool(found) == (compile_filter(filter)(topic) and condition.of_text(topic))
