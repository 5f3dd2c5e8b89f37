"""The buffer of a live subscription: its order, its limits and what happens at them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater import Closed, Config, Malformed, ManualClock, Message, Outgoing
from headwater.clock import SystemClock
from headwater.delivery.live import Live
from headwater.delivery.selection import Selection
from headwater.message import Headers
from headwater.store.batch import Batch, Seed, checksum, read_batch, seal_header
from headwater.store.body import encode_body

WAIT_S = 60.0
ROOT: Any = None  # a live subscription does not look at it


class Feed:
    """A live subscription, and the batches that are put into it."""

    def __init__(
        self,
        config: Config | None = None,
        policy: Literal["drop_oldest", "disconnect"] = "drop_oldest",
        clock: Any = None,
    ) -> None:
        self.left: list[Live] = []
        self.live = Live("home/#", policy, config or Config(), clock or ManualClock(), self._reply, self.left.append)
        self.offset = 0

    def _reply(self, message: Message, payload: Any) -> Any:
        return (message.offset, payload)

    def put(
        self,
        count: int = 1,
        places: list[int] | None = None,
        payload: bytes = b"x",
        expiry: int = 0,
        headers: Headers = (),
    ) -> None:
        batch = self.batch(count, payload, expiry, headers)
        self.live.deliver(Selection("home", batch, count if places is None else len(places), places))

    def batch(self, count: int, payload: bytes = b"x", expiry: int = 0, headers: Headers = ()) -> Batch:
        body = encode_body(
            ["home/a"] * count, [payload] * count, 0, expiries=[expiry] * count, headers=[headers] * count
        )
        head = seal_header(Seed(0), b"home", self.offset + 1, count, 0, 0, len(body), checksum(body))
        self.offset += count
        made = read_batch(Seed(0), head + body)
        assert made is not None
        return made

    def offsets(self) -> list[int]:
        """All that is there."""
        found: list[int] = []
        while messages := self.live.batch(100, timeout_s=0):
            found += [message.offset for message in messages]
        return found


# What comes out


def test_messages_come_in_the_order_of_their_batches() -> None:
    feed = Feed()
    for count in (1, 3, 2):
        feed.put(count)
    assert feed.offsets() == [1, 2, 3, 4, 5, 6]


def test_only_the_messages_at_the_given_places_come() -> None:
    feed = Feed()
    feed.put(5, places=[1, 3])
    feed.put(2)
    assert feed.offsets() == [2, 4, 6, 7]


def test_batch_answers_at_most_so_many_and_next_one() -> None:
    feed = Feed()
    feed.put(5)
    assert [message.offset for message in feed.live.batch(2)] == [1, 2]
    message = feed.live.next()
    assert message is not None
    assert message.offset == 3
    assert feed.offsets() == [4, 5]
    assert feed.live.next(timeout_s=0) is None


def test_retained_messages_come_first_and_belong_to_the_subscription() -> None:
    with headwater.open(":memory:") as bus:
        bus.publish_many([Outgoing(f"home/{name}", b"kept", retain=True) for name in "cb"])
        live = bus.subscribe("home/#")
        bus.publish("home/a", b"new")
        found = live.batch(10)
        assert [(message.offset, message.retained) for message in found] == [(2, True), (1, True), (3, False)]
        for message in found:
            message.ack()


def test_what_expired_while_it_waited_does_not_come() -> None:
    clock = ManualClock()
    feed = Feed(clock=clock)
    feed.put(2, expiry=clock.now_us() + 5_000_000)
    feed.put(1)
    clock.advance(5)
    assert feed.offsets() == [3]


def test_a_reader_that_waits_is_woken() -> None:
    feed = Feed(clock=SystemClock())
    found: list[Message | None] = []
    reader = threading.Thread(target=lambda: found.append(feed.live.next(timeout_s=WAIT_S)))
    reader.start()
    feed.put(1)
    reader.join(WAIT_S)
    assert found[0] is not None


def test_a_reader_that_is_woken_for_nothing_goes_on_waiting() -> None:
    """Within its timeout: the others who read from it may have been quicker."""
    clock = ManualClock()
    feed = Feed(clock=clock)
    looks = 0

    def wait(condition: threading.Condition, timeout_us: int | None) -> bool:
        nonlocal looks
        looks += 1
        condition.release()
        try:
            if looks == 2:
                feed.put(1)
        finally:
            condition.acquire()
        return True

    clock.wait = wait  # type: ignore[method-assign]
    assert feed.live.next(timeout_s=WAIT_S) is not None
    assert looks == 2


def test_a_batch_that_holds_nothing_that_is_left_does_not_end_the_wait() -> None:
    clock = ManualClock()
    feed = Feed(clock=clock)
    feed.put(1, expiry=1)
    feed.put(1)
    assert [message.offset for message in feed.live.batch(10)] == [2]


def test_a_reader_s_timeout_holds_though_another_reads() -> None:
    feed = Feed(clock=SystemClock())
    waits = threading.Event()
    found: list[Message | None] = []

    def wait() -> None:
        waits.set()
        found.append(feed.live.next())

    other = threading.Thread(target=wait, daemon=True)
    other.start()
    assert waits.wait(WAIT_S)
    impatient = threading.Thread(target=lambda: found.append(feed.live.next(timeout_s=0.02)), daemon=True)
    impatient.start()
    impatient.join(30)
    is_stuck = impatient.is_alive()
    feed.put(2)
    other.join(WAIT_S)
    assert not is_stuck


def test_readers_that_share_it_get_each_message_once() -> None:
    feed = Feed(clock=SystemClock())
    total, lock = 400, threading.Lock()
    got: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            messages = feed.live.batch(7, timeout_s=0.02)
            with lock:
                got.extend(message.offset for message in messages)
                if len(got) >= total:
                    done.set()

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(total // 4):
        feed.put(4)
    for reader in readers:
        reader.join(WAIT_S)
    assert sorted(got) == list(range(1, total + 1))


def test_wakers_are_called_whenever_something_arrives_and_at_the_end() -> None:
    feed = Feed()
    called: list[int] = []
    feed.live.add_waker(lambda: called.append(len(called)))
    feed.put(3)
    feed.put(1)
    assert len(called) == 2
    feed.live.close()
    assert len(called) == 3


# Limits


@given(st.lists(st.integers(1, 8), max_size=12), st.integers(1, 10))
def test_drop_oldest_keeps_the_newest_up_to_the_limit_and_counts_the_rest(counts: list[int], limit: int) -> None:
    feed = Feed(Config(live_messages_max=limit))
    for count in counts:
        feed.put(count)
    total = sum(counts)
    assert feed.live.dropped == max(0, total - limit)
    assert feed.offsets() == list(range(1, total + 1))[-limit:]


def test_dropping_goes_by_the_messages_that_match() -> None:
    feed = Feed(Config(live_messages_max=3))
    feed.put(6, places=[0, 2, 4])
    feed.put(6, places=[5])
    assert feed.live.dropped == 1
    assert feed.offsets() == [3, 5, 12]


def test_bytes_are_limited_and_a_batch_alone_always_fits() -> None:
    feed = Feed(Config(live_bytes_max=10_000))
    feed.put(1, payload=bytes(50_000))
    assert feed.live.dropped == 0
    feed.put(1, payload=bytes(4000))
    assert feed.live.dropped == 1
    feed.put(1, payload=bytes(4000))
    feed.put(1, payload=bytes(4000))
    assert feed.live.dropped == 2
    assert feed.offsets() == [3, 4]


def test_what_the_reader_took_makes_room() -> None:
    feed = Feed(Config(live_messages_max=4))
    for _ in range(10):
        feed.put(4)
        assert len(feed.offsets()) == 4
    assert feed.live.dropped == 0


def test_disconnect_ends_it_with_what_to_do() -> None:
    feed = Feed(Config(live_messages_max=4), "disconnect")
    feed.put(4)
    feed.put(1)
    with pytest.raises(Closed, match=r"live_messages_max.*drop_oldest"):
        for _ in range(10):
            feed.live.next(timeout_s=0)
    assert feed.live.dropped == 0
    feed.put(1)
    with pytest.raises(Closed):
        feed.live.next(timeout_s=0)
    with pytest.raises(Closed):
        next(iter(feed.live))


@pytest.mark.parametrize("when_full", ["drop_oldest", "disconnect"])
def test_more_retained_messages_than_the_buffer_holds_come_all(when_full: Any) -> None:
    with headwater.open(":memory:", Config(live_messages_max=2)) as bus:
        bus.publish_many([Outgoing(f"home/{number:03}", b"kept", retain=True) for number in range(700)])
        live = bus.subscribe("home/#", when_full=when_full)
        bus.publish("home/000", b"new")
        bus.publish("home/001", b"new")
        found = [message.topic for message in islice(live, 702)]
        assert found == [*(f"home/{number:03}" for number in range(700)), "home/000", "home/001"]
        assert live.dropped == 0


def test_what_comes_while_retained_messages_wait_is_dropped_as_ever_and_they_are_not() -> None:
    with headwater.open(":memory:", Config(live_messages_max=2)) as bus:
        bus.publish_many([Outgoing(f"home/{number:03}", b"kept", retain=True) for number in range(700)])
        live = bus.subscribe("home/#")
        for number in range(5):
            bus.publish("home/000", b"%d" % number)
        found = [message.payload for message in islice(live, 702)]
        assert found == [*[b"kept"] * 700, b"3", b"4"]
        assert live.dropped == 3


def test_a_reader_that_waits_hears_of_the_disconnect() -> None:
    feed = Feed(Config(live_messages_max=1), "disconnect", SystemClock())
    ended = threading.Event()

    def read() -> None:
        try:
            feed.live.next(timeout_s=WAIT_S)
        except Closed:
            ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    feed.put(5)
    assert ended.wait(WAIT_S)


# The end


def test_closing_leaves_and_ends_the_iteration() -> None:
    feed = Feed()
    with feed.live as live:
        feed.put(2)
        assert [message.offset for message in islice(live, 2)] == [1, 2]
    assert feed.left == [live]
    feed.put(1)
    with pytest.raises(Closed, match="subscribe again"):
        live.next(timeout_s=0)
    assert list(live) == []


def test_an_end_that_was_not_the_reader_s_wish_is_raised_in_the_iteration() -> None:
    feed = Feed()
    feed.live.end("the bus is closed")
    with pytest.raises(Closed, match="the bus is closed"):
        list(feed.live)


@pytest.mark.parametrize("verb", [Message.nack, Message.reject, lambda message: message.extend(5)])
def test_what_needs_an_id_says_so(verb: Callable[[Message], None]) -> None:
    feed = Feed()
    feed.put(1)
    (message,) = feed.live.batch(1)
    with pytest.raises(Malformed, match="subscribe with an id"):
        verb(message)
    message.ack()
    message.ack(wait=False)


def test_a_request_is_answered_by_way_of_the_bus() -> None:
    feed = Feed()
    feed.put(1, headers=(("reply-to", "x"),))
    (message,) = feed.live.batch(1)
    assert message.reply(b"yes") == (1, b"yes")  # type: ignore[comparison-overlap]


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(Malformed, match="drop_oldest"):
        Feed(policy="block")  # type: ignore[arg-type]


# Joining


def test_a_subscriber_that_joins_amid_publishing_gets_the_retained_message_and_everything_after_it() -> None:
    """Between two groups: what is retained, then each newer message, none twice and none left out."""
    with headwater.open(":memory:") as bus:
        stop = threading.Event()

        def publish() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                bus.publish("home/a", b"%d" % number, retain=True)

        publisher = threading.Thread(target=publish, daemon=True)
        bus.publish("home/a", b"0", retain=True)
        publisher.start()
        try:
            for _ in range(20):
                with bus.subscribe("home/#") as live:
                    found: list[Message] = []
                    while len(found) < 8:
                        found += live.batch(8, timeout_s=WAIT_S)
                    assert [message.retained for message in found[:2]] == [True, False]
                    first = found[0].offset
                    assert [message.offset for message in found] == list(range(first, first + len(found)))
        finally:
            stop.set()
            publisher.join(WAIT_S)
