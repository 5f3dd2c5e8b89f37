"""A search finds what a replay and a look at each message would, each once, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from headwater.admin.search.search import Asked, Search
from headwater.admin.search.wanted import Wanted
from headwater.bus import Bus
from headwater.clock import ManualClock
from headwater.errors import Malformed
from headwater.message import Message


def offsets(bus: Bus, filter: str, most: int = 100, **wanted: str) -> list[tuple[str, int]]:
    return [(one.topic, one.offset) for one in found(bus, filter, most, **wanted)]


def found(bus: Bus, filter: str, most: int = 100, **wanted: str) -> list[Message]:
    asked, messages = Asked(filter, Wanted(**wanted), most=most), []
    while True:
        search = Search(bus, asked).to_its_end()
        messages += search.found
        if search.is_end:
            assert search.looked == search.total
            return messages
        assert len(search.found) == most
        asked = asked._replace(after=search.places)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with headwater.open(tmp_path / "data") as bus:
        for start in range(0, 300, 25):
            bus.publish_many(
                [
                    (
                        f"home/room-{number % 3}/climate",
                        json.dumps({"sensor": f"s{number % 7}", "n": number, "é": "\\é"}, ensure_ascii=number % 2 == 0),
                    )
                    for number in range(start, start + 25)
                ]
            )
        bus.publish("shop/orders", b"not JSON, but sensor s3", key=b"eu-17", headers={"Unit": "C", "trace": "abc"})
        yield bus


def test_fields_texts_keys_and_headers_are_found_in_any_number_of_steps(bus: Bus) -> None:
    wanted = [
        (one.topic, one.offset)
        for one in bus.replay("home/#")
        if one.json()["sensor"] == "s3" and one.json()["n"] >= 100
    ]
    assert len(wanted) > 20
    for most in (1, 7, 1000):
        assert offsets(bus, "home/#", most, where='$.sensor == "s3" and $.n >= 100') == wanted
    assert len(offsets(bus, "#", where='$["é"] == "\\\\é"')) == 300
    assert len(offsets(bus, "home/room-1/+", where="$.n >= 0")) == 100
    assert offsets(bus, "#", text="not JSON") == [("shop/orders", 1)]
    assert offsets(bus, "#", key="eu-") == [("shop/orders", 1)]
    assert offsets(bus, "#", header="unit") == offsets(bus, "#", header="trace=b") == [("shop/orders", 1)]
    assert offsets(bus, "#", header="unit=F") == offsets(bus, "#", text="s3", key="us") == []
    (one,) = found(bus, "shop/#", text="JSON")
    assert (one.payload, one.key, one.header_pairs) == (
        b"not JSON, but sensor s3",
        b"eu-17",
        (("Unit", "C"), ("trace", "abc")),
    )


def test_bytes_across_two_payloads_are_not_found(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("a/b", b"one tw"), ("a/b", b"o"), ("a/b", b""), ("a/b", b"two")])
        assert offsets(bus, "a/#", text="two") == [("a/b", 4)]


def test_what_is_purged_or_expired_is_not_found_and_a_range_ends_where_it_says(tmp_path: Path) -> None:
    clock = ManualClock()
    with headwater.open(tmp_path / "data", clock=clock) as bus:
        bus.publish("a/short", b"{}", ttl_s=5)
        bus.publish("a/purged", b"{}")
        bus.purge("a/purged")
        clock.advance(10)
        middle = bus.now
        bus.publish_many([("a/kept", b"{}"), ("a/purged", b"{}")])
        assert offsets(bus, "a/#", where="$ == {}") == [("a/kept", 3), ("a/purged", 4)]
        clock.advance(10)
        bus.publish("a/late", b"{}")
        asked = Asked("a/#", Wanted(), since=middle, until=middle + timedelta(seconds=5))
        search = Search(bus, asked).to_its_end()
        assert [one.offset for one in search.found] == [3, 4]
        assert (search.looked, search.total, search.is_end) == (2, 2, True)


def test_a_search_that_is_stopped_says_where_it_was(bus: Bus) -> None:
    search = Search(bus, Asked("home/#", Wanted()), lambda search: search.stop())
    search.run()
    assert not search.is_end
    assert (search.looked, search.total) == (25, 300)
    rest = Search(bus, Asked("home/#", Wanted(), after=search.places, most=1000)).to_its_end()
    assert [one.offset for one in search.found + rest.found] == list(range(1, 301))


def test_what_cannot_be_searched_for_is_refused(bus: Bus) -> None:
    with pytest.raises(Malformed, match="at most 1000"):
        Search(bus, Asked("#", Wanted(), most=1001))
    now = bus.now
    with pytest.raises(Malformed, match="ends after it begins"):
        Search(bus, Asked("#", Wanted(), since=now, until=now))
    with pytest.raises(Malformed, match="name=value"):
        Wanted(header="=x")
    with pytest.raises(Malformed, match="1000 characters"):
        Wanted(text="x" * 1001)
