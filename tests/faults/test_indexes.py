"""Index files with anything in them: every message is served, and right, whoever reads; the files are mended.

Each case harms one index file of a folder with closed segments and an active one, that of the last process or that of a
power loss. A reader beside the owner reads everything first, while nothing is mended yet; then the owner does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from faults.machine import FOLDER, SMALL, Machine, stream_of
from faults.oracle import Oracle
from faults.test_corruption import copy_of
from headwater.bus import Bus
from headwater.store.batch import Batch
from headwater.store.segment import ENTRY_BYTES
from headwater.store.verify import KnownStream, verify

BATCHES = 5
"""In each of the segments."""
SEGMENTS = 3

Harm = Callable[[bytes], bytes]
Written = tuple[Machine, list[tuple[int, bytes]], dict[str, bytes]]
"""A folder, its messages, its index files."""


def put(position: int, data: bytes) -> Harm:
    return lambda whole: whole[:position] + data + whole[position + len(data) :]


def flip(position: int, bit: int) -> Harm:
    return lambda whole: put(position, bytes([whole[position] ^ 1 << bit]))(whole)


def harms(length: int, rng: random.Random) -> Iterator[tuple[str, Harm]]:
    """Ways in which a file of this length goes bad."""
    for entry in range(0, length, ENTRY_BYTES):
        yield f"garbage in entry {entry}", put(entry, rng.randbytes(ENTRY_BYTES))
        yield f"zeros in entry {entry}", put(entry, bytes(ENTRY_BYTES))
        yield f"ones in entry {entry}", put(entry, b"\xff" * ENTRY_BYTES)
        for field in (0, 8, 16):
            at = entry + field
            yield f"garbage at {at}", put(at, rng.randbytes(8))
            yield f"a high bit at {at}", flip(at + 7, 7)
            yield f"a low bit at {at}", flip(at, rng.randrange(8))
            yield f"a multiple of 8 at {at}", flip(at, 3 + rng.randrange(5))
            yield f"a middle bit at {at}", flip(at + rng.randrange(1, 4), rng.randrange(8))
    for cut in range(0, length, 20):
        yield f"cut to {cut}", lambda whole, cut=cut: whole[:cut]  # type: ignore[misc]
    yield "garbage from end to end", lambda whole: rng.randbytes(len(whole))
    yield "a block of garbage", lambda whole: rng.randbytes(4096)
    yield "garbage at the end", lambda whole: whole + rng.randbytes(100)
    yield "twice", lambda whole: whole + whole
    yield "without its first entry", lambda whole: whole[ENTRY_BYTES:]


def without_times(whole: bytes) -> list[bytes]:
    """What is looked at by whoever reads a message; a time that is wrong and leads to the right one is not met."""
    return [whole[entry : entry + 16] for entry in range(0, len(whole), ENTRY_BYTES)]


def everything(bus: Bus) -> list[tuple[int, bytes]]:
    return [(message.offset, message.payload) for message in bus.replay("a/#")]


@pytest.fixture(scope="module")
def written() -> Iterator[Written]:
    config = msgspec.structs.replace(SMALL, tail_bytes=0, read_bytes=300, checkpoint_batches=1 << 20)
    machine = Machine(config)
    bus = machine.open()
    oracle = Oracle()
    for segment in range(SEGMENTS):
        for _ in range(BATCHES):
            oracle.publish_many(bus, ["a/x", "a/y"])
            machine.clock.advance(1)
        if segment + 1 < SEGMENTS:
            bus.core.roots.commit.run(stream_of(bus, "a").roll)
    said = everything(bus)
    assert len(said) == 2 * BATCHES * SEGMENTS
    machine.close(bus)
    paths = [path.replace(".log", ".idx") for path in machine.segments("a")]
    yield machine, said, {path: machine.files.read(path) for path in paths}
    machine.stop()


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_whatever_an_index_file_holds_every_message_is_served(written: Written, number: int) -> None:
    machine, said, indexes = written
    path, whole = list(indexes.items())[number]
    for told, harm in harms(len(whole), random.Random(number)):
        after = copy_of(machine)
        harmed = harm(whole)
        after.files.write(path, harmed)
        beside = Bus(FOLDER, after.config, files=after.files, state=after.state, clock=after.clock, read_only=True)
        assert everything(beside) == said, told
        assert after.files.read(path) == harmed, f"{told}: who only reads changes nothing"
        report = verify(after.files, FOLDER, lambda number: KnownStream(), lambda step: None)
        assert report.is_whole, told
        bus = after.open()
        assert everything(bus) == said, told
        stream = stream_of(bus, "a")
        for offset in range(1, len(said) + 1):
            (found,) = stream.read(offset, 1)
            assert isinstance(found, Batch), told
            assert found.first_offset <= offset <= found.last_offset, told
            assert stream.offset_at(found.header.time_us) == found.first_offset, told
        kinds = {event.kind for event in bus.events()}
        assert kinds <= {"mended"}, told
        is_seen = without_times(harmed) != without_times(whole) and not whole.startswith(harmed)
        assert kinds or not is_seen, f"{told}: nobody was told"
        bus.publish("a/x", b"one more")
        after.close(bus)
        report = verify(after.files, FOLDER, lambda number: KnownStream(), lambda step: None)
        assert report.is_whole, told
        assert not is_seen or not report.streams[0].notes, f"{told}: it is mended"
        after.stop()
