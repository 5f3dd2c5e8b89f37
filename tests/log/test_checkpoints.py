"""Checkpoints: when they are made, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import msgpack

from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater.config import Config
from headwater.errors import (
    Failed,
)
from headwater.store.state import STREAM, key_name, key_u32
from log.place import AskedState, Place


def test_the_state_reflects_the_streams_after_so_many_batches_or_bytes(tmp_path: Path) -> None:
    for config in (Config(checkpoint_batches=3), Config(checkpoint_bytes=1000)):
        place = Place(str(tmp_path / str(config.checkpoint_batches)), config)
        for _ in range(2):
            place.publish(place.one("a/1", bytes(400)))
        assert place.state.get(key_u32(b"S", 1)) is None
        place.publish(place.one("b/1", bytes(400)))
        assert place.state.get(key_u32(b"S", 1)) is not None
        assert place.state.get(key_u32(b"S", 2)) is not None
        place.close()


def test_the_state_reflects_the_streams_after_so_many_topics(tmp_path: Path) -> None:
    place = Place(str(tmp_path), Config(checkpoint_topics=3))
    for _ in range(5):
        place.publish(place.many("a/1", "a/2"))
    assert place.state.get(key_u32(b"S", 1)) is None
    place.publish(place.one("b/1"))
    assert place.state.get(key_u32(b"S", 1)) is not None
    place.publish(place.many("a/1", "a/2"))
    assert place.state.get(key_name(b"T", 1, "a/1")) == msgpack.encode((5, 9))
    place.publish(place.one("a/3"))
    assert place.state.get(key_name(b"T", 1, "a/1")) == msgpack.encode((6, 11))
    place.close()


def test_what_a_checkpoint_could_not_make_durable_is_written_again_by_the_next() -> None:
    state = FaultyState()
    place = Place("data", Config(), FaultyFiles(), state)
    place.publish(place.one("a/1", b"kept", retain=True))
    state.fail_sync_at = state.syncs + 1
    with pytest.raises(Failed, match="no checkpoint"):
        place.roots.checkpoints.make()
    state.mends = True
    assert state.mend()
    place.publish(place.one("b/1"))
    place.roots.checkpoints.make()
    stored = state.durable()
    assert {key[1:5] for key in stored if key[:1] == STREAM} == {b"\0\0\0\1", b"\0\0\0\2"}
    place.close()


def test_a_new_topic_is_looked_for_once_until_it_is_stored(tmp_path: Path) -> None:
    state = AskedState()
    place = Place(str(tmp_path), Config(), state=state)
    place.publish(place.one("home/0"))
    state.asked.clear()
    place.publish(place.one("home/a", b"on", retain=True))
    place.roots.commit.run(place.roots.checkpoints.make)
    assert state.asked.count(key_name(b"T", 1, "home/a")) == 1
    assert key_name(b"R", 1, "home/a") not in state.asked
    place.close()


def test_a_checkpoint_that_fails_fails_no_publish(tmp_path: Path) -> None:
    state = FaultyState()
    place = Place(str(tmp_path), Config(checkpoint_batches=1), state=state)
    state.fail_sync_at = 1
    assert place.publish(place.one("a/1")).offset == 1
    assert len(place.troubles) == 1
    assert place.publish(place.one("a/1")).offset == 2
