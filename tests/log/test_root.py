"""One root: what a publish into it changes, before and after the checkpoint and across a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import headwater
from headwater.config import Config
from headwater.errors import Conflict, QuotaExceeded
from headwater.log.root import Root, RootRow, retained_message
from headwater.store import state as rows
from headwater.store.batch import Batch, Seed, checksum
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles
from headwater.store.log import Checkpoint, Write
from headwater.store.state import MemoryState, key_u32
from headwater.store.streams import Streams
from headwater.topics.name import compile_filter

TIME_US = 1_700_000_000_000_000


class Place:
    """A root on a real stream, whose state can be lost up to the last checkpoint."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.config = config
        self.log = Streams(DiskFiles(), str(folder), Seed(0), config)
        self.log.recover(lambda _: Checkpoint(), lambda _: 0, lambda _: [], lambda *_: None, first="")
        self.stream = self.log.create("home")
        self.state = MemoryState()
        self.root = Root(self.stream, self.state, config)
        self.batches: list[Batch] = []
        self.now_us = TIME_US

    def publish(
        self, *topics: str, retain: bool = False, producer: str | None = None, sequence: int = 0, payload: bytes = b"x"
    ) -> Batch:
        self.now_us += 1
        body = encode_body(topics, [payload] * len(topics), self.now_us, retain=[retain] * len(topics))
        write = Write(body, checksum(body), len(topics), None if producer is None else producer.encode(), sequence)
        self.log.append([(self.stream, [write])], self.now_us)
        assert write.batch is not None
        self.root.apply(write.batch, topics)
        self.batches.append(write.batch)
        return write.batch

    def checkpoint(self) -> None:
        mark = self.log.checkpoint(self.stream)
        self.state.write(self.root.rows(mark))
        self.root.checkpointed(mark)

    def restart(self) -> None:
        """What the state has, and then the batches after its checkpoint once more."""
        value = self.state.get(key_u32(b"S", 1))
        row = None if value is None else msgspec.msgpack.decode(value, type=RootRow)
        self.root = Root(self.stream, self.state, self.config, row)
        for batch in self.batches:
            if batch.first_offset > self.root.checkpoint.applied:
                self.root.apply_again(batch)
        self.root.settle()

    def purge(self, filter: str, upto: int) -> None:
        self.state.write(self.root.purge(filter, upto, self.root.joined(filter, upto)))

    def reopen(self) -> None:
        """Closed well, and opened again."""
        self.checkpoint()
        self.restart()

    def topics(self, filter: str = "#") -> list[tuple[str, int, int, bool]]:
        found = self.root.topics(compile_filter(filter))
        return [(info.topic, info.messages, info.last_offset, info.retained) for info in found]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    places: list[Place] = []

    def made(**settings: object) -> Place:
        places.append(Place(tmp_path / str(len(places)), Config(**settings)))  # type: ignore[arg-type]
        return places[-1]

    yield made
    for place in places:
        place.log.close()


@pytest.fixture
def place(make: Callable[..., Place]) -> Place:
    return make()


STEPS: list[Callable[[Place], None]] = [
    lambda _: None,
    Place.checkpoint,
    Place.restart,
    Place.reopen,
]
BETWEEN = pytest.mark.parametrize("between", STEPS, ids=["nothing", "checkpoint", "crash", "restart"])


# Topics


@BETWEEN
def test_topics_are_counted_whatever_happens_between(place: Place, between: Callable[[Place], None]) -> None:
    place.publish("home/b", "home/a", "home/b")
    between(place)
    place.publish("home/a")
    between(place)
    place.publish("home/c", "home/c")
    between(place)
    assert place.topics() == [("home/a", 2, 4, False), ("home/b", 2, 3, False), ("home/c", 2, 6, False)]
    assert place.topics("home/a") == [("home/a", 2, 4, False)]
    assert place.root.topic_count == 3


@BETWEEN
def test_a_retained_topic_says_so(place: Place, between: Callable[[Place], None]) -> None:
    place.publish("home/a", retain=True)
    place.publish("home/b")
    between(place)
    assert [topic[3] for topic in place.topics()] == [True, False]
    (pair,) = place.root.retained.matching(lambda _: True, 0)
    message = retained_message(pair[1], pair[0])
    assert (message.topic, message.offset, message.payload, message.retained) == ("home/a", 1, b"x", True)


def test_a_root_is_dirty_until_its_checkpoint(place: Place) -> None:
    assert not place.root.is_dirty
    place.publish("home/a")
    assert place.root.is_dirty
    place.checkpoint()
    assert not place.root.is_dirty
    assert place.root.checkpoint.applied == 1


