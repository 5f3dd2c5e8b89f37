"""What the log has purged leaves a lake: at once for who reads it, and its bytes within the time for erasure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyroaring import BitMap

import headwater
import headwater.bus
from headwater import Config, Failed, Outgoing
from headwater.lake import files as lake_files
from headwater.lake.carried_purges import carried, left_of
from headwater.lake.erasure import Carried, carry_out, purged_in
from headwater.lake.lake import LostRace, append, archived_in, data_files, open_lake
from headwater.lake.scan import scanned
from headwater.log.purges import Purge, Purges
from spark import lakes

SMALL = Config(segment_bytes=64 * 1024)
ANN = b"ann-4711"


def fill(bus: headwater.bus.Bus, count: int = 40) -> None:
    keys = (ANN, b"ben", None)
    bus.publish_many([Outgoing(f"home/{n % 2}", b"%d" % n, key=keys[n % 3]) for n in range(count)])


def lake_of(tmp: Path) -> Path:
    return tmp / "lake"


def archived(tmp: Path, bus: headwater.bus.Bus) -> None:
    lakes.archive(lake_of(tmp), bus, "home", bus.ends()["home"])


def table(tmp: Path):
    return open_lake(str(lake_of(tmp))).table("home")


def purges(bus: headwater.bus.Bus) -> tuple[Purge, ...]:
    return tuple(Purge(one.filter, one.upto, key=one.key) for one in bus.purges("home/#"))


def in_lake(tmp: Path) -> list[tuple[int, bytes | None]]:
    """As any engine reads it that knows Iceberg."""
    rows = table(tmp).scan().to_arrow().sort_by("offset").to_pylist()
    return [(row["offset"], row["key"]) for row in rows]


def files_with(tmp: Path, word: bytes) -> int:
    return sum(word in _keys(path) for path in lake_of(tmp).rglob("*.parquet"))


def _keys(path: Path) -> set[bytes | None]:
    return set(pq.read_table(path, columns=["key"])["key"].to_pylist())


def test_what_was_purged_is_written_out_of_the_lake_and_its_bytes_go(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
        fill(bus)
        archived(tmp_path, bus)
        bus.erase(ANN)
        bus.purge("home/1")
        fill(bus, 3)
        archived(tmp_path, bus)
        assert files_with(tmp_path, ANN) == 3
        left = [(message.offset, message.key) for message in bus.replay("home/#")]
        done = carry_out(table(tmp_path), "home", purges(bus))
        assert done == Carried("home", 80 - len(left) + 3, 2, 2)
        assert in_lake(tmp_path) == left
        assert carry_out(table(tmp_path), "home", purges(bus)) is None, "nothing is looked at twice"
        assert left_of(purges(bus), archived_in(table(tmp_path), "home").purged) == ()
        assert files_with(tmp_path, ANN) == 3, "those who planned before it read on"
        time.sleep(0.01)
        assert lake_files.sweep(table(tmp_path), grace_s=3600, erase_within_s=0) > 0
        assert files_with(tmp_path, ANN) == 1, "that was published later"
        assert in_lake(tmp_path) == left


def test_a_file_of_which_nothing_is_left_goes_as_a_whole(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
        bus.purge("home/#")
        assert carry_out(table(tmp_path), "home", purges(bus)) == Carried("home", 40, 1, 0)
        assert in_lake(tmp_path) == []


def test_a_purge_of_what_a_lake_has_not_is_noted_without_a_snapshot(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
        bus.erase("nobody")
        before = table(tmp_path).current_snapshot()
        assert carry_out(table(tmp_path), "home", purges(bus)) == Carried("home", 0, 0, 0)
        assert table(tmp_path).current_snapshot() == before


def test_later_purges_of_the_same_offset_are_not_taken_for_carried_out() -> None:
    first, second = Purge("home/1", 40), Purge("home/#", 40, key=ANN)
    assert left_of((first, second), carried((first,), 40)) == (first, second)
    assert left_of((Purge("home/0", 7), first), carried((Purge("home/0", 7),), 7)) == (Purge("home/0", 7), first)
    assert left_of((first,), "") == (first,)


def test_purges_are_carried_out_as_far_as_the_lake_goes() -> None:
    first, second = Purge("home/0", 7), Purge("home/1", 40)
    assert left_of((first, second), carried((first, second), 40)) == ()
    assert left_of((first, second), carried((first, second), 39)) == (second,)
    assert left_of((first, second), carried((first, second), 6)) == (first, second)
    later = Purge("home/#", 50, key=ANN)
    assert left_of((first, second, later), carried((first, second), 6)) == (first, second, later)
    assert left_of((first, second, later), carried((first, second), 40)) == (second, later)


def test_what_an_archive_had_read_before_a_purge_is_erased_though_it_commits_afterwards(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        bus.publish_many([("home/0", b"before")] * 3)
        archived(tmp_path, bus)
        fill(bus, 6)
        late = table(tmp_path)
        path = f"{lake_files.new_attempt(late, '4-9')}/day=1/part.parquet"
        lakes.write(path, list(bus.replay("home/#", after=3)))
        bus.erase(ANN)
        assert carry_out(table(tmp_path), "home", purges(bus)) == Carried("home", 0, 0, 0), "by another archive"
        append(late, [path], 3, 4, 9)
        assert left_of(purges(bus), archived_in(table(tmp_path), "home").purged) == purges(bus), "nobody reads it"
        assert carry_out(table(tmp_path), "home", purges(bus)) == Carried("home", 2, 1, 1)
        assert in_lake(tmp_path) == [(message.offset, message.key) for message in bus.replay("home/#")]
        assert carry_out(table(tmp_path), "home", purges(bus)) is None


def test_of_an_erasure_and_an_archive_at_the_same_time_one_loses_and_nothing_is_lost(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
        bus.erase(ANN)
        late = table(tmp_path)
        fill(bus, 3)
        archived(tmp_path, bus)
        with pytest.raises(LostRace):
            carry_out(late, "home", purges(bus))
        assert not list(lake_of(tmp_path).rglob("erase-*/*"))
        carry_out(table(tmp_path), "home", purges(bus))
        assert in_lake(tmp_path) == [(message.offset, message.key) for message in bus.replay("home/#")]


def test_rows_that_others_deleted_are_not_read_and_their_bytes_go_too(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(segment_bytes=64 * 1024, lake=str(lake_of(tmp_path)))) as bus:
        fill(bus)
        archived(tmp_path, bus)
        delete_rows(tmp_path, [0, 7, 39])
        (file,) = archived_in(table(tmp_path), "home").files
        assert file.deletes
        found = [offset for batch in scanned(file.place, ("offset",), 1, 99) for offset in batch[0].to_pylist()]
        assert found == [offset for offset, _ in in_lake(tmp_path)] == [n for n in range(1, 41) if n not in (1, 8, 40)]
        assert carry_out(table(tmp_path), "home", ()) == Carried("home", 3, 1, 1)
        assert [offset for offset, _ in in_lake(tmp_path)] == found
        assert not archived_in(table(tmp_path), "home").files[0].deletes


def test_rows_that_others_deleted_are_not_read_of_a_file_that_is_not_sorted_by_offset(tmp_path: Path) -> None:
    """Its rows are sorted when they are read; deletes say where they are in the file."""
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus, 6)
        opened = open_lake(str(lake_of(tmp_path)))
        opened.claim(bus.id)
        path = f"{lake_files.new_attempt(opened.make_table('home'), '1-6')}/day=1/part.parquet"
        lakes.write(path, sorted(bus.replay("home/#"), key=lambda message: -message.offset))
        append(opened.table("home"), [path], 0, 1, 6)
        delete_rows(tmp_path, [0, 5])
        (file,) = archived_in(table(tmp_path), "home").files
        assert [batch[0].to_pylist() for batch in scanned(file.place, ("offset",), 1, 99)] == [[2, 3, 4, 5]]
        bus.erase(ANN)
        assert carry_out(table(tmp_path), "home", purges(bus)) == Carried("home", 3, 1, 1)
        assert [offset for offset, _ in in_lake(tmp_path)] == [2, 3, 5]


def test_rows_of_deletion_vectors_are_not_read(tmp_path: Path) -> None:
    """Those of tables of format 3, which pyiceberg reads and does not write."""
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
    (file,) = archived_in(table(tmp_path), "home").files
    vectors = {file.path: [0, 7, 39], "file:///elsewhere.parquet": [1]}
    (tmp_path / "deletes.puffin").write_bytes(puffin(vectors))
    place = file.path, (f"file://{tmp_path}/deletes.puffin",)
    found = [offset for batch in scanned(place, ("offset",), 1, 99) for offset in batch[0].to_pylist()]
    assert found == [n for n in range(1, 41) if n not in (1, 8, 40)]


def test_what_others_deleted_is_not_counted_as_purged(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
    (file,) = archived_in(table(tmp_path), "home").files
    delete_rows(tmp_path, [0, 1])
    (deleted,) = archived_in(table(tmp_path), "home").files
    asked = Purges((Purge("home/#", 40, key=ANN),))
    assert (purged_in(file, asked), purged_in(deleted, asked)) == (14, 13), "the first has the key, the second has not"


def puffin(vectors: dict[str, list[int]]) -> bytes:
    """A file of deletion vectors, as https://iceberg.apache.org/puffin-spec/ draws it."""
    file, blobs = b"PFA1", []
    for path, places in vectors.items():
        vector = bytes.fromhex("d1d33964") + (1).to_bytes(8, "little") + bytes(4) + BitMap(places).serialize()
        blob = len(vector).to_bytes(4, "big") + vector + crc32(vector).to_bytes(4, "big")
        about = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
        properties = {"referenced-data-file": path, "cardinality": str(len(places))}
        blobs.append({**about, "offset": len(file), "length": len(blob), "properties": properties})
        file += blob
    footer = msgspec.json.encode({"blobs": blobs})
    return file + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"


