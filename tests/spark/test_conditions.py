"""Pushed filters: what is taken over holds exactly, what is not is left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from pyspark.sql import datasource as spark

from headwater.arrow.conditions import Condition, Conditions
from headwater.spark.conditions import take

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_US = 1_769_860_800_000_000


def conditions(*filters: spark.Filter) -> Conditions:
    found, left = take(filters)
    assert not left
    return found


@pytest.mark.parametrize(
    ("filter", "held"),
    [
        (spark.EqualTo(("topic",), "b"), ["b"]),
        (spark.EqualNullSafe(("TOPIC",), "b"), ["b"]),
        (spark.Not(spark.EqualTo(("topic",), "b")), ["a", "ba", "é"]),
        (spark.LessThan(("topic",), "b"), ["a"]),
        (spark.LessThanOrEqual(("topic",), "b"), ["a", "b"]),
        (spark.GreaterThan(("topic",), "b"), ["ba", "é"]),
        (spark.GreaterThanOrEqual(("topic",), "ba"), ["ba", "é"]),
        (spark.In(("topic",), ("a", "é", "z")), ["a", "é"]),
        (spark.StringStartsWith(("topic",), "b"), ["b", "ba"]),
        (spark.StringEndsWith(("topic",), "a"), ["a", "ba"]),
        (spark.StringContains(("topic",), "b"), ["b", "ba"]),
        (spark.IsNull(("topic",)), []),
        (spark.IsNotNull(("topic",)), ["a", "b", "ba", "é"]),
        (spark.Not(spark.IsNull(("topic",))), ["a", "b", "ba", "é"]),
    ],
)
def test_a_condition_on_text(filter, held):
    wanted = conditions(filter).topic_test(lambda _: True)
    assert [name for name in ["a", "b", "ba", "é"] if wanted(name)] == held


@pytest.mark.parametrize(
    ("filter", "held", "bounds"),
    [
        (spark.EqualTo(("offset",), 3), [3], (3, 4)),
        (spark.LessThan(("offset",), 3), [1, 2], (0, 3)),
        (spark.LessThanOrEqual(("offset",), 3), [1, 2, 3], (0, 4)),
        (spark.GreaterThan(("offset",), 3), [4, 5], (4, 1 << 62)),
        (spark.GreaterThanOrEqual(("offset",), 3), [3, 4, 5], (3, 1 << 62)),
        (spark.In(("offset",), (2, 5, 9)), [2, 5], (2, 10)),
        (spark.Not(spark.In(("offset",), (2, 5, 9))), [1, 3, 4], (0, 1 << 62)),
        (spark.IsNull(("offset",)), [], (0, 0)),
        (spark.IsNotNull(("offset",)), [1, 2, 3, 4, 5], (0, 1 << 62)),
    ],
)
def test_a_condition_on_offsets(filter, held, bounds):
    found = conditions(filter)
    numbers = np.arange(1, 6)
    assert numbers[found.on("offset")[0].of_numbers(numbers)].tolist() == held
    assert found.offsets() == bounds


def test_a_condition_on_timestamps_is_exact_to_the_microsecond():
    (condition,) = conditions(spark.GreaterThan(("timestamp",), NOON)).all
    assert condition == Condition("timestamp", ">", NOON_US)
    assert condition.of_numbers(np.array([NOON_US, NOON_US + 1])).tolist() == [False, True]


@pytest.mark.parametrize(
    "filter",
    [
        spark.EqualTo(("payload",), b"x"),
        spark.EqualTo(("headers", "unit"), "C"),
        spark.EqualTo(("topic",), None),
        spark.EqualTo(("offset",), 1.5),
        spark.EqualTo(("offset",), True),
        spark.EqualTo(("timestamp",), datetime(2026, 1, 31)),
        spark.In(("offset",), (1, None)),
        spark.IsNull(("key",)),
        spark.StringStartsWith(("offset",), "1"),
    ],
)
def test_what_is_not_understood_is_left_to_spark(filter):
    found, left = take([filter, spark.EqualTo(("offset",), 1)])
    assert left == [filter]
    assert len(found.all) == 1


def test_roots_are_ruled_out_by_root_or_by_the_start_of_topics():
    assert conditions(spark.EqualTo(("root",), "home")).wants_root("home")
    assert not conditions(spark.EqualTo(("root",), "home")).wants_root("office")
    assert not conditions(spark.EqualTo(("topic",), "home/a")).wants_root("office")
    assert not conditions(spark.StringStartsWith(("topic",), "home/")).wants_root("office")
    assert conditions(spark.StringStartsWith(("topic",), "ho")).wants_root("hobby")
    assert conditions(spark.Not(spark.EqualTo(("topic",), "home/a"))).wants_root("office")
    assert conditions(spark.EqualTo(("topic",), "home")).wants_root("home")