def test_memory_holds_what_changed_since_the_checkpoint_and_no_more(place: Place) -> None:
    for number in range(20):
        place.publish(f"home/{number}", producer=f"p{number}", sequence=1, retain=True)
    assert len(place.root.rows(Checkpoint())) == 3 * 20 + 1
    place.checkpoint()
    assert len(place.root.rows(Checkpoint())) == 1


# Quotas


@BETWEEN
def test_one_topic_too_many_is_refused(make: Callable[..., Place], between: Callable[[Place], None]) -> None:
    place = make(topics_per_root_max=3)
    place.publish("home/a", "home/b")
    between(place)
    place.root.admit(["home/a", "home/c"], {})
    with pytest.raises(QuotaExceeded, match="topics_per_root_max"):
        place.root.admit(["home/c", "home/d"], {})
    place.root.admit(["home/c", "home/c"], {})


def test_what_a_group_was_promised_counts_until_it_is_appended_or_not(make: Callable[..., Place]) -> None:
    place = make(topics_per_root_max=2)
    place.root.promise(["home/a"], {})
    place.root.admit(["home/a", "home/b"], {})
    with pytest.raises(QuotaExceeded):
        place.root.admit(["home/b", "home/c"], {})
    place.root.forget_promises()
    place.root.admit(["home/b", "home/c"], {})
    assert place.topics() == []


def test_a_topic_is_known_once_it_has_a_message(place: Place) -> None:
    assert not place.root.knows("home/a")
    place.root.admit(["home/a"], {})
    assert not place.root.knows("home/a")
    place.publish("home/a")
    assert place.root.knows("home/a")


# Producers


def sequences(place: Place, producer: str, wanted: Sequence[int]) -> list[int | None]:
    """The first offset that each sequence was given; None for one that is new."""
    found = [place.root.producers.repeated(producer, sequence) for sequence in wanted]
    return [None if stored is None else stored.first_offset for stored in found]


@BETWEEN
def test_a_repeat_is_answered_with_what_it_was_given(place: Place, between: Callable[[Place], None]) -> None:
    place.publish("home/a", producer="p", sequence=5)
    place.publish("home/a", "home/b", producer="p", sequence=7)
    place.publish("home/a", producer="q", sequence=1)
    between(place)
    assert sequences(place, "p", [5, 7, 8]) == [1, 2, None]
    assert sequences(place, "q", [1, 2]) == [4, None]
    assert sequences(place, "new", [0]) == [None]
    stored = place.root.producers.repeated("p", 7)
    assert stored is not None
    assert (stored.count, stored.time_us) == (2, place.batches[1].header.time_us)
    for sequence in (0, 6):
        with pytest.raises(Conflict, match="count on from 8"):
            place.root.producers.repeated("p", sequence)


@BETWEEN
def test_the_window_keeps_the_last_sequences(make: Callable[..., Place], between: Callable[[Place], None]) -> None:
    place = make(producer_window=3)
    for sequence in range(6):
        place.publish("home/a", producer="p", sequence=sequence)
        between(place)
    assert sequences(place, "p", [3, 4, 5]) == [4, 5, 6]
    with pytest.raises(Conflict, match="its last 3"):
        place.root.producers.repeated("p", 2)


def test_producers_beyond_the_limit_are_forgotten_the_one_unused_for_longest_first(make: Callable[..., Place]) -> None:
    place = make(producers_max=2)
    for producer in "abc":
        place.publish("home/a", producer=producer, sequence=1)
        place.checkpoint()
    place.restart()
    assert sequences(place, "a", [1]) == [None]
    assert sequences(place, "b", [1]) == [2]
    assert sequences(place, "c", [1]) == [3]


def test_a_batch_that_releases_a_delayed_message_is_no_producer_s(place: Place) -> None:
    place.publish("home/a", producer="$delayed/123", sequence=9)
    assert sequences(place, "$delayed/123", [9]) == [None]


# Purges


@BETWEEN
def test_a_purge_hides_what_a_filter_matches_up_to_an_offset(place: Place, between: Callable[[Place], None]) -> None:
    place.publish("home/old/a", "home/new", retain=True)
    place.publish("home/old/a")
    place.checkpoint()
    place.purge("home/old/#", 3)
    place.checkpoint()
    between(place)
    place.publish("home/old/a")
    between(place)
    (purge,) = place.root.purges
    assert purge.upto == 3
    assert place.root.purges.uptos(["home/old/a", "home/new"]) == [3, 0]
    assert place.topics() == [("home/new", 1, 2, True), ("home/old/a", 1, 4, False)]
    assert place.root.topic_count == 2
    assert place.root.retained.count == 1
    assert place.root.purged_upto == 0


def test_a_purge_of_everything_says_up_to_where(place: Place) -> None:
    place.publish("home/a", "home/b")
    place.purge("home/#", 2)
    assert place.root.purged_upto == 2
    place.checkpoint()
    place.restart()
    assert place.root.purged_upto == 2
    assert place.topics() == []