def test_equality_deletes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        archived(tmp_path, bus)
    delete_rows(tmp_path, [0], DataFileContent.EQUALITY_DELETES)
    for look in (open_lake(str(lake_of(tmp_path))).archived, lambda: data_files(table(tmp_path))):
        with pytest.raises(Failed, match=r'the table of "home" .* equality deletes.* have that engine rewrite'):
            look()


def delete_rows(tmp: Path, places: list[int], kind: DataFileContent = DataFileContent.POSITION_DELETES) -> None:
    """A position delete file, as Spark and Flink with Iceberg write them."""
    opened = table(tmp)
    (file,) = [task.file for task in opened.scan().plan_files()]
    path = Path(opened.location().removeprefix("file://")) / "data" / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [file.file_path] * len(places), "pos": pa.array(places, pa.int64())}), path)
    delete = DataFile.from_args(
        content=kind,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(file.partition[0]),
        record_count=len(places),
        file_size_in_bytes=path.stat().st_size,
    )
    delete.spec_id = opened.spec().spec_id
    lakes.commit_deletes(opened, delete)


KILLED = """
import os, signal, sys
from headwater.lake import erasure, lake
from headwater.log.purges import Purge, Purges

where, at = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if at == "written":
    erasure._replace = die
elif at == "committed":
    erasure.lake_files.make_commit_durable = die
else:
    count = [0]
    rewritten = erasure._rewritten
    def one(*args):
        count[0] += 1
        return die() if count[0] == 2 else rewritten(*args)
    erasure._rewritten = one
erasure.carry_out(lake.open_lake(where).table("home"), "home", (Purge("#", 80, key=b"ann-4711"),))
"""


