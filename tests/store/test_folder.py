"""The data folder: whose it is, of which format, and how an older one is brought to the present."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError, Malformed, NewerFormat, NotFound
from headwater.store import folder as module
from headwater.store.files import DiskFiles, Files
from headwater.store.folder import FORMAT, check, copy, inspect, prepare

FILES = DiskFiles()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def with_version(folder: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    (folder / "VERSION").write_bytes(data)
    return str(folder)


# Making one


def test_a_new_folder_states_its_format(tmp_path: Path) -> None:
    prepare(FILES, str(tmp_path))
    assert (tmp_path / "VERSION").read_text() == f'{{"format":{FORMAT}}}\n'
    check(FILES, str(tmp_path))


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


# The upgrade path


def test_an_older_folder_is_upgraded_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, str]] = []

    def step(number: int) -> None:
        def upgrade(files: Files, folder: str) -> None:
            steps.append((number, files.read(f"{folder}/VERSION").decode()))

        monkeypatch.setitem(module.UPGRADES, number, upgrade)

    step(1)
    step(2)
    folder = with_version(tmp_path, '{"format": 1}')
    monkeypatch.setattr(module, "FORMAT", 3)
    with pytest.raises(Malformed, match="open it once for writing"):
        check(FILES, folder)
    prepare(FILES, folder)
    assert steps == [(1, '{"format": 1}'), (2, '{"format":2}\n')]
    assert (tmp_path / "VERSION").read_text() == '{"format":3}\n'
    check(FILES, folder)
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
    folder = with_version(tmp_path, '{"format": 1}')
    with pytest.raises((OSError, HeadwaterError)):
        prepare(FILES, folder)
    assert (tmp_path / "VERSION").read_text() == '{"format":2}\n'
    prepare(FILES, folder)
    assert done == [1, 2, 2]
    assert (tmp_path / "VERSION").read_text() == '{"format":3}\n'


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
