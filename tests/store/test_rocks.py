"""The state in RocksDB under damage: every file of it flipped, cut and removed; torn tails; failures of the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest

from headwater.errors import Damaged, Failed, Unwritable
from headwater.store import chain, rocks, wal
from headwater.store import state as rows
from headwater.store.disk_file import DiskFile
from headwater.store.files import DiskFiles, File
from headwater.store.rocks import RocksReader, RocksState
from headwater.store.rocksdb import open_rocks, scan_rocks
from headwater.store.state_marks import Marks
from headwater.store.state_recovery import Loss


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "state"


def opened(folder: Path) -> RocksState:
    folder.parent.mkdir(exist_ok=True)
    return RocksState(str(folder))


def killed(state: RocksState, folder: Path, then: Path) -> Path:
    """The folder as a kill -9 of its owner leaves it, in another place."""
    shutil.copytree(folder.parent, then.parent)
    return then


def log_of(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


@pytest.fixture
def left(folder: Path, tmp_path: Path) -> Path:
    """Thirty durable writes, one of them of a rule, that a killed process left in its log."""
    state = opened(folder)
    for number in range(1, 31):
        row = rows.RULE + b"x" if number == 10 else rows.FLOOR + b"%03d" % number
        state.commit({row: b"value"})
    place = killed(state, folder, tmp_path / "left" / "state")
    state.close()
    return place


def numbers_of(state: RocksState) -> set[int]:
    """Which of the writes are there."""
    there = {int(key[1:]) for key, _ in state.scan(rows.FLOOR)}
    return there | ({10} if state.get(rows.RULE + b"x") else set())


def place_of(log: Path, number: int) -> int:
    """Where a write stands in a log."""
    return log.read_bytes().index(rows.CHAIN + bytes((chain.LINK_BYTES,)) + number.to_bytes(8, "big"))


# Damage in the log


def test_a_flipped_bit_in_the_middle_of_the_log_costs_one_write_and_is_told(left: Path) -> None:
    log = log_of(left)
    flip(log, place_of(log, 15) + 20)
    state = opened(left)
    assert numbers_of(state) == set(range(1, 31)) - {15}
    (loss,) = state.losses
    assert (loss.first, loss.last, loss.groups) == (15, 15, 1 << chain.SUBSCRIPTIONS)
    assert not loss.closes_access
    assert loss.since_us
    assert loss.until_us >= loss.since_us
    assert "subscriptions" in str(loss)
    state.close()
    assert [path.read_bytes()[:7] for path in (left.parent / "quarantine").iterdir()]
    again = opened(left)
    assert again.losses == [loss]
    assert numbers_of(again) == set(range(1, 31)) - {15}
    again.close()


def test_a_lost_write_with_a_rule_closes_access(left: Path) -> None:
    log = log_of(left)
    flip(log, place_of(log, 10) + 20)
    state = opened(left)
    assert [loss.closes_access for loss in state.losses] == [True]
    state.close()


def test_a_flipped_bit_in_the_last_write_that_was_synced_is_damage(left: Path) -> None:
    log = log_of(left)
    flip(log, place_of(log, 30) + 20)
    state = opened(left)
    assert numbers_of(state) == set(range(1, 30))
    assert [(loss.first, loss.last, loss.groups) for loss in state.losses] == [(30, 30, 1 << chain.SUBSCRIPTIONS)]
    state.close()


def test_a_log_that_is_cut_where_a_write_ends_is_damage(left: Path) -> None:
    log = log_of(left)
    log.write_bytes(wal.encode([record.payload for record in wal.records(log.read_bytes())][:20]))
    state = opened(left)
    assert [(loss.first, loss.last) for loss in state.losses] == [(21, 30)]
    assert numbers_of(state) == set(range(1, 21))
    state.commit({rows.FLOOR + b"900": b""})
    state.close()
    again = opened(left)
    assert len(again.losses) == 1
    again.close()


def test_a_missing_log_is_damage_and_what_may_be_gone_with_it_is_told(left: Path) -> None:
    log_of(left).unlink()
    state = opened(left)
    (loss,) = state.losses
    assert (loss.first, loss.last) == (1, 30)
    assert loss.groups == 1 << chain.SUBSCRIPTIONS | 1 << chain.ACCESS
    state.close()


def test_the_older_of_two_logs_is_missed(folder: Path, tmp_path: Path) -> None:
    state = opened(folder)
    for number in range(1, 21):
        state.commit({rows.FLOOR + b"%03d" % number: b"value"})
    data = log_of(folder).read_bytes()
    payloads = [record.payload for record in wal.records(data)]
    left = killed(state, folder, tmp_path / "left" / "state")
    state.close()
    log = log_of(left)
    log.write_bytes(wal.encode(payloads[10:]))
    older = left / f"{int(log.stem):06d}.log"
    assert older == log
    again = opened(left)
    assert [(loss.first, loss.last) for loss in again.losses] == [(1, 10)]
    assert numbers_of(again) == set(range(11, 21))
    again.close()


def test_two_logs_that_follow_one_another_are_whole(left: Path) -> None:
    log = log_of(left)
    payloads = [record.payload for record in wal.records(log.read_bytes())]
    log.write_bytes(wal.encode(payloads[:10]))
    (left / f"{int(log.stem) + 1:06d}.log").write_bytes(wal.encode(payloads[10:]))
    state = opened(left)
    assert state.losses == []
    assert numbers_of(state) == set(range(1, 31))
    state.close()


# A torn tail


@pytest.fixture
def unsynced(folder: Path, tmp_path: Path) -> Path:
    """Ten durable writes, and ten after them that nobody was told of."""
    state = opened(folder)
    for number in range(1, 21):
        write = state.commit if number <= 10 else state.write
        write({rows.FLOOR + b"%03d" % number: b"value"})
    place = killed(state, folder, tmp_path / "left" / "state")
    state.close()
    return place


def test_a_tail_that_nobody_was_told_of_is_cut_without_a_word_of_damage(unsynced: Path) -> None:
    log = log_of(unsynced)
    data = log.read_bytes()
    for size in range(place_of(log, 11) - 19, len(data), 97):
        shutil.rmtree(unsynced.parent / "again", ignore_errors=True)
        again = unsynced.parent / "again" / "state"
        shutil.copytree(unsynced, again)
        shutil.copy(f"{unsynced}.synced", f"{again}.synced")
        log_of(again).write_bytes(data[:size])
        state = opened(again)
        assert state.losses == []
        there = numbers_of(state)
        assert there == set(range(1, len(there) + 1))
        assert len(there) >= 10
        state.close()


def test_whole_writes_behind_a_torn_one_are_cut_with_it(unsynced: Path) -> None:
    log = log_of(unsynced)
    flip(log, place_of(log, 14) + 20)
    state = opened(unsynced)
    assert state.losses == []
    assert numbers_of(state) == set(range(1, 14))
    assert state.torn == 6
    state.close()


def test_later_writes_bear_witness_where_the_marks_are_gone(left: Path) -> None:
    Path(f"{left}.synced").unlink()
    log = log_of(left)
    flip(log, place_of(log, 15) + 20)
    state = opened(left)
    assert [(loss.first, loss.last) for loss in state.losses] == [(15, 15)]
    state.close()


def test_damaged_marks_accuse_nobody(left: Path) -> None:
    marks = Path(f"{left}.synced")
    for place in range(56):
        before = marks.read_bytes()
        flip(marks, place)
        found = Marks(DiskFiles(), str(left)).read()
        assert found.is_damaged
        assert found.synced <= 30
        marks.write_bytes(before)
    flip(marks, 5)
    state = opened(left)
    assert state.losses == []
    assert numbers_of(state) == set(range(1, 31))
    state.close()


def test_a_log_of_a_headwater_that_numbered_nothing_is_read_up_to_its_torn_end(folder: Path, tmp_path: Path) -> None:
    from rocksdict import Rdict, WriteBatch

    from headwater.store.rocksdb import open_rocks

    folder.parent.mkdir()
    old: Rdict = open_rocks(str(folder))
    for number in range(1, 6):
        batch = WriteBatch(raw_mode=True)
        batch.put(rows.FLOOR + b"%03d" % number, b"value")
        old.write(batch)
    old.flush_wal(True)
    left = tmp_path / "left" / "state"
    shutil.copytree(folder, left)
    old.close()
    log = log_of(left)
    log.write_bytes(log.read_bytes()[:-5])
    state = opened(left)
    assert numbers_of(state) == {1, 2, 3, 4}
    assert state.losses == []
    state.close()


# Missing and bad files


def test_a_missing_state_is_damage_where_there_was_one(left: Path) -> None:
    shutil.rmtree(left)
    with pytest.raises(Damaged, match="restore --state"):
        opened(left)
    assert not left.exists()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
@pytest.mark.parametrize("hurt", ["removed", "emptied", "flipped", "cut"])
def test_a_bad_or_missing_file_that_the_tables_depend_on_is_told(left: Path, name: str, hurt: str) -> None:
    path = next(left.glob(name))
    damage(path, hurt)
    with pytest.raises((Damaged, Failed), match="verify"):
        opened(left)


@pytest.mark.parametrize("name", ["OPTIONS-*", "IDENTITY", "LOCK", "LOG", "rocksdict-config.json"])
@pytest.mark.parametrize("hurt", ["removed", "emptied", "flipped", "cut"])
def test_files_that_hold_no_rows_may_go_bad(left: Path, name: str, hurt: str) -> None:
    damage(next(left.glob(name)), hurt)
    state = opened(left)
    assert state.losses == []
    assert numbers_of(state) == set(range(1, 31))
    state.close()


def test_bad_bytes_at_the_end_of_the_list_of_files_are_refused_and_no_opening_waits_for_ever(left: Path) -> None:
    listing = left / (left / "CURRENT").read_text().strip()
    whole = listing.read_bytes()
    listing.write_bytes(whole + whole[-64:])
    with pytest.raises(Damaged, match="list of files"):
        opened(left)
    with pytest.raises(Damaged, match="list of files"):
        RocksReader(str(left))
    listing.write_bytes(whole + whole[:10])  # a record that was being added
    opened(left).close()


def damage(path: Path, hurt: str) -> None:
    match hurt:
        case "removed":
            path.unlink()
        case "emptied":
            path.write_bytes(b"")
        case "flipped" if path.stat().st_size:
            flip(path, path.stat().st_size // 2)
        case "cut" if path.stat().st_size:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("hurt", ["removed", "emptied", "cut"])
def test_a_missing_or_cut_table_is_told(left: Path, hurt: str) -> None:
    opened(left).close()
    damage(next(left.glob("*.sst")), hurt)
    with pytest.raises(Damaged, match="restore --state"):
        opened(left)


def test_a_flipped_bit_in_a_table_is_an_error_for_whoever_reads_it_and_never_the_end_of_a_scan(left: Path) -> None:
    opened(left).close()
    table = next(left.glob("*.sst"))
    flip(table, 100)
    state = opened_or_none(left)
    if state is not None:
        with pytest.raises(Damaged, match="restore --state"):
            list(state.scan(rows.FLOOR))
        with pytest.raises(Damaged):
            state.get(rows.FLOOR + b"001")
        state.close()
    reader = RocksReader(str(left))
    with pytest.raises(Damaged):
        list(reader.scan(rows.FLOOR))
    reader.close()


def test_whoever_keeps_the_error_of_a_bad_table_does_not_keep_the_state_locked(left: Path) -> None:
    opened(left).close()
    flip(next(left.glob("*.sst")), 100)
    db = open_rocks(str(left))
    with pytest.raises(Damaged) as caught:
        list(scan_rocks(db, str(left), rows.FLOOR, None))
    db.close()
    open_rocks(str(left)).close()
    assert caught.tb is not None  # it is kept until here, and the frame of the scan with it


def opened_or_none(folder: Path) -> RocksState | None:
    try:
        return opened(folder)
    except Damaged:
        return None


def test_every_flip_in_every_file_is_told_or_harmless(left: Path) -> None:
    """Whatever is read is right, or an error or a loss says that it is not."""
    files = [path for path in left.iterdir() if path.stat().st_size and path.name != "LOG"]
    whole = set(range(1, 31))
    for path in files:
        size = path.stat().st_size
        for place in range(0, size, max(1, size // 4)):
            again = left.parent / "again" / "state"
            shutil.rmtree(again.parent, ignore_errors=True)
            shutil.copytree(left, again)
            shutil.copy(f"{left}.synced", f"{again}.synced")
            flip(again / path.name, place)
            try:
                state = opened(again)
            except Failed:
                continue
            there = numbers_of(state)
            gone = {number for loss in state.losses for number in range(loss.first, loss.last + 1)}
            assert there | gone == whole, (path.name, place)
            state.close()


def test_a_loss_says_what_when_and_why() -> None:
    loss = Loss(3, 5, 1_000_000, 0, 1 << chain.ACCESS, "its log ends too early")
    assert str(loss) == (
        "writes 3 to 5 of the state since 1970-01-01 00:00:01 UTC are lost (its log ends too early): "
        "clients, rules and tokens"
    )


# A disk that fails


class Limited:
    """Files of this process may not grow beyond a size: a write that would fails, as on a full disk."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._signal = signal.getsignal(signal.SIGXFSZ)

    def __enter__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, self._signal)


