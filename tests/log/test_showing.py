"""What nobody waits for is shown before it is on disk: in order, where it will stand, and never what may be refused."""

from __future__ import annotations

import pytest

from headwater.log.free_room import LOOK_AFTER_BYTES
from headwater.log.publish import Part, Publish
from headwater.log.showing import Untold
from headwater.store.batch import Batch
from log.place import Place


class Shower:
    """Shows messages of a place, and sees where they are said to stand."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.seen: list[tuple[int, int]] = []
        """First and last offset of what was shown."""

    def _tell(self, batch: Batch) -> None:
        self.seen.append((batch.first_offset, batch.last_offset))

    def _new(self, root: str, turn: int) -> Untold:
        return Untold(root=root, turn=turn, counts=self.place.roots.counts)

    def show(self, item: Publish) -> Untold | None:
        """What it joins on its way to disk; None if it has to be there first."""
        part: Part = item.parts[0]
        part.time_us = self.place.clock.now_us()
        shown = self.place.roots.showing.show(part, self._tell, self._new)
        return None if shown is None else shown[0]


@pytest.fixture
def shower(place: Place) -> Shower:
    place.publish(place.many("a/x", "a/y"))
    return Shower(place)


def stored(place: Place) -> list[bytes]:
    place.roots.commit.run(lambda: None)  # what had its place before is stored by then
    return place.payloads("a")[2:]


def test_what_is_shown_stands_where_it_said_and_has_one_place_in_the_group(place: Place, shower: Shower) -> None:
    first, second, third = (shower.show(place.one("a/x", payload)) for payload in (b"1", b"2", b"3"))
    assert first is second is third is not None
    assert shower.show(place.many("a/x", "a/y")) is first
    assert shower.seen == [(3, 3), (4, 4), (5, 5), (6, 7)]
    assert stored(place) == [b"1", b"2", b"3", b"a/x", b"a/y"]
    later = shower.show(place.one("a/x"))
    assert later is not first, "its group is over"
    assert shower.seen[-1] == (8, 8)


def test_it_does_not_overtake_what_is_shown_to_nobody_before_it_is_on_disk(place: Place, shower: Shower) -> None:
    assert shower.show(place.one("a/x", b"1")) is not None
    place.roots.commit.enqueue(place.one("a/y", b"2"))
    assert shower.show(place.one("a/x", b"3")) is None
    place.roots.commit.kick()
    assert stored(place) == [b"1", b"2"]
    assert shower.show(place.one("a/x", b"4")) is not None
    assert shower.seen == [(3, 3), (5, 5)]
    assert stored(place) == [b"1", b"2", b"4"]


@pytest.mark.parametrize("what", ["a new root", "a new topic", "retained", "a full disk", "a failed stream", "held"])
def test_nothing_is_shown_that_may_be_refused(place: Place, shower: Shower, what: str) -> None:
    item = place.one({"a new root": "b/x", "a new topic": "a/z"}.get(what, "a/x"), retain=what == "retained")
    if what == "a full disk":
        place.roots.room.is_left = False
    elif what == "a failed stream":
        place.roots.commit.run(lambda: place.log.all()[0].fail("a test"))
    elif what == "held":
        place.roots.showing.is_held = lambda: True
    assert shower.show(item) is None
    assert shower.seen == []


def test_what_was_shown_and_not_stored_is_counted_and_others_get_its_offsets(
    place: Place, shower: Shower, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shower.show(place.one("a/x", b"lost")) is not None
    assert shower.show(place.one("a/x", b"lost, too")) is not None
    with monkeypatch.context() as full:
        full.setattr(place.log, "free_bytes", lambda: 0)
        place.roots.room.look()
        assert stored(place) == []
    assert place.roots.counts.unstored == 2
    place.roots.room.look()
    assert shower.show(place.one("a/x", b"kept")) is not None
    assert shower.seen == [(3, 3), (4, 4), (3, 3)]
    assert stored(place) == [b"kept"]


def test_nothing_is_shown_behind_what_was_lost_before_all_that_was_shown_is_stored(
    place: Place, shower: Shower, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = shower.show(place.one("a/x", b"lost"))
    behind: list[Untold | None] = []

    def fill_up() -> int:
        """While its group is being committed, one more is shown, which stands behind it."""
        behind.append(shower.show(place.one("a/x", b"behind")))
        return 0

    with monkeypatch.context() as full:
        full.setattr(place.log, "free_bytes", fill_up)
        place.roots.room.is_left, place.roots.room.since_bytes = True, LOOK_AFTER_BYTES
        place.roots.commit.kick()
        assert stored(place) == []
    place.roots.room.look()
    assert lost is not None
    assert lost.error is not None
    assert behind[0] is not None
    assert shower.seen == [(3, 3), (4, 4)]
    assert shower.show(place.one("a/x", b"too early")) is None, "what is behind the lost one gets its offset"
    assert stored(place) == [b"behind"]
    assert shower.show(place.one("a/x", b"after")) is not None
    assert shower.seen == [(3, 3), (4, 4), (4, 4)]
    assert stored(place) == [b"behind", b"after"]
