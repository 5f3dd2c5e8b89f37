"""Who is let into a group: limits, repeats, and the sequences of producers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.errors import (
    Conflict,
    Damaged,
    PartlyStored,
    QuotaExceeded,
)
from headwater.message import Outgoing
from headwater.store.state import RETAINED, MemoryState, key_name
from log.place import Place


def test_what_is_refused_leaves_the_others_of_its_group_alone(tmp_path: Path) -> None:
    place = Place(str(tmp_path), Config(topics_per_root_max=2, roots_max=2))
    assert place.roots.showing.watch()
    items = [
        place.one("a/1"),
        place.many("a/2", "a/3"),
        place.many("b/1", "c/1"),
        place.one("a/2"),
        place.one("a/3"),
        place.one("b/1"),
        place.one("c/1"),
    ]
    place.group(*items)
    assert [type(item.error) for item in items] == [
        type(None),
        QuotaExceeded,
        PartlyStored,
        type(None),
        QuotaExceeded,
        type(None),
        QuotaExceeded,
    ]
    assert place.topics() == {"a/1": 1, "a/2": 1, "b/1": 2}
    assert [root.name for root in place.roots.all()] == ["a", "b"]
    assert set(place.roots.showing._ways) == {"a", "b"}, "nothing is kept of roots that were not made"
    place.close()


def test_a_row_that_cannot_be_read_while_a_publish_is_admitted_leaves_no_promise_behind(tmp_path: Path) -> None:
    class Bad(MemoryState):
        bad: bytes | None = None

        def get(self, key: bytes) -> bytes | None:
            if key == self.bad:
                raise Damaged("a flipped bit")
            return super().get(key)

    state = Bad()
    place = Place(str(tmp_path / "data"), Config(topics_per_root_max=3), state=state)
    place.publish(place.one("a/1", retain=True))
    place.roots.commit.run(place.roots.checkpoints.make)
    state.bad = key_name(RETAINED, 1, "a/1")
    messages = [Outgoing(topic, b"x", retain=True) for topic in ("a/1", "a/2")]
    with pytest.raises(Damaged):
        place.publish(place.checks.many(messages, None, None))
    place.publish(place.many("a/3", "a/4"))
    state.bad = None
    assert place.topics() == {"a/1": 1, "a/3": 1, "a/4": 1}
    place.close()


def test_repeats_in_one_group_and_after_it_are_answered_with_the_first(place: Place) -> None:
    items = [place.many("home/a", "hall/a", producer="p", sequence=1) for _ in range(3)]
    place.group(*items)
    place.publish(later := place.many("home/a", "hall/a", producer="p", sequence=1))
    for item, duplicate in zip([*items, later], [False, True, True, True], strict=True):
        receipts: Any = item.result()
        assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, duplicate)] * 2
    assert place.payloads("home") == [b"home/a"]


def test_a_lower_sequence_in_the_same_group_is_refused(place: Place) -> None:
    items = [place.one("home/a", producer="p", sequence=sequence) for sequence in (5, 4, 6)]
    place.group(*items)
    assert [type(item.error) for item in items] == [type(None), Conflict, type(None)]