def test_a_state_whose_log_had_no_room_takes_writes_again_once_it_is_mended(folder: Path) -> None:
    state = opened(folder)
    told: list[str] = []
    state.on_failed = lambda: told.append(state.failed or "")
    for number in range(1, 21):
        state.commit({rows.FLOOR + b"%03d" % number: b"value"})
    state.write({rows.IDENTITY: b"nobody waits for it"})
    with Limited(log_of(folder).stat().st_size + 10):
        with pytest.raises(Failed, match="tried again by itself"):
            state.commit({rows.FLOOR + b"021": b"refused"})
        with pytest.raises(Unwritable):
            state.commit({rows.FLOOR + b"022": b"refused"})
        assert not state.mend()
        assert state.get(rows.FLOOR + b"001") == b"value"  # what is there can be read meanwhile
    assert len(told) == 1
    assert state.mend()
    assert state.failed is None
    assert numbers_of(state) == set(range(1, 21))
    assert state.get(rows.IDENTITY) == b"nobody waits for it"
    state.commit({rows.FLOOR + b"023": b"value"})
    left = killed(state, folder, folder.parent.parent / "left" / "state")
    state.close()
    again = opened(left)
    assert again.losses == []
    assert numbers_of(again) == {*range(1, 21), 23}
    again.close()


