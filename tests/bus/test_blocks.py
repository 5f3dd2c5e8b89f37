"""`with message:` and `with subscription:`: what leaves the block is what becomes of the messages, on all surfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Malformed, Recalled, Reject, Retry
from headwater.verdicts import TRACE_BYTES_MAX, traced


@pytest.fixture(params=["embedded", "served"])
def any_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A bus for threads."""
    if request.param == "embedded":
        with headwater.open(tmp_path / "data") as bus:
            yield bus
    else:
        with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
            yield bus


@contextmanager
def left(error: type[BaseException]) -> Iterator[None]:
    with pytest.raises(error):
        yield


def states(bus: Any) -> list[tuple[int, str, int]]:
    return [(one.offset, one.state, one.attempts) for one in bus.states("s")]


def publish(bus: Any, count: int) -> None:
    bus.publish_many([("a/b", b"%d" % number) for number in range(count)])


def test_with_message_acks_at_its_end(any_bus: Any) -> None:
    publish(any_bus, 2)
    with any_bus.subscribe("a/#", id="s", start="earliest") as sub:
        with sub.next(60) as message:
            assert message.payload == b"0"
        assert any_bus.subscriptions()[0].lag == 1


def test_with_message_nacks_with_the_traceback_of_what_leaves_it(any_bus: Any) -> None:
    publish(any_bus, 1)
    with any_bus.subscribe("a/#", id="s", start="earliest", retry_delay_s=300, retry_delay_s_max=300) as sub:
        with left(ValueError), sub.next(60):
            raise ValueError("no")
        (found,) = any_bus.states("s")
        assert (found.offset, found.state, found.attempts) == (1, "retry", 1)
        assert found.error.startswith("ValueError: ")
        assert "test_blocks.py" in found.error


def test_with_message_rejects_and_retries_as_it_is_told(any_bus: Any) -> None:
    publish(any_bus, 2)
    with any_bus.subscribe("a/#", id="s", start="earliest") as sub:
        with sub.next(60):
            raise Reject("no such sensor")
        (letter,) = any_bus.dead_letters("s")
        assert (letter.offset, letter.errors) == (1, ("no such sensor",))
        with sub.next(60):
            raise Retry("busy", after_s=0)
        again = sub.next(60)
        assert (again.offset, again.attempt) == (2, 2)


def test_what_was_said_within_with_message_counts_and_its_end_says_no_more(any_bus: Any) -> None:
    publish(any_bus, 5)
    with any_bus.subscribe("a/#", id="s", start="earliest", retry_delay_s=0, max_attempts=2) as sub:
        with sub.next(60) as message:
            message.ack()
        with sub.next(60) as message:
            message.nack("not yet")
        again = sub.next(60)
        assert (again.offset, again.attempt) == (2, 2)
        with again:  # the only one of its hand-out: a second ack would be one too many
            sub.ack([again])
        with sub.next(60) as message:
            message.reject("never")
        with left(ValueError), sub.next(60) as message:
            message.reject("not this one")
            raise ValueError("no")
        assert [letter.errors for letter in any_bus.dead_letters("s")] == [("never",), ("not this one",)]
        with left(Recalled), sub.next(60) as message:
            sub.seek("earliest")  # taken back by somebody else


def test_ctrl_c_within_with_message_counts_no_attempt(any_bus: Any) -> None:
    publish(any_bus, 1)
    with left(KeyboardInterrupt), any_bus.subscribe("a/#", id="s", start="earliest") as sub, sub.next(60):
        raise KeyboardInterrupt
    with any_bus.subscribe("a/#", id="s") as sub:
        assert sub.next(60).attempt == 1


def test_a_message_of_history_is_no_block_and_a_live_one_hides_no_error(any_bus: Any) -> None:
    publish(any_bus, 1)
    with pytest.raises(Malformed, match="history"), next(iter(any_bus.replay("a/#"))):
        pass
    with any_bus.subscribe("a/#") as live:
        publish(any_bus, 1)
        with left(ValueError), live.next(60):
            raise ValueError("no")


def test_an_error_that_leaves_a_loop_and_its_subscription_nacks_what_was_taken(any_bus: Any) -> None:
    publish(any_bus, 3)
    options = {"start": "earliest", "retry_delay_s": 300, "retry_delay_s_max": 300}
    with left(ValueError), any_bus.subscribe("a/#", id="s", **options) as sub:
        for message in sub:
            if message.offset == 2:
                raise ValueError("no")
            message.ack()
    (found,) = any_bus.states("s")
    assert (found.offset, found.state, found.attempts) == (2, "retry", 1)
    assert found.error.startswith("ValueError: ")


def test_what_was_acked_of_a_batch_before_the_error_stays_acked(any_bus: Any) -> None:
    publish(any_bus, 4)
    options = {"start": "earliest", "order": "none", "retry_delay_s": 300, "retry_delay_s_max": 300}
    with left(ValueError), any_bus.subscribe("a/#", id="s", **options) as sub:
        first, *_ = sub.batch(4, 60)
        first.ack()
        raise ValueError("no")
    assert states(any_bus) == [(2, "retry", 1), (3, "retry", 1), (4, "retry", 1)]


def test_leaving_a_subscription_by_break_or_ctrl_c_counts_no_attempt(any_bus: Any) -> None:
    publish(any_bus, 1)
    with any_bus.subscribe("a/#", id="s", start="earliest") as sub:
        for _ in sub:
            break
    with left(KeyboardInterrupt), any_bus.subscribe("a/#", id="s") as sub:
        assert sub.next(60).attempt == 1
        raise KeyboardInterrupt
    with any_bus.subscribe("a/#", id="s") as sub:
        assert sub.next(60).attempt == 1


@pytest.mark.parametrize("is_served", [False, True], ids=["embedded", "served"])
def test_the_same_with_asyncio(tmp_path: Path, is_served: bool) -> None:
    async def work(opening: Any) -> None:
        async with opening as bus:
            await bus.publish_many([("a/b", b"%d" % number) for number in range(4)])
            options = {"start": "earliest", "order": "none", "retry_delay_s": 300, "retry_delay_s_max": 300}
            async with bus.subscribe("a/#", id="s", **options) as sub:
                async with await sub.next(60):
                    pass
                async with await sub.next(60):
                    raise Reject("no such sensor")
                with left(ValueError):
                    async with await sub.next(60):
                        raise ValueError("no")
            with left(ValueError):
                async with bus.subscribe("a/#", id="s") as sub:
                    async for _ in sub:
                        raise ValueError("no")
            found = await bus.states("s")
            assert [(one.offset, one.state) for one in found] == [(3, "retry"), (4, "retry")]
            assert all(one.error.startswith("ValueError: ") for one in found)
            assert [letter.offset for letter in await bus.dead_letters("s")] == [2]

    if not is_served:
        asyncio.run(asyncio.wait_for(work(headwater.aio.open(tmp_path / "data")), 60))
        return
    with Served(tmp_path / "data") as served:
        asyncio.run(asyncio.wait_for(work(headwater.aio.connect(served.url)), 60))


def test_a_traceback_that_is_too_long_loses_its_outermost_calls() -> None:
    def deeper(levels: int) -> None:
        if not levels:
            raise ValueError("at the bottom")
        deeper(levels - 1)

    try:
        deeper(50)
    except ValueError as error:
        text = traced(error, error.__traceback__)
    assert len(text.encode()) <= TRACE_BYTES_MAX + 100
    assert text.startswith("ValueError: at the bottom\n")
    assert text.endswith('raise ValueError("at the bottom")')
