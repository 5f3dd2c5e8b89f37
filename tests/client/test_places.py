"""A client that knows several nodes goes on at another, and what it was at goes on with it.

The nodes are ordinary servers that hand one folder over: the one is killed, or drained, and another started elsewhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.proxy import Proxy
from client.served import Served
from headwater.admin.client import connect as connect_admin
from headwater.client.places import Places
from headwater.client.url import parse_url
from headwater.config import Connecting
from headwater.errors import HeadwaterError, SteppedDown, TimedOut
from headwater.server.connection import Elsewhere
from headwater.wire.requests import Goodbye
from server.site import free_port, until

WAIT_S = 60.0
QUICK = Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.1)


class Handed:
    """One folder, which is served at one of several places at a time."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self._folder = folder
        self._held = ExitStack()
        self.ports = [self._held.enter_context(free_port()) for _ in range(count)]
        self.url = "headwater://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.now = 0
        self.served = Served(folder, port=self.ports[0])

    def hand_over(self, tell: bool = False, to: int | None = None) -> None:
        """Serve it at the next place, or this one; the clients are told, or just lose their connections."""
        self.now = (self.now + 1) % len(self.ports) if to is None else to
        place = f"127.0.0.1:{self.ports[self.now]}"
        if tell:
            self.served.server.elsewhere = Elsewhere(native=place)
            self.served.stop()
        else:
            self.served.kill()
        self.served = Served(self._folder, port=self.ports[self.now])

    def close(self) -> None:
        self.served.close()
        self._held.close()


@pytest.fixture
def handed(tmp_path: Path) -> Iterator[Handed]:
    found = Handed(tmp_path / "data")
    yield found
    found.close()


@pytest.mark.parametrize("tell", [False, True], ids=["killed", "drained"])
def test_everything_goes_on_at_another_node(handed: Handed, tell: bool):
    with headwater.connect(handed.url, QUICK) as bus:
        session = bus.session
        live, durable = bus.subscribe("live/#"), bus.subscribe("jobs/#", id="workers")
        follow = bus.follow("jobs/#", after=0)
        for round in range(3):
            receipt = bus.publish("jobs/x", str(round))
            assert receipt.offset == round + 1
            (message,) = durable.batch(1, timeout_s=WAIT_S)
            durable.ack([message])
            assert message.text == str(round)
            (message,) = follow.batch(1, timeout_s=WAIT_S)
            assert message.offset == round + 1
            handed.hand_over(tell)
            assert bus.ends()["jobs"] == round + 1
            assert bus.session == session
            until(lambda: handed.served.bus.core.dispatcher.listeners.count, "the live subscription")
            handed.served.bus.publish("live/x", str(round))
            (message,) = live.batch(1, timeout_s=WAIT_S)
            assert message.text == str(round)


def test_publishes_in_flight_are_stored_once_each(handed: Handed):
    stop = threading.Event()
    futures: list[Future[Any]] = []

    def publish(bus: headwater.client.bus.Bus) -> None:
        while not stop.is_set():
            futures.append(bus.publish_soon("numbers/x", str(len(futures))))

    settings = Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.1, publish_bytes_in_flight_max=200_000)
    with headwater.connect(handed.url, settings) as bus:
        publishing = threading.Thread(target=publish, args=(bus,))
        publishing.start()
        for round in range(3):
            seen = len(futures)
            until(lambda seen=seen: len(futures) > seen + 2000, "publishes")  # type: ignore[misc]
            handed.hand_over(tell=round == 1)
        stop.set()
        publishing.join()
        receipts = [future.result(WAIT_S) for future in futures]
        assert [receipt.offset for receipt in receipts] == list(range(1, len(futures) + 1))
        stored = [message.text for message in bus.replay("numbers/#")]
        assert stored == [str(number) for number in range(len(futures))]


def test_a_replay_goes_on_where_it_was(handed: Handed):
    with headwater.connect(handed.url, Connecting(prefetch_messages=100, reconnect_delay_s=0.01)) as bus:
        bus.publish_many([("numbers/x", str(number)) for number in range(5000)])
        found = []
        for message in bus.replay("numbers/#"):
            found.append(message.text)
            if len(found) in (1000, 3000):
                handed.hand_over()
    assert found == [str(number) for number in range(5000)]


