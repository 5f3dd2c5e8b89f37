"""Notes for the process that comes after this one."""

from __future__ import annotations

from pathlib import Path

from headwater.store.files import DiskFiles
from headwater.store.notes import NAME, Note, Notes


def test_what_was_put_and_not_cleared_is_left_to_the_next(tmp_path: Path) -> None:
    notes = Notes(DiskFiles(), str(tmp_path))
    first, second = notes.put(1, 7, 10, 19), notes.put(2, 7, 5, 5)
    third = notes.put(1, 1 << 31, 1, 1 << 40)
    notes.clear([first])
    assert (first, second, third) == (0, 1, 2)
    later = Notes(DiskFiles(), str(tmp_path))  # nobody closed the file: the process was killed
    assert later.left(1) == [Note(1 << 31, 1, 1 << 40)]
    assert later.left(2) == [Note(7, 5, 5)]
    assert later.left(3) == []


def test_a_slot_is_used_again_once_nobody_needs_it(tmp_path: Path) -> None:
    notes = Notes(DiskFiles(), str(tmp_path))
    notes.put(1, 0, 1, 1)
    notes.clear([notes.put(1, 0, 2, 2)])
    assert notes.put(1, 0, 3, 3) == 1
    later = Notes(DiskFiles(), str(tmp_path))
    assert later.put(9, 0, 4, 4) not in (0, 1)  # those are left for owner 1
    later.forget_left(1)
    assert later.left(1) == []
    assert {later.put(9, 0, 5, 5), later.put(9, 0, 6, 6)} == {0, 1}


def test_a_file_that_cannot_be_written_costs_notes_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    notes = Notes(DiskFiles(), str(tmp_path))
    notes.clear([notes.put(1, 0, 1, 1)])
    assert notes.left(1) == []
    notes.close()


def test_no_file_is_made_for_nothing(tmp_path: Path) -> None:
    notes = Notes(DiskFiles(), str(tmp_path))
    notes.forget_left(1)
    notes.close()
    assert not list(tmp_path.iterdir())
