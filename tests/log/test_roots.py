"""All roots: what a restart brings back, what a reader sees, and the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater.config import Config
from headwater.errors import (
    Closed,
)
from headwater.log.roots import Roots
from headwater.store.batch import Seed
from headwater.store.files import DiskFiles
from headwater.store.state import key_name
from headwater.store.streams import Streams
from headwater.topics.name import compile_filter
from log.place import AskedState, Place


def test_recovery_asks_the_state_once_about_a_topic_and_once_about_what_it_retains() -> None:
    files, state = FaultyFiles(), AskedState()
    place = Place("data", Config(), files, state)
    topics = [f"home/{number}" for number in (3, 1, 2)]
    for topic in topics[:2]:
        place.publish(place.one(topic, b"on", retain=True))
    place.roots.commit.run(place.roots.checkpoints.make)
    for topic in topics * 2:
        place.publish(place.one(topic, b"off!", retain=True))
    place.publish(place.one("home/1", b"", retain=True))
    state.asked.clear()
    again = Place("data", Config(), files.process_kill(), state)
    in_order = sorted(topics)
    assert [key for key in state.asked if key[:1] in b"TR"] == [
        key_name(kind, 1, topic) for kind in (b"T", b"R") for topic in in_order
    ]
    root = again.roots.get("home")
    assert root is not None
    assert (root.topic_count, root.retained.count, root.retained.size) == (3, 2, 8)
    assert again.topics() == {"home/1": 4, "home/2": 2, "home/3": 3}


def crashed(place: Place, folder: str) -> Place:
    """The place as the next process finds it after a kill -9."""
    assert isinstance(place.files, FaultyFiles)
    assert isinstance(place.state, FaultyState)
    return Place(folder, place.config, place.files.process_kill(), place.state.process_kill())


@pytest.mark.parametrize("checkpoint_batches", [1, 2, 3, 100])
def test_a_restart_brings_back_what_publishes_changed(checkpoint_batches: int) -> None:
    place = Place("data", Config(checkpoint_batches=checkpoint_batches), FaultyFiles(), FaultyState())
    place.publish(place.one("home/a", b"on", retain=True))
    place.publish(place.many("home/a", "hall/b", producer="p", sequence=1))
    place.publish(place.one("home/a", b"", retain=True))
    place.publish(place.one("hall/c", b"off", retain=True))
    for _ in range(2):
        place = crashed(place, "data")
        assert place.topics() == {"home/a": 3, "hall/b": 1, "hall/c": 1}
        home, hall = place.roots.get("home"), place.roots.get("hall")
        assert home is not None
        assert hall is not None
        assert (home.topic_count, hall.topic_count) == (1, 2)
        assert (home.retained.count, hall.retained.count) == (0, 1)
        assert home.producers.repeated("p", 1) is not None
        assert all(found.holes == [] for found in place.met.values())
    assert place.publish(place.one("home/a")).offset == 4


def test_closing_well_leaves_nothing_to_apply(tmp_path: Path) -> None:
    place = Place("data", files=FaultyFiles(), state=FaultyState())
    place.publish(place.many("a/1", "b/1"))
    place.close()
    again = crashed(place, "data")
    assert [found.batches for found in again.met.values()] == [0, 0]
    assert again.topics() == {"a/1": 1, "b/1": 1}


def test_nothing_is_published_after_closing(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    place.close()
    with pytest.raises(Closed):
        place.publish(place.one("a/1"))


def test_a_reader_sees_roots_as_the_owner_has_them(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    place.publish(place.one("a/1", retain=True))
    log = Streams(DiskFiles(), str(tmp_path), Seed(0), place.config, read_only=True)
    reader = Roots(log, place.state, place.config, place.clock, lambda _: None)
    everything: Callable[[str], bool] = compile_filter("#")

    def look() -> list[tuple[str, int, bool]]:
        reader.look()
        return [(i.topic, i.messages, i.retained) for root in reader.all() for i in root.topics(everything)]

    assert look() == [("a/1", 1, True)]
    place.publish(place.many("a/1", "b/1"))
    assert look() == [("a/1", 2, True), ("b/1", 1, False)]
    place.roots.commit.run(place.roots.checkpoints.make)
    assert look() == look() == [("a/1", 2, True), ("b/1", 1, False)]
    log.close()
    place.close()
