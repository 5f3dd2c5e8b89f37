"""Streams of new roots: made beside what is appended to others."""

from __future__ import annotations

import errno

import pytest

from faults.faulty_files import FaultyFiles
from headwater.config import Config
from headwater.errors import DiskFull, Failed, ReadOnly
from headwater.store.batch import Seed
from headwater.store.log import Checkpoint
from headwater.store.streams import Streams
from store.test_streams import append, payloads_of


def opened(files: FaultyFiles) -> Streams:
    files.make_folder("data")
    streams = Streams(files, "data", Seed(0), Config())
    streams.recover(lambda _: Checkpoint(), lambda _: 0, lambda _: [], lambda *_: None, first="")
    return streams


def test_what_is_made_apart_is_durable_and_its_first_message_takes_one_sync() -> None:
    files = FaultyFiles()
    streams = opened(files)
    making = streams.make_apart(["a", "b"])
    making.write()
    for line in (b'"root":"a"', b'"root":"b"'):
        assert line in files.durable("data/manifest")
    assert files.durable("data/streams/1-a/00000000000000000001.log") == b""
    assert streams.all() == []
    assert making.show() == {}
    assert streams.all() == []
    before = files.syncs
    append(streams, a=[b"1"])
    assert files.syncs == before + 1
    assert [stream.root for stream in streams.all()] == ["a"]


def test_others_are_appended_to_in_between_and_wait_for_no_line_of_it() -> None:
    files = FaultyFiles()
    streams = opened(files)
    append(streams, old=[b"1"])
    making = streams.make_apart(["a"])
    syncs: list[str] = []

    def on_sync(path: str, _: int) -> None:
        syncs.append(path)
        if path.endswith("manifest"):
            files.on_sync = lambda path, _: syncs.append(path)
            append(streams, old=[b"2"])

    files.on_sync = on_sync
    making.write()
    found = [path.rsplit("/", maxsplit=1)[-1] for path in syncs]
    assert found == ["data", "streams", "manifest", f"{1:020d}.log", "2-a"]
    assert payloads_of(streams, "old") == [b"1", b"2"]


def test_numbers_are_given_once_whatever_becomes_of_the_making() -> None:
    files = FaultyFiles()
    streams = opened(files)
    making = streams.make_apart(["a", "b"])
    making.write()
    making.show()
    assert [streams.create(root).number for root in ("c", "b", "a")] == [3, 2, 1]


def test_one_whose_line_could_not_be_written_takes_no_message_before_it_is() -> None:
    files = FaultyFiles()
    streams = opened(files)
    making = streams.make_apart(["a"])
    files.on_sync = lambda path, number: setattr(files, "fail_sync_at", number) if "manifest" in path else None
    making.write()
    assert [type(error) for error in making.show().values()] == [Failed]
    files.on_sync = files.fail_sync_at = None
    append(streams, a=[b"1"])
    assert b'"root":"a"' in files.durable("data/manifest")


def test_a_full_disk_leaves_nothing_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    streams = opened(files)

    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room", path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "make_folder", full)
        making = streams.make_apart(["a"])
        making.write()
        assert [type(error) for error in making.show().values()] == [DiskFull]
    assert not streams.is_made("a")
    append(streams, a=[b"1"])
    assert streams.create("a").number == 1


def test_one_that_is_made_after_a_failed_sync_of_the_journal_takes_nothing() -> None:
    files = FaultyFiles()
    streams = opened(files)
    making = streams.make_apart(["new"])
    making.write()
    making.show()
    append(streams, a=[b"1"], b=[b"1"])
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        append(streams, a=[b"2"], b=[b"2"])
    with pytest.raises(ReadOnly):
        append(streams, new=[b"1"])
