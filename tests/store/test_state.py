"""The state store: the same tests for RocksDB and for memory, and a reader beside the owner."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import Malformed
from headwater.store import state as module
from headwater.store.rocks import RocksReader, RocksState
from headwater.store.state import MemoryState, State, successor

# Few bytes, so that keys share their beginnings; 0 and 255 for the edges.
KEYS = st.lists(st.sampled_from([0, 1, 65, 254, 255]), min_size=1, max_size=4).map(bytes)
ROWS = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=6)


@pytest.fixture(params=[RocksState, MemoryState])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    made: State = RocksState(str(tmp_path / "state")) if request.param is RocksState else MemoryState()
    yield made
    made.close()


def rows_of(state: State, prefix: bytes = b"", start: bytes | None = None) -> list[tuple[bytes, bytes]]:
    return list(state.scan(prefix, start))


# One by one


def test_a_key_that_was_never_written_has_no_value(state: State) -> None:
    assert state.get(b"nothing") is None
    assert rows_of(state) == []


def test_what_is_written_is_read_at_once(state: State) -> None:
    state.write({b"a": b"1", b"b": b""})
    assert state.get(b"a") == b"1"
    assert state.get(b"b") == b""
    state.write({b"a": b"2", b"b": None})
    assert state.get(b"a") == b"2"
    assert state.get(b"b") is None


def test_none_deletes_and_deleting_what_is_not_there_is_fine(state: State) -> None:
    state.write({b"a": None})
    state.write({b"a": b"1"})
    state.write({b"a": None})
    state.write({b"a": None})
    assert rows_of(state) == []


def test_a_large_value_comes_back(state: State) -> None:
    state.write({b"a": bytes(1 << 20)})
    assert state.get(b"a") == bytes(1 << 20)


def test_nothing_is_written_without_rows(state: State) -> None:
    state.write({})
    state.sync()
    assert rows_of(state) == []


# Scans


def test_a_scan_comes_in_the_order_of_keys(state: State) -> None:
    keys = [b"b", b"a\xff", b"a", b"a\x00", b"\xff", b"\x00", b"ab"]
    state.write({key: key for key in reversed(keys)})
    assert [key for key, _ in state.scan(b"")] == sorted(keys)


def test_a_scan_keeps_to_its_prefix(state: State) -> None:
    state.write(dict.fromkeys((b"a", b"aa", b"ab", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x00"), b""))
    assert [key for key, _ in state.scan(b"a")] == [b"a", b"aa", b"ab"]
    assert [key for key, _ in state.scan(b"ab")] == [b"ab"]
    assert [key for key, _ in state.scan(b"c")] == []
    assert [key for key, _ in state.scan(b"\xff")] == [b"\xff", b"\xff\xff", b"\xff\xff\x00"]
    assert [key for key, _ in state.scan(b"\xff\xff")] == [b"\xff\xff", b"\xff\xff\x00"]


def test_a_scan_starts_where_it_is_told_inclusive(state: State) -> None:
    state.write(dict.fromkeys((b"a1", b"a2", b"a3", b"b1"), b""))
    assert [key for key, _ in state.scan(b"a", b"a2")] == [b"a2", b"a3"]
    assert [key for key, _ in state.scan(b"a", b"a1\x00")] == [b"a2", b"a3"]
    assert [key for key, _ in state.scan(b"a", b"a9")] == []


def test_rows_may_be_written_while_a_scan_goes_on(state: State) -> None:
    state.write({b"%d" % number: b"" for number in range(10)})
    seen = []
    for key, _ in state.scan(b""):
        seen.append(key)
        state.write({key: None, b"x" + key: b""})
    assert [key for key in seen if not key.startswith(b"x")] == [b"%d" % number for number in range(10)]


def test_a_scan_that_is_left_early_holds_nothing_up(state: State) -> None:
    state.write({b"a": b"", b"b": b""})
    assert next(iter(state.scan(b"")))[0] == b"a"
    state.write({b"c": b""})
    assert len(rows_of(state)) == 3


def play(state: State, batches: list[dict[bytes, bytes | None]], prefix: bytes, start: bytes | None) -> None:
    model: dict[bytes, bytes] = {}
    for batch in batches:
        state.write(batch)
        for key, value in batch.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        first = prefix if start is None else start
        wanted = [(key, model[key]) for key in sorted(model) if key.startswith(prefix) and key >= first]
        assert rows_of(state, prefix, start) == wanted
        assert all(state.get(key) == model.get(key) for key in batch)


@given(st.lists(ROWS, max_size=6), KEYS | st.just(b""), st.none() | KEYS)
def test_memory_does_what_a_dict_does(
    batches: list[dict[bytes, bytes | None]], prefix: bytes, start: bytes | None
) -> None:
    play(MemoryState(), batches, prefix, None if start is None else prefix + start)


@pytest.fixture(scope="module")
def rocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocksState]:
    made = RocksState(str(tmp_path_factory.mktemp("rocks") / "state"))
    yield made
    made.close()


@given(st.lists(ROWS, max_size=6), KEYS | st.just(b""), st.none() | KEYS)
@settings(max_examples=50)
def test_rocksdb_does_what_a_dict_does(
    rocks: RocksState, batches: list[dict[bytes, bytes | None]], prefix: bytes, start: bytes | None
) -> None:
    rocks.write(dict.fromkeys([key for key, _ in rocks.scan(b"")]))
    play(rocks, batches, prefix, None if start is None else prefix + start)


@given(st.binary(max_size=4), st.lists(st.binary(max_size=5), max_size=10))
def test_the_successor_is_above_every_key_with_the_prefix_and_above_no_more(prefix: bytes, keys: list[bytes]) -> None:
    last = successor(prefix)
    for key in keys:
        is_within = key >= prefix and (last is None or key < last)
        assert is_within == key.startswith(prefix)


# Threads


def test_threads_that_write_at_once_lose_nothing(state: State) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work(thread: int) -> None:
            for _ in range(60):
                state.write({b"%d-%d" % (thread, number): b"x" for number in range(20)})
                state.write({b"%d-%d" % (thread, number): None for number in range(20)})
            state.write({b"%d" % thread: b"done"})

        errors = in_threads(4, work)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert rows_of(state) == [(b"%d" % thread, b"done") for thread in range(4)]


def test_a_batch_is_seen_wholly_or_not_at_all(state: State) -> None:
    """A reader that scans sees each row of a batch in the same version, or all of the next: never some of each."""
    keys = [b"k%02d" % number for number in range(20)]
    state.write(dict.fromkeys(keys, b"%06d" % 0))
    done = threading.Event()
    torn: list[set[bytes]] = []

    def work(thread: int) -> None:
        if thread == 0:
            for number in range(1, 300):
                state.write(dict.fromkeys(keys, b"%06d" % number))
            done.set()
            return
        while not done.is_set():
            versions = {value for _, value in list(state.scan(b"k"))}
            if len(versions) != 1:
                torn.append(versions)

    assert in_threads(2, work) == []
    assert torn == []


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


# On disk


def test_rows_are_there_after_closing_and_opening(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    first = RocksState(path)
    first.write({b"a": b"1"})
    first.close()
    second = RocksState(path)
    assert second.get(b"a") == b"1"
    second.close()


KILLED = """
import os, sys
from headwater.store.rocks import RocksState
state = RocksState(sys.argv[1])
state.write({b"a": b"1", b"b": b"2"})
state.sync()
state.write({b"a": None, b"c": b"3"})
state.sync()
os._exit(9)
"""


def test_what_was_synced_is_there_after_a_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    assert subprocess.run([sys.executable, "-c", KILLED, path], timeout=60, check=False).returncode == 9
    state = RocksState(path)
    assert rows_of(state) == [(b"b", b"2"), (b"c", b"3")]
    state.close()


def test_a_snapshot_is_a_copy_as_of_now(tmp_path: Path) -> None:
    state = RocksState(str(tmp_path / "state"))
    state.write({b"a": b"1"})
    state.snapshot(str(tmp_path / "copy"))
    state.write({b"a": b"2", b"b": b"3"})
    copy = RocksState(str(tmp_path / "copy"))
    assert rows_of(copy) == [(b"a", b"1")]
    copy.write({b"a": b"of its own"})
    assert state.get(b"a") == b"2"
    copy.close()
    state.close()


def test_a_state_in_memory_has_no_snapshot() -> None:
    with pytest.raises(Malformed):
        MemoryState().snapshot("x")


# Beside the owner


def test_a_reader_beside_the_owner_sees_what_was_written_and_later_what_was_written_meanwhile(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    owner = RocksState(path)
    owner.write({b"a": b"1"})
    owner.sync()
    reader = RocksReader(path)
    assert rows_of(reader) == [(b"a", b"1")]
    owner.write({b"b": b"2", b"a": None})
    owner.sync()
    assert rows_of(reader) == [(b"a", b"1")]
    reader.refresh()
    assert rows_of(reader) == [(b"b", b"2")]
    reader.close()
    owner.write({b"c": b"3"})
    owner.close()


def test_a_reader_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    path = str(tmp_path / "state")
    owner = RocksState(path)
    before = sorted(name.name for name in Path(path).iterdir())
    reader = RocksReader(path)
    assert list(private.iterdir())
    reader.close()
    assert list(private.iterdir()) == []
    assert sorted(name.name for name in Path(path).iterdir()) == before
    owner.close()


# Keys


def test_keys_are_laid_out_as_documented() -> None:
    assert module.key_u32(b"S", 7) == b"S\0\0\0\x07"
    assert module.key_name(b"T", 7, "home/ü") == b"T\0\0\0\x07home/\xc3\xbc"
    assert module.key_pair(b"C", 3, 7) == b"C\0\0\0\x03\0\0\0\x07"
    assert module.key_offset(b"G", 7, 48211) == b"G\0\0\0\x07" + (48211).to_bytes(8, "big")
    assert module.key_message(b"A", 3, 7, 9) == b"A\0\0\0\x03\0\0\0\x07" + (9).to_bytes(8, "big")
    assert module.key_words(b"W", "ü", "publish", "home/#") == b"W\xc3\xbc\0publish\0home/#"
    assert module.key_due(5, 9) == b"Y" + (5).to_bytes(8, "big") + (9).to_bytes(8, "big")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.text(max_size=8))
def test_what_went_into_a_key_comes_out(first: int, second: int, offset: int, name: str) -> None:
    assert module.pair_in(module.key_pair(b"C", first, second)) == (first, second)
    key = module.key_message(b"A", first, second, offset)
    assert (module.pair_in(key), module.offset_in(key)) == ((first, second), offset)
    assert module.offset_in(module.key_due(first, offset)) == offset
    try:
        assert module.name_in(module.key_name(b"T", first, name)) == name
    except UnicodeEncodeError:
        assert any("\ud800" <= char <= "\udfff" for char in name)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63)), max_size=8))
def test_keys_sort_as_their_numbers_do(places: list[tuple[int, int]]) -> None:
    assert sorted(places) == sorted(places, key=lambda place: module.key_offset(b"G", *place))


def test_every_kind_of_row_has_a_letter_of_its_own() -> None:
    kinds = [value for name, value in vars(module).items() if name.isupper() and isinstance(value, bytes)]
    assert sorted(b"".join(kinds).decode()) == sorted("STRPYUCAFQLXGNIWZEHKBMDOVceojJlwbkshn")
