"""What nobody holds any more lets go: consumers, live subscriptions and buses, embedded and served."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import ConsumerInfo, Owned, Recalled
from headwater.bus import Bus
from work.shifts import until

WAIT_S = 60.0
HERE = (socket.gethostname(), os.getpid())
FOREVER = """
import sys, headwater
bus = headwater.connect(sys.argv[1])
sub = bus.subscribe("home/#", id="s")
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "served") as made:
        yield made


@pytest.fixture(params=["embedded", "served"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with headwater.open(tmp_path / "data") as made:
            yield made
        return
    with headwater.connect(request.getfixturevalue("served").url) as connected:
        yield connected


def opening(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A bus for asyncio."""
    if place == "embedded":
        return headwater.aio.open(tmp_path / "data")
    return headwater.aio.connect(request.getfixturevalue("served").url)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT_S))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_subscription_made_twice_under_one_name_gets_what_comes(bus: Any) -> None:
    sub = bus.subscribe("home/#", id="s", start="earliest")
    with pytest.warns(ResourceWarning, match='a consumer of "s" was forgotten'):
        sub = bus.subscribe("home/#", id="s")
    bus.publish("home/a", b"x")
    message = sub.next(timeout_s=WAIT_S)
    assert message is not None
    assert message.payload == b"x"
    message.ack()
    wait_for(lambda: bus.subscriptions()[0].consumers == 1)


def test_one_that_already_waits_gets_what_a_forgotten_consumer_had(bus: Any) -> None:
    bus.publish("home/a", b"x")
    first = bus.subscribe("home/#", id="s", start="earliest", order="none")
    second = bus.subscribe("home/#", id="s")
    taken = first.next(timeout_s=WAIT_S)
    if not isinstance(bus, Bus):  # consumers of one client share what they take
        taken.nack(delay_s=0.0)
    del first
    again = second.next(timeout_s=WAIT_S)
    assert again is not None
    assert again.payload == b"x"
    again.ack()
    with pytest.raises(Recalled):
        taken.ack()


async def subscribe_again(bus: Any, subs: list[Any], told: pytest.WarningsRecorder) -> None:
    """Forget a consumer behind another; the thread that made it may hold it a moment longer."""
    subs.append(await bus.subscribe("home/#", id="s"))
    del subs[0]
    await asyncio.to_thread(wait_for, lambda: len(told) > 0)


@pytest.mark.parametrize("place", ["embedded", "served"])
def test_with_asyncio_too(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def work() -> None:
        async with opening(place, request, tmp_path) as bus:
            subs = [await bus.subscribe("home/#", id="s", start="earliest")]
            with pytest.warns(ResourceWarning, match='a consumer of "s" was forgotten') as told:
                await subscribe_again(bus, subs, told)
            await bus.publish("home/a", b"x")
            message = await subs[0].next(timeout_s=WAIT_S)
            assert message is not None
            assert message.payload == b"x"
            await message.ack()

    run(work())


def test_what_a_forgotten_consumer_handed_out_can_be_acked_as_long_as_nobody_else_has_come(bus: Any) -> None:
    bus.publish("home/a", b"x")
    message = bus.subscribe("home/#", id="s", start="earliest").next(timeout_s=WAIT_S)
    gc.collect()
    assert bus.topics()
    message.ack()
    assert bus.subscriptions()[0].lag == 0
    del message
    wait_for(lambda: bus.subscriptions()[0].consumers == 0)


def test_a_consumer_that_was_closed_or_whose_bus_was_is_not_told_of(tmp_path: Path, recwarn: Any) -> None:
    gc.collect()  # what other tests have left
    recwarn.clear()
    with headwater.open(tmp_path / "data") as bus:
        bus.subscribe("home/#", id="s").close()
        with bus.subscribe("home/#", id="s"):
            pass
        left = bus.subscribe("home/#", id="s")
    del left, bus
    gc.collect()
    assert not [one for one in recwarn if "was forgotten" in str(one.message)]


def test_a_forgotten_live_subscription_hears_no_more(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        for _ in range(3):
            bus.subscribe("home/#")
        live = bus.subscribe("home/#")
        bus.publish("home/a", b"x")
        assert [message.payload for message in live.batch(10, WAIT_S)] == [b"x"]
        assert len(bus.core.live) == 1


def test_a_forgotten_bus_lets_go_of_its_folder(tmp_path: Path) -> None:
    bus = headwater.open(tmp_path / "data")
    bus.publish("home/a", b"x")
    bus.knot = bus  # type: ignore[attr-defined]  # which the collector alone unties
    del bus
    with pytest.warns(ResourceWarning, match="the bus on .* was forgotten"):
        again = headwater.open(tmp_path / "data")
    with again:
        assert again.ends() == {"home": 1}
        with pytest.raises(Owned, match="this process"):
            headwater.open(tmp_path / "data")


def test_a_reader_keeps_its_bus(bus: Any, tmp_path: Path, served: Served) -> None:
    bus.publish("home/a", b"x")
    reading = headwater.connect(served.url).follow("home/#", after=0)
    gc.collect()
    if not isinstance(bus, Bus):
        assert len(reading.batch(1, WAIT_S)) == 1
    with headwater.open(tmp_path / "other") as other:
        other.publish("home/a", b"x")
    assert [m.payload for m in headwater.open(tmp_path / "other").replay("home/#")] == [b"x"]


def test_a_forgotten_connection_is_closed_and_its_consumers_with_it(served: Served) -> None:
    with headwater.connect(served.url) as bus:
        first = headwater.connect(served.url)
        consumer = first.subscribe("home/#", id="s")
        second = bus.subscribe("home/#", id="s")
        assert bus.subscriptions()[0].consumers == 2
        del consumer  # which holds its bus
        with pytest.warns(ResourceWarning, match="the bus at .* was forgotten"):
            del first
        wait_for(lambda: bus.subscriptions()[0].consumers == 1)
        bus.publish("home/a", b"x")
        assert second.next(timeout_s=WAIT_S) is not None


async def forget(held: list[Any]) -> None:
    """Let go of what is held, and wait until somebody is warned: the loop may hold it for what it has yet to do."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        held.clear()
        async with asyncio.timeout(WAIT_S):
            while not told:  # noqa: ASYNC110  # it happens elsewhere
                await asyncio.sleep(0.01)
    assert "was forgotten" in str(told[0].message)


def test_a_forgotten_connection_of_asyncio_is_closed_too(served: Served) -> None:
    async def work() -> None:
        async with headwater.aio.connect(served.url) as bus:
            first = await headwater.aio.connect(served.url)
            consumer = await first.subscribe("home/#", id="s")
            second = await bus.subscribe("home/#", id="s")
            del consumer  # which holds its bus
            held = [first]
            del first
            await forget(held)
            await bus.publish("home/a", b"x")
            assert await second.next(timeout_s=WAIT_S) is not None

    run(work())


def test_a_bus_tells_who_is_active_and_who_stands_by(bus: Any) -> None:
    with bus.subscribe("home/#", id="s"):
        (info,) = bus.subscriptions()
        assert [(one.host, one.pid) for one in info.active] == [HERE]
        assert info.standing_by == ()
    assert bus.subscriptions()[0].active == ()


def test_an_embedded_bus_tells_of_those_who_stand_by(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus, bus.subscribe("a/#", id="s"), bus.subscribe("a/#", id="s"):
        (info,) = bus.subscriptions()
        assert (info.active, info.standing_by) == ((ConsumerInfo(*HERE),), (ConsumerInfo(*HERE),))
        with bus.subscribe("a/#", id="t", order="none"), bus.subscribe("a/#", id="t"):
            assert [len(info.active) for info in bus.subscriptions()] == [1, 2]


def test_a_server_tells_of_a_process_elsewhere_which_a_killed_one_leaves_to(served: Served) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", FOREVER, served.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
        headwater.connect(served.url) as bus,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        mine = bus.subscribe("home/#", id="s")
        (info,) = bus.subscriptions()
        assert [(one.host, one.pid, one.user) for one in info.active] == [(HERE[0], other.pid, "anonymous")]
        assert [(one.host, one.pid) for one in info.standing_by] == [HERE]
        other.kill()
        bus.publish("home/a", b"x")
        assert mine.next(timeout_s=WAIT_S) is not None
        (info,) = bus.subscriptions()
        assert [(one.host, one.pid) for one in (*info.active, *info.standing_by)] == [HERE]


def test_a_process_that_ends_waits_for_what_is_being_closed() -> None:
    """A thread that Python stops within the state store would take the process down with it."""
    code = (
        "import time; from headwater import forgotten\n"
        "forgotten.close_soon(lambda: (time.sleep(0.5), print('closed', flush=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "closed\n")


ENDS = {
    "to its end": "",
    "by sys.exit": "sys.exit(3)",
    "by Ctrl-C": "raise KeyboardInterrupt",
    "as of Python 3.12, where no thread begins any more": """
import atexit, threading
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, threading.Thread, "start", refuse)
""",
    "by an error": "raise ValueError('no')",
}
WITH_THREADS = """
import sys, headwater
where, how = sys.argv[1:]
bus = headwater.connect(where) if "://" in where else headwater.open(where)
sub = bus.subscribe("a/#", id="s", start="earliest")
print(sub.next(60).text, flush=True)
exec(how)
"""
WITH_ASYNCIO = """
import asyncio, sys, headwater.aio
where, how = sys.argv[1:]
async def main():
    bus = await (headwater.aio.connect(where) if "://" in where else headwater.aio.open(where))
    sub = await bus.subscribe("a/#", id="s", start="earliest")
    print((await sub.next(60)).text, flush=True)
    exec(how)
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [WITH_THREADS, WITH_ASYNCIO], ids=["threads", "asyncio"])
@pytest.mark.parametrize("place", ["embedded", "served"])
def test_a_program_that_closes_nothing_counts_a_delivery_only_if_an_error_ended_it(
    place: str, program: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path / "data") if place == "embedded" else request.getfixturevalue("served").url
    with opened(where) as bus:
        bus.publish("a/b", b"1")
    for how in ENDS.values():
        command = [sys.executable, "-c", program, where, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.stdout == "1\n", done.stderr
        assert "Exception ignored" not in done.stderr
        if how == ENDS["by an error"]:
            until(lambda: deliveries(where) == 1)
        else:
            until(lambda: not has_consumers(where))
            assert deliveries(where) == 0, how


def opened(where: str) -> Any:
    return headwater.connect(where) if "://" in where else headwater.open(where)


def deliveries(where: str) -> int:
    with opened(where) as bus:
        return sum(one.deliveries for one in bus.states("s"))


def has_consumers(where: str) -> bool:
    with opened(where) as bus:
        return bool(bus.subscriptions()[0].consumers)
