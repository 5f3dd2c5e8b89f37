"""Replay: history as message objects, against reading the same bytes and their checksums."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import headwater
from headwater.bus import Bus
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import MANY_TOPICS, ROUNDS, fill, variant
from headwater.cli.temporary import temporary_folder
from headwater.store.batch import checksum
from headwater.store.files import DiskFiles

PIECE_BYTES = 1 << 20


def measure(place: str, count: int) -> Iterator[Figure]:
    """All figures of replay."""
    for topics in (1, MANY_TOPICS):
        with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
            count = fill(bus, topics, count)
            rates, raws = [], []
            for _ in range(ROUNDS):
                rates.append(_replay(bus, count))
                raws.append(_read(f"{folder}/bus/streams", count))
        yield Figure(
            "replay, as message objects",
            variant(topics),
            median(rates),
            "messages/s",
            median(raws),
            "pread + CRC32C",
            ("value ≥", 1_000_000),
        )


def _replay(bus: Bus, count: int) -> float:
    seen = 0
    start = time.perf_counter()
    for message in bus.replay("bench/#"):
        seen = message.offset
    elapsed = time.perf_counter() - start
    assert seen == count, f"the last of {count} messages has offset {seen}"
    return count / elapsed


def _read(streams: str, count: int) -> float:
    """Messages per second if reading and checking their bytes were all."""
    files = DiskFiles()
    start = time.perf_counter()
    for stream in files.list(streams):
        for name in files.list(f"{streams}/{stream}"):
            if name.endswith(".log"):
                file = files.open(f"{streams}/{stream}/{name}", write=False)
                position = 0
                while piece := file.pread(PIECE_BYTES, position):
                    checksum(piece)
                    position += len(piece)
                file.close()
    return count / (time.perf_counter() - start)
