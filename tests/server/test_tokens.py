"""Tokens over the wire: for administrators alone, and gone with their client whichever way it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.errors import Malformed, NotAllowed, NotFound, QuotaExceeded, TooLarge, Unauthenticated
from headwater.wire import administration as wire
from headwater.wire.frame import Kind, pack
from headwater.wire.requests import encode
from server.harness import Peer, Running


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(auth="scram") as running:
        yield running.client("root", admin=True).client("ann", allow=("subscribe #",))


def is_refused(peer: Peer, text: str) -> bool:
    with pytest.raises(Unauthenticated):
        peer.ask(wire.CheckToken(token=text))
    return True


def test_a_token_is_added_checked_listed_and_removed(running: Running):
    root = running.peer("root")
    made = root.ask(wire.AddToken(client="ann", role="operator"))
    found = root.ask(wire.CheckToken(token=made.token))
    assert (found.id, found.client, found.role) == (made.id, "ann", "operator")
    assert root.ask(wire.ListTokens()) == [found]
    root.ask(wire.RemoveToken(id=made.id))
    assert is_refused(root, made.token)
    assert root.ask(wire.ListTokens()) == []


def test_nobody_but_an_administrator_asks_about_tokens(running: Running):
    made = running.bus.tokens.add("ann", "admin")
    ann = running.peer("ann")  # whose own token it is
    for request in (
        wire.AddToken(client="ann", role="reader"),
        wire.RemoveToken(id=made.id),
        wire.ListTokens(),
        wire.CheckToken(token=made.token),
    ):
        with pytest.raises(NotAllowed):
            ann.ask(request)
    assert len(running.bus.tokens.list()) == 1


def test_a_client_takes_its_tokens_with_it_also_one_that_was_removed_by_the_process_itself(running: Running):
    root = running.peer("root")
    running.client("bob")
    anns, bobs = (running.bus.tokens.add(name, "reader").token for name in ("ann", "bob"))
    root.ask(wire.RemoveClient(name="ann"))
    running.bus.clients.remove("bob")
    assert is_refused(root, anns)
    assert is_refused(root, bobs)
    root.ask(wire.AddClient(name="ann"))
    assert is_refused(root, anns)


def test_a_client_that_was_removed_while_nobody_served_takes_its_tokens_with_it(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        bus.clients.add("ann")
        token = bus.tokens.add("ann", "admin").token
        bus.clients.remove("ann")
        bus.clients.add("ann")
    with Running(tmp_path) as running:
        assert is_refused(running.peer(), token)


def test_what_cannot_be_a_token_or_a_role_is_refused_and_the_connection_goes_on(running: Running):
    root = running.peer("root")
    made = root.ask(wire.AddToken(client="ann", role="reader"))
    with pytest.raises(TooLarge):
        root.ask(wire.CheckToken(token="hwt_" + "x" * (1 << 20)))
    for text in ("", "x" * 1_000_000, f"hwt_{made.id}_" + "y" * 43, "hwt_\0_\x1b[2J"):
        assert is_refused(root, text)
    with pytest.raises(NotFound, match="headwater clients add"):
        root.ask(wire.AddToken(client="nobody", role="reader"))
    with pytest.raises(NotFound):
        root.ask(wire.RemoveToken(id="none"))
    root.send(pack(Kind.REQUEST, 99, encode({"do": "AddToken", "client": "ann", "role": "root"})))
    with pytest.raises(Malformed):
        root.finish(99, wire.AddToken)
    assert [info.id for info in root.ask(wire.ListTokens())] == [made.id]


def test_the_setting_limits_them():
    with Running(tokens_max=1) as running:
        running.client("ann")
        peer = running.peer()
        peer.ask(wire.AddToken(client="ann", role="reader"))
        with pytest.raises(QuotaExceeded):
            peer.ask(wire.AddToken(client="ann", role="reader"))