@pytest.mark.parametrize("at", ["midway", "written", "committed"])
def test_killed_anywhere_an_erasure_loses_nothing_and_the_next_one_ends_it(tmp_path: Path, at: str) -> None:
    with headwater.open(tmp_path / "data", SMALL) as bus:
        for _ in range(2):
            fill(bus)
            archived(tmp_path, bus)
        before = in_lake(tmp_path)
        bus.erase(ANN)
        left = [(message.offset, message.key) for message in bus.replay("home/#")]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        killed = subprocess.run([sys.executable, "-c", KILLED, str(lake_of(tmp_path)), at], env=paths, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert in_lake(tmp_path) == (left if at == "committed" else before)
        carry_out(table(tmp_path), "home", purges(bus))
        assert in_lake(tmp_path) == left
        time.sleep(0.01)
        lake_files.sweep(table(tmp_path), grace_s=3600, erase_within_s=0)
        assert files_with(tmp_path, ANN) == 0
        assert in_lake(tmp_path) == left


def test_a_purge_is_remembered_for_as_long_as_there_is_a_lake(tmp_path: Path) -> None:
    config = Config(segment_bytes=64 * 1024, retention=headwater.Retention(bytes=1))
    for marked in (True, False):
        with headwater.open(tmp_path / str(marked), config) as bus:
            fill(bus)
            if marked:
                bus.mark_archived("lake", {"home": 40})
            bus.erase(ANN)
            for _ in range(40):
                bus.publish("home/a", bytes(4000))
            if marked:
                bus.mark_archived("lake", {"home": 80})
            root = bus.core.roots.get("home")
            assert root is not None
            bus.core.upkeep.retain(root)
            assert root.stream.first_offset > 40
            assert len(bus.purges()) == marked
