"""An asker: a few bytes of requests that ask for all there is, again and again, from somebody who takes no answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

import headwater
from headwater.config import Config
from headwater.core import Core
from headwater.delivery.dead_letters import DeadLetters
from headwater.delivery.retained import RetainedReading
from headwater.mqtt.packets import Subscribe, Subscription
from headwater.wire import requests
from headwater.wire.frame import Kind, pack
from headwater.wire.request import PAGE_BYTES, PAGE_MAX, Request
from headwater.wire.requests import encode
from mqtt.peer import Served

MESSAGES = 40
SIZE = 200_000
"""Retained: 8 MB of them."""
TIMES = 100
"""Requests, of less than 30 bytes each, that would be answered with 800 MB."""
LETTERS = 30
FRAME_BYTES_MAX = PAGE_BYTES + SIZE + 64 * 1024
"""Of an answer: a page, which ends with the row that goes beyond its limit."""


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with Served(config=Config(), write_bytes_max=1 << 20) as running:
        bus = running.bus
        with bus.subscribe("kept/#", id="dead", max_attempts=1, order="none") as consumer:
            for count in range(MESSAGES):
                bus.publish(f"kept/{count:03}", b"x" * SIZE, retain=True)
            bus.publish_many([(f"many/{count:05}", b"") for count in range(3 * PAGE_MAX)])
            for message in consumer.batch(LETTERS, timeout_s=10):
                message.reject("e" * 500)
        yield running


def count_looks(patch: pytest.MonkeyPatch) -> list[int]:
    """How many listings were computed."""
    looks: list[int] = []

    def noted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            looks.append(1)
            return real(*args, **options)

        return call

    listings: list[tuple[type, str]] = [(Core, "topics_after"), (Core, "retained_after"), (DeadLetters, "all")]
    for owner, name in (*listings, (RetainedReading, "read_on")):
        patch.setattr(owner, name, noted(getattr(owner, name)))
    return looks


ASKED: list[Request[Any]] = [
    requests.Retained(filter="#"),
    requests.Topics(),
    requests.DeadLetters(id="dead"),
    requests.States(id="dead"),
]


@pytest.mark.parametrize("request_", ASKED, ids=lambda one: type(one).__name__)
def test_an_answer_is_a_page_however_much_there_is(running: Served, request_: Request[Any]) -> None:
    peer = running.peer()
    peer.send(pack(Kind.REQUEST, 7, encode(request_)))
    answer = peer.frame(Kind.REPLY, 7)
    assert len(answer.payload) < FRAME_BYTES_MAX


def test_a_page_has_so_many_rows_whatever_is_asked_for(running: Served) -> None:
    for number in range(PAGE_MAX + 5):
        running.bus.durables.create(f"page/{number:05}", "page/#")
        running.bus.schedule("page/x", b"", cron="0 3 * * *", id=f"{number:05}")
    peer = running.peer()
    for request in (requests.Subscriptions, requests.Schedules, requests.Topics):
        for limit in (None, 1_000_000):
            assert len(peer.ask(request(limit=limit))) == PAGE_MAX
    with headwater.connect(running.server.url) as bus:
        assert len(bus.subscriptions()) == len(running.bus.subscriptions()) > PAGE_MAX
        assert len(bus.schedules()) == PAGE_MAX + 5


def test_nothing_is_computed_for_who_takes_no_answers(running: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count_looks(monkeypatch)
    attacker = running.peer(receive_bytes=4096)
    attacker.send(b"".join(pack(Kind.REQUEST, 100 + n, encode(requests.Retained(filter="#"))) for n in range(TIMES)))
    connection = running.session_of(attacker).connection
    running.until(lambda: not connection.is_writable, "the asker has more than it takes")
    # Others are served meanwhile.
    for _ in range(20):
        running.peer().ping()
    others = running.peer()
    for number in range(10):
        others.send(pack(Kind.REQUEST, 7 + number, encode(requests.Topics(limit=1))))
        others.frame(Kind.REPLY, 7 + number)
    assert running.call(lambda: connection.waiting_bytes) < 2 * FRAME_BYTES_MAX + (1 << 20)
    assert len(looks) < 10 + TIMES / 2
    # And whoever takes the answers gets them.
    for number in range(5):
        attacker.frame(Kind.REPLY, 100 + number)


def test_a_client_that_subscribes_again_and_again_is_sent_what_it_takes(
    running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    attacker = running.mqtt("asker")
    attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for number in range(TIMES):
        attacker.send(Subscribe(number + 1, (Subscription("kept/#"),)))
    session = next(one for one in running.call(running.server.sessions.all) if one.row.client == "asker")
    connection = session.connection
    assert connection is not None
    running.until(lambda: not connection.is_writable, "it takes no more")
    for _ in range(20):
        running.peer().ping()
    assert running.call(lambda: connection.waiting_bytes) < 2 * FRAME_BYTES_MAX + (1 << 20)
    assert len(looks) < TIMES / 2
    attacker.close()


def test_users_see_all_of_a_listing(running: Served) -> None:
    with headwater.connect(running.server.url) as bus:
        assert [one.topic for one in bus.retained("#").values()] == [f"kept/{count:03}" for count in range(MESSAGES)]
        topics = bus.topics()
        assert topics == running.bus.topics()
        assert len(topics) == MESSAGES + 3 * PAGE_MAX
        assert bus.topics("many/00001") == running.bus.topics("many/00001")
        letters = bus.dead_letters("dead")
        assert letters == running.bus.dead_letters("dead")
        assert len(letters) == LETTERS
        assert len(bus.dead_letters("dead", limit=3)) == 3
        assert bus.states("dead") == running.bus.states("dead")
