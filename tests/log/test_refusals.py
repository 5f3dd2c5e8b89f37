"""Refusals: what a caller is told, and what a producer may send after one."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.faulty_files import FaultyFiles
from headwater.config import Config
from headwater.errors import (
    Conflict,
    Failed,
    PartlyStored,
    ReadOnly,
)
from log.place import Place


def test_what_was_stored_before_keeps_its_receipt_though_the_rest_of_the_call_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", Config(), files)
    place.publish(place.many("a/1", producer="p", sequence=1))
    files.fail_write_at = files.writes + 3  # two lines of the manifest come first
    with pytest.raises(PartlyStored, match=r'those of "a", and those of "b" perhaps not: Failed\(500\)') as raised:
        place.publish(place.many("b/1", "a/1", producer="p", sequence=1))
    assert [receipt and receipt.offset for receipt in raised.value.receipts] == [None, 1]
    with pytest.raises(Conflict, match="send 1 again first"):
        place.publish(place.many("b/1", producer="p", sequence=2))
    place.publish(place.many("a/1", producer="p", sequence=2))
    assert [one.duplicate for one in place.publish(place.many("b/1", "a/1", producer="p", sequence=1))] == [False, True]
    place.close()


@pytest.mark.parametrize(("producer", "is_retryable"), [(None, False), ("p", True)])
def test_a_call_that_was_partly_stored_may_be_repeated_only_by_a_producer(
    tmp_path: Path, producer: str | None, is_retryable: bool
) -> None:
    place = Place(str(tmp_path), Config(roots_max=1))
    place.publish(place.one("a/1"))
    with pytest.raises(PartlyStored) as raised:
        place.publish(place.many("a/1", "b/1", producer=producer, sequence=None if producer is None else 1))
    assert raised.value.retryable is is_retryable
    assert ("with the same producer and sequence" in str(raised.value)) is is_retryable
    place.close()


def test_what_may_be_stored_as_the_disk_failed_is_not_refused_for_sure_when_it_comes_again() -> None:
    files = FaultyFiles()
    place = Place("data", Config(), files)
    place.publish(place.one("a/1", producer="p", sequence=1))
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        place.publish(place.one("a/1", producer="p", sequence=2))
    with pytest.raises(Failed, match="stored or not"):
        place.publish(place.one("a/1", producer="p", sequence=2))
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1", producer="q", sequence=2))
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1"))
    place.close()


def test_when_a_group_fails_its_producers_send_the_first_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("home/a", producer="p", sequence=1))
    files.fail_write_at = files.writes + 1
    lost = [place.one("home/a", producer="p", sequence=sequence) for sequence in (2, 3)]
    place.group(*lost)
    assert all(isinstance(item.error, Failed) for item in lost)
    with pytest.raises(Conflict, match="send 2 again"):
        place.publish(place.one("home/a", producer="p", sequence=3))
    assert place.publish(place.one("home/a", producer="p", sequence=2)).offset == 2
    assert place.publish(place.one("home/a", producer="p", sequence=3)).offset == 3
    place.close()