def test_purges_add_up_and_are_forgotten_when_their_messages_are_gone(place: Place) -> None:
    place.publish("home/a")
    place.purge("home/a", 1)
    place.publish("home/b")
    place.purge("home/b", 2)
    place.checkpoint()
    place.restart()
    assert [purge.upto for purge in place.root.purges] == [1, 2]
    assert place.root.forget_purges() == {}
    place.stream.trim(1)  # whole segments only: nothing goes
    place.state.write(place.root.forget_purges())
    place.stream.trim(2)
    place.state.write(place.root.forget_purges())
    assert list(place.root.purges) == []
    place.checkpoint()
    place.restart()
    assert list(place.root.purges) == []


def test_a_purge_takes_the_place_of_those_that_it_covers(place: Place) -> None:
    place.publish("home/a/1", "home/a/2", "home/b", "home/c")
    for name in ("home/a/1", "home/a/2", "home/a/+", "home/b"):
        place.purge(name, 4)
    assert [purge.filter for purge in place.root.purges] == ["home/a/+", "home/b"]
    place.purge("home/a/1", 4)  # hidden already
    place.publish("home/a/1")
    place.purge("home/b", 5)
    place.purge("home/a/1", 5)
    place.checkpoint()
    place.restart()
    assert sorted((purge.filter, purge.upto) for purge in place.root.purges) == [
        ("home/a/+", 4),
        ("home/a/1", 5),
        ("home/b", 5),
    ]
    place.purge("home/#", 5)
    assert [value for _, value in place.state.scan(rows.PURGE)] == [rows.pack(("home/#", 5))]


def test_a_purge_forgets_those_whose_messages_are_gone(place: Place) -> None:
    place.publish("home/a")
    place.purge("home/a", 1)
    place.stream.roll()
    place.publish("home/b")
    place.stream.trim(1)
    place.purge("home/b", 2)
    assert [purge.filter for purge in place.root.purges] == ["home/b"]
    place.restart()
    assert [purge.filter for purge in place.root.purges] == ["home/b"]


def test_memory_holds_nothing_of_a_purge_that_is_stored(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        for number in range(3):
            bus.publish(f"home/{number}", b"x", retain=True)
        assert bus.purge("home/#") == 3
        root = bus.core.roots.get("home")
        assert root is not None
        assert root.rows(root.checkpoint).keys() == {key_u32(rows.STREAM, root.stream.number)}


def test_purged_topics_make_room_for_others_in_the_next_life_too(tmp_path: Path) -> None:
    config = headwater.Config(topics_per_root_max=2)
    with headwater.open(tmp_path / "data", config) as bus:
        bus.publish_many([("home/a", b"x"), ("home/b", b"x")])
    with headwater.open(tmp_path / "data", config) as bus:
        assert bus.purge("home/a") == 1
    with headwater.open(tmp_path / "data", config) as bus:
        bus.publish("home/c", b"x")
        with pytest.raises(QuotaExceeded):
            bus.publish("home/d", b"x")


def test_topics_that_report_together_again_and_again_are_counted_as_if_one_by_one(tmp_path: Path) -> None:
    names = [f"home/{number}" for number in range(100)]
    with headwater.open(tmp_path / "data") as bus:
        for _ in range(3):
            bus.publish_many([(name, b"x") for name in names])
        bus.publish("home/7", b"later")
        bus.publish_many([(name, b"x") for name in reversed(names)])
        bus.publish_many([("home/7", b"x"), *((name, b"x") for name in names)])
        bus.publish("home/alone", b"x")

        def seen() -> dict[str, tuple[int, int]]:
            found = {info.topic: (info.messages, info.last_offset) for info in bus.topics()}
            root = bus.core.roots.get("home")
            assert root is not None
            assert {name: root.topic(name) for name in found} == found
            assert root.topic("home/none") is None
            return found

        expected = {name: (5, 403 + number) for number, name in enumerate(names)}
        expected["home/7"] = (7, 403 + 7)
        expected["home/alone"] = (1, 503)
        assert seen() == expected
        bus.core.roots.commit.run(bus.core.roots.checkpoints.make)
        assert seen() == expected
        for _ in range(2):
            bus.publish_many([(name, b"x") for name in names])
        assert seen()["home/4"] == (7, 503 + 100 + 5)
        assert bus.purge("home/3") == 1
        bus.publish_many([(name, b"x") for name in names])
        assert seen()["home/3"][0] == 1
        assert seen()["home/4"][0] == 5 + 3
    with headwater.open(tmp_path / "data") as bus:
        assert seen()["home/4"][0] == 5 + 3
