"""Bodies made of Arrow columns are those that `encode_body` makes of the same messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import Config
from headwater.errors import Malformed
from headwater.message import FROM
from headwater.spark import bodies
from headwater.spark.bodies import TYPES, Piles, encode
from headwater.store.body import Body, encode_body

NOW_US = 1_700_000_000_000_000
MESSAGE = st.tuples(
    st.sampled_from(["a/x", "a/y", "b", "c/é/z"]),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    st.none() | st.booleans(),
)


def batch_of(messages, **types):
    columns: list[Any] = list(zip(*messages, strict=True)) if messages else [()] * len(TYPES)
    columns[3] = [None if one is None else list(one.items()) for one in columns[3]]
    arrays = [
        pa.array(values, types.get(name, type_)) for (name, type_), values in zip(TYPES.items(), columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, list(TYPES))


def expected(messages):
    topics, payloads, keys, headers, retain = zip(*messages, strict=True)
    return encode_body(
        topics,
        payloads,
        NOW_US,
        keys=keys,
        headers=[tuple((one or {}).items()) for one in headers],
        retain=[bool(one) for one in retain],
    )


@given(st.lists(MESSAGE, min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_arrow_columns_make_the_same_bytes_as_messages_do(messages, before, after):
    around = [("d", b"around", b"k", {"n": "v"}, True)]
    batch = batch_of(around * before + messages + around * after).slice(before, len(messages))
    assert encode(batch, NOW_US) == expected(messages)


def test_what_expires_has_the_bytes_that_messages_have() -> None:
    batch = batch_of([("a", b"1", None, None, None), ("a", b"2", b"k", None, None)])
    expected = encode_body(["a", "a"], [b"1", b"2"], NOW_US, keys=[None, b"k"], expiries=[NOW_US + 5] * 2)
    assert encode(batch, NOW_US, 5) == expected


@given(
    st.lists(st.lists(MESSAGE, max_size=30), max_size=5), st.integers(1, 12), st.integers(1, 400), st.integers(1, 2000)
)
def test_every_root_gets_its_rows_in_order_whatever_the_limits(batches, rows, size, held):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "ROWS", rows)
        patch.setattr(bodies, "BYTES", size)
        patch.setattr(bodies, "HELD_BYTES_MAX", held)
        piles = Piles(Config())
        made = [one for messages in batches for one in piles.add(batch_of(messages), NOW_US)]
        made += piles.rest(NOW_US)
    found: dict[str, list[object]] = {}
    for root, count, data in made:
        body = Body(data)
        assert body.end == len(data)
        assert body.count == count <= rows
        assert body.count == 1 or len(data) < size + 400
        found.setdefault(root, []).extend(
            (one.topic, one.payload, one.key, dict(one.headers)) for one in body.messages(1)
        )
    wanted: dict[str, list[object]] = {}
    for messages in batches:
        for topic, payload, key, headers, _ in messages:
            wanted.setdefault(topic.partition("/")[0], []).append((topic, payload, key, headers or {}))
    assert found == wanted


def test_the_header_that_is_the_brokers_own_is_left_out():
    rows: list[Any] = [("a/x", b"1", None, {"n": "v", FROM: "ann/phone"}, None), ("a/y", b"2", None, {FROM: "x"}, None)]
    rows += [("a/z", b"3", None, None, None), ("a/z", b"4", None, {"m": "w"}, None)]
    kept = [(*row[:3], {name: value for name, value in (row[3] or {}).items() if name != FROM}, row[4]) for row in rows]
    assert encode(batch_of(rows), NOW_US) == expected(kept)
    assert encode(batch_of(rows).slice(1, 2), NOW_US) == expected(kept[1:3])


def test_strings_and_long_offsets_are_brought_to_what_a_body_has():
    messages = [("a/x", "text", "k", {"n": "v"}, None), ("a/y", "", None, None, True)]
    long = pa.map_(pa.string(), pa.string())
    batch = batch_of(messages, topic=pa.large_string(), payload=pa.large_string(), key=pa.string(), headers=long)
    piles = Piles(Config())
    assert not list(piles.add(batch, NOW_US))
    (one,) = piles.rest(NOW_US)
    assert one.body == expected([("a/x", b"text", b"k", {"n": "v"}, None), ("a/y", b"", None, None, True)])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ((None, b"", None, None, None), 'no topic; leave such rows out with .where("topic is not null")'),
        (("a", None, None, None, None), "no payload"),
        (("a", b"", None, {"n": None}, None), "a header has no value"),
        (("a/+", b"", None, None, None), "without wildcards"),
        (("", b"", None, None, None), "topic"),
    ],
)
def test_a_row_that_is_no_message_is_refused(message, says):
    piles = Piles(Config())
    with pytest.raises(Malformed, match=says.replace("(", r"\(").replace(")", r"\)")):
        list(piles.add(batch_of([("a", b"", None, None, None), message]), NOW_US))


def test_a_topic_that_is_not_utf_8_is_refused():
    topic = pa.array([b"a/\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([topic, pa.array([b""], pa.binary())], ["topic", "payload"])
    with pytest.raises(Malformed, match="not UTF-8"):
        list(Piles(Config()).add(batch, NOW_US))