def test_what_was_written_before_a_sync_that_failed_is_gone_once_it_is_mended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = opened(folder)
    state.commit({rows.FLOOR + b"001": b"value"})

    class Failing:
        def __init__(self, db: object) -> None:
            self._db = db

        def flush_wal(self, _: bool) -> None:
            raise OSError(5, "no sync")

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

    state._db = Failing(state._db)  # type: ignore[assignment]
    with pytest.raises(Failed, match="no sync"):
        state.commit({rows.FLOOR + b"002": b"value"})
    assert state.mend()
    assert numbers_of(state) == {1}
    state.commit({rows.FLOOR + b"003": b"value"})
    assert numbers_of(state) == {1, 3}
    state.close()


def test_a_disk_that_takes_bytes_and_cannot_store_them_has_no_room_yet(folder: Path) -> None:
    """Where room is given to a file only when it is synced, as NFS and ext4 do, a write alone tells nothing."""

    class Late(DiskFile):
        def datasync(self) -> None:
            raise OSError(errno.ENOSPC, "no room")

    class Full(DiskFiles):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
            return Late(path, os.O_RDWR | os.O_CREAT) if path.endswith(".probe") else super().open(path, write=write)

    state = opened(folder)
    state.commit({rows.FLOOR + b"001": b"value"})
    with Limited(log_of(folder).stat().st_size), pytest.raises(Failed):
        state.commit({rows.FLOOR + b"002": b"refused"})
    before, state._files = state._files, Full()
    assert not state.mend()
    assert state.failed is not None
    assert state.get(rows.FLOOR + b"001") == b"value"
    assert not list(folder.parent.glob("*.probe"))
    state._files = before
    assert state.mend()
    state.close()


