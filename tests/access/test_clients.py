"""The registry: on RocksDB and in memory, over reopening, with faults, and read while it is written."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.faulty_state import FaultyState
from headwater.access.clients import Clients
from headwater.access.scram import ITERATIONS, ITERATIONS_MIN, ClientLogin, ServerLogin, is_secret_of
from headwater.clock import ManualClock
from headwater.errors import Conflict, Failed, Malformed, NotFound, QuotaExceeded, ReadOnly, Unauthenticated, Unwritable
from headwater.store import state as rows
from headwater.store.rocks import RocksState
from headwater.store.state import MemoryState, State
from headwater.wire.administration import Registration


@pytest.fixture(params=[RocksState, MemoryState])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    made: State = RocksState(str(tmp_path / "state")) if request.param is RocksState else MemoryState()
    yield made
    made.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clients(state: State, clock: ManualClock) -> Clients:
    return open_clients(state, clock)


def open_clients(state: State, clock: ManualClock, **options: Any) -> Clients:
    return Clients(state, clock, **{"iterations": ITERATIONS_MIN, **options})


def log_in(clients: Clients, user: str, secret: str) -> str:
    ours, theirs = ClientLogin(user, secret), ServerLogin(clients.credential_of, clients.decoy)
    ours.verify(theirs.final(ours.respond(theirs.first(ours.first()))))
    assert clients.check_secret(user, secret) == theirs.user
    return theirs.user


def refused(clients: Clients, user: str, secret: str) -> bool:
    with pytest.raises(Unauthenticated):
        clients.check_secret(user, secret)
    with pytest.raises(Unauthenticated):
        log_in(clients, user, secret)
    return True


def test_a_client_that_was_added_logs_in(clients: Clients):
    given = clients.add("sensor-7")
    assert log_in(clients, "sensor-7", given.secret) == "sensor-7"
    assert refused(clients, "sensor-7", given.secret + "x")
    assert refused(clients, "sensor-8", given.secret)


def test_a_secret_that_was_given_is_used(clients: Clients):
    assert clients.add("sensor-7", "pencil").secret == "pencil"
    assert log_in(clients, "sensor-7", "pencil") == "sensor-7"


def test_drawn_secrets_and_ids_are_long_and_never_the_same(clients: Clients):
    given = [clients.add(f"sensor-{number}") for number in range(20)]
    assert len({one.secret for one in given}) == len({one.id for one in given}) == 20
    assert {len(one.secret) for one in given} == {43}
    assert {len(one.id) for one in given} == {16}


def test_a_rotated_secret_replaces_the_one_before_and_keeps_the_client(clients: Clients, clock: ManualClock):
    before = clients.add("sensor-7")
    created_us = clock.now_us()
    clock.advance(60)
    after = clients.rotate("sensor-7")
    assert after.id == before.id
    assert refused(clients, "sensor-7", before.secret)
    assert log_in(clients, "sensor-7", after.secret)
    (info,) = clients.list()
    assert (info.id, info.created_us, info.rotated_us) == (before.id, created_us, clock.now_us())
    assert info.rotated.timestamp() - info.created.timestamp() == 60
    assert clients.rotate("sensor-7", "pencil").secret == "pencil"


def test_a_removed_client_logs_in_no_more_and_one_of_its_name_is_another(clients: Clients):
    before = clients.add("sensor-7")
    clients.remove("sensor-7")
    assert clients.list() == []
    assert clients.get("sensor-7") is None
    assert clients.credential_of("sensor-7") is None
    assert refused(clients, "sensor-7", before.secret)
    assert clients.add("sensor-7").id != before.id


def test_clients_are_listed_by_name(clients: Clients):
    for name in ("b", "a", "Küche"):
        clients.add(name)
    assert [info.name for info in clients.list()] == ["Küche", "a", "b"]
    assert clients.get("a") == clients.list()[1]
    assert [info.name for info in clients.page(None, 2)] == ["Küche", "a"]
    assert [info.name for info in clients.page("a", 2)] == ["b"]
    assert clients.page("Küche and what is gone", None) == clients.list()[1:]
    assert clients.page("b", 2) == []


def test_a_name_is_the_same_in_whatever_form_it_is_written(clients: Clients):
    given = clients.add("Ku\u0308che")
    assert given.name == "Küche"
    assert log_in(clients, "Ku\u0308che", given.secret) == "Küche"
    with pytest.raises(Conflict):
        clients.add("Küche")
    clients.remove("Ku\u0308che")
    assert clients.list() == []


# Wrong


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "*", "%u", "$SYS", "a\0", "a\n", "x" * 65])
def test_a_name_that_cannot_be_one_is_refused_everywhere(clients: Clients, name: str):
    for ask in (clients.add, clients.rotate, clients.remove):
        with pytest.raises(Malformed, match="name"):
            ask(name)
    with pytest.raises(Malformed):
        clients.check_secret(name, "pencil")
    assert clients.list() == []


@pytest.mark.parametrize("secret", ["", "a\n", "x" * 2000])
def test_a_secret_that_cannot_be_one_is_refused_and_changes_nothing(clients: Clients, secret: str):
    with pytest.raises(Malformed):
        clients.add("sensor-7", secret)
    assert clients.list() == []
    clients.add("sensor-7", "pencil")
    with pytest.raises(Malformed):
        clients.rotate("sensor-7", secret)
    assert log_in(clients, "sensor-7", "pencil")


def test_a_name_is_added_once(clients: Clients):
    clients.add("sensor-7", "pencil")
    with pytest.raises(Conflict, match="rotate"):
        clients.add("sensor-7", "pen")
    assert log_in(clients, "sensor-7", "pencil")


def test_only_a_client_that_is_there_is_rotated_and_removed(clients: Clients):
    for ask in (clients.rotate, clients.remove):
        with pytest.raises(NotFound, match="clients list"):
            ask("sensor-7")


def test_there_are_only_so_many(state: State, clock: ManualClock):
    clients = open_clients(state, clock, clients_max=2)
    clients.add("a")
    clients.add("b")
    with pytest.raises(QuotaExceeded, match="clients_max"):
        clients.add("c")
    clients.rotate("a")
    clients.remove("a")
    clients.add("c")


# Stored


def test_what_was_changed_is_found_after_reopening(tmp_path: Path, clock: ManualClock):
    state = RocksState(str(tmp_path / "state"))
    clients = open_clients(state, clock)
    kept, rotated = clients.add("kept"), clients.add("rotated")
    clients.add("removed")
    rotated = clients.rotate("rotated")
    clients.remove("removed")
    salt = clients.decoy.credential_of("nobody").salt
    before = clients.list()
    state.close()

    state = RocksState(str(tmp_path / "state"))
    clients = open_clients(state, clock)
    assert clients.list() == before
    assert log_in(clients, "kept", kept.secret)
    assert log_in(clients, "rotated", rotated.secret)
    assert clients.get("removed") is None
    assert clients.decoy.credential_of("nobody").salt == salt
    state.close()


def test_nothing_that_is_stored_or_shown_reveals_a_secret(state: State, clock: ManualClock):
    clients = open_clients(state, clock)
    given = clients.add("sensor-7", "a-secret-of-mine")
    stored = b"".join(key + value for key, value in state.scan(b""))
    assert b"a-secret-of-mine" not in stored
    assert "a-secret-of-mine" not in repr(given) + repr(clients.list()) + repr(clients.credential_of("sensor-7"))
    assert Registration("1", "n", "s") != Registration("1", "n", "t")


def test_reload_sees_what_another_wrote(state: State, clock: ManualClock):
    one, other = open_clients(state, clock), open_clients(state, clock)
    one.add("sensor-7", "pencil")
    assert other.get("sensor-7") is None
    other.reload()
    assert log_in(other, "sensor-7", "pencil")
    one.remove("sensor-7")
    other.reload()
    assert other.list() == []


def test_two_registries_of_a_folder_share_their_decoy(state: State, clock: ManualClock):
    one, other = open_clients(state, clock), open_clients(state, clock)
    assert one.decoy.credential_of("x") == other.decoy.credential_of("x")
    assert one.decoy is one.decoy


def test_a_credential_and_a_decoy_look_alike(state: State, clock: ManualClock):
    clients = Clients(state, clock)
    clients.add("sensor-7")
    known, decoy = clients.credential_of("sensor-7"), clients.decoy.credential_of("sensor-7")
    assert known is not None
    assert known.iterations == decoy.iterations == ITERATIONS
    for field in ("salt", "stored_key", "server_key"):
        assert len(getattr(known, field)) == len(getattr(decoy, field))
        assert getattr(known, field) != getattr(decoy, field)


def test_the_server_s_settings_hold_once_it_sets_them(state: State, clock: ManualClock):
    clients = Clients(state, clock)
    clients.add("before")
    salt = clients.decoy.credential_of("x").salt
    clients.iterations, clients.clients_max = ITERATIONS_MIN, 2
    clients.add("after", "pencil")
    credentials = [clients.credential_of("after"), clients.decoy.credential_of("x")]
    assert {credential.iterations for credential in credentials if credential} == {ITERATIONS_MIN}
    assert clients.decoy.credential_of("x").salt == salt
    assert log_in(clients, "after", "pencil")
    with pytest.raises(QuotaExceeded):
        clients.add("one more")


def test_beside_the_owner_clients_are_read_and_not_changed(state: State, clock: ManualClock):
    open_clients(state, clock).add("sensor-7", "pencil")
    count = len(list(state.scan(b"")))
    reader = open_clients(state, clock, read_only=True)
    assert log_in(reader, "sensor-7", "pencil")
    for ask in (reader.add, reader.rotate, reader.remove):
        with pytest.raises(ReadOnly):
            ask("sensor-7")
    assert reader.decoy.credential_of("x") == reader.decoy.credential_of("x")
    assert len(list(state.scan(b""))) == count


def test_a_damaged_row_is_not_passed_over(state: State, clock: ManualClock):
    state.write({rows.key_words(rows.CLIENT, "sensor-7"): b"\x00"})
    with pytest.raises(Failed, match="sensor-7"):
        open_clients(state, clock)


# Faults


def test_a_change_is_durable_when_it_returns(clock: ManualClock):
    state = FaultyState()
    clients = open_clients(state, clock)
    clients.add("a", "pencil")
    clients.add("b", "pencil")
    clients.remove("a")
    clients.rotate("b", "pen")
    salt = clients.decoy.credential_of("x").salt
    found = open_clients(state.crash(random.Random(1), keep="none"), clock)
    assert [info.name for info in found.list()] == ["b"]
    assert log_in(found, "b", "pen")
    assert found.decoy.credential_of("x").salt == salt


def test_a_change_that_did_not_reach_the_disk_did_not_happen(clock: ManualClock):
    state = FaultyState()
    clients = open_clients(state, clock)
    clients.add("a", "pencil")
    state.fail_sync_at = 2
    with pytest.raises(Failed, match="not on disk"):
        clients.rotate("a", "pen")
    assert log_in_without_decoy(clients, "a", "pencil")
    with pytest.raises(Unwritable, match="see to the disk"):
        clients.add("b")
    assert [info.name for info in clients.list()] == ["a"]


def log_in_without_decoy(clients: Clients, user: str, secret: str) -> bool:
    credential = clients.credential_of(user)
    return credential is not None and is_secret_of(credential, secret)


def test_readers_see_whole_clients_while_a_writer_writes(clock: ManualClock):
    clients = open_clients(MemoryState(), clock)
    clients.add("kept")
    stop, wrong = threading.Event(), list[object]()

    def read() -> None:
        while not stop.is_set():
            try:
                names = {info.name for info in clients.list()}
                if "kept" not in names or clients.credential_of("kept") is None:
                    wrong.append(names)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(20):
        clients.add(f"c{number}")
        if number % 2:
            clients.remove(f"c{number}")
        if number % 10 == 0:
            clients.reload()
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(clients.list()) == 11
