"""The manifest: what is missing is told from what never was, and from what was deleted on purpose."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from faults.faulty_files import FaultyFiles
from faults.machine import FOLDER, SMALL, Machine
from faults.oracle import Oracle
from headwater.bus import Bus
from headwater.config import Config
from headwater.errors import Malformed
from headwater.store import folder as folders
from headwater.store import manifest as module
from headwater.store.files import DiskFiles
from headwater.store.manifest import Listed, Manifest, Record, found, quote, unquote
from headwater.store.memory_files import MemoryFiles
from headwater.store.verify import KnownStream, verify

FILES = DiskFiles()
NOW_AND_THEN = msgspec.structs.replace(SMALL, checkpoint_batches=1 << 20, checkpoint_bytes=1 << 30)


# Names of folders


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_root_comes_back_from_its_folder_s_name(root: str) -> None:
    name = quote(root)
    assert unquote(name) == root
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.=ABCDEF")


@pytest.mark.parametrize(
    ("root", "name"),
    [("home", "home"), ("Home", "=48ome"), ("a b", "a=20b"), ("ü", "=C3=BC"), ("", ""), ("$x", "=24x"), ("=", "=3D")],
)
def test_other_than_lower_case_letters_and_digits_is_written_as_hex(root: str, name: str) -> None:
    assert quote(root) == name


# The file


def made(files: MemoryFiles | FaultyFiles, lines: int = 0) -> Manifest:
    files.make_folder("data")
    manifest = Manifest(files, "data")
    manifest.read()
    manifest.settle(anew=False)
    for number in range(lines):
        manifest.add(1, "home", 1 + 10 * number)
    return manifest


def told(files: MemoryFiles | FaultyFiles) -> dict[int, Listed]:
    return Manifest(files, "data").read()


def test_what_was_added_is_read_again() -> None:
    files = MemoryFiles()
    manifest = made(files)
    manifest.add(1, "home")
    manifest.add(1, "home", 1)
    manifest.add(2, "büro")
    manifest.add(1, "home", 50)
    manifest.add(1, "home", 90)
    manifest.move_first(1, 50)
    assert told(files) == {1: Listed(1, "home", 50, {50, 90}), 2: Listed(2, "büro")}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(1, 9)), max_size=20), st.randoms())
def test_neither_the_order_of_lines_nor_a_line_that_is_there_twice_matters(
    lines: list[tuple[int, int, int]], rng: random.Random
) -> None:
    texts = [module._format(Record(stream, f"r{stream}", first, segment)) for stream, segment, first in lines]
    files = MemoryFiles()
    files.make_folder("data")
    files.write("data/manifest", b"".join(texts))
    expected = told(files)
    again = [*texts, *rng.sample(texts, len(texts) // 2)]
    rng.shuffle(again)
    files.write("data/manifest", b"".join(again))
    assert told(files) == expected


def test_a_line_that_was_being_added_is_left_out_and_nothing_is_wrong() -> None:
    files = MemoryFiles()
    made(files, 4)
    data = files.read("data/manifest")
    for size in range(len(data) + 1):
        files.write("data/manifest", data[:size])
        manifest = Manifest(files, "data")
        manifest.read()
        assert not manifest.damage, size
        manifest.settle(anew=False)
        manifest.add(7, "after", 1)
        manifest.sync()
        assert told(files)[7] == Listed(7, "after", 1, {1})


def test_a_damaged_line_costs_that_line_and_is_told() -> None:
    files = MemoryFiles()
    made(files, 4)
    data = files.read("data/manifest")
    for at in range(data.rindex(b"\n", 0, -1)):
        files.write("data/manifest", data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        manifest = Manifest(files, "data")
        segments = manifest.read()[1].segments
        assert manifest.damage, at
        assert segments < {1, 11, 21, 31}
        assert len(segments) >= 2


def test_it_stays_short_whatever_was_deleted() -> None:
    files = MemoryFiles()
    manifest = made(files)
    for base in range(1, 3000):
        manifest.add(1, "home", base)
        manifest.move_first(1, base)
    assert len(files.read("data/manifest").splitlines()) <= 2 * 2 + module.LINES_SPARE + 2
    assert told(files) == {1: Listed(1, "home", 2999, {2999})}


def test_four_thousand_roots_cost_a_line_each_and_no_rewriting() -> None:
    files = FaultyFiles()
    manifest = made(files)
    before = files.syncs
    for number in range(1, 4097):
        manifest.add(number, f"root-{number}")
    assert files.syncs == before
    manifest.sync()
    assert files.syncs == before + 1
    assert len(told(files)) == 4096


@pytest.mark.parametrize("what", ["pwritev", "datasync"])
def test_after_a_failed_write_or_sync_it_is_written_anew(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    manifest = made(files, 2)
    file = manifest._open()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is tired")

    monkeypatch.setattr(file, what, fail)
    manifest.move_first(1, 11)
    assert not manifest.is_behind
    assert told(files.crash(random.Random(1), "none")) == {1: Listed(1, "home", 11, {11})}


@pytest.mark.parametrize(
    ("there", "end", "missing"),
    [
        ([1, 10, 20], 25, []),
        ([10, 20], 25, [(1, 9)]),
        ([1, 20], 25, [(10, 19)]),
        ([1, 10], 25, [(20, 25)]),
        ([20], 25, [(1, 19)]),
        ([], 25, [(1, 25)]),
        ([1, 10], 19, []),
        ([1, 10, 15, 20, 30], 40, []),
    ],
)
def test_what_is_missing_is_what_is_listed_and_not_there(
    there: list[int], end: int, missing: list[tuple[int, int]]
) -> None:
    assert Listed(1, "home", 1, {1, 10, 20}).missing(there, end) == missing


def test_names_that_are_no_streams_are_told_apart(tmp_path: Path) -> None:
    for name in ("1-home", "2-b=C3=BCro", "3-Home", "x", "4", "5-=ZZ", "-home", "0-zero", "06-six", "7-a b"):
        (tmp_path / "streams" / name).mkdir(parents=True)
    streams, strangers = found(FILES, str(tmp_path))
    assert [(stream.number, stream.root) for stream in streams] == [(1, "home"), (2, "büro")]
    assert sorted(strangers) == ["-home", "0-zero", "06-six", "3-Home", "4", "5-=ZZ", "7-a b", "x"]


# A folder that lost something


def lived_in(folder: Path, config: Config = NOW_AND_THEN) -> str:
    """Two roots of four segments each, the first of which retention deleted."""
    with headwater.open(folder, config) as bus:
        for number in range(12):
            if number % 3 == 0 and number:
                bus.core.roots.commit.run(bus.core.data.streams.seal)
            bus.publish_many([("home/a", b"%d" % number), ("yard/a", b"%d" % number)])
        for root in bus.core.roots.all():
            bus.core.roots.commit.run(lambda stream=root.stream: stream.trim(3))  # type: ignore[misc]
    return str(folder)


def contents(bus: Bus, root: str) -> tuple[list[bytes], list[tuple[int, int, str]]]:
    payloads: list[bytes] = []
    gaps: list[tuple[int, int, str]] = []
    reading = bus.replay(f"{root}/#", after=0)
    while True:
        try:
            batch = reading.batch(100)
        except headwater.Gap as gap:
            gaps.append((gap.first, gap.last, gap.reason))
            continue
        if not batch:
            return payloads, gaps
        payloads += [message.payload for message in batch]


def events(bus: Bus) -> list[str]:
    return [event.text for event in bus.events() if event.kind == "damage"]


RETAINED = (1, 3, "deleted by retention")


def test_what_retention_deleted_is_no_damage(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    with headwater.open(folder) as bus:
        assert contents(bus, "home") == ([b"%d" % number for number in range(3, 12)], [RETAINED])
        assert not events(bus)
    assert verify(FILES, folder, lambda _: KnownStream(), lambda _: None).is_whole


@pytest.mark.parametrize(
    ("gone", "first", "last"), [([4], 4, 6), ([7], 7, 9), ([10], 10, 12), ([4, 7], 4, 9), ([4, 7, 10], 4, 12)]
)
def test_a_missing_segment_is_a_gap_and_offsets_go_on(tmp_path: Path, gone: list[int], first: int, last: int) -> None:
    folder = lived_in(tmp_path / "data")
    for base in gone:
        (tmp_path / f"data/streams/1-home/{base:020d}.log").unlink()
    report = verify(FILES, folder, lambda _: KnownStream(), lambda _: None)
    assert [(damage.first, damage.last) for damage in report.streams[0].damages] == [(first, last)]
    expected = [b"%d" % (offset - 1) for offset in range(4, 13) if not first <= offset <= last]
    with headwater.open(folder, read_only=True) as reader:
        payloads, gaps = contents(reader, "home")
        assert payloads == expected
        assert [gap[:2] for gap in gaps] == [(1, 3), (first, last)]
    for life in range(3):
        with headwater.open(folder) as bus:
            payloads, gaps = contents(bus, "home")
            assert payloads == expected + [b"new"] * life
            assert gaps[0] == RETAINED
            assert [gap[:2] for gap in gaps[1:]] == [(first, last)]
            assert [f"messages {first} to {last}" in text for text in events(bus)] == [True] * (life == 0)
            assert bus.publish("home/a", b"new").offset == 13 + life
            assert contents(bus, "yard")[0] == [b"%d" % number for number in range(3, 12)]
    headwater.open(folder).close()
    from headwater.cli.verify import _walk

    assert _walk(FILES, folder).is_whole


@pytest.mark.parametrize("what", ["streams/1-home", "streams"])
def test_a_missing_stream_folder_is_a_gap_and_its_offsets_are_not_given_again(tmp_path: Path, what: str) -> None:
    folder = lived_in(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / what)
    report = verify(FILES, folder, lambda _: KnownStream(), lambda _: None)
    assert not report.is_whole
    assert any("streams/1-home is missing" in trouble for trouble in report.troubles)
    with headwater.open(folder, read_only=True) as reader:
        assert [gap[:2] for gap in contents(reader, "home")[1]] == [(1, 3), (4, 12)]
    for life in range(2):
        with headwater.open(folder) as bus:
            assert [gap[:2] for gap in contents(bus, "home")[1]] == [(1, 3), (4, 12)]
            assert bool(events(bus)) == (life == 0)
            assert bus.publish("home/a", b"new").offset == 13 + life
            assert bus.publish(f"other-{life}/a", b"new").offset == 1
    assert len({name.partition("-")[0] for name in FILES.list(f"{folder}/streams")}) == 4


def test_offsets_of_a_missing_folder_are_known_from_its_segments_if_nothing_else_knows(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    shutil.rmtree(tmp_path / "data/streams/1-home")
    shutil.rmtree(tmp_path / "data/state")
    (tmp_path / "data/state.synced").unlink(missing_ok=True)
    (tmp_path / "data/watermarks").unlink()
    manifest = Manifest(FILES, folder)
    assert manifest.read()[1].rolled_upto == 9
    streams = headwater.store.streams.Streams(FILES, folder, folders.check(FILES, folder), Config())
    from headwater.store.log import Checkpoint

    streams.recover(lambda _: Checkpoint(), lambda _: 0, lambda _: [], lambda *_: None, first="")
    home = streams.get("home")
    assert home is not None
    assert (home.first_offset, home.durable, home.number) == (4, 9, 1)
    streams.close()


def test_a_segment_that_goes_missing_under_a_running_bus_is_a_gap_and_not_retention(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    with headwater.open(folder, NOW_AND_THEN) as bus:
        (tmp_path / f"data/streams/1-home/{7:020d}.log").unlink()
        payloads, gaps = contents(bus, "home")
        assert gaps == [RETAINED, (7, 9, "its segment is missing")]
        assert len(payloads) == 6


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path, lost: int) -> None:
    """The line was durable, and none, one or both of the files were deleted."""
    folder = lived_in(tmp_path / "data")
    manifest = Manifest(FILES, folder)
    manifest.read()
    manifest.move_first(1, 10)
    manifest.close()
    for base in (4, 7)[:lost]:
        for ending in ("idx", "log"):
            (tmp_path / f"data/streams/1-home/{base:020d}.{ending}").unlink()
    assert verify(FILES, folder, lambda _: KnownStream(), lambda _: None).is_whole
    with headwater.open(folder) as bus:
        assert contents(bus, "home") == ([b"9", b"10", b"11"], [(1, 9, "deleted by retention")])
        assert not events(bus)
    assert [name for name in FILES.list(f"{folder}/streams/1-home") if name.startswith("0")] == [
        f"{10:020d}.idx",
        f"{10:020d}.log",
    ]


def test_the_line_is_durable_before_anything_is_deleted() -> None:
    machine, oracle = Machine(NOW_AND_THEN), Oracle()
    bus = machine.open()
    for _ in range(3):
        oracle.publish(bus, "a/x")
        bus.core.roots.commit.run(bus.core.data.streams.seal)
    stream = bus.core.roots.get("a").stream  # type: ignore[union-attr]
    machine.crash_when(lambda path: path.endswith("/manifest"))
    with machine.power_loss():
        bus.core.roots.commit.run(lambda: stream.trim(2))
    after = machine.after_crash(0, "all", "all")
    assert len(after.segments("a")) == 4
    bus = after.open()
    oracle.check(bus, trimmed=True)
    assert not events(bus)
    after.stop()


def test_a_full_disk_can_still_be_made_room_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lived_in(tmp_path / "data")
    with headwater.open(folder, NOW_AND_THEN) as bus:
        stream = bus.core.roots.get("home").stream  # type: ignore[union-attr]
        manifest = bus.core.data.streams._manifest

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(manifest, "_write_anew", full)
        monkeypatch.setattr(manifest, "_open", full)
        assert bus.core.roots.commit.run(lambda: stream.trim(6)) == 7
        monkeypatch.undo()
        bus.publish("home/a", b"new")
        assert Manifest(FILES, folder).read()[1].first == 7


def test_a_stream_is_listed_before_a_message_of_it_is_acked_and_groups_pay_nothing_after_that() -> None:
    machine, oracle = Machine(NOW_AND_THEN), Oracle()
    bus = machine.open()
    machine.syncs.clear()
    oracle.publish_many(bus, [f"r{number}/x" for number in range(20)])
    assert machine.syncs.count(f"{FOLDER}/manifest") == 1
    assert machine.syncs.index(f"{FOLDER}/manifest") < machine.syncs.index(f"{FOLDER}/journal")
    machine.syncs.clear()
    oracle.publish(bus, "r1/x")
    oracle.publish_many(bus, ["r1/x", "r2/x"])
    assert not any(path.endswith("manifest") for path in machine.syncs)
    after = machine.after_crash(0, "none", "none")
    bus = after.open()
    oracle.check(bus)
    assert len(Manifest(after.files, FOLDER).read()) == 20
    assert not events(bus)
    after.stop()


# The manifest itself


@pytest.mark.parametrize("harm", ["missing", "empty", "a damaged line", "another folder's"])
def test_a_manifest_that_went_bad_is_told_and_written_anew(tmp_path: Path, harm: str) -> None:
    folder = lived_in(tmp_path / "data")
    path = tmp_path / "data/manifest"
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "a damaged line":
        path.write_bytes(data.replace(b"home", b"hone", 1))
    else:
        path.write_bytes(module._format(Record(9, "elsewhere", 1, 1)))
    if harm != "another folder's":  # of whose streams there is no watermark
        with headwater.open(folder, read_only=True) as reader:
            assert contents(reader, "home")[0] == [b"%d" % number for number in range(3, 12)]
    for life in range(2):
        with headwater.open(folder) as bus:
            assert contents(bus, "home")[0] == [b"%d" % number for number in range(3, 12)]
            assert any("manifest" in text for text in events(bus)) == (life == 0)
    listed = Manifest(FILES, folder).read()
    assert [(listed[number].first, sorted(listed[number].segments)) for number in (1, 2)] == [(4, [4, 7, 10])] * 2


def test_a_folder_that_is_no_stream_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    streams = tmp_path / "data/streams"
    for name in ("99-home", "1-aaa", "1-home=ZZ", "1-home (copy)"):
        shutil.copytree(streams / "1-home", streams / name)
    report = verify(FILES, folder, lambda _: KnownStream(), lambda _: None)
    assert len(report.troubles) == 4
    with headwater.open(folder) as bus:
        assert sorted(bus.ends()) == ["home", "yard"]
        assert contents(bus, "home")[0] == [b"%d" % number for number in range(3, 12)]
        assert sum("left alone" in text for text in events(bus)) == 4
    assert (streams / "99-home").exists()


@pytest.mark.parametrize("base", [5, 8, 11, 13])
def test_a_copy_of_a_segment_under_another_name_is_set_apart(tmp_path: Path, base: int) -> None:
    """The stream would go on in it, or take it for what it should have after its end."""
    folder = lived_in(tmp_path / "data")
    home = tmp_path / "data/streams/1-home"
    shutil.copy(home / f"{10:020d}.log", home / f"{base:020d}.log")
    assert not verify(FILES, folder, lambda _: KnownStream(), lambda _: None).is_whole
    expected = [b"%d" % number for number in range(3, 12)]
    with headwater.open(folder, read_only=True) as reader:
        assert contents(reader, "home") == (expected, [RETAINED])
    for life in range(2):
        with headwater.open(folder) as bus:
            assert contents(bus, "home") == (expected + [b"new"] * life, [RETAINED])
            assert len(events(bus)) == (life == 0)
            assert bus.publish("home/a", b"new").offset == 13 + life
    assert len(list((tmp_path / "data/quarantine").iterdir())) == 1


def test_a_folder_of_format_1_or_a_backup_of_one_is_given_one(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    version = tmp_path / "data/VERSION"
    version.write_bytes(version.read_bytes().replace(b'"format":%d' % folders.FORMAT, b'"format":1'))
    (tmp_path / "data/manifest").unlink()
    with pytest.raises(Malformed, match="open it once for writing"):
        headwater.open(folder, read_only=True)
    assert verify(FILES, folder, lambda _: KnownStream(), lambda _: None).is_whole
    headwater.restore(folder, tmp_path / "restored")
    for path in (folder, str(tmp_path / "restored")):
        with headwater.open(path) as bus:
            assert contents(bus, "home")[0] == [b"%d" % number for number in range(3, 12)]
            assert not events(bus)
        listed = Manifest(FILES, path).read()
        assert [(stream.root, stream.first, sorted(stream.segments)) for stream in listed.values()] == [
            ("home", 4, [4, 7, 10]),
            ("yard", 4, [4, 7, 10]),
        ]


def test_a_backup_and_what_is_restored_from_it_know_what_they_should_hold(tmp_path: Path) -> None:
    folder = lived_in(tmp_path / "data")
    with headwater.open(folder) as bus:
        bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    assert verify(FILES, str(tmp_path / "restored"), lambda _: KnownStream(), lambda _: None).is_whole
    (tmp_path / f"restored/streams/1-home/{7:020d}.log").unlink()
    with headwater.open(tmp_path / "restored") as bus:
        assert [gap[:2] for gap in contents(bus, "home")[1]] == [(1, 3), (7, 9)]
        assert events(bus)


def test_a_reader_whose_watermark_is_damaged_is_told_so(tmp_path: Path) -> None:
    """It would find nothing in that root, and take that for all."""
    folder = lived_in(tmp_path / "data")
    marks = tmp_path / "data/watermarks"
    data = bytearray(marks.read_bytes())
    data[8] ^= 1
    for content in (bytes(data), bytes(len(data)), b""):
        marks.write_bytes(content)
        with pytest.raises(Malformed, match="once for writing"):
            headwater.open(folder, read_only=True)
    marks.unlink()
    with pytest.raises(Malformed, match="once for writing"):
        headwater.open(folder, read_only=True)
    with headwater.open(folder) as bus:
        assert len(contents(bus, "home")[0]) == 9
    with headwater.open(folder, read_only=True) as reader:
        assert len(contents(reader, "home")[0]) == 9
