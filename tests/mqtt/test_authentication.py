"""Who MQTT clients are, how they show it, and what they may do."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from headwater.access.scram import ClientLogin
from headwater.config import Serving
from headwater.errors import Malformed
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Auth, Connack, Connect, Disconnect, Subscribe, Subscription, Will
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from headwater.server.exposure import check_exposure
from mqtt.peer import MqttPeer, Served
from server.authority import LOCAL, Authority
from server.harness import SECRET

METHOD = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def served():
    with Served(auth="scram", guess_delay_s_max=0.01) as running:
        running.client(
            "ann", allow=("publish home/#", "create home/#", "subscribe home/#"), deny=("publish home/door",)
        )
        running.client("bob", allow=("publish own/%u/#", "create own/%u/#", "subscribe own/%u/#"))
        yield running


def said(method: str, data: bytes) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def begin(served: Served, login: ClientLogin, id: str = "") -> tuple[MqttPeer, Auth]:
    """CONNECT with a method, and what the server asks then."""
    peer = served.line()
    peer.send(Connect(id, V5, properties=said(METHOD, login.first())))
    return peer, peer.expect(Auth)


def proof(login: ClientLogin, asked: Auth) -> Auth:
    return Auth(
        Reason.CONTINUE_AUTHENTICATION, said(METHOD, login.respond(asked.properties.authentication_data or b""))
    )


def proven(served: Served, user: str) -> MqttPeer:
    login = ClientLogin(user, SECRET)
    peer, asked = begin(served, login)
    peer.send(proof(login, asked))
    answer = peer.expect(Connack)
    assert answer.reason == Reason.SUCCESS
    login.verify(answer.properties.authentication_data or b"")
    return peer


# User names and passwords


@pytest.mark.parametrize("version", [V4, V5])
def test_a_user_name_and_a_password_of_the_registry_let_a_client_in(served: Served, version: int):
    peer = served.mqtt(version=version, user="ann")
    assert peer.publish("home/x", qos=1).reason == Reason.SUCCESS


@pytest.mark.parametrize("version", [V4, V5])
def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(served: Served, version: int):
    for name, password in (("ann", b"wrong"), ("nobody", SECRET.encode()), ("ann", b"\xff\xfe"), ("ann", b"")):
        peer = served.line(version)
        answer = peer.connect("c", user_name=name, password=password)
        assert answer.reason == Reason.BAD_USER_NAME_OR_PASSWORD, name
        peer.ends()


def test_each_wrong_guess_makes_the_next_one_wait_longer():
    with Served(auth="scram", guess_delay_s_max=0.05) as served:
        served.client("ann")
        guesses = served.server.broker.guesses
        keys = ("ann@127.0.0.1", "127.0.0.1")
        assert [guesses.delay_s(key) for key in keys] == [0, 0]
        served.line().connect("c", user_name="ann", password=b"wrong")
        assert all(guesses.delay_s(key) > 0 for key in keys)
        served.mqtt("c", user="ann")
        assert guesses.delay_s(keys[0]) == 0
        login = ClientLogin("ann", "wrong")
        peer, asked = begin(served, login)
        peer.send(proof(login, asked))
        assert peer.expect(Connack).reason == Reason.NOT_AUTHORIZED
        assert guesses.delay_s(keys[0]) > 0


@pytest.mark.parametrize("version", [V4, V5])
def test_nobody_gets_in_without_a_word_where_there_is_authentication(served: Served, version: int):
    assert served.line(version).connect("c").reason == Reason.BAD_USER_NAME_OR_PASSWORD
    assert served.line(version).connect("c", user_name="ann").reason == Reason.BAD_USER_NAME_OR_PASSWORD


def test_nobody_serves_mqtt_to_other_machines_without_authentication():
    with pytest.raises(Malformed, match="other machines"):
        check_exposure(Serving(mqtt_host="0.0.0.0"))
    check_exposure(Serving(mqtt_host="0.0.0.0", mqtt=False))
    check_exposure(Serving(mqtt_host="0.0.0.0", auth="scram"))


# Enhanced authentication


def test_a_client_proves_who_it_is_without_sending_its_secret(served: Served):
    peer = proven(served, "ann")
    assert peer.publish("home/x", qos=1).reason == Reason.SUCCESS
    assert peer.publish("other/x", qos=1).reason == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(("name", "secret"), [("ann", "wrong"), ("nobody", SECRET)])
def test_a_proof_that_does_not_hold_is_refused(served: Served, name: str, secret: str):
    login = ClientLogin(name, secret)
    peer, asked = begin(served, login)
    peer.send(proof(login, asked))
    assert peer.expect(Connack).reason == Reason.NOT_AUTHORIZED
    peer.ends()


def test_another_method_is_refused(served: Served):
    for method in ("SCRAM-SHA-1", "", "PLAIN"):
        peer = served.line()
        peer.send(Connect("c", V5, properties=said(method, b"n,,n=ann,r=x")))
        assert peer.expect(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD


def test_a_server_that_asks_nobody_knows_no_method():
    with Served() as served:
        peer = served.line()
        peer.send(Connect("c", V5, properties=said(METHOD, ClientLogin("ann", SECRET).first())))
        assert peer.expect(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize("data", [b"", b"\xff", b"n,,", b"p=tls-unique,,n=ann,r=x", b"n,,n=ann,r=" + b"x" * 5000])
def test_a_login_that_is_none_is_refused(served: Served, data: bytes):
    peer = served.line()
    peer.send(Connect("c", V5, properties=said(METHOD, data)))
    assert peer.expect(Connack).reason == Reason.NOT_AUTHORIZED


def test_nothing_but_a_proof_is_taken_before_the_connack(served: Served):
    peer, _ = begin(served, ClientLogin("ann", SECRET))
    peer.send(Subscribe(1, (Subscription("home/#"),)))
    assert peer.expect(Connack).reason == Reason.PROTOCOL_ERROR
    peer, _ = begin(served, ClientLogin("ann", SECRET))
    peer.send(Disconnect())
    peer.ends()
    assert not peer.inbox


def test_a_client_proves_itself_again_while_messages_go_on(served: Served):
    peer = proven(served, "ann")
    peer.subscribe("home/again", qos=1)
    login = ClientLogin("ann", SECRET)
    peer.send(Auth(Reason.RE_AUTHENTICATE, said(METHOD, login.first())))
    asked = peer.expect(Auth)
    assert asked.reason == Reason.CONTINUE_AUTHENTICATION
    served.bus.publish("home/again", b"1")
    assert peer.payloads(1) == [b"1"]
    peer.send(proof(login, asked))
    answer = peer.expect(Auth)
    assert answer.reason == Reason.SUCCESS
    login.verify(answer.properties.authentication_data or b"")
    assert peer.publish("home/x", qos=1).reason == Reason.SUCCESS


def test_a_proof_of_another_user_or_a_wrong_one_ends_the_connection(served: Served):
    for name, secret in (("bob", SECRET), ("ann", "wrong")):
        peer = proven(served, "ann")
        login = ClientLogin(name, secret)
        peer.send(Auth(Reason.RE_AUTHENTICATE, said(METHOD, login.first())))
        peer.send(proof(login, peer.expect(Auth)))
        assert peer.ends() == Reason.NOT_AUTHORIZED


def test_an_auth_that_nothing_asked_for_is_an_error(served: Served):
    peer = served.mqtt(user="ann")
    peer.send(Auth(Reason.RE_AUTHENTICATE, said(METHOD, ClientLogin("ann", SECRET).first())))
    assert peer.ends() == Reason.PROTOCOL_ERROR
    peer = proven(served, "ann")
    peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, said(METHOD, b"c=biws,r=x,p=x")))
    assert peer.ends() == Reason.PROTOCOL_ERROR
    peer = proven(served, "ann")
    peer.send(Auth(Reason.RE_AUTHENTICATE, said("PLAIN", b"x")))
    assert peer.ends() == Reason.BAD_AUTHENTICATION_METHOD


# Certificates and gatekeepers


def test_a_certificate_says_who_a_client_is(tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    mine, key = authority.issue("server", "localhost", others=LOCAL)
    with Served(
        auth="certificate", tls_certificate=mine, tls_key=key, tls_client_ca=authority.path, mqtt_tls_port=0
    ) as served:
        served.rules("ann", allow=("publish home/#", "create home/#"))
        context = ssl.create_default_context(cafile=authority.path)
        context.load_cert_chain(*authority.issue("ann", "ann"))
        peer = MqttPeer(served.protocol.tls_port)
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
        assert peer.connect("c", user_name="somebody-else", password=b"x").reason == Reason.SUCCESS
        assert peer.publish("home/x", qos=1).reason == Reason.SUCCESS
        assert peer.publish("other/x", qos=1).reason == Reason.NOT_AUTHORIZED
        peer.close()
        assert served.line().connect("c", user_name="ann").reason == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_gatekeeper_states_the_user_and_has_to():
    with Served(auth="gatekeeper") as served:
        served.rules("ann", allow=("publish home/#", "create home/#"))
        peer = served.line()
        assert peer.connect("c", user_name="ann").reason == Reason.SUCCESS
        assert peer.publish("home/x", qos=1).reason == Reason.SUCCESS
        assert served.line().connect("c").reason == Reason.BAD_USER_NAME_OR_PASSWORD


# Rights


def test_what_is_not_granted_is_answered_with_0x87_and_counted(served: Served):
    peer = served.mqtt(user="ann")
    before = served.server.sessions.counts.rights_refusals
    assert peer.publish("home/door", qos=1).reason == Reason.NOT_AUTHORIZED
    assert peer.publish("home/door", qos=2).reason == Reason.NOT_AUTHORIZED
    assert peer.subscribe("home/#", "other/#", "#", "+/x", "$share/g/other/x", qos=1) == (1, 0x87, 0x87, 0x87, 0x87)
    peer.publish("home/door", b"dropped", qos=0)
    peer.quiet()
    assert served.server.sessions.counts.rights_refusals == before + 7


def test_3_1_1_hears_0x80_for_a_filter_and_nothing_for_a_message(served: Served):
    peer = served.mqtt(version=V4, user="ann")
    assert peer.subscribe("other/#", qos=1) == (0x80,)
    peer.publish("home/door", qos=1)
    assert not list(served.bus.replay("home/door"))


def test_wildcards_in_names_widen_no_right(served: Served):
    peer = served.mqtt(user="bob")
    assert peer.subscribe("own/bob/#", "own/ann/#", "own/+/#", "own/%u/#", "own/#", qos=1) == (1, *[0x87] * 4)
    assert peer.publish("own/%u/x", qos=1).reason == Reason.NOT_AUTHORIZED
    assert peer.publish("own/ann/x", qos=1).reason == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize("name", ["+", "#", "ann/+", "*", "%u", "$admin", "a\u200bb", " ann", "x" * 65])
@pytest.mark.parametrize("auth", ["none", "gatekeeper"])
def test_a_name_that_means_something_in_rules_is_nobody_s(auth: str, name: str):
    with Served(auth=auth) as served:
        assert served.line().connect("c", user_name=name).reason == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_client_id_is_no_right(served: Served):
    peer = served.mqtt("ann/#", user="bob")
    assert peer.subscribe("own/ann/#", qos=1) == (0x87,)


def test_a_will_to_a_topic_that_is_denied_is_never_published(served: Served):
    peer = served.line()
    will = Will("home/door", b"last words", qos=1)
    answer = peer.connect("w", will=will, user_name="ann", password=SECRET.encode())
    assert answer.reason == Reason.NOT_AUTHORIZED
    peer.ends()
    served.mqtt("after", user="ann").publish("home/x", qos=1)
    assert not list(served.bus.replay("home/door"))


def test_a_will_is_not_published_once_its_client_has_lost_the_right():
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))
        peer = served.line()
        assert peer.connect("w", will=Will("home/x", b"gone"), user_name="ann", password=SECRET.encode()).reason == 0
        served.rules("ann", deny=("publish home/#",))
        peer.close()
        served.until(lambda: not served.server.listener.connections)
        served.bus.publish("home/y", b"after")
        assert not list(served.bus.replay("home/x"))


def test_a_client_that_is_removed_leaves_at_once():
    with Served(auth="scram") as served:
        served.client("ann", allow=("subscribe home/#",))
        plain, proved = served.mqtt(user="ann"), proven(served, "ann")
        served.bus.clients.remove("ann")
        served.call(served.server.reload)
        assert plain.ends() == proved.ends() == Reason.NOT_AUTHORIZED