def test_with_asyncio_it_is_the_same(handed: Handed):
    async def play() -> None:
        async with headwater.aio.connect(handed.url, QUICK) as bus:
            reading = bus.follow("jobs/#", after=0)
            for round in range(2):
                await bus.publish("jobs/x", str(round))
                (message,) = await reading.batch(1, timeout_s=WAIT_S)
                assert message.text == str(round)
                await asyncio.to_thread(handed.hand_over, bool(round))
            assert (await bus.publish("jobs/x", "last")).offset == 3

    asyncio.run(play())


def test_the_first_connection_is_made_with_whichever_answers(handed: Handed):
    handed.hand_over(to=2)
    with headwater.connect(handed.url) as bus:
        assert bus.publish("jobs/x", b"1").offset == 1
    with connect_admin(handed.url) as admin:
        assert admin.health().ok


def test_where_nobody_answers_the_last_that_was_tried_is_named(handed: Handed):
    handed.served.stop()
    with pytest.raises(headwater.Disconnected, match=str(handed.ports[2])):
        headwater.connect(handed.url)


def refuse_first(served: Served, count: int, error: HeadwaterError) -> None:
    """As a node does whose records nobody takes, while another begins to lead."""
    broker, left = served.server.broker, [count]
    register = broker.register

    def refusing(connection: Any, request: Any, then: Any) -> None:
        if left[0]:
            left[0] -= 1
            then(None, error)
        else:
            register(connection, request, then)

    broker.register = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [SteppedDown("not now"), TimedOut("not now")])
def test_the_first_connection_is_tried_again_where_a_node_says_that_it_cannot_for_now(
    handed: Handed, error: HeadwaterError
):
    refuse_first(handed.served, 3, error)
    with headwater.connect(handed.url, QUICK) as bus:
        assert bus.publish("jobs/x", b"1").offset == 1
    refuse_first(handed.served, 1000, error)
    with pytest.raises(type(error), match="not now"):
        headwater.connect(handed.url, Connecting(connect_timeout_s=0.5, reconnect_delay_s=0.01))


def test_a_node_that_stands_still_is_left_for_the_next(handed: Handed):
    """As one does that was stopped, or whose machine is cut off: its connections stay, and nothing comes."""
    proxy = Proxy(handed.ports[0])
    other = Proxy(handed.ports[0])
    url = f"headwater://127.0.0.1:{proxy.port},127.0.0.1:{other.port}"
    try:
        with headwater.connect(url, Connecting(silence_s_max=0.4, reconnect_delay_s=0.01)) as bus:
            assert bus.publish("jobs/x", b"1").offset == 1
            proxy.break_after(0, "stall")
            assert bus.publish("jobs/x", b"2").offset == 2
    finally:
        proxy.close()
        other.close()


def test_a_node_of_another_bus_is_passed_over(handed: Handed, tmp_path: Path):
    stranger = Served(tmp_path / "other", port=handed.ports[1])
    try:
        with headwater.connect(handed.url, QUICK) as bus:
            assert bus.publish("jobs/x", b"1").offset == 1
            handed.hand_over(to=2)
            assert bus.publish("jobs/x", b"2").offset == 2
        assert stranger.bus.ends().get("jobs") is None
    finally:
        stranger.close()


@pytest.mark.parametrize("told", ["127.0.0.1:99999", "nonsense:", "", "[::1", "h"])
def test_where_to_go_is_believed_if_it_can_be_read(told: str):
    places = Places(parse_url("headwater://n:s@a,b"))
    places.on_lost(Goodbye(address=told, reconnect=True))
    assert (places.now.host, places.now.user) == ("b", "n")


def test_where_to_go_is_tried_once_and_then_the_others():
    places = Places(parse_url("headwater://n:s@a,b,c"))
    places.on_lost(Goodbye(address="z:5", reconnect=True))
    found = []
    for _ in range(4):
        found.append(str(places.now))
        places.next()
    assert found == [f"headwater://n@{place}" for place in ("z:5", "b:7411", "c:7411", "a:7411")]
    places.on_lost(Goodbye(address="c:7411"))
    assert places.now.host == "c"
