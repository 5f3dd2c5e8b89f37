"""Reading history and reading on: where it begins, what it passes over, and that nothing is missed in between."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
import headwater.aio
from headwater import Config, Gap, Malformed, ManualClock, Message, Outgoing, Retention
from headwater.bus import Bus
from headwater.delivery.replay import check_after

WAIT_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock) as made:
        yield made


def offsets(messages: Any) -> list[int]:
    return [message.offset for message in messages]


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


def publish(bus: Bus, *sizes: int, topic: str = "home/a") -> None:
    """A batch of each size."""
    for size in sizes:
        bus.publish_many([(topic, b"x")] * size)


# Where it begins


@given(st.lists(st.integers(1, 5), max_size=6), st.integers(0, 30))
@settings(max_examples=40)
def test_it_begins_right_after_an_offset_within_batches_too(sizes: list[int], after: int) -> None:
    with headwater.open(":memory:") as bus:
        publish(bus, *sizes)
        wanted = list(range(1, sum(sizes) + 1))[after:]
        assert offsets(bus.replay("home/#", after=after)) == wanted
        assert offsets(bus.replay("#", after={"home": after})) == wanted


def test_it_begins_at_the_first_batch_appended_at_or_after_a_time(bus: Bus, clock: ManualClock) -> None:
    moments = []
    for size in (2, 1, 3):
        clock.advance(10)
        moments.append(bus.now)
        publish(bus, size)
    assert offsets(bus.replay("home/#", since=moments[1])) == [3, 4, 5, 6]
    assert offsets(bus.replay("home/#", since=moments[1] + timedelta(microseconds=1))) == [4, 5, 6]
    assert offsets(bus.replay("home/#", since=moments[0] - timedelta(days=1))) == [1, 2, 3, 4, 5, 6]
    assert offsets(bus.replay("home/#", since=moments[2] + timedelta(days=1))) == []


def test_without_a_place_it_begins_at_what_is_kept(tmp_path: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(hard_bytes=70_000))
    with headwater.open(tmp_path / "data", config, clock=clock) as bus:
        for _ in range(40):
            bus.publish("home/a", bytes(5000))
        bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(bus.core.roots.all()[0]))
        found = offsets(bus.replay("home/#"))
        assert found[0] > 1
        assert found == list(range(found[0], 41))
        reading = bus.replay("home/#", after=0)
        with pytest.raises(Gap) as gap:
            next(reading)
        assert (gap.value.root, gap.value.first, gap.value.last) == ("home", 1, found[0] - 1)
        assert offsets(reading) == found


def test_a_batch_is_all_that_is_at_hand(bus: Bus, clock: ManualClock) -> None:
    publish(bus, 1, 1, 2, topic="home/a")
    clock.advance(1)
    publish(bus, 1, 1, topic="hall/a")
    with bus.follow("#") as following:
        assert offsets(following.batch(4, 0)) == [1, 2, 3, 4]
        assert offsets(following.batch(100, 0)) == [1, 2]
        publish(bus, 1, 1)
        assert offsets(following.batch(100, 0)) == [5, 6]
    assert len(bus.replay("#").batch(100)) == 8


def test_a_gap_comes_after_the_messages_before_it(tmp_path: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(hard_bytes=70_000))
    with headwater.open(tmp_path / "data", config, clock=clock) as bus:
        publish(bus, 2, topic="hall/a")
        reading = bus.follow("#", after={"home": 0, "hall": 0})
        assert offsets(reading.batch(1)) == [1]
        for _ in range(40):
            bus.publish("home/a", bytes(5000))
        bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(bus.core.roots.get("home")))  # type: ignore[arg-type]
        assert [message.topic for message in reading.batch(100)] == ["hall/a"]
        with pytest.raises(Gap):
            reading.batch(100)
        assert reading.batch(100)


@pytest.mark.parametrize(
    ("filter", "after", "since"),
    [
        ("#", 5, None),
        ("+/a", 0, None),
        ("home/#", -1, None),
        ("home/#", "5", None),
        ("home/#", None, 5),
        ("#", {"a": -1}, None),
    ],
)
def test_a_place_that_is_none_is_refused(filter: str, after: Any, since: Any) -> None:
    with pytest.raises(Malformed):
        check_after(filter, after, since)


# What it passes over


def test_it_finds_what_the_filter_matches(bus: Bus) -> None:
    bus.publish_many([("home/a", b"1"), ("home/b", b"2"), ("home/a", b"3"), ("home/a/b", b"4")])
    bus.publish_many([("home/b", b"5")])
    bus.publish_many([("home/a", b"6")])
    assert payloads(bus.replay("home/a")) == [b"1", b"3", b"6"]
    assert payloads(bus.replay("home/+")) == [b"1", b"2", b"3", b"5", b"6"]
    assert payloads(bus.replay("home/a/#")) == [b"1", b"3", b"4", b"6"]
    assert payloads(bus.replay("home/b", after=2)) == [b"5"]


def test_purged_and_expired_messages_are_passed_over(bus: Bus, clock: ManualClock) -> None:
    bus.publish_many([("home/a", b"1"), ("home/b", b"2")])
    bus.purge("home/a")
    bus.publish_many([Outgoing("home/a", b"3", ttl_s=5), Outgoing("home/a", b"4")])
    assert payloads(bus.replay("home/#")) == [b"2", b"3", b"4"]
    clock.advance(5)
    assert payloads(bus.replay("home/#")) == [b"2", b"4"]
    assert payloads(bus.replay("home/a", after=1)) == [b"4"]


def test_roots_that_begin_with_a_dollar_are_found_by_their_name_alone(bus: Bus) -> None:
    bus.publish("$box/a", b"1")
    bus.publish("home/a", b"2")
    assert payloads(bus.replay("#")) == payloads(bus.replay("+/a")) == [b"2"]
    assert payloads(bus.replay("$box/#")) == [b"1"]


# Several roots


def test_several_roots_are_merged_by_the_time_of_their_batches_and_each_stays_in_order(
    bus: Bus, clock: ManualClock
) -> None:
    sent = []
    for number in range(12):
        clock.advance(1)
        topic = f"{'abc'[number * 7 % 3]}/x"
        bus.publish(topic, b"%d" % number)
        sent.append(b"%d" % number)
    assert payloads(bus.replay("#")) == sent
    assert payloads(bus.replay("+/x", since=bus.now - timedelta(seconds=3))) == sent[-4:]


def test_a_gap_in_one_root_does_not_keep_the_others_from_being_read(tmp_path: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention_roots={"a": Retention(hard_bytes=70_000)})
    with headwater.open(tmp_path / "data", config, clock=clock) as bus:
        for _ in range(40):
            bus.publish_many([("a/x", bytes(5000)), ("b/x", b"1")])
        bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(bus.core.roots.all()[0]))
        reading = bus.replay("#", after={"a": 0, "b": 0})
        found: list[Message] = []
        gaps: list[Gap] = []
        while True:
            try:
                found.append(next(reading))
            except Gap as gap:
                gaps.append(gap)
            except StopIteration:
                break
        assert [gap.root for gap in gaps] == ["a"]
        assert offsets(message for message in found if message.root == "b") == list(range(1, 41))
        assert offsets(message for message in found if message.root == "a") == list(range(gaps[0].last + 1, 41))


# Asking


def test_next_and_batch_answer_nothing_at_the_end_of_history(bus: Bus) -> None:
    publish(bus, 3)
    reading = bus.replay("home/#")
    assert offsets(reading.batch(2)) == [1, 2]
    assert reading.is_over
    assert offsets([reading.next()]) == [3]
    assert reading.next() is None
    assert reading.batch(5, timeout_s=100) == []
    assert list(reading) == []
    with pytest.raises(Malformed):
        reading.batch(0)


def test_history_ends_at_the_moment_of_the_call(bus: Bus) -> None:
    publish(bus, 2)
    readings = [bus.replay("home/#"), bus.replay("#"), bus.replay("new/#")]
    publish(bus, 2)
    bus.publish("new/a", b"")
    assert [offsets(reading) for reading in readings] == [[1, 2], [1, 2], []]


# Following


def test_a_follower_goes_on_with_what_is_new(bus: Bus) -> None:
    publish(bus, 2)
    following = bus.follow("home/#")
    assert not following.is_over
    assert offsets(following.batch(10, 0)) == [1, 2]
    for first in (3, 5):
        assert following.next(timeout_s=0) is None
        publish(bus, 2)
        assert offsets(following.batch(10, WAIT_S)) == [first, first + 1]
    following.close()
    assert following.is_over
    publish(bus, 1)
    assert following.next(timeout_s=0) is None


def test_a_follower_of_a_topic_is_not_kept_from_waiting_by_others(bus: Bus) -> None:
    following = bus.follow("home/a")
    publish(bus, 5, topic="home/b")
    assert following.next(timeout_s=0) is None
    publish(bus, 1)
    assert offsets(following.batch(10, WAIT_S)) == [6]


def test_a_follower_may_begin_beyond_the_end(bus: Bus) -> None:
    publish(bus, 1)
    following = bus.follow("home/#", after=3)
    publish(bus, 3)
    assert offsets(following.batch(10, WAIT_S)) == [4]


@pytest.mark.parametrize("first", ["other/x", None], ids=["beside another root", "on an empty bus"])
def test_a_place_in_a_root_that_appears_later_is_kept_to(bus: Bus, first: str | None) -> None:
    if first is not None:
        bus.publish(first, b"")
    following = bus.follow("#", after={"home": 2, "other": 1})
    publish(bus, 4)
    found = following.batch(10, WAIT_S)
    assert [(message.root, message.offset) for message in found] == [("home", 3), ("home", 4)]


def test_many_followers_of_many_roots_miss_nothing_while_everybody_publishes() -> None:
    roots, each = 4, 60
    with headwater.open(":memory:", Config(tail_bytes=0, read_bytes=4096)) as bus:
        wrong: list[object] = []
        ready = threading.Barrier(roots + 3)

        def write(number: int) -> None:
            ready.wait(WAIT_S)
            for step in range(each):
                bus.publish_many([(f"r{number}/x", b"%d" % step), (f"r{(number + 1) % roots}/y", b"")])

        def follow() -> None:
            following = bus.follow("#")
            ready.wait(WAIT_S)
            seen: dict[str, list[int]] = {}
            for _ in range(2 * roots * each):
                message = following.next(timeout_s=WAIT_S)
                if message is None:
                    break
                seen.setdefault(message.root, []).append(message.offset)
            if seen != {f"r{number}": list(range(1, 2 * each + 1)) for number in range(roots)}:
                wrong.append({root: len(found) for root, found in seen.items()})

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(roots)]
        threads += [threading.Thread(target=follow, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S * 2)
        assert wrong == []


def test_wakers_are_called_when_there_is_more_and_at_the_end(bus: Bus) -> None:
    following = bus.follow("home/#")
    called: list[None] = []
    following.add_waker(lambda: called.append(None))
    publish(bus, 3)
    bus.publish("other/x", b"")
    assert len(called) == 1
    following.close()
    assert len(called) == 2


def test_messages_from_history_can_be_answered_and_nothing_else(bus: Bus) -> None:
    bus.publish("home/a", b"", headers={"reply-to": "answers/1", "correlation-id": "7"})
    (message,) = bus.replay("home/#")
    message.reply(b"yes")
    (answer,) = bus.replay("answers/#")
    assert (answer.payload, dict(answer.headers)) == (b"yes", {"correlation-id": "7"})
    for verb in (message.ack, message.nack, message.reject, lambda: message.extend(1)):
        with pytest.raises(headwater.HeadwaterError, match="read from history"):
            verb()


def test_it_ends_where_it_is_told_and_reads_no_other_root(bus: Bus) -> None:
    bus.publish_many([("home/a", b"%d" % n) for n in range(10)])
    bus.publish_many([("office/a", b"%d" % n) for n in range(10)])
    found = [(m.root, m.offset) for m in bus.replay("#", after={"home": 3}, upto={"home": 6})]
    assert found == [("home", 4), ("home", 5), ("home", 6)]
    assert len(list(bus.replay("#", upto={"home": 99, "nowhere": 5}))) == 10
    assert list(bus.replay("#", upto={})) == []
    with pytest.raises(Malformed):
        bus.replay("#", upto={"home": -1})


def test_extents_say_what_there_is_and_where_moments_are(bus: Bus, clock: ManualClock) -> None:
    bus.publish_many([("home/a", b"%d" % n) for n in range(3)])
    clock.advance(60)
    moment = bus.now
    bus.publish("home/a", b"x")
    bus.publish("office/a", b"x")
    bus.purge("office/#")
    home, office = bus.extents("#", [moment, moment - timedelta(days=1)])
    assert (home.root, home.first, home.end, home.purged_upto, home.places) == ("home", 1, 5, 0, (4, 1))
    assert (office.end, office.purged_upto) == (2, 1)
    assert [extent.root for extent in bus.extents("home/+")] == ["home"]
    assert bus.extents("nothing/#") == []


# Forgotten


def listeners(bus: Bus) -> int:
    return bus.core.dispatcher.listeners.count


def test_a_reading_that_was_forgotten_is_told_of_nothing_any_more(bus: Bus) -> None:
    publish(bus, 1)
    before = listeners(bus)
    for _ in range(5):
        for _ in bus.follow("home/#", after=0):
            break
    with bus.follow("home/#", after=1) as reading:
        assert listeners(bus) == before + 1
        publish(bus, 1)
        assert offsets(reading.batch(1)) == [2]
    assert listeners(bus) == before
    assert not bus.core.live


def test_it_is_let_go_of_in_time_when_nobody_reads_again(bus: Bus, clock: ManualClock) -> None:
    before = listeners(bus)
    holder: list[Any] = [bus.follow("home/#")]
    holder.append(holder)  # a cycle
    del holder
    gc.collect()
    bus.core.roots.commit.run(bus.core.upkeep.go_round)
    assert listeners(bus) == before


def test_a_reading_for_asyncio_that_was_forgotten_is_collected(bus: Bus) -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as found:
            await found.publish("home/a", b"x")
            before = listeners(found.threads)
            async for _ in found.follow("home/#", after=0):
                break
            await asyncio.sleep(0)  # the loop closes the abandoned iteration
            await asyncio.sleep(0)
            reading = found.follow("home/#")
            assert listeners(found.threads) == before + 1
            await reading.close()

    asyncio.run(work())
