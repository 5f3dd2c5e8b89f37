"""Tokens: on RocksDB and in memory, over reopening, gone with their client, with texts that are none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from faults.faulty_state import FaultyState
from headwater.access.clients import Clients
from headwater.access.scram import ITERATIONS_MIN
from headwater.access.tokens import Tokens
from headwater.clock import ManualClock
from headwater.errors import Failed, Malformed, NotFound, QuotaExceeded, ReadOnly, Unauthenticated
from headwater.store import state as rows
from headwater.store.rocks import RocksState
from headwater.store.state import MemoryState, State


@pytest.fixture(params=[RocksState, MemoryState])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    made: State = RocksState(str(tmp_path / "state")) if request.param is RocksState else MemoryState()
    yield made
    made.close()


@pytest.fixture
def clients(state: State) -> Clients:
    clients = Clients(state, ManualClock(), iterations=ITERATIONS_MIN)
    clients.add("ann", "her secret")
    return clients


@pytest.fixture
def tokens(state: State, clients: Clients) -> Tokens:
    return Tokens(state, ManualClock(), clients)


def is_refused(tokens: Tokens, text: str) -> bool:
    with pytest.raises(Unauthenticated):
        tokens.check(text)
    return True


def test_a_token_opens_as_far_as_its_role_goes_and_is_kept_over_reopening(state: State, clients: Clients):
    made = {role: Tokens(state, ManualClock(), clients).add("ann", role) for role in ("reader", "operator", "admin")}
    again = Tokens(state, ManualClock(), clients)
    for role, token in made.items():
        found = again.check(token.token)
        assert (found.id, found.client, found.role) == (token.id, "ann", role)
        assert token.token.startswith(f"hwt_{token.id}_")
    assert {info.id for info in again.list()} == {token.id for token in made.values()}


def test_tokens_are_listed_page_by_page_though_one_goes_meanwhile(clients: Clients, tokens: Tokens):
    clients.add("bob", "his secret")
    for client in ("bob", "ann", "bob", "ann", "bob"):
        tokens.add(client, "reader")
    everything = tokens.list()
    first = tokens.page(None, 3)
    assert first == everything[:3]
    place = (first[-1].client, first[-1].created_us, first[-1].id)
    assert tokens.page(place, 3) == everything[3:]
    tokens.remove(first[-1].id)
    assert tokens.page(place, None) == everything[3:]


def test_the_text_is_neither_stored_nor_shown_again(state: State, tokens: Tokens):
    made = tokens.add("ann", "admin")
    (stored,) = [value for _, value in state.scan(rows.TOKEN)]
    secret = made.token.split("_", 2)[2]
    assert secret.encode() not in stored
    assert hashlib.sha256(made.token.encode()).digest() in stored
    assert secret not in repr(made)
    assert secret not in repr(tokens.list())


def test_a_text_that_is_none_is_refused_whatever_it_is(tokens: Tokens):
    ann, other = tokens.add("ann", "reader"), tokens.add("ann", "admin")
    secret = ann.token.removeprefix(f"hwt_{ann.id}_")
    for text in (
        "",
        "hwt",
        "hwt_",
        "hwt__",
        f"hwt_{ann.id}",
        f"hwt_{ann.id}_",
        f"hwt_{other.id}_{secret}",
        f"hwt_{'0' * 16}_{secret}",
        f"HWT_{ann.id}_{secret}",
        f"{ann.id}_{secret}",
        ann.token[:-1],
        ann.token + "x",
        ann.token + "\n",
        " " + ann.token,
        f"hwt_{ann.id}_" + "x" * (1 << 20),
        "x" * (1 << 20),
        f"hwt_{ann.id}_\ud800",
        f"hwt_{ann.id}_ä",
        f"hwt_{ann.id}\0_{secret}",
    ):
        assert is_refused(tokens, text)
    assert tokens.check(ann.token).role == "reader"


def test_a_token_that_was_removed_opens_nothing(state: State, clients: Clients, tokens: Tokens):
    made, stays = tokens.add("ann", "reader"), tokens.add("ann", "reader")
    tokens.remove(made.id)
    for looking in (tokens, Tokens(state, ManualClock(), clients)):
        assert is_refused(looking, made.token)
        assert [info.id for info in looking.list()] == [stays.id]
    for unknown in (made.id, "", "\0", "x" * 1000):
        with pytest.raises(NotFound):
            tokens.remove(unknown)


def test_the_tokens_of_a_client_go_with_it_and_do_not_come_back_with_its_name(
    state: State, clients: Clients, tokens: Tokens
):
    clients.add("ann-2")
    made, other = tokens.add("ann", "admin"), tokens.add("ann-2", "reader")
    clients.remove("ann")
    assert is_refused(tokens, made.token)
    clients.add("ann")
    for looking in (tokens, Tokens(state, ManualClock(), clients)):
        assert is_refused(looking, made.token)
        assert [info.id for info in looking.list()] == [other.id]
    assert len(list(state.scan(rows.TOKEN))) == 1
    with pytest.raises(NotFound):
        tokens.remove(made.id)


def test_a_token_that_was_on_its_way_when_its_client_was_removed_opens_nothing(
    state: State, clients: Clients, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
):
    before = clients.get("ann")
    clients.remove("ann")
    monkeypatch.setattr(clients, "get", lambda _: before)  # as it looked a moment ago
    made = tokens.add("ann", "admin")
    monkeypatch.undo()
    assert is_refused(tokens, made.token)
    clients.add("ann")
    assert is_refused(Tokens(state, ManualClock(), clients), made.token)


def test_who_is_not_registered_gets_no_token_and_a_role_is_one_of_three(state: State, tokens: Tokens):
    with pytest.raises(NotFound, match="headwater clients add"):
        tokens.add("bob", "reader")
    for role in ("", "root", "Admin", "admin ", None, 1, ["admin"]):
        with pytest.raises(Malformed):
            tokens.add("ann", role)  # type: ignore[arg-type]
    for name in ("", "a/b", "ann\0", "$admin"):
        with pytest.raises(Malformed):
            tokens.add(name, "reader")
    assert list(state.scan(rows.TOKEN)) == []


def test_one_more_than_the_limit_is_refused_and_those_of_gone_clients_do_not_count(clients: Clients, tokens: Tokens):
    tokens.tokens_max = 2
    clients.add("bob")
    tokens.add("bob", "reader"), tokens.add("ann", "reader")
    with pytest.raises(QuotaExceeded, match="tokens_max"):
        tokens.add("ann", "reader")
    clients.remove("bob")
    tokens.add("ann", "reader")


def test_a_change_that_fails_did_not_happen():
    state = FaultyState()
    clients = Clients(state, ManualClock(), iterations=ITERATIONS_MIN)
    clients.add("ann")
    tokens = Tokens(state, ManualClock(), clients)
    state.fail_sync_at = state.syncs + 1
    with pytest.raises(Failed):
        tokens.add("ann", "reader")
    assert tokens.list() == []
    with pytest.raises(ReadOnly):
        tokens.add("ann", "reader")


def test_the_embedded_bus_has_them_and_a_reader_beside_it_sees_them(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        bus.clients.add("ann")
        made = bus.tokens.add("ann", "operator")
        with headwater.open(tmp_path, read_only=True) as reader:
            assert reader.tokens.check(made.token).role == "operator"
            with pytest.raises(ReadOnly):
                reader.tokens.add("ann", "reader")
            bus.clients.remove("ann")
            reader.refresh()
            assert is_refused(reader.tokens, made.token)
