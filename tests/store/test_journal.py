"""The journal: groups back to back, found again whatever was written over and torn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.store.batch import Seed, aligned, checksum, seal_header
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles
from headwater.store.journal import Journal

FILES = DiskFiles()
SEED = Seed(0x5EED)


def batch(root: str, first_offset: int, payload: bytes = b"x", time_us: int = 1000) -> bytes:
    body = encode_body([f"{root}/t"], [payload], time_us)
    head = seal_header(SEED, root.encode(), first_offset, 1, time_us, 0, len(body), checksum(body))
    return (head + body).ljust(aligned(len(head) + len(body)), b"\0")


def put(journal: Journal, *batches: bytes) -> None:
    journal.write(batches, sum(map(len, batches)))
    journal.sync()


def found(journal: Journal) -> dict[str, list[int]]:
    return {root: sorted(batches) for root, batches in journal.batches().items()}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(FILES, str(tmp_path / "journal"), bytes_max=1000, seed=SEED)


def test_a_journal_that_was_never_written_has_no_batches_and_no_file(journal: Journal) -> None:
    assert found(journal) == {}
    journal.clear()
    journal.close()
    assert not os.path.exists(journal.path)


def test_groups_are_found_by_root_and_offset(journal: Journal) -> None:
    put(journal, batch("a", 1), batch("b", 7))
    put(journal, batch("a", 2), batch("c", 1))
    assert found(journal) == {"a": [1, 2], "b": [7], "c": [1]}


def test_groups_are_found_by_the_next_process(journal: Journal) -> None:
    put(journal, batch("a", 1), batch("b", 1))
    journal.close()
    assert found(Journal(FILES, journal.path, 1000, SEED)) == {"a": [1], "b": [1]}


def test_bodies_come_back_as_they_were(journal: Journal) -> None:
    put(journal, batch("a", 1, b"mine"))
    header, stored = journal.batches()["a"][1]
    assert stored == encode_body(["a/t"], [b"mine"], 1000)
    assert (header.root, header.body_crc) == ("a", checksum(stored))


def test_it_is_full_when_the_next_group_would_go_over_the_limit(journal: Journal) -> None:
    assert not journal.is_full(5000)  # the first group always fits
    put(journal, batch("a", 1))
    room = 1000 - len(batch("a", 1))
    assert not journal.is_full(room)
    assert journal.is_full(room + 1)


def test_after_a_restart_it_is_written_from_its_first_byte_and_older_batches_may_follow(journal: Journal) -> None:
    put(journal, batch("a", 1), batch("b", 1), batch("a", 2), batch("b", 2))
    journal.restart()
    assert journal.end == 0
    put(journal, batch("a", 3))
    assert found(journal) == {"a": [2, 3], "b": [1, 2]}


def test_a_longer_group_over_shorter_ones_leaves_a_torn_batch_that_is_passed_over(journal: Journal) -> None:
    put(journal, batch("a", 1), batch("b", 1), batch("c", 1))
    journal.restart()
    put(journal, batch("d", 1, bytes(100)))
    assert len(batch("d", 1, bytes(100))) % len(batch("a", 1))
    assert found(journal) == {"d": [1], "c": [1]}


def test_of_two_batches_with_the_same_offset_the_one_appended_later_is_found(journal: Journal) -> None:
    put(journal, batch("a", 1, b"newer", 2000), batch("a", 1, b"older", 1000))
    assert journal.batches()["a"][1][1] == encode_body(["a/t"], [b"newer"], 2000)
    journal.restart()
    put(journal, batch("a", 1, b"older", 1000), batch("a", 1, b"newer", 2000))
    assert journal.batches()["a"][1][1] == encode_body(["a/t"], [b"newer"], 2000)


def test_a_torn_group_keeps_its_whole_batches(journal: Journal) -> None:
    first, second = batch("a", 1), batch("b", 1)
    for length in range(len(second)):
        Path(journal.path).write_bytes(first + second[:length])
        assert found(Journal(FILES, journal.path, 1000, SEED)) == {"a": [1]}


def test_clear_empties_the_file(journal: Journal) -> None:
    put(journal, batch("a", 1))
    journal.clear()
    assert found(journal) == {}
    assert os.path.getsize(journal.path) == 0
    put(journal, batch("a", 2))
    assert found(journal) == {"a": [2]}


def test_closing_twice_is_fine_and_writing_again_opens_it(journal: Journal) -> None:
    put(journal, batch("a", 1))
    journal.close()
    journal.close()
    put(journal, batch("a", 2))
    assert found(journal) == {"a": [1, 2]}
