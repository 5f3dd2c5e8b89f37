"""Places that readers beside the owner of a folder leave for it."""

from __future__ import annotations

import random

import pytest

from faults.faulty_files import FaultyFiles
from headwater.errors import QuotaExceeded
from headwater.store import readers
from headwater.store.files import Files
from headwater.store.readers import Reader


def at(place: int, id: str = "job") -> Reader:
    return Reader(id=id, filter="#", places={"home": place}, expire_after_s=60.0)


def taken(files: Files) -> list[Reader]:
    kept: list[Reader] = []
    assert readers.take(files, "data", kept.append) == []
    return kept


def test_what_is_left_is_taken_in_once_and_the_newest_of_a_reader_counts() -> None:
    files = FaultyFiles()
    assert not readers.are_there(files, "data")
    for reader in (at(1), at(7), at(3, "other")):
        readers.leave(files, "data", reader)
    assert readers.are_there(files, "data")
    assert readers.waiting(files, "data", "job") == at(7)
    assert sorted(readers.found(files, "data"), key=lambda one: one.id) == [at(7), at(3, "other")]
    assert sorted(taken(files), key=lambda one: one.id) == [at(7), at(3, "other")]
    assert taken(files) == [] == readers.found(files, "data")
    assert readers.waiting(files, "data", "job") is None


def test_what_was_being_taken_in_at_a_crash_is_taken_in_again_unless_there_is_news() -> None:
    files = FaultyFiles()
    readers.leave(files, "data", at(1))

    def die(_: Reader) -> None:
        raise OSError

    with pytest.raises(OSError):
        readers.take(files, "data", die)
    assert readers.waiting(files, "data", "job") == at(1)
    assert readers.found(files, "data") == [at(1)]
    again = files.process_kill()
    assert taken(again) == [at(1)]
    readers.leave(again, "data", at(2))
    with pytest.raises(OSError):
        readers.take(again, "data", die)
    readers.leave(again, "data", at(3))
    assert readers.found(again, "data") == [at(3)]
    assert taken(again) == [at(3)]
    assert taken(again) == []


def test_what_was_left_survives_a_power_loss() -> None:
    for seed in range(20):
        files = FaultyFiles()
        readers.leave(files, "data", at(1))
        assert taken(files.crash(random.Random(seed))) == [at(1)]


def test_a_flipped_bit_is_noticed_and_the_file_stays_until_its_reader_comes_again() -> None:
    whole = FaultyFiles()
    readers.leave(whole, "data", at(1))
    (name,) = whole.list("data/readers")
    for bit in range(8 * len(whole.durable(f"data/readers/{name}"))):
        files = FaultyFiles()
        readers.leave(files, "data", at(1))
        files.flip(f"data/readers/{name}", bit // 8, bit % 8)
        kept: list[Reader] = []
        damaged = readers.take(files, "data", kept.append)
        if kept:
            assert kept == [at(1)], "a bit that means nothing: another case of a hex digit, say"
            continue
        assert damaged == [f"data/readers/{name}.taken"]
        assert readers.take(files, "data", kept.append) == damaged
        readers.leave(files, "data", at(2))
        assert taken(files) == [at(2)]


def test_more_readers_than_an_owner_could_want_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS_MAX", 2)
    files = FaultyFiles()
    for reader in (at(1, "a"), at(1, "b"), at(2, "a")):
        readers.leave(files, "data", reader)
    with pytest.raises(QuotaExceeded, match="delete those"):
        readers.leave(files, "data", at(1, "c"))
    assert len(taken(files)) == 2
    readers.leave(files, "data", at(1, "c"))
