"""Counting messages that match, by the fronts of batches: against a model, across segments, and where there is
damage."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from headwater.config import Config
from headwater.store import fronts
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.store.compression import decompress_start
from headwater.store.files import DiskFiles, File
from headwater.store.log import Counted, Write
from headwater.store.stream import DiskStream
from headwater.topics.name import compile_filter
from store.test_stream import ON_DISK, TIME_US, make, show, write

ALL = 1 << 40
SQUEEZED = Config(segment_bytes=64 * 1024, tail_bytes=0, compression="zstd", compression_bytes_min=0)
FILTERS = ["home/1/#", "home/+/temp", "home/#", "home/7/temp", "office/#", "home"]


def append(stream: DiskStream, topics: list[str], size: int = 40) -> None:
    body = encode_body(topics, [b"%d." % number * size for number in range(len(topics))], TIME_US)
    made = Write(body, checksum(body), len(topics), None, 0)
    write(stream, made)
    stream.sync()
    show(stream, made)


def filled(folder: Path, config: Config, seed: int, batches: int = 60, size: int = 40) -> tuple[DiskStream, list[str]]:
    """A stream of several segments, and the topic of each of its messages."""
    stream, dice, topics = make(folder, config), random.Random(seed), []
    for _ in range(batches):
        some = [f"home/{dice.randrange(9)}/{dice.choice(['temp', 'state'])}" for _ in range(dice.choice([1, 7, 300]))]
        if dice.random() < 0.2:
            some = ["home"] * len(some)
        append(stream, some, size)
        topics += some
    return stream, topics


def model(topics: list[str], wanted: Callable[[str], bool], first: int, last: int, most: int) -> tuple[int, int]:
    count = 0
    for offset in range(first, last + 1):
        count += wanted(topics[offset - 1])
        if count == most:
            return offset + 1, count
    return last + 1, count


@pytest.mark.parametrize("config", [ON_DISK, SQUEEZED], ids=["plain", "zstd"])
@pytest.mark.parametrize("seed", range(4))
def test_a_count_is_that_of_all_topics(tmp_path: Path, config: Config, seed: int) -> None:
    stream, topics = filled(tmp_path, config, seed)
    dice = random.Random(seed)
    assert len(stream.segments) > 1 or config is SQUEEZED
    for filter in FILTERS:
        wanted = compile_filter(filter)
        for most in (1, 5, 200, ALL):
            first = dice.randint(1, len(topics))
            for last in (dice.randint(first, len(topics)), len(topics)):
                found = stream.count(wanted, first, last, most, ALL)
                assert (found.end, found.messages) == model(topics, wanted, first, last, most)


def test_nothing_is_counted_where_nothing_is_asked_for(tmp_path: Path) -> None:
    stream, topics = filled(tmp_path, ON_DISK, 1, 3)
    assert stream.count(compile_filter("#"), 2, 1, 5, ALL) == Counted(2, 0)
    assert stream.count(compile_filter("#"), 2, len(topics), 0, ALL) == Counted(2, 0)
    assert make(tmp_path / "empty").count(compile_filter("#"), 1, 5, 5, ALL) == Counted(6, 0)


@pytest.mark.parametrize("config", [ON_DISK, SQUEEZED], ids=["plain", "zstd"])
def test_a_count_ends_when_so_much_was_read_and_goes_on_from_there(tmp_path: Path, config: Config) -> None:
    stream, topics = filled(tmp_path, config, 5)
    wanted, place, total, looks = compile_filter("home/1/#"), 1, 0, 0
    while place <= len(topics):
        found = stream.count(wanted, place, len(topics), ALL, 1)
        assert found.end > place
        assert found.bytes >= fronts.READ_BYTES
        place, total, looks = found.end, total + found.messages, looks + 1
    assert (total, looks) == (sum(map(wanted, topics)), 60), "one batch each"


def test_payloads_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, topics = filled(tmp_path, Config(tail_bytes=0), 2, 20, 10_000)
    stored = stream.size[0]
    read: list[int] = []
    plain = type(stream.pool.get(stream.segments[0].log_path))

    def counting(file: File, length: int, position: int) -> bytes:
        found: bytes = before(file, length, position)
        read.append(len(found))
        return found

    before = plain.pread
    monkeypatch.setattr(plain, "pread", counting)
    found = stream.count(compile_filter("home/1/#"), 1, len(topics), ALL, ALL)
    assert sum(read) <= found.bytes + 20 * fronts.READ_BYTES
    assert sum(read) < stored / 100


def test_a_batch_whose_front_cannot_be_read_counts_as_if_it_all_matched(tmp_path: Path) -> None:
    stream = make(tmp_path)
    for topic in ("home/a", "home/b", "home/b", "home/a"):
        append(stream, [topic] * 10)
    (segment,), wanted = stream.segments, compile_filter("home/a")
    assert stream.count(wanted, 1, 40, ALL, ALL).messages == 20
    position, file = stream.indexes.of(segment).positions[1], DiskFiles().open(segment.log_path)
    head = file.pread(fronts.READ_BYTES, position)
    body = position + int.from_bytes(head[8:12], "little")
    index_at = body + 16 + 16  # counts, and one name
    for place, harm in ((body, b"\xff" * 4), (body + 20, b"\xff" * 4), (index_at, b"\x07"), (position + 4, b"\xff")):
        good = file.pread(len(harm), place)
        file.pwritev([harm], place)
        found = stream.count(wanted, 1, 40, ALL, ALL)
        assert (found.end, found.messages) == (41, 30), place
        assert stream.count(wanted, 11, 40, 4, ALL).end == 15
        file.pwritev([good], place)
    assert stream.count(wanted, 1, 40, ALL, ALL).messages == 20
    file.close()


def test_a_segment_that_is_gone_counts_as_if_it_all_matched(tmp_path: Path) -> None:
    stream, topics = filled(tmp_path, ON_DISK, 3)
    wanted, gone, following = compile_filter("home/1/#"), stream.segments[1], stream.segments[2]
    stream.pool.forget(gone.log_path)
    shutil.move(gone.log_path, tmp_path / "elsewhere")
    found = stream.count(wanted, 1, len(topics), ALL, ALL)
    rest = [topic for offset, topic in enumerate(topics, 1) if not gone.base <= offset < following.base]
    assert found.messages == following.base - gone.base + sum(map(wanted, rest))
    assert found.end == len(topics) + 1


def test_what_the_disk_does_not_read_counts_as_if_it_all_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, topics = filled(tmp_path, Config(tail_bytes=0), 3)
    index = stream.indexes.of(stream.segments[0])
    bad, first = index.positions[20], index.offsets[20]
    plain = type(stream.pool.get(stream.segments[0].log_path))
    pread = plain.pread

    def failing(file: File, length: int, position: int) -> bytes:
        if position >= bad:
            raise OSError(errno.EIO, "it cannot be read")
        found: bytes = pread(file, length, position)
        return found

    monkeypatch.setattr(plain, "pread", failing)
    wanted = compile_filter("home/1/#")
    found = stream.count(wanted, 1, len(topics), ALL, ALL)
    assert (found.end, found.messages) == (
        len(topics) + 1,
        sum(map(wanted, topics[: first - 1])) + len(topics) + 1 - first,
    )


def test_offsets_that_are_gone_are_no_messages(tmp_path: Path) -> None:
    stream, topics = filled(tmp_path, ON_DISK, 3)
    kept = stream.trim(stream.segments[1].base)
    wanted = compile_filter("home/#")
    found = stream.count(wanted, 1, len(topics), ALL, ALL)
    assert (found.end, found.messages) == (len(topics) + 1, len(topics) + 1 - kept)


def test_the_beginning_of_a_frame_is_unpacked_as_far_as_it_is_asked_for() -> None:
    content = random.Random(1).randbytes(400_000)
    frame = zstandard.ZstdCompressor(level=1).compress(content)
    assert decompress_start(frame, 100) == content[:100]
    assert decompress_start(frame, 1 << 40) == content
    assert decompress_start(frame[:10], 100) == b""
    some = decompress_start(frame[: len(frame) // 2], 1 << 30)
    assert content.startswith(some)
    assert 100_000 < len(some) < 200_000
    for bad in (b"x" * 100, frame[:4] + b"\xff" * 100):
        with pytest.raises(ValueError, match=r"."):
            decompress_start(bad, 100)
