"""An asker: a few bytes of requests that ask for all there is, again and again, from somebody who takes no answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

import headwater
import headwater.admin
from headwater.config import Config
from headwater.core import Core
from headwater.delivery.dead_letters import DeadLetters
from headwater.delivery.retained import RetainedReading
from headwater.mqtt.packets import Subscribe, Subscription
from headwater.server.session_row import SessionRow, SubscriptionOf
from headwater.server.watch.presence import Presence
from headwater.wire import administration, requests
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
SESSIONS = 30
HELD = 1000
"""Subscriptions that each of these sessions has: 6 MB to be listed."""
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
        for number in range(SESSIONS):
            add_session(running, f"many{number:03}", HELD)
        yield running


def add_session(running: Served, id: str, held: int = 0) -> None:
    """A session as one that is stored, and that nobody has come back to yet."""
    filters = (f"home/{number:04}/{'x' * 50}" for number in range(held))
    own = tuple(
        SubscriptionOf(number, "session", f"{id}:{filter}", filter, 0, 0) for number, filter in enumerate(filters)
    )
    row = SessionRow(id=id, user="ann", expire_after_s=1e6, subscriptions=own)
    running.call(lambda: running.server.sessions._add(row))


def count_looks(patch: pytest.MonkeyPatch) -> list[int]:
    """How many listings were computed."""
    looks: list[int] = []

    def noted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            looks.append(1)
            return real(*args, **options)

        return call

    listings: list[tuple[type, str]] = [(Core, "topics_after"), (Core, "retained_after"), (DeadLetters, "all")]
    for owner, name in (*listings, (RetainedReading, "read_on"), (Presence, "_look")):
        patch.setattr(owner, name, noted(getattr(owner, name)))
    return looks


ASKED: list[Request[Any]] = [
    requests.Retained(filter="#"),
    requests.Topics(),
    requests.DeadLetters(id="dead"),
    requests.States(id="dead"),
    administration.ListSessions(),
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


def test_registries_are_told_in_pages_and_users_see_all_of_them(running: Served) -> None:
    bus = running.bus
    ann = bus.clients.add("ann", "a secret of a test")
    book = bus.clients._by_name
    count = PAGE_MAX + 5
    for number in range(count):
        bus.acl.allow("ann", "publish", f"page/{number:05}")
        bus.tokens.add("ann", "reader")
        bus.publish(f"purged/{number:05}", b"")
        bus.purge(f"purged/{number:05}")
        add_session(running, f"page{number:05}")
        name = f"page-{number:05}"  # as one that is added, without the time that a secret takes
        book[name] = msgspec.structs.replace(book["ann"], info=msgspec.structs.replace(book["ann"].info, name=name))
    assert ann.name in book
    peer = running.peer()
    listings: list[Any] = [
        *(administration.ListClients, administration.ListRules, administration.ListTokens, requests.Purges),
        partial(administration.ListSessions, after="page"),
    ]
    for request in listings:
        for limit in (None, 1_000_000):
            assert len(peer.ask(request(limit=limit))) == PAGE_MAX
    assert 1 < len(peer.ask(administration.ListSessions())) < SESSIONS, "large sessions end a page"
    with headwater.admin.connect(running.server.url) as admin:
        assert admin.clients.list() == bus.clients.list()
        assert [(one.user, one.filter) for one in admin.acl.list()] == [
            (one.user, one.filter) for one in bus.acl.list()
        ]
        assert [one.id for one in admin.tokens.list()] == [one.id for one in bus.tokens.list()]
        assert admin.bus.purges() == bus.purges()
        assert len(bus.purges()) == len(bus.tokens.list()) == count
        sessions = [one.id for one in admin.sessions.list()]
        assert sessions == sorted(running.call(running.server.sessions.ids))
        assert len(sessions) > count + SESSIONS


UNTAKEN = [requests.Retained(filter="#"), administration.ListSessions()]


@pytest.mark.parametrize("request_", UNTAKEN, ids=lambda one: type(one).__name__)
def test_nothing_is_computed_for_who_takes_no_answers(
    running: Served, monkeypatch: pytest.MonkeyPatch, request_: Request[Any]
) -> None:
    looks = count_looks(monkeypatch)
    attacker = running.peer(receive_bytes=4096)
    attacker.send(b"".join(pack(Kind.REQUEST, 100 + n, encode(request_)) for n in range(TIMES)))
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
