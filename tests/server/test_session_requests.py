"""Sessions as administrators see and end them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headwater.config import Config
from headwater.errors import Closed, NotAllowed, NotFound, TimedOut
from headwater.server.session_row import stored_sessions
from headwater.server.watch import presence
from headwater.wire import administration as wire
from headwater.wire import requests
from headwater.wire.frame import Kind
from headwater.wire.requests import Goodbye
from server.harness import Peer, Running


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(auth="scram") as running:
        running.client("root", admin=True)
        for name in ("ann", "bob"):
            running.client(name, allow=("subscribe home/#", "publish home/#", "create home/#"))
        yield running


def sessions(peer: Peer) -> dict[str, wire.SessionInfo]:
    return {info.id: info for info in peer.ask(wire.ListSessions())}


def test_an_administrator_sees_every_session_and_others_their_own_users(running: Running):
    root, ann, again, bob = (running.peer(name) for name in ("root", "ann", "ann", "bob"))
    assert set(sessions(root)) == {root.session, ann.session, again.session, bob.session}
    assert set(sessions(ann)) == {ann.session, again.session}
    assert set(sessions(bob)) == {bob.session}
    assert [info.id for info in ann.ask(wire.ListSessions(id=again.session))] == [again.session]
    for peer, id in ((ann, bob.session), (root, "none"), (root, ""), (bob, root.session)):
        with pytest.raises(NotFound):
            peer.ask(wire.ListSessions(id=id))


def test_a_session_is_listed_with_what_it_does(running: Running):
    before_us = running.bus.core.clock.now_us()
    ann = running.peer("ann", expire_after_s=77)
    ann.subscribe(1, "home/a", kind="live")
    ann.subscribe(2, "home/b", kind="named", id="mine")
    ann.subscribe(3, "home/c", kind="session")
    found = sessions(running.peer("root"))[ann.session]
    assert (found.user, found.address, found.expire_after_s) == ("ann", "127.0.0.1", 77.0)
    near_us = 1_000_000  # the loop's clock counts milliseconds
    assert before_us - near_us <= found.connected_us <= running.bus.core.clock.now_us() + near_us
    assert (found.waiting_bytes, found.dropped) == (0, 0)
    assert (found.protocol, found.client) == ("Headwater", running.bus.clients.list()[0].id)
    assert found.bytes_in > 100 < found.bytes_out
    assert [(one.kind, one.filter, one.id) for one in found.subscriptions] == [
        ("live", "home/a", None),
        ("named", "home/b", "mine"),
        ("session", "home/c", f"{ann.session}:home/c"),
    ]


def test_a_session_that_nobody_is_connected_to_is_listed_as_such(running: Running):
    ann = running.peer("ann")
    ann.subscribe(2, "home/b", kind="named", id="mine")
    ann.close()
    running.until(lambda: running.session_of(ann).connection is None)
    found = sessions(running.peer("root"))[ann.session]
    assert (found.address, found.connected_us, found.protocol, found.bytes_in) == ("", 0, "", 0)
    assert [(one.kind, one.id) for one in found.subscriptions] == [("named", "mine")]


def test_what_a_slow_one_has_yet_to_take_and_what_it_lost_are_told():
    with Running(config=Config(live_messages_max=4), write_bytes_max=64 * 1024) as running:
        slow, other = running.peer(receive_bytes=4096), running.peer()
        slow.subscribe(1, "home/#", kind="live", bytes=1 << 30)
        for _ in range(1000):
            running.bus.publish("home/x", bytes(256 * 1024))
            found = sessions(other)[slow.session]
            if found.dropped:
                break
        assert found.waiting_bytes > 0
        assert found.dropped > 0
        assert sessions(other)[other.session].dropped == 0


def test_many_sessions_are_looked_at_in_several_turns(running: Running, monkeypatch: pytest.MonkeyPatch):
    looks, look = [], presence.Presence._look

    def counted(self: presence.Presence, *args: Any) -> int:
        looks.append(look(self, *args))
        return looks[-1]

    monkeypatch.setattr(presence.Presence, "_look", counted)
    monkeypatch.setattr(presence, "SLICE", 2)
    peers = [running.peer("ann") for _ in range(5)]
    assert set(sessions(peers[0])) == {peer.session for peer in peers}
    assert looks == [2, 2, 1]
    for peer in peers:
        for number in (1, 2):  # so that one session is as much as a turn may be
            peer.subscribe(number, f"home/{number}", kind="live")
    looks.clear()
    assert set(sessions(peers[0])) == {peer.session for peer in peers}
    assert looks == [1, 1, 1, 1, 1]


def test_sessions_come_in_pages_by_id_and_one_that_has_ended_ends_no_page(running: Running):
    peers = [running.peer("ann") for _ in range(5)]
    running.peer("bob")
    ids = sorted(peer.session for peer in peers)
    running.call(lambda: setattr(running.server.sessions.get(ids[1]), "is_ended", True))
    ann = next(peer for peer in peers if peer.session != ids[1])
    for limit in (1, 2, 3, 4, 5):
        found: list[str] = []
        while page := ann.ask(wire.ListSessions(after=found[-1] if found else None, limit=limit)):
            assert len(page) <= limit
            found += [info.id for info in page]
            if len(page) < limit:
                break
        assert found == [id for id in ids if id != ids[1]]


def test_a_session_whose_connection_is_cut_is_told_and_may_come_back(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    ann.subscribe(1, "home/#", kind="session")
    root.ask(wire.EndSession(id=ann.session))
    assert isinstance(ann.ends(), Closed)
    (frame,) = [frame for frame in ann.inbox if frame.kind == Kind.GOODBYE]
    assert requests.decode(frame.payload, Goodbye).reconnect
    running.until(lambda: running.session_of(ann).connection is None)
    running.bus.publish("home/x", b"meanwhile")
    back = running.peer("ann", session=ann.session)
    assert back.session == ann.session
    assert back.payloads(1, 1) == [b"meanwhile"]
    root.ask(wire.EndSession(id=ann.session))  # again, and once more when nobody is there
    back.ends()
    running.until(lambda: running.session_of(ann).connection is None)
    root.ask(wire.EndSession(id=ann.session))


def test_a_session_that_is_ended_for_good_is_gone_with_its_own_subscriptions(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    ann.subscribe(1, "home/#", kind="session")
    ann.subscribe(2, "home/#", kind="named", id="stays")
    root.ask(wire.EndSession(id=ann.session, for_good=True))
    assert isinstance(ann.ends(), Closed)
    assert ann.session not in sessions(root)
    assert [info.id for info in running.bus.subscriptions()] == ["stays"]
    with pytest.raises(NotFound):
        running.peer("ann", session=ann.session)
    with pytest.raises(NotFound):
        root.ask(wire.EndSession(id=ann.session, for_good=True))
    assert running.peer("ann").session != ann.session  # the client itself may come again


def test_it_is_gone_from_the_disk_when_that_is_answered_however_busy_the_session_is(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    ann.subscribe(1, "home/#", kind="session")
    session, gate = running.session_of(ann), threading.Event()
    running.call(lambda: session.later(lambda: gate.wait(60), lambda *_: None))
    try:
        root.ask(wire.EndSession(id=ann.session, for_good=True))
        assert running.bus.subscriptions() == []
        assert [row.user for row in stored_sessions(running.bus.core.state)] == ["root"]
    finally:
        gate.set()


def test_one_that_nobody_is_connected_to_is_ended_too(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    ann.subscribe(1, "home/#", kind="session")
    ann.close()
    running.until(lambda: running.session_of(ann).connection is None)
    root.ask(wire.EndSession(id=ann.session, for_good=True))
    assert running.bus.subscriptions() == []
    assert ann.session not in sessions(root)


def test_nobody_but_an_administrator_ends_sessions_not_even_those_of_the_same_user(running: Running):
    ann, again, bob = (running.peer(name) for name in ("ann", "ann", "bob"))
    for id in (ann.session, again.session, bob.session, "none"):
        for for_good in (False, True):
            with pytest.raises(NotAllowed):
                ann.ask(wire.EndSession(id=id, for_good=for_good))
    for peer in (ann, again, bob):
        peer.ping()


def test_an_administrator_may_end_its_own_session(running: Running):
    root = running.peer("root")
    root.begin(wire.EndSession(id=root.session, for_good=True))
    assert isinstance(root.ends(), Closed)
    assert running.peer("root").session != root.session


def test_what_a_busy_server_does_not_come_to_in_time_is_not_done(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    held, gate = threading.Event(), threading.Event()
    presence = running.server.sessions.answers.presence
    work = presence.end(running.session_of(root), wire.EndSession(id=ann.session, for_good=True))
    running.server.broker.serving = msgspec.structs.replace(running.server.serving, call_s=0.05)
    running.loop.call_soon_threadsafe(held.set)
    running.loop.call_soon_threadsafe(gate.wait, 60)
    held.wait(60)
    try:
        with pytest.raises(TimedOut):
            work()
    finally:
        gate.set()
    ann.ping()
    assert ann.session in sessions(root)
