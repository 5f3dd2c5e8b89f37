"""What there is of a key is found and removed, and nobody is handed it any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
import headwater.bus
from client.served import Served
from headwater import Config
from headwater.errors import Malformed, TooLarge
from headwater.message import Erased, PurgeInfo

ANN, BEN = b"ann", b"ben"


@pytest.fixture(params=["embedded", "served"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[headwater.bus.Bus]:
    """A bus that has something of two people."""
    if request.param == "embedded":
        with headwater.open(tmp_path / "data") as found:
            yield found
        return
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as connected:
        yield connected  # type: ignore[misc]  # it has the same methods


def fill(bus: headwater.bus.Bus) -> None:
    for key in (ANN, BEN, None):
        bus.publish("home/door", b"opened", key=key)
        bus.publish("work/desk", b"sat", key=key)
    bus.publish("home/ann", b"here", key=ANN, retain=True)
    bus.publish("home/ben", b"away", key=BEN, retain=True)
    bus.publish("home/late", b"later", key=ANN, deliver_at=bus.now + timedelta(hours=1))
    bus.publish("home/late", b"later", key=BEN, deliver_at=bus.now + timedelta(hours=1))


def left(bus: headwater.bus.Bus, filter: str = "#") -> list[tuple[str, bytes | None]]:
    return [(message.topic, message.key) for message in bus.replay(filter)]


def test_what_there_is_of_a_key_is_counted_and_then_gone_everywhere(bus: headwater.bus.Bus) -> None:
    fill(bus)
    before = left(bus)
    found = bus.erase("ann", dry_run=True)
    assert found == Erased({"home": 2, "work": 1}, retained=1, dead_letters=0, delayed=1, states=0)
    assert left(bus) == before
    assert bus.purges() == []
    assert bus.erase(ANN) == found
    assert left(bus) == [place for place in before if place[1] != ANN]
    assert [message.topic for message in bus.retained("home/#").values()] == ["home/ben"]
    assert bus.erase(ANN).is_nothing
    assert bus.purges("home/#") == [PurgeInfo("home", "#", 5, ANN)]
    bus.publish("home/door", b"again", key=ANN)
    assert left(bus, "home/#")[-1] == ("home/door", ANN), "what comes later is not meant"


def test_a_filter_says_where(bus: headwater.bus.Bus) -> None:
    fill(bus)
    assert bus.erase(ANN, "work/#").messages == {"work": 1}
    assert ("home/door", ANN) in left(bus)
    assert ("work/desk", ANN) not in left(bus)


def test_dead_letters_and_what_is_retried_are_gone_too(bus: headwater.bus.Bus) -> None:
    with bus.subscribe("home/#", id="letters", max_attempts=1) as sub:
        for key in (ANN, BEN):
            bus.publish("home/door", b"opened", key=key)
            message = sub.next(timeout_s=10)
            assert message is not None
            message.nack("no")
    with bus.subscribe("home/#", id="tries", start="earliest", retry_delay_s=0.2) as sub:
        for _ in (ANN, BEN):
            message = sub.next(timeout_s=10)
            assert message is not None
            message.nack("not yet")
        found = bus.erase(ANN, "home/#")
        assert (found.dead_letters, found.states) == (1, 1)
        assert [letter.key for letter in bus.dead_letters("letters")] == [BEN]
        again = sub.next(timeout_s=10)
        assert again is not None
        assert again.key == BEN
        again.ack()
    assert [message.key for message in bus.replay("$dead/#")] == [BEN]
    assert bus.states("tries") == []


def test_it_stays_gone_when_the_bus_is_opened_again_and_beside_it(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus)
        bus.erase(ANN)
        with headwater.open(tmp_path / "data", read_only=True) as beside:
            assert ANN not in [key for _, key in left(beside)]
    with headwater.open(tmp_path / "data") as bus:
        assert ANN not in [key for _, key in left(bus)]
        assert [message.key for message in bus.retained("#").values()] == [BEN]


def test_columns_leave_it_out_with_and_without_the_key(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus)
        bus.erase(ANN)
        for columns in (None, ["payload"]):
            rows = bus.arrow("#", columns=columns).read_all()
            assert rows.num_rows == len(left(bus)) == 5


def test_a_wider_purge_takes_the_place_of_those_of_keys(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(purges_max=2)) as bus:
        fill(bus)
        bus.erase(ANN, "home/door")
        bus.erase(BEN, "home/door")
        bus.erase(ANN, "home/#")
        assert [(one.filter, one.key) for one in bus.purges("home/#")] == [("home/door", BEN), ("home/#", ANN)]
        bus.purge("home/#")
        assert [(one.filter, one.key) for one in bus.purges("home/#")] == [("home/#", None)]


def test_pages_of_what_was_purged_leave_nothing_out_though_a_wider_purge_comes_between() -> None:
    with headwater.open(":memory:") as bus:
        fill(bus)
        for topic in ("a", "b", "c"):
            bus.publish(f"house/{topic}", b"")
        for filter in ("house/a", "house/b", "house/c", "home/door"):
            bus.purge(filter)
        bus.erase(ANN, "home/ann")
        everything = bus.purges()
        assert [one.filter for one in everything] == ["home/door", "home/ann", "house/a", "house/b", "house/c"]

        def page(after: PurgeInfo | None, limit: int) -> list[PurgeInfo]:
            place = None if after is None else (after.root, after.upto, after.filter, after.key)
            return bus.core.purges_after("#", place, limit)

        for limit in (1, 2, 3, 4, 5, 6):
            found: list[PurgeInfo] = []
            while some := page(found[-1] if found else None, limit):
                assert len(some) <= limit
                found += some
            assert found == everything
        last = page(None, 4)[-1]
        assert last.filter == "house/b"
        bus.purge("house/#")  # as far as they did, and in their place
        assert [one.filter for one in page(last, 4)] == ["house/#"]
        bus.remove_root("house", force=True)
        assert page(last, 4) == []


@pytest.mark.parametrize(("key", "error"), [(7, Malformed), (b"x" * 1025, TooLarge)])
def test_what_is_no_key_is_refused(tmp_path: Path, key: object, error: type[Exception]) -> None:
    with headwater.open(tmp_path / "data") as bus, pytest.raises(error):
        bus.erase(key)  # type: ignore[arg-type]
