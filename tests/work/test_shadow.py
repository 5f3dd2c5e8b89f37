"""New code over recorded messages: what would be different, and that nothing else is."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Conflict, Malformed, ManualClock, NotFound, Outgoing, TimedOut
from headwater.work.shadow import HEARD, REFUSED, REGISTERED
from work.shifts import running, until

READINGS = [b"15", b"25", b"bad", b"95", b"16", b"26"]


def regulate(bus: Any) -> Any:
    """What ran for real."""

    def handle(message: Any) -> None:
        celsius = float(message.payload)
        if celsius > 90:
            raise headwater.Reject("no room is that hot")
        bus.publish("heater/x", b"on" if celsius < 20 else b"off")

    return handle


def lived(bus: Any, payloads: list[bytes] = READINGS) -> None:
    """Messages that were handled by that code."""
    bus.publish_many([("home/x", payload) for payload in payloads])
    bus.consume("home/#", regulate(bus), id="s", start="earliest", max_attempts=2, retry_delay_s=0)
    with running(bus):
        until(lambda: [one.lag for one in bus.subscriptions()] == [0])


def known(bus: Any) -> tuple[Any, ...]:
    """All that a what-if could have changed, as everybody can see it."""
    (info,) = bus.subscriptions()
    letters = [(one.offset, one.attempts, one.errors) for one in bus.dead_letters("s")]
    states = [(one.offset, one.state, one.attempts) for one in bus.states("s")]
    ends = {root: end for root, end in bus.ends().items() if not root.startswith("$")}
    return info.floors["home"], info.lag, info.dead, letters, states, ends, [one.topic for one in bus.topics()]


def test_it_tells_what_newly_fails_succeeds_and_publishes_something_else_and_changes_nothing(bus: Any):
    lived(bus)
    before = known(bus)
    seen: list[tuple[int, int]] = []

    def better(message: Any) -> None:
        seen.append((message.offset, message.attempt))
        celsius = 0.0 if message.payload == b"bad" else float(message.payload)
        if message.payload == b"25":
            raise ValueError("another mistake")
        if message.payload == b"16" and message.attempt == 1:
            raise headwater.Retry("not yet", after_s=3600)
        if celsius > 90:
            message.reject("still too hot")
        receipt = bus.publish("heater/x", b"on" if celsius < 30 else b"off", headers={"a": "b"})
        assert (receipt.topic, receipt.offset) == ("heater/x", 0)

    found = bus.what_if("s", better)
    assert seen == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (5, 1), (5, 2), (6, 1)]  # what failed again before the next
    assert [(one.offset, one.before.end, one.after.end, one.changes) for one in found.trials] == [
        (1, "acked", "acked", ()),
        (2, "acked", "dead", ("fails",)),
        (3, "dead", "acked", ("succeeds",)),
        (4, "dead", "dead", ()),
        (5, "acked", "acked", ("retries",)),
        (6, "acked", "acked", ("publishes",)),
    ]
    assert found.counts == {"fails": 1, "succeeds": 1, "retries": 1, "publishes": 1, "longer": 0}
    assert found.ends == {"acked → acked": 3, "acked → dead": 1, "dead → acked": 1, "dead → dead": 1}
    failing = found.trials[1].after
    assert (failing.attempts, failing.error and failing.error.partition("\n")[0]) == (2, "ValueError: another mistake")
    assert "test_shadow.py" in (failing.error or "")
    assert (found.trials[2].before.attempts, found.trials[3].after.error) == (2, "still too hot")
    assert found.handler.endswith("better")
    assert "1 newly fail" in repr(found)
    assert known(bus) == before
    assert bus.publish("other/x", b"").offset == 1  # and the bus is as it was
    assert "publish" not in vars(bus)


def test_the_code_that_ran_would_do_the_same_again(bus: Any):
    lived(bus)
    found = bus.what_if("s", regulate(bus))
    assert (found.messages, found.changed, found.notes) == (6, [], ())


def test_where_it_is_told_what_became_of_messages_the_whole_truth_is_compared_with(bus: Any):
    bus.publish_many([("home/x", payload) for payload in (b"1", b"2", b"3")])
    tried: list[bytes] = []

    def old(message: Any) -> None:
        tried.append(message.payload)
        if message.payload == b"2" and tried.count(b"2") < 3:
            raise ValueError("not yet")
        if message.payload == b"3":
            raise headwater.Reject("never")

    bus.consume("home/#", old, id="s", start="earliest", max_attempts=5, retry_delay_s=0, states="stream")
    with running(bus):
        until(lambda: [one.lag for one in bus.subscriptions()] == [0])
        until(lambda: any(b'"dead"' in one.payload for one in bus.replay("$sys/states/s")))
    bus.drop_dead_letters("s")

    def new(message: Any) -> None:
        if message.payload == b"1" and message.attempt < 2:
            raise ValueError("once more")

    found = bus.what_if("s", new)
    first, second, third = found.trials
    assert [(one.before.end, one.before.attempts, one.after.attempts) for one in found.trials] == [
        *(("acked", 1, 2), ("acked", 3, 1), ("dead", 1, 1)),
    ]
    assert [one.changes for one in found.trials] == [("retries",), (), ("succeeds",)]
    assert (second.before.error or "").startswith("ValueError: not yet")
    assert third.before.error == "never"
    assert all(one.before.took_us is not None for one in (first, second, third))
    assert found.notes == ()


def test_entries_that_are_missing_there_are_noted():
    with headwater.open(":memory:", headwater.Config(states="stream", states_waiting_max=10)) as bus:
        bus.publish_many([("home/x", b"") for _ in range(50)])
        with bus.subscribe("home/#", id="s", start="earliest") as sub:
            for message in sub.batch(50):
                message.ack()
            bus.publish("home/x", b"")  # what is told next says what is missing
            bus.core.lives.write()
            sub.batch(1)[0].ack()
        found = bus.what_if("s", lambda _: None)
        assert [one.before.end for one in found.trials] == ["acked"] * 51
        (note,) = found.notes
        assert "entries of what became of messages are missing" in note


def test_with_other_code_it_is_known_what_that_publishes_and_how_long_it_takes():
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        bus.subscribe("home/#", id="s").close()
        bus.publish_many([("home/x", payload) for payload in (b"1", b"2", b"3")])

        def old(message: Any) -> None:
            clock.advance(0.01)
            bus.publish("heater/x", message.payload)

        def new(message: Any) -> None:
            clock.advance(0.05 if message.payload == b"2" else 0.01)
            bus.publish("heater/x", b"else" if message.payload == b"3" else message.payload)

        found = bus.what_if("s", new, against=old, after=0)
        assert [one.changes for one in found.trials] == [(), ("longer",), ("publishes",)]
        assert (found.trials[1].before.took_us, found.trials[1].after.took_us) == (10_000, 50_000)
        assert (found.took_us(0), found.took_us(1.0)) == (10_000, 50_000)
        assert found.against is not None
        assert found.against.endswith("old")
        waiting = bus.what_if("s", new)
        assert [one.before.end for one in waiting.trials] == ["waiting"] * 3
        assert waiting.counts["publishes"] == 0  # nothing happened yet that it could differ from


def test_what_takes_longer_than_the_ack_timeout_is_told():
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        bus.publish("home/x", b"1")
        bus.subscribe("home/#", id="s", ack_timeout_s=5, start="earliest").close()
        found = bus.what_if("s", lambda _: clock.advance(6))
        assert found.counts["longer"] == 1


def test_whatever_a_handler_publishes_is_noted_and_whoever_else_uses_the_bus_goes_on(bus: Any):
    bus.publish("home/x", b"1", headers={"reply-to": "$reply/nobody"})
    bus.subscribe("home/#", id="s", start="earliest").close()
    errors: list[Exception] = []

    def refused(work: Any, *given: Any, **options: Any) -> None:
        with pytest.raises((Conflict, Malformed, TimedOut)) as caught:
            work(*given, **options)
        errors.append(caught.value)

    def handle(message: Any) -> None:
        bus.send("a/1", b"1")
        assert bus.publish_soon("a/2", b"2", key=b"k").result(0).topic == "a/2"
        assert len(bus.publish_many([("a/3", b"3"), Outgoing("a/4", b"4")])) == 2
        assert bus.publish_many_soon([("a/5", b"5")]).result(0)[0].topic == "a/5"
        message.reply(b"answer")
        refused(bus.request, "a/6", b"6")
        refused(bus.publish, "a/#", b"7")
        refused(bus.purge, "home/#")
        refused(bus.unsubscribe, "s")
        refused(bus.schema, "home/#", float)
        refused(bus.close)
        other = threading.Thread(target=bus.publish, args=("elsewhere/x", b"really"))
        other.start()
        other.join()
        message.ack()

    (trial,) = bus.what_if("s", handle).trials
    published = trial.after.published
    assert [(one.verb, one.topic, one.payload) for one in published] == [
        *(("send", "a/1", b"1"), ("publish", "a/2", b"2"), ("publish", "a/3", b"3"), ("publish", "a/4", b"4")),
        *(("publish", "a/5", b"5"), ("reply", "$reply/nobody", b"answer"), ("request", "a/6", b"6")),
    ]
    assert (published[1].key, trial.after.end) == (b"k", "acked")
    assert [type(error) for error in errors] == [TimedOut, Malformed, *[Conflict] * 4]
    assert [one.topic for one in bus.topics()] == ["elsewhere/x", "home/x"]
    assert len(bus.subscriptions()) == 1
    assert bus.schemas() == []


READS = {
    *("arrow", "dead_letter", "dead_letters", "ends", "events", "extents", "follow", "frame", "purges", "replay"),
    *("refresh", "retained", "schedules", "schemas", "sql", "states", "stop", "subscriptions", "topics", "what_if"),
}
"""What a handler may ask in a what-if as ever: it changes nothing that is stored."""


def test_each_method_of_a_bus_is_noted_refused_or_only_reads():
    methods = {name for name, member in vars(headwater.Bus).items() if callable(member) and not name.startswith("_")}
    assert methods - {*HEARD, *REFUSED, *REGISTERED} <= READS, "say in work/shadow.py what becomes of it in a what-if"
    assert not READS & {*HEARD, *REFUSED, *REGISTERED}


@pytest.mark.parametrize(
    ("say", "end", "error"),
    [
        (lambda message: message.ack(), "acked", None),
        (lambda message: message.nack("no"), "dead", "no"),
        (lambda message: message.reject("never"), "dead", "never"),
        (lambda message: (message.extend(5), message.ack(wait=False)), "acked", None),
        (lambda message: (message.ack(), message.nack("late")), "acked", None),
    ],
)
def test_what_a_handler_says_of_its_message_counts_and_goes_nowhere(say: Any, end: str, error: str | None):
    with headwater.open(":memory:") as bus:
        bus.publish("home/x", b"1")
        bus.subscribe("home/#", id="s", start="earliest", max_attempts=3).close()
        (trial,) = bus.what_if("s", say).trials
        assert (trial.after.end, trial.after.error) == (end, error)
        assert known(bus)[1:4] == (1, 0, [])


def test_a_with_block_in_a_handler_is_as_ever():
    with headwater.open(":memory:") as bus:
        bus.publish("home/x", b"1")
        bus.subscribe("home/#", id="s", start="earliest").close()

        def handle(message: Any) -> None:
            with message:
                raise headwater.Reject("never")

        (trial,) = bus.what_if("s", handle).trials
        assert (trial.after.end, trial.after.error) == ("dead", "never")


def test_it_begins_and_ends_where_it_is_told_to_and_says_what_was_left_out():
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        bus.subscribe("home/#", id="s").close()
        for number in range(10):
            bus.publish("home/x", b"%d" % number)
            clock.advance(60)

        def offsets(**options: Any) -> list[int]:
            return [one.offset for one in bus.what_if("s", lambda _: None, **options).trials]

        assert offsets(after=8) == [9, 10]
        assert offsets(since=bus.now - timedelta(minutes=3)) == [8, 9, 10]
        assert offsets(messages_max=2) == [1, 2]
        assert bus.what_if("s", lambda _: None, messages_max=2).is_cut
        assert not bus.what_if("s", lambda _: None, messages_max=10).is_cut


def test_two_at_once_do_not_disturb_each_other():
    with headwater.open(":memory:") as bus:
        bus.publish("home/x", b"1")
        bus.subscribe("home/#", id="s", start="earliest").close()
        inside, go_on = threading.Event(), threading.Event()

        def slow(message: Any) -> None:
            inside.set()
            assert go_on.wait(60)
            bus.publish("a/slow", b"")

        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(bus.what_if("s", slow)))
        other.start()
        assert inside.wait(60)
        quick = bus.what_if("s", lambda _: bus.publish("a/quick", b""))
        go_on.set()
        other.join()
        for what, topic in ((quick, "a/quick"), (found[0], "a/slow")):
            assert [one.topic for one in what.trials[0].after.published or ()] == [topic]
        assert [one.topic for one in bus.topics()] == ["home/x"]
        assert "publish" not in vars(bus)


def test_what_cannot_be_is_refused():
    async def coroutine(message: Any) -> None: ...

    with headwater.open(":memory:") as bus:
        with pytest.raises(NotFound, match=r"bus\.subscriptions"):
            bus.what_if("nobody", print)
        bus.subscribe("home/#", id="s").close()
        for wrong in (5, coroutine, lambda: None):
            with pytest.raises(Malformed, match="handler"):
                bus.what_if("s", wrong)  # type: ignore[arg-type]
            with pytest.raises(Malformed, match="handler"):
                bus.what_if("s", print, against=wrong)  # type: ignore[arg-type]
        with pytest.raises(Malformed, match="messages_max"):
            bus.what_if("s", print, messages_max=0)
        with pytest.raises(Malformed, match="since"):
            bus.what_if("s", print, since=5)  # type: ignore[arg-type]


def test_it_runs_beside_the_process_that_owns_the_folder(tmp_path: Path):
    with headwater.open(tmp_path / "data") as owner:
        lived(owner)
        before = known(owner)
        with headwater.open(tmp_path / "data", read_only=True) as beside:
            found = beside.what_if("s", lambda message: beside.publish("heater/x", b"on"))
        assert found.counts == {"fails": 0, "succeeds": 2, "retries": 0, "publishes": 2, "longer": 0}
        assert known(owner) == before


def test_a_handler_that_is_a_coroutine_function_embedded_and_served(tmp_path: Path):
    async def use(opening: Any) -> None:
        async with opening as bus:

            async def better(message: Any) -> None:
                if message.payload == b"25":
                    raise ValueError("another mistake")
                assert (await bus.publish("heater/x", b"on")).offset == 0
                assert (await bus.publish_soon("heater/x", b"on")).topic == "heater/x"
                await bus.send("heater/x", b"on")
                with pytest.raises(Conflict):
                    await bus.purge("home/#")
                await message.ack()
                await message.nack("too late")

            found = await bus.what_if("s", better)
            assert [one.after.end for one in found.trials] == ["acked", "dead", "acked", "acked", "acked", "acked"]
            assert found.counts["fails"] == 1
            assert [one.verb for one in found.trials[0].after.published] == ["publish", "publish", "send"]
            assert (await bus.ends())["heater"] == 4
            with pytest.raises(Malformed, match="coroutine"):
                await bus.what_if("s", print)

    with headwater.open(tmp_path / "data") as bus:
        lived(bus)
    asyncio.run(use(headwater.aio.open(tmp_path / "data")))
    with Served(tmp_path / "data") as served:
        asyncio.run(use(headwater.aio.connect(served.url)))
