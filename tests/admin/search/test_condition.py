"""Conditions on JSON fields: what they mean, what they refuse, and that a needle never hides what they hold for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.admin.search.condition import parse
from headwater.errors import Malformed

READING = {
    "sensor": "a",
    "celsius": 21.5,
    "count": 3,
    "on": True,
    "none": None,
    "where": {"room": "hall", "two words": 1},
    "tags": ["new", "cold"],
    "items": [{"sku": "A-1"}, {"sku": "A-7"}],
}
PAYLOAD = json.dumps(READING).encode()


@pytest.mark.parametrize(
    "condition",
    [
        '$.sensor == "a"',
        "$.sensor = 'a'",
        '$.sensor != "b"',
        '$.sensor < "b"',
        "$.celsius > 21 and $.celsius <= 21.5",
        "$.celsius==21.50 && $.count == 3.0",
        "$.on == true",
        "$.none == null",
        "$.none",
        '$.where.room == "hall"',
        '$.where["two words"] == 1',
        "$['where'].room contains \"al\"",
        '$.tags contains "cold"',
        '$.tags[0] == "new"',
        '$.items[*].sku == "A-7"',
        '$.sensor contains ""',
    ],
)
def test_what_a_payload_fulfils_is_found(condition: str) -> None:
    assert parse(condition).holds(PAYLOAD)


@pytest.mark.parametrize(
    "condition",
    [
        '$.sensor == "A"',
        "$.missing",
        '$.missing != "a"',
        "$.count == true",
        '$.count == "3"',
        "$.on == 1",
        "$.sensor > 3",
        "$.none > 3",
        "$.where.room.deeper == 1",
        "$.sensor[0] == 1",
        '$.tags[2] == "new"',
        '$.items[*].sku == "A-2"',
        '$.sensor == "a" and $.count == 4',
        '$ == "a"',
    ],
)
def test_what_it_does_not_is_not(condition: str) -> None:
    assert not parse(condition).holds(PAYLOAD)


@pytest.mark.parametrize("payload", [b"", b"21.5", b'"a"', b"[1]", b"{", b"\xff", b"[" * 5000, b'{"sensor": '])
def test_a_payload_that_is_no_such_json_fulfils_nothing(payload: bytes) -> None:
    assert not parse('$.sensor == "a"').holds(payload)


def test_the_whole_payload_may_be_compared() -> None:
    assert parse("$ > 20").holds(b"21.5")
    assert parse("$[1] == 2").holds(b"[1, 2]")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("sensor == 1", "begins with"),
        ("$.sensor == a", "in quotes"),
        ("$.sensor ==", "at its end"),
        ("$.sensor == 1 or $.x", 'at "or'),
        ("$.sensor > true", "numbers or texts"),
        ("$.sensor == 1 and", "at its end"),
        ("$.a[", 'at "["'),
        ("$." + "a." * 600, "1000 characters"),
        (" and ".join(["$.a"] * 17), "16 comparisons"),
        ("$" + ".a" * 33, "32 steps"),
    ],
)
def test_one_that_cannot_be_read_is_refused_with_what_is_meant(condition: str, said: str) -> None:
    with pytest.raises(Malformed, match=said.replace("[", r"\[")):
        parse(condition)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", 'quo"ted', "ä\n", "\\", "/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ä"]), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, st.sampled_from(["$.a", "$.a.b", '$["ä"]', "$.a[*]"]), VALUES, st.booleans())
def test_bytes_that_are_looked_for_are_in_whatever_it_holds_for(
    payload: Any, path: str, value: Any, is_ascii: bool
) -> None:
    raw = json.dumps(payload, ensure_ascii=is_ascii).encode()
    for operator in ("==", "!=", "contains"):
        condition = parse(f"{path} {operator} {json.dumps(value)}")
        if condition.holds(raw) and condition.needle is not None:
            assert condition.needle in raw or b"\\" in raw
    assert msgspec.json.decode(raw) == payload
