"""MQTT clients that bring the token of an issuer: as their password, or by the method for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.access.oauthbearer import message
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Auth, Connack, Connect, Disconnect, Publish, Suback, Subscribe, Subscription, Will
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from mqtt.peer import MqttPeer, Served
from server.harness import SECRET, Ended
from server.issuing import Issuing, SigningKey

METHOD = "OAUTHBEARER"
RIGHTS = {"publish": ["home/%u/#"], "subscribe": ["home/#"]}


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one", "EdDSA")


@pytest.fixture(scope="module")
def issuing(key: SigningKey) -> Iterator[Issuing]:
    with Issuing(key) as issuing:
        yield issuing


@pytest.fixture(scope="module")
def served(issuing: Issuing) -> Iterator[Served]:
    settings = {**issuing.settings, "auth": "scram,jwt"}
    with Served(**settings, guess_delay_s_max=0.01, jwt_leeway_s=0.0, frame_s=0.4) as served:
        served.client("cay", allow=("subscribe home/#",))
        yield served


def said(token: str, user: str = "", method: str = METHOD) -> Properties:
    return Properties(authentication_method=method, authentication_data=message(token, user))


def with_method(served: Served, token: str, user: str = "") -> tuple[MqttPeer, Connack]:
    peer = served.line()
    peer.send(Connect("", V5, properties=said(token, user)))
    return peer, peer.expect(Connack)


def ended(peer: MqttPeer) -> None:
    with pytest.raises(Ended):
        while True:
            peer.more()


# As a password


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("name", ["ann", None])
def test_a_token_is_a_password(served: Served, key: SigningKey, version: int, name: str | None):
    if version == V4 and name is None:
        name = ""  # 3.1.1 has no password without a name
    token = key.token(headwater=RIGHTS).encode()
    peer = served.mqtt("a-device", version, user_name=name, password=token)
    assert served.mqtt_session("a-device", "ann") is not None
    peer.send(Subscribe(1, (Subscription("home/#", 1),)))
    assert peer.expect(Suback).reasons == (1,)
    peer.send(Publish("home/ann/x", b"1", 1, packet_id=2))
    assert peer.ack(Kind.PUBACK, 2).reason == 0
    assert peer.got().payload == b"1"
    peer.send(Subscribe(3, (Subscription("other/#", 1),)))
    assert peer.expect(Suback).reasons[0] >= 0x80


@pytest.mark.parametrize("version", [V4, V5])
def test_paho_logs_in_with_a_token(served: Served, key: SigningKey, version: int):
    client = served.paho("paho", version, login=("ann", key.token(headwater=RIGHTS)))
    client.subscribe("home/ann/#", 1)
    client.publish("home/ann/paho", b"1", 1)
    assert client.got().payload == b"1"


def test_a_secret_does_as_before_beside_it(served: Served, key: SigningKey):
    served.mqtt("", user_name="cay", password=SECRET.encode())


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("bob", {}),
        ("ann", {"exp": 1}),
        ("ann", {"aud": "others"}),
        ("ann", {"iss": "https://other.test"}),
        ("ann", {"headwater": {"publish": ["#/x"]}}),
    ],
    ids=str,
)
def test_a_token_that_does_not_hold_is_refused(served: Served, key: SigningKey, name: str, claims: dict[str, Any]):
    for version in (V5, V4):
        peer = served.line(version)
        answer = peer.connect("", user_name=name, password=key.token(**claims).encode())
        assert answer.reason == Reason.BAD_USER_NAME_OR_PASSWORD
        ended(peer)


def test_a_will_is_published_by_what_the_token_allowed(served: Served, key: SigningKey):
    watcher = served.mqtt("", user_name="cay", password=SECRET.encode())
    watcher.send(Subscribe(1, (Subscription("home/ann/will", 1),)))
    watcher.expect(Suback)
    token = key.token(headwater=RIGHTS).encode()
    peer = served.line()
    refused = peer.connect("", user_name="ann", password=token, will=Will("other/will", b"gone"))
    assert refused.reason == Reason.NOT_AUTHORIZED
    peer = served.mqtt("leaves", user_name="ann", password=token, will=Will("home/ann/will", b"gone"))
    peer.close()
    assert watcher.got().payload == b"gone"


# By its method


def test_a_token_comes_by_its_method(served: Served, key: SigningKey):
    peer, answer = with_method(served, key.token(headwater=RIGHTS))
    assert answer.reason == Reason.SUCCESS
    assert answer.properties.authentication_method == METHOD
    peer.send(Publish("home/ann/x", b"1", 1, packet_id=1))
    assert peer.ack(Kind.PUBACK).reason == 0
    assert with_method(served, key.token(), "ann")[1].reason == Reason.SUCCESS


@pytest.mark.parametrize(
    "properties",
    [
        said("a.b.c"),
        Properties(authentication_method=METHOD, authentication_data=b"a.b.c"),
        Properties(authentication_method=METHOD),
    ],
    ids=["a token that is none", "no message", "nothing"],
)
def test_what_does_not_hold_is_not_authorized(served: Served, key: SigningKey, properties: Properties):
    peer = served.line()
    peer.send(Connect("", V5, properties=properties))
    assert peer.expect(Connack).reason == Reason.NOT_AUTHORIZED
    ended(peer)
    assert with_method(served, key.token(), "bob")[1].reason == Reason.NOT_AUTHORIZED
    assert with_method(served, SigningKey("one", "EdDSA").token())[1].reason == Reason.NOT_AUTHORIZED


def test_a_new_token_takes_the_place_of_the_old_one(served: Served, key: SigningKey):
    peer, _ = with_method(served, key.token(exp=time.time() + 60, headwater=RIGHTS))
    peer.send(Subscribe(1, (Subscription("home/#", 1),)))
    peer.expect(Suback)
    peer.send(
        Auth(Reason.RE_AUTHENTICATE, said(key.token(headwater={"publish": ["home/ann/#"], "subscribe": ["home/#"]})))
    )
    answer = peer.expect(Auth)
    assert (answer.reason, answer.properties.authentication_method) == (Reason.SUCCESS, METHOD)
    peer.send(Publish("home/ann/y", b"1", 1, packet_id=1))
    assert peer.ack(Kind.PUBACK).reason == 0
    assert peer.got().payload == b"1"
    # One that allows less takes the rest away at once.
    peer.send(Auth(Reason.RE_AUTHENTICATE, said(key.token(headwater={"publish": ["home/ann/#"]}))))
    assert peer.expect(Auth).reason == Reason.SUCCESS
    peer.send(Publish("home/ann/y", b"2", 1, packet_id=2))
    assert peer.ack(Kind.PUBACK, 2).reason == 0
    peer.quiet()


@pytest.mark.parametrize("wrong", ["another user", "expired", "another method", "no question"])
def test_a_new_token_that_does_not_hold_ends_the_connection(served: Served, key: SigningKey, wrong: str):
    peer, _ = with_method(served, key.token())
    token = {"another user": key.token("bob"), "expired": key.token(exp=1)}.get(wrong, key.token())
    reason = Reason.CONTINUE_AUTHENTICATION if wrong == "no question" else Reason.RE_AUTHENTICATE
    peer.send(Auth(reason, said(token, method="SCRAM-SHA-256" if wrong == "another method" else METHOD)))
    assert peer.expect(Disconnect).reason >= 0x80
    ended(peer)


def test_scram_is_still_a_method_where_it_is_on_and_not_where_it_is_not(issuing: Issuing, served: Served):
    scram = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=cay,r=abcdefghijkl")
    peer = served.line()
    peer.send(Connect("", V5, properties=scram))
    assert peer.expect(Auth).reason == Reason.CONTINUE_AUTHENTICATION
    with Served(**issuing.settings) as alone:
        peer = alone.line()
        peer.send(Connect("", V5, properties=scram))
        assert peer.expect(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD
        for options in ({}, {"user_name": "ann"}, {"user_name": "ann", "password": b"secret"}):
            assert alone.line().connect("", **options).reason == Reason.BAD_USER_NAME_OR_PASSWORD


# Its end


def test_a_connection_ends_with_its_token(served: Served, key: SigningKey):
    token = key.token(exp=time.time() + 0.5).encode()
    new, old = (served.mqtt("", version, user_name="ann", password=token) for version in (V5, V4))
    assert new.expect(Disconnect).reason == Reason.MAXIMUM_CONNECT_TIME
    ended(new)
    ended(old)


def test_a_renewed_token_outlives_the_first(served: Served, key: SigningKey):
    peer, _ = with_method(served, key.token(exp=time.time() + 0.5))
    other = served.mqtt("", user_name="ann", password=key.token(exp=time.time() + 0.5).encode())
    peer.send(Auth(Reason.RE_AUTHENTICATE, said(key.token())))
    assert peer.expect(Auth).reason == Reason.SUCCESS
    ended(other)
    peer.ping()