def test_a_scan_that_is_under_way_puts_off_the_mending_and_sees_what_it_saw(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "SCANS_END_S", 0.0)
    state = opened(folder)
    state.commit({rows.FLOOR + b"%03d" % number: b"value" for number in range(1, 6)})
    with Limited(log_of(folder).stat().st_size + 10), pytest.raises(Failed):
        state.commit({rows.FLOOR + b"006": b"refused"})
    scan = state.scan(rows.FLOOR)
    assert next(scan)[0] == rows.FLOOR + b"001"
    assert not state.mend()
    assert len(list(scan)) == 4
    assert state.mend()
    assert numbers_of(state) == {1, 2, 3, 4, 5}
    state.close()


def test_a_bad_table_that_stops_writing_is_not_opened_again_and_again(folder: Path) -> None:
    state = opened(folder)
    for number in range(1, 31):
        state.commit({rows.FLOOR + b"%03d" % number: b"value"})
    state._db.flush()
    for table in folder.glob("*.sst"):
        flip(table, 100)
    state.commit({rows.FLOOR + b"031": b"value"})
    state._db.flush()
    with contextlib.suppress(Exception):
        state._db.compact_range(None, None)
    with pytest.raises(Failed, match="restore --state"):
        state.commit({rows.FLOOR + b"032": b"value"})
    assert not state.mend()
    assert "restore --state" in (state.failed or "")
    state.close()
