"""Planning a read of a folder whose index files hold anything: every message is read, once, and nothing is changed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

import headwater
from headwater.errors import Conflict
from headwater.spark.folder import Folder
from headwater.spark.pieces import Pieces
from headwater.spark.topics import EVERYTHING
from headwater.store.log import Hole
from headwater.store.segment import ENTRY_BYTES

BATCHES = 30
HIGH = (1 << 63).to_bytes(8, "little")

HARMS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda whole: whole,
    "empty": lambda whole: b"",
    "random": lambda whole: random.Random(1).randbytes(len(whole)),
    "a block of random": lambda whole: random.Random(2).randbytes(4096),
    "ones": lambda whole: b"\xff" * len(whole),
    "zeros": lambda whole: bytes(len(whole)),
    "cut": lambda whole: whole[: len(whole) // 2 + 5],
    "first lost": lambda whole: whole[ENTRY_BYTES:],
    "a position too high": lambda whole: whole[: ENTRY_BYTES + 8] + HIGH + whole[ENTRY_BYTES + 16 :],
    "the last position too high": lambda whole: whole[:-16] + HIGH + whole[-8:],
    "positions one entry on": lambda whole: b"".join(
        whole[at : at + 8] + whole[at + 32 : at + 40] + whole[at + 16 : at + 24] for at in range(0, len(whole), 24)
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "data"
    config = headwater.Config(segment_bytes=64 * 1024, tail_bytes=0)
    with headwater.open(folder, config=config) as bus:
        for number in range(BATCHES):
            bus.publish_many([("home/x", b"%d %d" % (number, n) * 400) for n in range(5)])
    assert len(list(folder.glob("streams/*/*.idx"))) >= 3
    return folder


@pytest.mark.parametrize("harm", HARMS)
def test_whatever_the_index_files_hold_a_planned_read_has_every_message_once(
    written: Path, tmp_path: Path, harm: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(written, data)
    for path in data.glob("streams/*/*.idx"):
        path.write_bytes(HARMS[harm](path.read_bytes()))
    harmed = {path: path.read_bytes() for path in data.glob("streams/*/*.idx")}
    with Folder(str(data)) as folder:
        (extent,) = folder.extents(EVERYTHING)
        spans = list(folder.spans("home", extent.first, extent.end - 1, 10_000, None))
        assert folder.bytes_between("home", extent.first, extent.end - 1) > 0
        assert folder.offset_at("home", 0) == 1
        assert folder.offset_at("home", 1 << 62) == extent.end
    assert len(spans) > 3
    assert spans[0].first == 1
    assert all(before.last + 1 == after.first for before, after in pairwise(spans))
    seen = []
    for span in spans:
        for piece in Pieces(str(data), span):
            assert not isinstance(piece, Hole)
            seen += [offset for offset in range(piece[0], piece[1] + 1) if span.first <= offset <= span.last]
    assert seen == list(range(1, 5 * BATCHES + 1))
    assert {path: path.read_bytes() for path in harmed} == harmed


def test_a_read_of_more_than_there_is_ends_with_an_error(written: Path) -> None:
    with Folder(str(written)) as folder:
        (span,) = folder.spans("home", 1, 5 * BATCHES, 1 << 30, 5 * BATCHES)
    beyond = msgspec.structs.replace(span, last=span.last + 1)
    with pytest.raises(Conflict, match="the folder was replaced meanwhile"):
        list(Pieces(str(written), beyond))
