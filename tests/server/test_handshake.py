"""The handshake of the notes: HELLO, HELLO and CHALLENGE, RESPONSE, OK, OK; and what may not come when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from headwater import __version__
from headwater.wire import batches, requests
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import TRANSITIONS, Phase
from headwater.wire.requests import encode
from server.harness import Ended, Got, Peer, Running, code


def reach(running: Running, state: Phase) -> Peer:
    """A peer whose connection is in a state, as the server sees it."""
    peer = running.connect()
    if state is Phase.GREETING:
        return peer
    peer.hello(user="ann")
    if state is Phase.CHALLENGED:
        return peer
    peer.respond()
    if state is Phase.PROVEN:
        return peer
    peer.send(pack(Kind.OK))
    if state is Phase.REGISTERED:
        peer.register()
    return peer


def test_five_frames_make_both_sides_known_and_tell_the_limits():
    with Running() as running:
        peer = running.connect()
        challenge = peer.hello(user="ann")
        assert challenge.version == 1
        assert challenge.software == f"headwater/{__version__}"
        assert abs(challenge.time_us - running.bus.core.clock.now_us()) < 10_000_000
        welcome = peer.respond()
        assert welcome.user == "ann"
        assert welcome.client_id
        assert welcome.limits.batch_bytes_max == running.bus.config.batch_bytes_max
        assert welcome.limits.keepalive_s == running.server.serving.keepalive_s
        peer.send(pack(Kind.OK))
        assert peer.register().session


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_any_event_loop_will_do(loop: Callable[[], asyncio.AbstractEventLoop]):
    with Running(loop=loop) as running:
        ann, bob = running.peer("ann"), running.peer("bob")
        bob.subscribe(1, "a/#", kind="session")
        bob.subscribe(2, "a/#")
        numbers = [ann.publish_soon("a/x", bytes(50_000)) for _ in range(100)]
        assert [ann.published(number).first_offset for number in numbers] == list(range(1, 101))
        got: list[Got] = []
        while len(got) < 100:
            more = bob.take(1, 1)
            bob.ack(1, more)
            bob.credit(1), bob.credit(2)
            got += more
        assert len(bob.take(2, 100)) == 100
        bob.close()
        running.until(lambda: running.session_of(bob).connection is None)


def test_somebody_without_a_name_is_anonymous_where_nobody_is_asked():
    with Running() as running:
        peer = running.connect()
        peer.hello()
        assert peer.respond().user == "anonymous"


PAYLOADS = {
    Kind.HELLO: encode({}),
    Kind.RESPONSE: encode({}),
    Kind.OK: b"",
    Kind.REQUEST: encode(requests.Topics()),
    Kind.PUBLISH: bytes(32),
    Kind.ACK: batches.RANGES.pack(1, 0),
    Kind.TAKEN: batches.RANGES.pack(0, 0),
    Kind.CREDIT: bytes(16),
    Kind.GOODBYE: encode(requests.Goodbye()),
}


@pytest.mark.parametrize("state", Phase)
def test_every_frame_that_may_not_come_in_a_state_gets_422_and_a_closed_connection(state: Phase):
    with Running() as running:
        for kind in Kind:
            if (state, kind) in TRANSITIONS:
                continue
            peer = reach(running, state)
            peer.send(pack(kind, 0, PAYLOADS.get(kind, b"")))
            said = peer.ends()
            assert said is not None, kind
            assert said.code == 422, kind
        running.until(lambda: not running.server.listener.connections)


@pytest.mark.parametrize("state", Phase)
def test_a_ping_is_answered_with_its_payload_in_every_state_and_a_goodbye_closes(state: Phase):
    with Running() as running:
        peer = reach(running, state)
        peer.ping(b"")
        peer.ping(b"12345678")
        peer.send(pack(Kind.PONG))
        peer.send(pack(Kind.GOODBYE, 0, PAYLOADS[Kind.GOODBYE]))
        assert peer.ends() is None


def test_versions_that_are_not_spoken_here_get_422():
    with Running() as running:
        for versions in ((), (99,), (0, 2)):
            peer = running.connect()
            with code(422, "versions"):
                peer.hello(versions=versions)
            peer.ends()
        peer = running.connect()
        assert peer.hello(versions=(7, 1)).version == 1


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x00", encode([1]), encode({"user": 3}), encode({"mechanism": "x"})]
)
def test_a_hello_that_cannot_be_read_gets_422(payload: bytes):
    with Running() as running:
        peer = running.connect()
        peer.send(pack(Kind.HELLO, 0, payload))
        said = peer.ends()
        assert said is not None
        assert said.code == 422


@pytest.mark.parametrize("name", ["*", "a/b", "+", "#", "x" * 1000, "%u", "\x00"])
def test_a_name_that_is_none_gets_422(name: str):
    with Running() as running:
        peer = running.connect()
        with code(422):
            peer.hello(user=name)


def test_the_first_request_is_a_registration():
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        with code(422, "registration"):
            peer.ask(requests.Topics())
        peer.ends()


def test_a_frame_longer_than_a_hello_before_the_handshake_is_through_gets_413():
    with Running() as running:
        peer = running.connect()
        peer.send(pack(Kind.HELLO, 0, bytes(20_000)))
        said = peer.ends()
        assert said is not None
        assert said.code == 413


def test_a_connection_that_says_nothing_is_closed_at_the_deadline_with_504():
    with Running(handshake_s=0.8) as running:
        peers = [reach(running, state) for state in Phase if state is not Phase.REGISTERED]
        there = running.peer("there")
        for peer in peers:
            said = peer.ends()
            assert said is not None
            assert said.code == 504
        there.quiet(0.9)
        there.ping()


def test_one_that_keeps_itself_busy_with_pings_is_closed_at_the_deadline_all_the_same():
    with Running(handshake_s=0.3) as running:
        peer = running.connect()
        with pytest.raises((Ended, OSError)):
            while True:
                peer.ping()
        running.until(lambda: not running.server.listener.connections)


def test_too_many_half_open_handshakes_are_refused_with_429_and_those_in_use_stay():
    with Running(handshakes_max=3) as running:
        there = running.peer("there")
        half_open = [running.connect() for _ in range(3)]
        running.until(lambda: len(running.server.listener.connections) == 4)
        one_more = running.connect()
        said = one_more.ends()
        assert said is not None
        assert said.code == 429
        assert "handshakes_max" in str(said)
        there.ping()
        half_open[0].close()
        running.until(lambda: len(running.server.listener.connections) == 3)
        running.peer("next")


def test_too_many_connections_are_refused_with_429():
    with Running(connections_max=2) as running:
        running.peer("a"), running.peer("b")
        said = running.connect().ends()
        assert said is not None
        assert said.code == 429
    with Running(connections_per_address_max=2) as running:
        running.peer("a"), running.peer("b")
        said = running.connect().ends()
        assert said is not None
        assert said.code == 429


def test_a_stopping_server_tells_its_clients_to_come_back():
    with Running() as running:
        peer = running.peer()
        running.run(running.server.drain())
        goodbye = requests.decode(peer.frame(Kind.GOODBYE).payload, requests.Goodbye)
        assert goodbye.reconnect
        assert goodbye.problem is not None
        assert goodbye.problem.code == 503


def test_a_stopping_server_answers_what_is_under_way_and_waits_for_nobody_who_goes_on():
    with Running(drain_s=8.0, publishes_in_flight_max=4) as running:
        peer = running.peer()
        numbers = [peer.publish_soon("a", b"%d" % n) for n in range(500)]
        running.run(running.server.drain())
        peer.ends()
        answered = {
            one.id for frame in peer.inbox if frame.kind == Kind.PUBLISHED for one in batches.read_published(frame)
        }
        stored = [one.payload for one in running.bus.replay("a")]
        assert stored == [b"%d" % n for n in range(len(stored))]
        assert answered == set(numbers[: len(stored)])
