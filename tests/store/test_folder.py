"""The data folder: whose it is, of which format, and how an older one is brought to the present."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from faults.faulty_files import Crash, FaultyFiles, Keep
from headwater.errors import HeadwaterError, Malformed, NewerFormat, NotFound
from headwater.store import folder as module
from headwater.store.batch import Seed, aligned, checksum, seal_header, seed_of
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles, Files
from headwater.store.folder import FORMAT, check, copy, inspect, prepare

FILES = DiskFiles()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def with_version(folder: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    (folder / "VERSION").write_bytes(data)
    return str(folder)


def version(format: int, secret: bytes = b"12345678") -> str:
    return f'{{"format":{format},"seed":"{secret.hex()}","seed_crc":{checksum(secret)}}}\n'


def with_batches(folder: Path, seed: Seed, *counts: int, first: int = 1) -> None:
    """Streams of so many batches."""
    body = encode_body(["x"], [b""], 0)
    for number, count in enumerate(counts, first):
        stream = folder / "streams" / f"{number}-r{number}"
        stream.mkdir(parents=True)
        heads = [seal_header(seed, b"r%d" % number, at + 1, 1, 0, 0, len(body), checksum(body)) for at in range(count)]
        (stream / f"{1:020d}.log").write_bytes(b"".join(head + body.ljust(aligned(len(body)), b"\0") for head in heads))


# Making one


def test_a_new_folder_states_its_format(tmp_path: Path) -> None:
    prepare(FILES, str(tmp_path))
    stated = msgspec.json.decode((tmp_path / "VERSION").read_bytes())
    assert (tmp_path / "VERSION").read_text() == version(FORMAT, bytes.fromhex(stated["seed"]))


def test_each_folder_has_a_seed_of_its_own_that_stays(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in "abcd"]
    seeds = []
    for folder in folders:
        FILES.make_folder(folder)
        seeds.append(prepare(FILES, folder))
    assert len({*seeds, 0}) == 5
    assert [prepare(FILES, folder) for folder in folders] == seeds
    assert [check(FILES, folder) for folder in folders] == seeds


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    prepare(FILES, str(tmp_path))
    (tmp_path / "streams").mkdir()
    before = everything(tmp_path)
    prepare(FILES, str(tmp_path))
    assert everything(tmp_path) == before


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in ("thesis.doc", "photos", "x", "y"):
        (tmp_path / name).write_text("mine")
    before = everything(tmp_path)
    for opening in (inspect, prepare):
        with pytest.raises(Malformed, match=r"photos, thesis\.doc, x\)"):
            opening(FILES, str(tmp_path))
    assert everything(tmp_path) == before


def test_what_a_crash_at_the_first_opening_left_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "owner.lock").write_text("123\n")
    (tmp_path / "VERSION.tmp").write_text('{"for')
    prepare(FILES, str(tmp_path))
    check(FILES, str(tmp_path))


# Other formats


def test_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = with_version(tmp_path, f'{{"format": {FORMAT + 1}, "something": "else"}}')
    (tmp_path / "unheard-of").mkdir()
    before = everything(tmp_path)
    for opening in (inspect, prepare, check):
        with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}.*upgrade") as refused:
            opening(FILES, folder)
        assert refused.value.code == 422
    assert everything(tmp_path) == before


def test_a_new_place_or_one_of_ours_passes_the_inspection_untouched(tmp_path: Path) -> None:
    inspect(FILES, str(tmp_path / "new"))
    inspect(FILES, str(tmp_path))
    assert everything(tmp_path) == {}
    prepare(FILES, str(tmp_path))
    inspect(FILES, str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "nonsense",
        '{"format": "1"}',
        '{"format": 1.5}',
        "{}",
        "[1]",
        b"\xff\xfe",
        '{"format": null}',
        b"\0" * 13,
        '{"format":1}',
        '{"format":1,"seed":""}',
        '{"format":1,"seed":"","seed_crc":0}',
        version(1, b"1234567"),
        version(1).replace("3132", "3133"),
        version(1).replace("3132", "313"),
        version(1).replace("3132", "31 2"),
        version(1).replace("3132", "31x2"),
        version(1).replace("seed_crc", "seed_csc"),
        version(1).replace('"seed"', '"sead"'),
    ],
)
def test_a_damaged_version_is_refused_and_says_what_to_do(tmp_path: Path, content: str | bytes) -> None:
    folder = with_version(tmp_path, content)
    for opening in (prepare, check):
        with pytest.raises(Malformed, match=r"damaged.*backup"):
            opening(FILES, folder)


@pytest.mark.parametrize("format", [0, -1])
def test_a_format_that_never_was_is_refused(tmp_path: Path, format: int) -> None:
    folder = with_version(tmp_path, f'{{"format": {format}}}')
    for opening in (prepare, check):
        with pytest.raises(Malformed):
            opening(FILES, folder)


def test_what_is_no_folder_of_ours_is_not_found(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound, match=r"headwater\.open"):
            check(FILES, str(folder))
    assert not (tmp_path / "missing").exists()


# A version without which nothing can be read

SEED = seed_of(b"12345678")


def written_as_told(folder: Path, refused: Malformed) -> Seed:
    """Do what the error says to those who have no backup."""
    _, _, content = refused.args[0].partition("or write ")
    (folder / "VERSION").write_text(content)
    return check(FILES, str(folder))


@pytest.mark.parametrize("counts", [(2,), (1, 1), (0, 3), (1, 0, 1)])
@pytest.mark.parametrize("content", [None, "{", version(1).replace("3132", "3133")], ids=["missing", "torn", "damaged"])
def test_a_version_that_is_gone_is_refused_and_told_from_what_is_stored(
    tmp_path: Path, content: str | None, counts: tuple[int, ...]
) -> None:
    with_batches(tmp_path, SEED, *counts)
    if content is not None:
        with_version(tmp_path, content)
    before = everything(tmp_path)
    for opening in (inspect, prepare, check):
        with pytest.raises(
            Malformed, match=r"(missing|damaged).*copy it from a backup of this folder.*or write"
        ) as refused:
            opening(FILES, str(tmp_path))
    assert everything(tmp_path) == before
    assert written_as_told(tmp_path, refused.value) == SEED
    assert prepare(FILES, str(tmp_path)) == SEED


def test_the_version_of_another_folder_is_refused_before_it_makes_everything_seem_damaged(tmp_path: Path) -> None:
    with_batches(tmp_path, SEED, 1, 1)
    with_version(tmp_path, version(1, b"another!"))
    before = everything(tmp_path)
    for opening in (inspect, prepare, check):
        with pytest.raises(Malformed, match=r"another folder's.*backup.*or write") as refused:
            opening(FILES, str(tmp_path))
    assert everything(tmp_path) == before
    assert written_as_told(tmp_path, refused.value) == SEED


def test_what_one_damaged_batch_says_about_the_seed_is_not_believed(tmp_path: Path) -> None:
    with_version(tmp_path, version(1))
    with_batches(tmp_path, seed_of(b"another!"), 1)
    assert prepare(FILES, str(tmp_path)) == SEED
    with_batches(tmp_path, SEED, 1, first=2)
    assert prepare(FILES, str(tmp_path)) == SEED


def test_without_a_version_and_with_too_little_to_tell_it_from_a_backup_is_the_way(tmp_path: Path) -> None:
    with_batches(tmp_path, SEED, 1)
    for opening in (inspect, prepare, check):
        with pytest.raises(Malformed, match=r"missing.*backup of this folder, which has the same$"):
            opening(FILES, str(tmp_path))


def test_a_damaged_version_of_a_folder_with_nothing_in_it_may_be_removed(tmp_path: Path) -> None:
    folder = with_version(tmp_path, "{")
    (tmp_path / "streams").mkdir()
    with pytest.raises(Malformed, match="nothing is stored here yet: remove it"):
        prepare(FILES, folder)


def test_a_version_found_is_durable_before_anything_is_stored_that_needs_it() -> None:
    """A process that was killed right after the rename left a name in memory only."""
    keeps: tuple[Keep, ...] = ("none", "all", "random", "prefix")
    for keep in keeps:
        for sync in range(1, 5):
            for seed in range(4):
                first = FaultyFiles()
                first.on_sync = crash_at(sync)
                with suppress(Crash):
                    first.make_folder("data")
                    prepare(first, "data")
                second = first.process_kill()
                second.make_folder("data")
                known = prepare(second, "data")
                third = second.crash(random.Random(seed), keep)
                assert check(third, "data") == known


def crash_at(sync: int) -> Callable[[str, int], None]:
    def on_sync(_: str, number: int) -> None:
        if number >= sync:
            raise Crash

    return on_sync


# The upgrade path


def test_an_older_folder_is_upgraded_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, str]] = []

    def step(number: int) -> None:
        def upgrade(files: Files, folder: str) -> None:
            steps.append((number, files.read(f"{folder}/VERSION").decode()))

        monkeypatch.setitem(module.UPGRADES, number, upgrade)

    step(1)
    step(2)
    folder = with_version(tmp_path, version(1))
    monkeypatch.setattr(module, "FORMAT", 3)
    with pytest.raises(Malformed, match="open it once for writing"):
        check(FILES, folder)
    seed = prepare(FILES, folder)
    assert steps == [(1, version(1)), (2, version(2))]
    assert (tmp_path / "VERSION").read_text() == version(3)
    assert check(FILES, folder) == seed
    prepare(FILES, folder)
    assert len(steps) == 2


def test_an_upgrade_that_fails_is_done_again_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def first(files: Files, folder: str) -> None:
        done.append(1)

    def second(files: Files, folder: str) -> None:
        done.append(2)
        if len(done) == 2:
            raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(module, "UPGRADES", {1: first, 2: second})
    monkeypatch.setattr(module, "FORMAT", 3)
    folder = with_version(tmp_path, version(1))
    with pytest.raises((OSError, HeadwaterError)):
        prepare(FILES, folder)
    assert (tmp_path / "VERSION").read_text() == version(2)
    prepare(FILES, folder)
    assert done == [1, 2, 2]
    assert (tmp_path / "VERSION").read_text() == version(3)


def test_there_is_an_upgrade_for_every_older_format() -> None:
    assert sorted(module.UPGRADES) == list(range(1, FORMAT))


# Copies


def made(folder: Path) -> str:
    folder.mkdir()
    prepare(FILES, str(folder))
    for name in ("streams/1-a/1.log", "streams/1-a/1.idx", "streams/2-b/1.log", "state/CURRENT", "state/LOCK"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    (folder / "owner.lock").write_text("1")
    (folder / "journal").write_text("x")
    return str(folder)


def test_a_copy_has_the_streams_the_state_and_the_version_and_shares_no_file(tmp_path: Path) -> None:
    source, target = made(tmp_path / "a"), tmp_path / "b"
    copy(FILES, source, str(target))
    files = {name: data for name, data in everything(target).items() if data}
    assert set(files) == {"VERSION", "streams/1-a/1.log", "streams/1-a/1.idx", "streams/2-b/1.log", "state/CURRENT"}
    assert all(data == (Path(source) / name).read_bytes() for name, data in files.items())
    assert all(os.stat(target / name).st_nlink == 1 for name in files)
    check(FILES, str(target))


def test_a_large_file_is_copied_whole(tmp_path: Path) -> None:
    source = made(tmp_path / "a")
    data = os.urandom(2 * module.COPY_BYTES + 12345)
    (tmp_path / "a" / "streams" / "1-a" / "1.log").write_bytes(data)
    copy(FILES, source, str(tmp_path / "b"))
    assert (tmp_path / "b" / "streams" / "1-a" / "1.log").read_bytes() == data


def test_a_linked_copy_shares_what_never_changes_again_and_copies_the_segment_that_does(tmp_path: Path) -> None:
    source = made(tmp_path / "a")
    for name in ("2.log", "2.idx"):
        (tmp_path / "a" / "streams" / "1-a" / name).write_text("active")
    copy(FILES, source, str(tmp_path / "b"), link=True)
    links = {str(path.relative_to(tmp_path / "b")): os.stat(path).st_nlink for path in (tmp_path / "b").rglob("*.*")}
    assert links == {
        "streams/1-a/1.log": 2,
        "streams/1-a/1.idx": 2,
        "streams/1-a/2.log": 1,
        "streams/1-a/2.idx": 1,
        "streams/2-b/1.log": 1,
    }


def test_a_copy_is_durable_when_it_is_made() -> None:
    files = FaultyFiles()
    files.make_folder("data")
    prepare(files, "data")
    files.make_folder("data/streams/1-home")
    files.make_folder("data/state")
    for path in ("data/streams/1-home/00000000000000000001.log", "data/state/000001.log", "data/watermarks"):
        file = files.open(path, create=True)
        file.pwritev([path.encode()], 0)
        file.datasync()
    copy(files, "data", "copy")
    after = files.crash(random.Random(0), "none")
    for path in ("streams/1-home/00000000000000000001.log", "state/000001.log", "watermarks"):
        assert after.read(f"copy/{path}") == f"data/{path}".encode()
    assert check(after, "copy") == check(after, "data")
