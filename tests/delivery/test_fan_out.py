"""A batch on its way to all who are to hear of it: at once to a few, and in turns and in order to many."""

from __future__ import annotations

from typing import ClassVar

import pytest

from headwater.delivery import fan_out
from headwater.delivery.fan_out import AT_ONCE_MAX, TURN_MAX, Audience, FanOuts
from headwater.delivery.selection import Selection
from headwater.store.batch import Batch, Header
from headwater.store.body import encode_body

FEW = 3
MANY = AT_ONCE_MAX + 1


class Ear:
    """Notes what it is told of: the first offset, and the places."""

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = False

    def __init__(self) -> None:
        self.heard: list[tuple[int, list[int] | None]] = []

    def deliver(self, selection: Selection) -> None:
        assert selection.batch is not None
        places = None if selection.places is None else list(selection.places)
        self.heard.append((selection.batch.first_offset, places))


class EarlyEar(Ear):
    """The same, of what is not on disk yet."""

    takes_early: ClassVar[bool] = True


def batch(first: int, root: str = "a", *topics: str, is_early: bool = False) -> Batch:
    names = topics or (f"{root}/x",)
    body = encode_body(names, [b""] * len(names), 1)
    header = Header(root, first, len(names), 1, 0, None, 0, 0, 0, len(body), 0)
    return Batch.of(header, body, is_early=is_early)


class Served:
    """Fan-outs, carried on by whoever asks for it."""

    def __init__(self) -> None:
        self.rings = 0
        self.fan_outs = FanOuts(lambda audience, limit: audience.look_up(lambda _: self.found, limit))
        self.found: list[Ear] = []
        self.fan_outs.serve(self._ring)

    def _ring(self) -> None:
        self.rings += 1

    def carry_on(self) -> None:
        while self.fan_outs.by_root:
            self.fan_outs.carry_on(16)


def test_a_few_are_told_at_once_each_of_the_messages_that_match() -> None:
    served, whole, partly = Served(), [Ear() for _ in range(FEW)], Ear()
    left, under_way = served.fan_outs.tell(batch(1, "a", "a/x", "a/y"), Audience(whole, [(partly, [1])]), TURN_MAX)
    assert (left, under_way, served.rings) == (TURN_MAX - FEW - 1, None, 0)
    assert [one.heard for one in whole] == [[(1, None)]] * FEW
    assert partly.heard == [(1, [1])]


@pytest.mark.parametrize(("is_early", "heard"), [(True, [0, 1]), (False, [1, 1])])
def test_what_is_early_is_for_those_who_take_it_so(is_early: bool, heard: list[int]) -> None:
    ears = [Ear(), EarlyEar()]
    Served().fan_outs.tell(batch(1, is_early=is_early), Audience(ears), TURN_MAX)
    assert [len(one.heard) for one in ears] == heard


def test_what_was_shown_is_told_once_it_is_on_disk_to_those_who_had_not_seen_it() -> None:
    ears, shown = [Ear(), EarlyEar()], batch(1)
    shown.is_shown = True
    Served().fan_outs.tell(shown, Audience(ears), TURN_MAX)
    assert [len(one.heard) for one in ears] == [1, 0]


def test_many_are_told_in_turns_and_what_comes_behind_waits_for_them() -> None:
    served, ears, other = Served(), [Ear() for _ in range(MANY)], Ear()
    over: list[str] = []
    left, first = served.fan_outs.tell(batch(1), Audience(ears), TURN_MAX)
    assert (left, served.rings) == (TURN_MAX, 1)
    assert first is not None
    _, second = served.fan_outs.tell(batch(2), Audience([other]), TURN_MAX)
    assert second is not None, "it is not told before those who are to hear of what came first"
    served.fan_outs.when_over([first, second], lambda: over.append("both"))
    served.fan_outs.tell(batch(1, "b"), Audience([other]), TURN_MAX)
    assert other.heard == [(1, None)], "another root does not wait"
    served.fan_outs.carry_on(16)
    assert [len(one.heard) for one in ears] == [1] * 16 + [0] * (MANY - 16)
    assert over == []
    served.carry_on()
    assert [one.heard for one in ears] == [[(1, None)]] * MANY
    assert other.heard == [(1, None), (2, None)]
    assert over == ["both"]
    served.fan_outs.when_over([first], lambda: over.append("again"))
    assert over == ["both", "again"]


def test_roots_have_their_turns_one_after_another() -> None:
    served, of_a, of_b = Served(), [Ear() for _ in range(MANY)], [Ear() for _ in range(MANY)]
    served.fan_outs.tell(batch(1, "a"), Audience(of_a), TURN_MAX)
    served.fan_outs.tell(batch(1, "b"), Audience(of_b), TURN_MAX)
    served.fan_outs.carry_on(16)
    served.fan_outs.carry_on(16)
    assert [sum(len(one.heard) for one in ears) for ears in (of_a, of_b)] == [16, 16]


def test_those_of_many_topics_are_looked_up_in_turns() -> None:
    served = Served()
    served.found = [Ear()]
    topics = tuple(f"a/{number}" for number in range(100))
    served.fan_outs.tell(batch(1, "a", *topics), Audience.of(topics), TURN_MAX)
    served.fan_outs.carry_on(16)
    assert served.found[0].heard == []
    served.carry_on()
    assert served.found[0].heard == [(1, None)]


def test_without_a_server_all_are_told_at_once() -> None:
    fan_outs, ears = FanOuts(lambda *_: None), [Ear() for _ in range(MANY)]
    assert fan_outs.tell(batch(1), Audience(ears), 0)[1] is None
    assert [one.heard for one in ears] == [[(1, None)]] * MANY


def test_beyond_what_may_wait_whoever_brings_a_batch_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "WAITING_BYTES_MAX", fan_out.BATCH_WEIGHT)
    served, ears = Served(), [Ear() for _ in range(MANY)]
    _, under_way = served.fan_outs.tell(batch(1), Audience(ears), TURN_MAX)
    assert under_way is not None
    assert under_way.is_over
    assert [one.heard for one in ears] == [[(1, None)]] * MANY


def test_a_server_that_ends_leaves_nobody_untold() -> None:
    served, ears = Served(), [Ear() for _ in range(MANY)]
    served.fan_outs.tell(batch(1), Audience(ears), TURN_MAX)
    served.fan_outs.serve(None)
    assert [one.heard for one in ears] == [[(1, None)]] * MANY
    assert not served.fan_outs.by_root
