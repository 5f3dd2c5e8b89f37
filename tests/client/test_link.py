"""Connections that come and go, and requests over them."""

from __future__ import annotations

import os
import queue
import socket
import threading
from typing import Any

import msgspec
import pytest

import headwater
from client.conftest import Connect
from client.peer import LIMITS, Peer
from headwater import (
    Closed,
    Conflict,
    Connecting,
    Disconnected,
    HeadwaterError,
    Incompatible,
    Malformed,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    TimedOut,
)
from headwater.client.bus import THREAD_NAME
from headwater.wire import batches
from headwater.wire import requests as wire
from headwater.wire.frame import Kind, pack
from server.site import free_port

WAIT_S = 60.0


def in_thread(work: Any) -> Any:
    """Have something called in a thread; a function that waits for what it returned or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(WAIT_S)
        assert found, "it still waits"
        value, error = found[0]
        if error is not None:
            raise error
        return value

    return result


def threads() -> set[threading.Thread]:
    """Of clients."""
    return {thread for thread in threading.enumerate() if thread.name == THREAD_NAME}


def test_a_client_says_hello_and_registers_a_session(peer: Peer, connect: Connect) -> None:
    _, talk = connect(session_expire_after_s=7.0)
    assert talk.hello is not None
    assert (talk.hello.mechanism, talk.hello.versions) == ("none", (1,))
    here = (socket.gethostname(), os.getpid())
    assert talk.register == wire.Register(session=None, expire_after_s=7.0, host=here[0], pid=here[1])


def test_nobody_there_is_told_with_what_to_do() -> None:
    before = threads()
    with free_port() as port, pytest.raises(Disconnected, match="headwater serve") as caught:
        headwater.connect(f"headwater://me:hush@127.0.0.1:{port}")
    assert caught.value.retryable
    assert "hush" not in str(caught.value)
    assert threads() <= before


def test_a_host_that_does_not_exist_is_told() -> None:
    with pytest.raises(Disconnected, match="no server answers"):
        headwater.connect("headwater://nowhere.invalid")


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Disconnected, match="connect_timeout_s"),
    ):
        headwater.connect(f"headwater://127.0.0.1:{silent.getsockname()[1]}", Connecting(connect_timeout_s=0.2))


def test_something_that_is_no_headwater_server_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:

        def serve() -> None:
            sock, _ = web.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))
                sock.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(HeadwaterError):
            headwater.connect(f"headwater://127.0.0.1:{web.getsockname()[1]}")


def test_a_refused_registration_is_raised(peer: Peer) -> None:
    peer.refuses.append(QuotaExceeded("sessions_max"))
    with pytest.raises(QuotaExceeded):
        headwater.connect(peer.url)


def test_a_server_that_asks_for_no_secret_gets_none(peer: Peer) -> None:
    with pytest.raises(Malformed, match="asks for no secret"):
        headwater.connect(peer.url.replace("//", "//me:hush@"))


def test_a_client_that_states_its_name_alone_is_a_gatekeepers(peer: Peer) -> None:
    bus = headwater.connect(peer.url.replace("//", "//me@"))
    hello = peer.talk().hello
    assert hello is not None
    assert (hello.mechanism, hello.user) == ("gatekeeper", "me")
    bus.close()


def test_a_lost_connection_comes_back_with_its_session(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    talk.cut()
    again = peer.talk()
    assert again.register is not None
    assert again.register.session == "s1"
    assert bus._client.link.session == "s1"


@pytest.mark.parametrize("error", [NotFound("gone"), NotAllowed("another's")])
def test_a_session_that_is_gone_is_made_anew(peer: Peer, connect: Connect, error: HeadwaterError) -> None:
    bus, talk = connect()
    peer.refuses.append(error)
    talk.cut()
    again = peer.talk()
    assert again.register is not None
    assert again.register.session is None
    answer = in_thread(bus.ends)
    id, _ = again.request(wire.Ends)
    again.reply(id, {"a": 3})
    assert answer() == {"a": 3}
    assert bus._client.link.session == "s2"


@pytest.mark.parametrize("error", [QuotaExceeded("many"), TimedOut("slow"), Disconnected("busy")])
def test_a_server_that_has_no_room_yet_is_tried_again(peer: Peer, connect: Connect, error: HeadwaterError) -> None:
    _, talk = connect()
    peer.refuses += [error, error]
    talk.cut()
    peer.talk()


def test_a_client_that_is_not_let_in_any_more_stops(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    peer.refuses += [NotFound("gone"), NotAllowed("removed")]
    talk.cut()
    with pytest.raises(NotAllowed):
        for _ in range(100):
            bus.ends()
    with pytest.raises(NotAllowed):
        bus.publish("a/b", b"")
    assert peer.is_left_alone()


def test_a_session_that_another_took_over_is_not_taken_back(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    talk.goodbye(Conflict("another connection has taken this session over"))
    assert peer.is_left_alone()
    with pytest.raises(Conflict, match="taken this session over"):
        bus.publish("a/b", b"")


def test_a_server_that_restarts_is_come_back_to(peer: Peer, connect: Connect) -> None:
    _, talk = connect()
    talk.goodbye(Closed("the server is stopping"), reconnect=True)
    peer.talk()


def test_delays_grow_up_to_their_limit_and_are_drawn(peer: Peer, connect: Connect) -> None:
    bus, _ = connect(reconnect_delay_s=0.1, reconnect_delay_s_max=1.0)
    link = bus._client.link
    link._tries = 0
    drawn = [link._delay_s() for _ in range(40)]
    for delay_s, longest_s in zip(drawn, [0.1, 0.2, 0.4, 0.8] + [1.0] * 36, strict=True):
        assert longest_s / 2 <= delay_s <= longest_s
    assert len(set(drawn)) > 30


def test_a_request_that_changes_nothing_is_repeated_on_the_next_connection(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    answer = in_thread(lambda: bus.topics("a/#"))
    talk.request(wire.Topics)
    talk.cut()
    again = peer.talk()
    id, request = again.request(wire.Topics)
    assert request.filter == "a/#"
    again.reply(id, [headwater.TopicInfo("a/b", 1, 1, False)])
    assert answer() == [headwater.TopicInfo("a/b", 1, 1, False)]


def test_a_request_that_may_have_been_done_fails_and_says_so(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    answer = in_thread(lambda: bus.purge("a/#"))
    talk.request(wire.Purge)
    talk.cut()
    with pytest.raises(Disconnected, match="not known") as caught:
        answer()
    assert caught.value.retryable
    again = peer.talk()
    assert again.is_quiet()


def test_what_a_node_was_at_that_leads_no_more_goes_to_the_next(peer: Peer, connect: Connect) -> None:
    """Whether it is stored is not known there: the next node says so, as it has the same sequence."""
    bus, talk = connect()
    future = bus.publish_soon("a/b", b"x")
    id, first = talk.publish()
    answer = in_thread(lambda: bus.topics("a/#"))
    talk.request(wire.Topics)
    talk.refuse(id, headwater.SteppedDown("this node leads no more"))
    again = peer.talk()
    frames = {frame.kind: frame for frame in (again.next(), again.next())}  # in whichever order
    again.reply(frames[Kind.REQUEST].id, [])
    id, second = frames[Kind.PUBLISH].id, batches.read_publish(frames[Kind.PUBLISH])
    assert (second.producer, second.sequence) == (first.producer, first.sequence)
    again.published((id, 7), repeat=True)
    assert future.result(60.0).offset == 7
    assert answer() == []


def test_unsubscribe_twice_over_a_lost_connection_is_done(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    answer = in_thread(lambda: bus.unsubscribe("x"))
    talk.request(wire.Unsubscribe)
    talk.cut()
    again = peer.talk()
    id, _ = again.request(wire.Unsubscribe)
    again.refuse(id, NotFound("no such subscription"))
    assert answer() is None


def test_an_answer_of_another_version_fails_its_request_at_once_and_no_other(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    answer = in_thread(lambda: bus.states("s"))
    id, _ = talk.request(wire.States)
    talk.reply(id, [["home", 1, "retry", 1, ["why"]]])
    with pytest.raises(Incompatible, match="another version than this client") as caught:
        answer()
    assert str(bus.folder) in str(caught.value)
    ends = in_thread(bus.ends)
    talk.reply(talk.request(wire.Ends)[0], {"home": 1})
    assert ends() == {"home": 1}
    assert bus._client.link.connections == 1


def test_an_answer_that_does_not_come_in_time_is_told(peer: Peer, connect: Connect) -> None:
    bus, talk = connect(request_timeout_s=1.0)
    with pytest.raises(TimedOut, match="request_timeout_s"):
        bus.ends()
    id, _ = talk.request(wire.Ends)
    talk.reply(id, {})  # too late: nobody minds
    answer = in_thread(bus.ends)
    id, _ = talk.request(wire.Ends)
    talk.reply(id, {"a": 1})
    assert answer() == {"a": 1}


def test_without_a_connection_a_request_fails_in_time(peer: Peer, connect: Connect) -> None:
    bus, _ = connect(request_timeout_s=0.2)
    peer.close()
    with pytest.raises(HeadwaterError) as caught:
        bus.ends()
    assert caught.value.retryable


@pytest.mark.parametrize("error", [NotFound("no"), NotAllowed("no"), Malformed("no"), headwater.Gap("a", 1, 2, "why")])
def test_errors_are_those_of_the_tree(connect: Connect, error: HeadwaterError) -> None:
    bus, talk = connect()
    answer = in_thread(lambda: bus.dead_letters("x"))
    id, _ = talk.request(wire.DeadLetters)
    talk.refuse(id, error)
    with pytest.raises(type(error)) as caught:
        answer()
    assert str(caught.value) == str(error)


def test_silence_is_met_with_a_ping_and_then_given_up(peer: Peer, connect: Connect) -> None:
    peer.limits = msgspec.structs.replace(LIMITS, keepalive_s=0.4)
    _, talk = connect()
    assert peer.is_left_alone(1.0)  # pings are answered
    peer.answers_pings = False
    again = peer.talk()
    assert again is not talk


def test_pings_of_the_server_are_answered(connect: Connect) -> None:
    _, talk = connect()
    talk.send(pack(Kind.PING))
    talk.next(Kind.PONG)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, pack(Kind.HELLO), b"\x08\0\0\0\x63\0\0\0\0\0\0\0", b"\1\0\0\0"])
def test_a_server_that_talks_nonsense_is_left_and_tried_again(peer: Peer, connect: Connect, garbage: bytes) -> None:
    bus, talk = connect()
    talk.send(garbage)
    again = peer.talk()
    answer = in_thread(bus.ends)
    id, _ = again.request(wire.Ends)
    again.reply(id, {})
    assert answer() == {}


def test_closing_waits_for_publishes_in_flight_and_ends_the_session(connect: Connect) -> None:
    before = threads()
    bus, talk = connect()
    future = bus.publish_soon("a/b", b"x")
    id, _ = talk.publish()
    closed = in_thread(bus.close)
    assert talk.is_quiet()
    talk.published((id, 1))
    goodbye = talk.next(Kind.GOODBYE)
    assert wire.decode(goodbye.payload, wire.Goodbye).end_session
    closed()
    assert future.result(0).offset == 1
    bus.close()
    with pytest.raises(Closed, match="connect again"):
        bus.publish("a/b", b"")
    with pytest.raises(Closed, match="connect again"):
        bus.ends()
    assert threads() <= before


def test_the_clients_own_thread_does_not_wait_for_itself(connect: Connect) -> None:
    bus, talk = connect()
    raised: list[BaseException] = []
    done = threading.Event()

    def inside(_: object) -> None:
        for work in (bus.close, bus.ends, lambda: bus.publish("a/b", b""), lambda: bus.subscribe("a/#")):
            try:
                work()
            except BaseException as error:
                raised.append(error)
        done.set()

    future = bus.publish_soon("a/b", b"x")
    future.add_done_callback(inside)
    id, _ = talk.publish()
    talk.published((id, 1))
    assert done.wait(WAIT_S)
    assert [type(error) for error in raised] == [Conflict] * 4


def test_a_client_shows_its_address_without_the_secret(peer: Peer, connect: Connect) -> None:
    bus, _ = connect()
    assert repr(bus) == f"<headwater bus at {peer.url}>"


def test_connecting_takes_settings_that_can_be_right_only() -> None:
    with pytest.raises(Malformed, match="prefetch_messages"):
        Connecting(prefetch_messages=0)
    with pytest.raises(Malformed, match="reconnect_delay_s"):
        Connecting(reconnect_delay_s=-1)


def test_many_threads_share_a_client(connect: Connect) -> None:
    bus, talk = connect()
    stop = threading.Event()

    def serve() -> None:
        offset = 1
        while not stop.is_set():
            try:
                id, publish = talk.publish()
            except (AssertionError, queue.Empty, OSError):  # the client has left
                return
            talk.published((id, offset))
            offset += publish.count

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    offsets: list[int] = []

    def publish() -> None:
        offsets.extend(bus.publish("a/b", b"x").offset for _ in range(50))

    publishing = [threading.Thread(target=publish) for _ in range(8)]
    for thread in publishing:
        thread.start()
    for thread in publishing:
        thread.join(WAIT_S)
    assert sorted(offsets) == list(range(1, 401))
    stop.set()
