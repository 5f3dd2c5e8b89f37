"""Filters that Spark pushes into the source, as conditions on root, topic, offset and timestamp.

What is taken over here Spark need not look at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import datasource as spark

from headwater.arrow.conditions import COMPARE, NUMBERS, OFFSET_END, TEXTS, Condition, Conditions
from headwater.clock import from_datetime

NAMES: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.In: "in",
    spark.StringStartsWith: "starts",
    spark.StringEndsWith: "ends",
    spark.StringContains: "contains",
    spark.IsNull: "null",
    spark.IsNotNull: "not null",
}


def take(filters: Iterable[spark.Filter]) -> tuple[Conditions, Sequence[spark.Filter]]:
    """The filters that are taken over, and those that Spark has to look at itself."""
    taken, left = [], []
    for asked in filters:
        condition = _condition(asked)
        if condition is None:
            left.append(asked)
        else:
            taken.append(condition)
    return Conditions(tuple(taken)), left


def _condition(filter: spark.Filter, negated: bool = False) -> Condition | None:
    if isinstance(filter, spark.Not):
        return None if negated else _condition(filter.child, negated=True)
    test = NAMES.get(type(filter))
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    if test is None or len(path) != 1:
        return None
    column = path[0].lower()
    if test in {"null", "not null"}:
        return Condition(column, test, None, negated) if column in TEXTS + NUMBERS else None
    try:
        value = _value(column, test, getattr(filter, "value", None))
    except (TypeError, ValueError, OverflowError):
        return None  # of a kind that we do not expect; Spark knows
    return Condition(column, test, value, negated)


def _value(column: str, test: str, value: Any) -> Any:
    """The value as it is compared here; TypeError if it is of another kind."""
    if test == "in":
        return tuple(_value(column, "=", one) for one in value)
    if column in TEXTS and isinstance(value, str):
        return value
    if column in NUMBERS and test in COMPARE:
        if column == "offset" and type(value) is int and abs(value) < OFFSET_END:
            return value
        if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            return from_datetime(value)
    raise TypeError(f"{test} {value!r}")
