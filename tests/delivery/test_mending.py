"""Mended dead letters: other contents, handed to their subscription once, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from delivery.counting import CountingState
from headwater import Config, ManualClock
from headwater.bus import Bus
from headwater.delivery.letterbox import ATTEMPTS, ERROR, FROM, MENDED, OFFSET, TOPIC
from headwater.errors import Malformed, NotFound, QuotaExceeded, TooLarge


@pytest.fixture
def state() -> CountingState:
    return CountingState()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(state: CountingState, clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock, state=state) as made:
        yield made


def kill(bus: Bus, *topics: str, **options: Any) -> Any:
    """A subscription to everything that gave up on one message of each topic."""
    sub = bus.subscribe("#", id="s", start="earliest", **{"order": "none", **options})
    for topic in topics:
        bus.publish(topic, topic.encode(), key=b"k", headers=(("unit", "C"), ("unit", "F")))
    for message in sub.batch(100, 0):
        message.reject(f"no {message.topic}")
    return sub


def mended(bus: Bus, prefix: bytes = b"new ") -> list[headwater.DeadLetter]:
    return [letter.mend(payload=prefix + letter.payload) for letter in bus.dead_letters("s")]


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


def test_they_go_to_that_subscription_in_order_and_to_no_other_and_into_no_log(bus: Bus) -> None:
    sub = kill(bus, "a/1", "a/2", "b/1", order="strict")
    other = bus.subscribe("#", id="other", start="latest")
    live = bus.subscribe("#")
    bus.publish("a/3", b"fresh")
    assert bus.redrive("s", mended=reversed(mended(bus))) == 3
    assert bus.dead_letters("s") == []
    found = sub.batch(10, 0) + sub.batch(10, 0)
    assert payloads(found) == [b"new a/1", b"new a/2", b"new b/1", b"fresh"]
    assert [message.attempt for message in found] == [1, 1, 1, 1]
    assert payloads(other.batch(10, 0)) == [b"fresh"]
    assert payloads(live.batch(10, 0)) == [b"fresh"]
    assert sorted(payloads(bus.replay("#"))) == [b"a/1", b"a/2", b"b/1", b"fresh"]


def test_headers_say_where_they_come_from_and_what_was_mended(bus: Bus) -> None:
    sub = kill(bus, "a/1", "a/2", "a/3")
    first, second, third = bus.dead_letters("s")
    bus.redrive("s", mended=[first.mend(payload=b"x", key=None), second.mend(headers={"unit": "F"}), third])

    def origin(n: int) -> headwater.message.Headers:
        return ((FROM, "s"), (TOPIC, f"a/{n}"), (OFFSET, str(n)), (ATTEMPTS, "1"), (ERROR, f"no a/{n}"))

    both = (("unit", "C"), ("unit", "F"))
    messages = sub.batch(10, 0)
    assert [(message.key, message.header_pairs) for message in messages] == [
        (None, (*both, *origin(1), (MENDED, "payload,key"))),
        (b"k", (*both, *origin(2))),  # a map that says the same
        (b"k", (*both, *origin(3))),
    ]
    messages[0].reject("worse")
    (letter,) = bus.dead_letters("s")
    assert bus.redrive("s", mended=[letter.mend(headers={"unit": "K"})]) == 1
    (message,) = sub.batch(10, 0)
    assert message.header_pairs == (("unit", "K"), *origin(1)[:4], (ERROR, "worse"), (MENDED, "headers"))


def test_moving_them_is_one_write_which_also_notes_that_it_was_done(bus: Bus, state: CountingState) -> None:
    kill(bus, "a/1", "a/2", "b/1")
    state.sums.clear()
    assert bus.redrive("s", mended=mended(bus), write="w") == 3
    assert set(state.sums) == {3}, "never in both places, never in none"
    assert (state.count(b"M"), state.count(b"D")) == (0, 1)


def test_a_write_is_done_once_even_if_its_letters_died_again(bus: Bus, clock: ManualClock) -> None:
    sub = kill(bus, "a/1", "a/2")
    letters = mended(bus)
    assert bus.redrive("s", mended=letters, write="w") == 2
    clock.advance(1)
    for message in sub.batch(10, 0):
        message.reject("again")
    for _ in range(2):
        assert bus.redrive("s", mended=letters, write="w") == 2
    assert sub.next(0) is None
    assert payloads(bus.dead_letters("s")) == [b"new a/1", b"new a/2"], "mended they were, and mended they died"
    with pytest.raises(NotFound, match="died again"):
        bus.redrive("s", mended=letters, write="another")
    assert bus.redrive("s", mended=mended(bus, b""), write="another") == 2


def test_a_write_that_was_done_is_known_after_a_restart_and_its_copies_wait(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        kill(bus, "a/1", "a/2").close()
        letters = mended(bus)
        bus.mend("s", "w", letters)
    with headwater.open(tmp_path / "data") as bus:
        assert bus.redrive_mended("s", "w") == 2
    with headwater.open(tmp_path / "data") as bus:
        assert bus.redrive("s", mended=letters, write="w") == 2
        assert payloads(bus.subscribe("#", id="s", order="none").batch(10, 0)) == [b"new a/1", b"new a/2"]
        assert bus.subscriptions()[0].dead == 0


def test_parts_of_attempts_that_do_not_count_are_dropped(bus: Bus, state: CountingState) -> None:
    sub = kill(bus, "a/1", "a/2", "a/3")
    letters = mended(bus)
    bus.mend("s", "w", letters, part="lost")
    bus.mend("s", "w", letters[:1], part="0")
    bus.mend("s", "w", letters[1:2], part="1")
    bus.mend("s", "w", mended(bus, b"newer ")[1:2], part="1")
    assert bus.redrive_mended("s", "w", ["0", "1"]) == 2
    assert payloads(sub.batch(10, 0)) == [b"new a/1", b"newer a/2"]
    assert payloads(bus.dead_letters("s")) == [b"a/3"]
    assert state.count(b"M") == 0


def test_what_is_wrong_is_said_before_anything_changes(bus: Bus, state: CountingState) -> None:
    sub = kill(bus, "a/1", "a/2")
    good, other = bus.dead_letters("s")
    change = msgspec.structs.replace
    for wrong, error in (
        (change(other, offset=9), NotFound),
        (change(other, offset=-1), Malformed),
        (change(other, dead_at_us=1), NotFound),
        (change(other, topic="a/9"), Malformed),
        (change(other, topic="c/2"), NotFound),
        (change(other, subscription="t"), Malformed),
        (other.mend(payload="text", key="k"), Malformed),  # type: ignore[arg-type]
        (other.mend(payload=b"x" * (8 * 2**20 + 1)), TooLarge),
        (other.mend(key="text"), Malformed),  # type: ignore[arg-type]
        (other.mend(headers={"a": None}), Malformed),  # type: ignore[dict-item]
        (good, Malformed),
        (b"no letter", Malformed),
    ):
        with pytest.raises(error):
            bus.redrive("s", mended=[good, wrong])  # type: ignore[list-item]
    for call in (
        lambda: bus.redrive("s", [1], mended=[good]),
        lambda: bus.redrive("s", write="w"),
        lambda: bus.redrive("s", mended=[good], write=""),
        lambda: bus.redrive("s", mended=[good], write="a\0b"),
        lambda: bus.redrive_mended("s", "w", "parts"),
        lambda: good.mend(topic="a/2"),  # type: ignore[call-arg]
    ):
        with pytest.raises(Malformed):
            call()
    with pytest.raises(NotFound):
        bus.redrive("nobody", mended=[])
    assert payloads(bus.dead_letters("s")) == [b"a/1", b"a/2"]
    assert (sub.next(0), state.count(b"M"), state.count(b"D"), state.count(b"Q")) == (None, 0, 0, 0)


def test_a_letter_that_two_parts_mend_is_redriven_by_neither(bus: Bus) -> None:
    kill(bus, "a/1")
    for part in ("0", "1"):
        bus.mend("s", "w", mended(bus), part=part)
    with pytest.raises(Malformed, match="twice"):
        bus.redrive_mended("s", "w", ["0", "1"])
    assert len(bus.dead_letters("s")) == 1


def test_what_is_never_redriven_is_dropped_in_the_end(bus: Bus, state: CountingState, clock: ManualClock) -> None:
    kill(bus, "a/1", "a/2")
    bus.mend("s", "given up", mended(bus))
    bus.drop_mended("s", "given up")
    assert state.count(b"M") == 0
    bus.mend("s", "forgotten", mended(bus))
    bus.redrive("s", mended=mended(bus)[:1], write="done")
    clock.advance(bus.config.stage_age_s + 1)
    bus.core.mending.expire()
    assert (state.count(b"M"), state.count(b"D")) == (0, 0)
    assert payloads(bus.dead_letters("s")) == [b"a/2"]


def test_no_more_wait_than_some_attempts_at_all_that_may_be_dead(state: CountingState) -> None:
    with headwater.open(":memory:", Config(dead_letters_max=3), state=state) as bus:
        kill(bus, "a/1", "a/2")
        for part in range(12):
            for _ in range(2):  # storing it again is not more
                bus.mend("s", "w", mended(bus), part=str(part))
        with pytest.raises(QuotaExceeded, match="24 mended letters"):
            bus.mend("s", "w", mended(bus)[:1], part="12")


def test_nothing_of_it_is_left_when_the_subscription_goes(bus: Bus, state: CountingState) -> None:
    kill(bus, "a/1", "a/2").close()
    bus.redrive("s", mended=mended(bus)[:1])
    bus.mend("s", "w", mended(bus))
    bus.unsubscribe("s")
    assert [state.count(kind) for kind in (b"M", b"D", b"Q", b"L")] == [0, 0, 0, 0]
