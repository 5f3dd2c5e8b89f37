"""Arrow columns made of bodies: the same messages as `Body` has, whatever the bodies; typed errors for bad ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.arrow.columns import Columns, coalesced
from headwater.arrow.conditions import Conditions
from headwater.arrow.schema import SCHEMA
from headwater.log.purges import Purge
from headwater.store.batch import BadBatch
from headwater.store.body import Body
from headwater.topics.name import compile_filter
from spark.rows import checked, row_of, row_of_message
from store.test_body import MESSAGES, PLAIN, TIME_US, Given, encode

BODIES = st.lists(MESSAGES | PLAIN, min_size=1, max_size=6)
EVERYTHING = (1, 1 << 40)
PATIENT = settings(deadline=None)
"""The first Arrow call loads its library."""


def columns(wanted=lambda _: True, purges: tuple[Purge, ...] = (), now_us: int = 0) -> Columns:
    return Columns(SCHEMA, "root", wanted, purges, Conditions(), now_us)


def rows(gathered: Columns) -> list[tuple[object, ...]]:
    return [row_of(row)[1:] for row in checked(gathered.make()).to_pylist()]


def expected(bodies: Sequence[bytes]) -> list[tuple[object, ...]]:
    found, first = [], 1
    for data in bodies:
        body = Body(data)
        found += [row_of_message(message)[1:] for message in body.messages(first)]
        first += body.count
    return found


def gather(gathered: Columns, bodies: Sequence[bytes], first: int = 1, last: int = 1 << 40) -> Columns:
    offset = 1
    for data in bodies:
        gathered.add(offset, data, first, last)
        offset += Body(data).count
    return gathered


@PATIENT
@given(BODIES)
def test_columns_say_what_the_bodies_say(messages: list[list[Given]]):
    bodies = [encode(some, TIME_US + n) for n, some in enumerate(messages)]
    gathered = gather(columns(), bodies)
    assert rows(gathered) == expected(bodies)
    assert gathered.rows == 0
    assert rows(gather(gathered, bodies)) == expected(bodies), "nothing stays behind"


@PATIENT
@given(BODIES, st.integers(1, 40), st.integers(1, 40), st.sampled_from(["a", "a/#", "+/b", "#"]), st.integers(0, 30))
def test_only_what_is_wanted_comes_out(messages, first, last, purged, upto):
    now_us = TIME_US
    bodies = [encode(some, TIME_US + n) for n, some in enumerate(messages)]
    wanted, gone = (lambda topic: "a" in topic), compile_filter(purged)
    expiries = [message.expiry for some in messages for message in some]
    assert rows(gather(columns(wanted, (Purge(purged, upto),), now_us), bodies, first, last)) == [
        row
        for row, expiry in zip(expected(bodies), expiries, strict=True)
        if wanted(row[0])
        and first <= row[1] <= last
        and not (gone(str(row[0])) and row[1] <= upto)
        and not 0 < expiry <= now_us
    ]


def test_columns_that_nobody_asked_for_are_left_out():
    schema = SCHEMA.remove(6).remove(4)
    gathered = Columns(schema, "root", lambda _: True, (), Conditions(), 0)
    gathered.add(1, encode([Given("a", b"x", b"k")]), *EVERYTHING)
    assert gathered.make().to_pydict().keys() == {"root", "topic", "offset", "timestamp", "headers"}


@settings(max_examples=300, deadline=None)
@given(MESSAGES | PLAIN, st.data())
def test_damage_is_a_bad_batch_or_still_arrow(messages, data):
    body = bytearray(encode(messages))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(body[: data.draw(st.sampled_from([len(body), len(body), at]))])
    gathered = columns()
    try:
        gathered.add(1, cut, *EVERYTHING)
    except BadBatch:
        assert gathered.rows == 0
    checked(gathered.make())


def test_a_body_that_is_none_is_refused():
    for body in (b"", b"\0" * 16, b"\xff" * 64, encode([Given("a", b"x")])[:-8]):
        with pytest.raises(BadBatch):
            columns().add(1, body, *EVERYTHING)


def test_small_record_batches_are_joined_and_large_ones_cut():
    one = encode([Given("a", b"x")])
    large = encode([Given("a", b"y")] * 25_000)

    def made():
        for n in range(10_500):
            gathered = columns()
            gathered.add(n + 1, one, *EVERYTHING)
            yield gathered.make()
        gathered = columns()
        gathered.add(10_501, large, *EVERYTHING)
        yield gathered.make()

    sizes = [batch.num_rows for batch in coalesced(made())]
    assert sum(sizes) == 35_500
    assert all(5_000 <= size <= 15_000 for size in sizes)
