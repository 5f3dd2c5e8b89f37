"""Clients that log in with a token of an issuer: who they are, what they may do, and until when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
import headwater.admin
import headwater.aio
from headwater.access.oauthbearer import message
from headwater.config import Connecting
from headwater.errors import Disconnected, HeadwaterError, Malformed, NotAllowed, TimedOut, Unauthenticated
from headwater.server.bearers import WAITING_MAX
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import Hello, Response
from headwater.wire.requests import Goodbye, decode, encode
from server.harness import SECRET, Ended, Peer, Running
from server.issuing import ISSUER, Issuing, SigningKey

RIGHTS = {"publish": ["home/%u/#"], "subscribe": ["home/#"]}


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one")


@pytest.fixture(scope="module")
def issuing(key: SigningKey) -> Iterator[Issuing]:
    with Issuing(key) as issuing:
        yield issuing


@pytest.fixture
def server(issuing: Issuing) -> Iterator[Running]:
    settings = {**issuing.settings, "auth": "scram,jwt"}
    with Running(**settings, guess_delay_s_max=0.01, jwt_leeway_s=0.0, frame_s=0.4) as running:
        yield running


def peer_of(server: Running, token: str, session: str | None = None) -> Peer:
    peer = server.connect()
    peer.hello(mechanism="oauthbearer", first=message(token))
    peer.respond()
    peer.send(pack(Kind.OK))
    peer.register(session, 60.0)
    return peer


# Who


def test_both_buses_log_in_with_a_token(server: Running, key: SigningKey):
    with headwater.connect(server.server.url, token=key.token(headwater=RIGHTS)) as bus:
        bus.publish("home/ann/x", b"1")
        with pytest.raises(NotAllowed):
            bus.publish("home/bob/x", b"1")

    async def main() -> list[bytes]:
        async with headwater.aio.connect(server.server.url, token=key.token("bob", headwater=RIGHTS)) as bus:
            await bus.publish("home/bob/x", b"2")
            return [message.payload async for message in bus.replay("home/#")]

    assert asyncio.run(main()) == [b"1", b"2"]


def test_a_secret_does_as_before_beside_it(server: Running, key: SigningKey):
    server.client("cay", allow=("publish home/#", "create home/#"))
    with headwater.connect(server.server.url.replace("://", f"://cay:{SECRET.replace(' ', '%20')}@")) as bus:
        bus.publish("home/x", b"1")
    with pytest.raises(Malformed, match="leave one of them out"):
        headwater.connect("headwater://cay:secret@127.0.0.1", token=key.token())


def test_the_name_in_the_address_has_to_be_the_tokens(server: Running, key: SigningKey):
    url = server.server.url
    with headwater.connect(url.replace("://", "://ann@"), token=key.token()) as bus:
        assert bus.topics() == []
    with pytest.raises(Unauthenticated, match="another user's"):
        headwater.connect(url.replace("://", "://bob@"), token=key.token())


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"aud": "others"},
        {"iss": "https://other.test"},
        {"sub": None},
        {"headwater": {"publish": ["a/#/b"]}},
        {"nbf": 4_000_000_000},
    ],
    ids=str,
)
def test_a_token_that_does_not_hold_lets_nobody_in(server: Running, key: SigningKey, claims: dict[str, Any]):
    with pytest.raises(Unauthenticated):
        headwater.connect(server.server.url, token=key.token(**claims))
    with pytest.raises(Unauthenticated):
        headwater.connect(server.server.url, token=SigningKey("one").token())


def test_nothing_is_taken_from_a_client_before_its_token_was_looked_at(server: Running, key: SigningKey):
    peer = server.connect()
    hello = Hello(mechanism="oauthbearer", first=message(key.token()))
    peer.send(pack(Kind.HELLO, 0, encode(hello)), pack(Kind.RESPONSE, 0, encode(Response())))
    assert isinstance(peer.ends(), Malformed)


def test_where_tokens_are_not_taken_that_is_said(key: SigningKey):
    with Running(auth="scram") as server, pytest.raises(Malformed, match="does not take tokens"):
        headwater.connect(server.server.url, token=key.token())


def test_where_only_tokens_are_taken_nothing_else_is(issuing: Issuing, key: SigningKey):
    with Running(**issuing.settings) as server:
        server.bus.clients.add("ann", SECRET)
        with pytest.raises(Malformed, match="does not take secrets"):
            headwater.connect(server.server.url.replace("://", f"://ann:{SECRET.replace(' ', '%20')}@"))
        for url in (server.server.url, server.server.url.replace("://", "://ann@")):
            with pytest.raises(Unauthenticated, match="a token of the issuer"):
                headwater.connect(url)


@pytest.mark.parametrize("token", [7, b"x", "", [], lambda: 7, lambda: ""])
def test_a_token_that_is_none_is_refused_by_the_client(server: Running, token: Any):
    with pytest.raises((Malformed, Disconnected)):
        headwater.connect(server.server.url, token=token)


# What it may do


def test_a_deny_rule_wins_over_a_token(server: Running, key: SigningKey):
    server.rules("ann", deny=("publish home/ann/door",))
    server.rules("*", deny=("subscribe home/+/private/#",))
    with headwater.connect(server.server.url, token=key.token(headwater=RIGHTS)) as bus:
        bus.publish("home/ann/x", b"1")
        with pytest.raises(NotAllowed, match="deny ann publish"):
            bus.publish("home/ann/door", b"1")
        with pytest.raises(NotAllowed, match="deny"):
            bus.retained("home/#")
        assert bus.retained("home/ann/x") == {}
        server.rules("ann", deny=("publish home/ann/x",))
        with pytest.raises(NotAllowed):
            bus.publish("home/ann/x", b"2")


def test_rules_and_a_token_add_up(server: Running, key: SigningKey):
    server.rules("ann", allow=("publish shed/#", "create shed/#"))
    with headwater.connect(server.server.url, token=key.token(headwater=RIGHTS)) as bus:
        bus.publish_many([("home/ann/x", b"1"), ("shed/x", b"1")])
    with headwater.connect(server.server.url, token=key.token()) as bus:
        bus.publish("shed/x", b"2")
        with pytest.raises(NotAllowed):
            bus.publish("home/ann/x", b"2")


def test_a_token_grants_to_its_own_session_alone(server: Running, key: SigningKey):
    wide = key.token(headwater={"subscribe": ["#"], "publish": ["#"], "role": "admin"})
    with (
        headwater.connect(server.server.url, token=wide) as one,
        headwater.connect(server.server.url, token=key.token(headwater={"subscribe": ["home/#"]})) as other,
    ):
        one.publish("home/x", b"1")
        one.publish("secret/x", b"1")
        assert {info.topic for info in other.topics()} == {"home/x"}
        with pytest.raises(NotAllowed):
            other.retained("secret/#")
        with pytest.raises(NotAllowed):
            other.clients.list()
        assert one.clients.list() == []
        levels = headwater.admin.Admin(one).levels(), headwater.admin.Admin(other).levels()
        assert [[level.name for level in found] for found in levels] == [["home", "secret"], ["home"]]


def test_without_create_nothing_new_is_made(server: Running, key: SigningKey):
    server.bus.publish("home/there", b"1")
    token = key.token(headwater={"publish": ["home/#"], "create": ["home/%u/#"]})
    with headwater.connect(server.server.url, token=token) as bus:
        bus.publish("home/there", b"2")
        bus.publish("home/ann/new", b"2")
        with pytest.raises(NotAllowed, match="create"):
            bus.publish("home/new", b"2")


def test_a_session_that_waits_keeps_what_its_token_allowed_though_rules_change(server: Running, key: SigningKey):
    token = key.token(headwater={"subscribe": ["home/#"]})
    peer = peer_of(server, token)
    peer.subscribe(1, "home/#", kind="session")
    peer.close()
    server.until(lambda: server.session_of(peer).connection is None)
    server.rules("cay", allow=("publish home/#",))
    server.bus.publish("home/x", b"1")
    again = peer_of(server, token, peer.session)
    assert [one.payload for one in again.take(1, 1)] == [b"1"]
    again.close()
    server.until(lambda: server.session_of(peer).connection is None)
    # A token that allows less takes it away.
    less = peer_of(server, key.token(), peer.session)
    server.until(lambda: not server.session_of(less).subscriptions)


def test_lost_rules_let_nobody_in_by_a_token_either(server: Running, key: SigningKey):
    acl = server.bus.acl
    with headwater.connect(server.server.url, token=key.token(headwater={"subscribe": ["#"]})) as bus:
        bus.retained("home/x")
        acl.closed = "rows are lost"
        acl._change(acl._written)
        with pytest.raises(NotAllowed, match="rows are lost"):
            bus.retained("home/x")


# Until when


def brief(key: SigningKey, seconds: float = 1.5) -> str:
    return key.token(exp=time.time() + seconds, headwater=RIGHTS)


def test_a_connection_ends_with_its_token_and_may_come_back(server: Running, key: SigningKey):
    peer = peer_of(server, brief(key))
    goodbye: Goodbye = decode(peer.frame(Kind.GOODBYE).payload, Goodbye)
    assert goodbye.reconnect
    assert goodbye.problem is not None
    assert goodbye.problem.code == 401
    with pytest.raises(Ended):
        while True:
            peer.more()


def test_a_client_that_is_given_fresh_tokens_goes_on(server: Running, key: SigningKey):
    given: list[str] = []

    def fresh() -> str:
        given.append(brief(key) if len(given) < 2 else key.token(headwater=RIGHTS))
        return given[-1]

    with headwater.connect(server.server.url, token=fresh) as bus, bus.subscribe("home/#", id="all") as consumer:
        server.until(lambda: len(given) == 3, "a third token")
        bus.publish("home/ann/x", b"1")
        found = next(iter(consumer))
        assert found.payload == b"1"
        found.ack()


def test_a_client_with_one_token_stops_when_it_has_expired(server: Running, key: SigningKey):
    with headwater.connect(server.server.url, token=brief(key)) as bus:
        server.until(lambda: not server.server.listener.count, "the end")
        with pytest.raises(HeadwaterError) as refused:
            for _ in range(1000):
                bus.publish("home/ann/x", b"1")
                time.sleep(0.01)
        assert refused.value.code == 401


def test_a_function_that_fails_is_asked_again(server: Running, key: SigningKey):
    asked = 0

    async def fresh() -> str:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise OSError("the issuer is away; its secret is hunter2")
        return brief(key) if asked == 1 else key.token(headwater=RIGHTS)

    async def main() -> None:
        async with headwater.aio.connect(server.server.url, Connecting(reconnect_delay_s=0.01), token=fresh) as bus:
            while asked < 3:  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.02)
            await bus.publish("home/ann/x", b"1")

    asyncio.run(main())
    asked = 1
    with pytest.raises(Disconnected, match="OSError") as failed:
        asyncio.run(main())
    assert "hunter2" not in str(failed.value)


def test_no_token_shows_in_what_the_client_says_of_itself(server: Running, key: SigningKey):
    token = key.token()
    with headwater.connect(server.server.url, token=token) as bus:
        assert token not in repr(bus.address) + str(bus.address)
    with pytest.raises(Unauthenticated) as refused:
        headwater.connect(server.server.url, token=key.token(iss="https://x.test"))
    assert ISSUER in str(refused.value)


def test_wrong_tokens_from_one_address_wait_longer_each_time(issuing: Issuing, key: SigningKey):
    with Running(**issuing.settings, guess_delay_s_max=5.0) as server:
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                headwater.connect(server.server.url, token=SigningKey("one").token())
        assert server.call(lambda: server.server.broker.guesses.delay_s("127.0.0.1")) == 0.5
        with headwater.connect(server.server.url, token=key.token()) as bus:
            assert bus.topics() == []


def test_a_token_of_http_that_waits_for_keys_holds_up_nobody_else(key: SigningKey):
    with (
        Issuing(key) as slow,
        Running(**slow.settings, jwt_refresh_s_min=0.0, jwt_fetch_s=300.0) as server,
        headwater.admin.connect(server.server.url, token=key.token("root", headwater={"role": "admin"})) as admin,
        ThreadPoolExecutor(WAITING_MAX + 1) as pool,
    ):
        slow.may_answer.clear()
        unknown = SigningKey("two").token()
        waiting = [pool.submit(admin.tokens.check, unknown) for _ in range(WAITING_MAX)]
        issuer = server.server.issuer
        assert issuer is not None
        server.until(lambda: len(issuer._waiting) == WAITING_MAX)
        with pytest.raises(TimedOut):
            admin.tokens.check(unknown)
        assert admin.tokens.check(key.token(headwater={"role": "reader"})).role == "reader"
        assert admin.health().checks
        assert admin.levels() == []
        slow.may_answer.set()
        assert all(isinstance(one.exception(60), Unauthenticated) for one in waiting)
