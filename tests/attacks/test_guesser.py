"""Who guesses at secrets, many at once, and hangs up: it is no faster for it, and nobody else is slower."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from headwater.access.clients import Clients
from headwater.access.scram import ClientLogin, ServerLogin
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Auth, Connack, Connect, Disconnect, Publish
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from headwater.wire.requests import Topics
from mqtt.peer import MqttPeer, Served
from server.harness import SECRET

METHOD = "SCRAM-SHA-256"
SLOW = 1_000_000
"""Iterations that take a third of a second."""
MANY = 40


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names whose secrets were looked at, as it is begun."""
    names: list[str] = []

    def counting(real: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
        def look(*arguments: Any) -> Any:
            names.append(name_of(*arguments))
            return real(*arguments)

        return look

    monkeypatch.setattr(Clients, "check_secret", counting(Clients.check_secret, lambda _, name, __: name))
    monkeypatch.setattr(ServerLogin, "final", counting(ServerLogin.final, lambda login, _: login.claimed_user))
    return names


def guess(served: Served, name: str, password: bytes = b"wrong") -> MqttPeer:
    peer = served.line()
    peer.send(Connect("", V5, user_name=name, password=password))
    return peer


def prove(served: Served, name: str, secret: str) -> MqttPeer:
    login = ClientLogin(name, secret)
    peer = served.line()
    said = Properties(authentication_method=METHOD, authentication_data=login.first())
    peer.send(Connect("", V5, properties=said))
    asked = peer.expect(Auth)
    proof = login.respond(asked.properties.authentication_data or b"")
    said = Properties(authentication_method=METHOD, authentication_data=proof)
    peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, said))
    return peer


def test_what_another_asks_for_does_not_wait_for_guesses(looked: list[str]):
    with Served(auth="scram", handshake_s=60.0) as served:
        served.client("ann", allow=("subscribe #",), admin=True)
        other = served.peer("ann")
        served.server.broker.clients.iterations = SLOW
        for number in range(MANY):
            guess(served, f"nobody-{number}")
        held = lambda: sum(one.is_held for one in served.server.listener.connections)  # noqa: E731
        served.until(lambda: held() == MANY, "all to be held")
        other.subscribe(1, "home/#", kind="named", id="s")  # in the threads that everybody shares
        other.ask(Topics())
        assert len(set(looked) - {"ann"}) < MANY / 2
        for peer in served._mqtt_peers:
            peer.close()


def test_nothing_is_computed_for_who_has_hung_up(looked: list[str]):
    with Served(auth="scram") as served:
        served.server.broker.clients.iterations = SLOW // 10
        for number in range(MANY):
            guess(served, f"nobody-{number}").close()
        came = served.bus.core.roots.counts
        served.until(lambda: came.connections == MANY and not served.server.listener.connections, "the end of all")
        assert len(looked) < MANY / 2


def test_names_that_nobody_can_have_are_not_remembered_at_length():
    with Served(auth="scram", guess_delay_s_max=0.01) as served:
        for number in range(20):
            peer = guess(served, f"{number:02}" + "x" * 15_000)
            assert peer.expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
        assert max(map(len, served.server.broker.guesses._failures)) < 100


def test_a_name_in_another_form_is_no_other_name(looked: list[str]):
    with Served(auth="scram", guess_delay_s_max=0.2) as served:
        peers = [guess(served, name) for name in ("j\u00fcrgen", "ju\u0308rgen")]
        assert peers[0].expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
        assert set(served.server.broker.guesses._failures) == {"j\u00fcrgen@127.0.0.1", "127.0.0.1"}


def test_passwords_that_wait_are_limited():
    with Served(auth="scram", proofs_waiting_max=3, handshake_s=60.0) as served:
        served.server.broker.clients.iterations = SLOW
        peers = [guess(served, f"nobody-{number}") for number in range(MANY)]
        served.until(lambda: served.server.proofs.waiting == 3, "a queue")
        refused = 0
        for peer in peers[-10:]:
            refused += peer.expect(Connack).reason == Reason.QUOTA_EXCEEDED
        assert refused == 10
        assert served.server.proofs.waiting <= 3
        for peer in peers:
            peer.close()


def test_guesses_at_once_are_looked_at_one_after_another(looked: list[str]):
    with Served(auth="scram", guess_delay_s_max=0.2) as served:
        served.client("ann")
        peers = [guess(served, "ann", b"wrong %d" % number) for number in range(MANY)]
        assert peers[0].expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
        assert looked.count("ann") <= 2
        assert peers[1].expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
        assert looked.count("ann") <= 4


def test_proofs_at_once_are_looked_at_one_after_another(looked: list[str]):
    with Served(auth="scram", guess_delay_s_max=0.2) as served:
        served.client("ann")
        peers = [prove(served, "ann", "wrong") for _ in range(10)]
        assert peers[0].expect(Connack).reason == Reason.NOT_AUTHORIZED
        assert peers[1].expect(Connack).reason == Reason.NOT_AUTHORIZED
        assert looked.count("ann") <= 4


def test_a_guess_that_waits_for_its_turn_keeps_its_place_no_longer_than_a_handshake():
    with Served(auth="scram", guess_delay_s_max=60.0, handshake_s=0.5) as served:
        served.client("ann")
        for _ in range(12):
            served.server.broker.guesses.failed("ann@127.0.0.1")
        peers = [guess(served, "ann") for _ in range(3)]
        for peer in peers[1:]:
            peer.ends()
        assert served.call(lambda: len(served.server.listener.connections)) == 1


def test_clients_of_one_name_that_come_at_once_are_all_let_in():
    """A right secret forgives: a crowd behind one address does not wait as guesses do."""
    with Served(auth="scram", guess_delay_s_max=60.0) as served:
        served.client("ann")
        peers = [guess(served, "ann", SECRET.encode()) for _ in range(20)]
        peers += [prove(served, "ann", SECRET) for _ in range(20)]
        for peer in peers:
            assert peer.expect(Connack).reason == Reason.SUCCESS


def test_one_that_sends_all_it_has_and_ends_its_side_is_served():
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))

        peer = served.line()
        peer.send(Connect("", V5, user_name="ann", password=SECRET.encode()), Publish("home/x", b"21.5"), Disconnect())

        peer.socket.shutdown(socket.SHUT_WR)
        peer.ends()
        served.until(lambda: [one.payload for one in served.bus.replay("home/x")] == [b"21.5"])
