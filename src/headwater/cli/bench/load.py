"""What is measured with: messages of 400 bytes, in batches of 1,000, and the same bytes written raw."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

from headwater.bus import Bus
from headwater.store.batch import Seed, aligned, seal_header
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles, File

MESSAGE_BYTES = 400
BATCH = 1000
MANY_TOPICS = 1000
ROUNDS = 5
PAGE = bytes(4096)

Messages = list[tuple[str, bytes]]


def messages(topics: int, root: str = "bench") -> Messages:
    """A batch, spread over so many topics of one root."""
    return [(f"{root}/device{place % topics}/temp", os.urandom(MESSAGE_BYTES)) for place in range(BATCH)]


def variant(topics: int) -> str:
    """How a figure names it."""
    return "1 topic" if topics == 1 else f"{topics:,} topics"


def batch_bytes(batch: Messages) -> int:
    """What such a batch takes on disk."""
    body = encode_body([topic for topic, _ in batch], [payload for _, payload in batch], 0)
    header = seal_header(Seed(0), b"bench", 1, len(batch), 0, 0, len(body), 0)
    return aligned(len(header) + len(body))


def fill(bus: Bus, topics: int, count: int, root: str = "bench") -> int:
    """Store so many messages, rounded up to whole batches; answers how many."""
    batch = messages(topics, root)
    for _ in range(-(-count // BATCH)):
        bus.publish_many(batch)
    return -(-count // BATCH) * BATCH


class RawFile:
    """A plain file that is appended to and synced: what the machine can do."""

    def __init__(self, path: str) -> None:
        self._file: File = DiskFiles().open(path, create=True)
        self._end = 0

    def append(self, buffers: list[bytes]) -> None:
        self._file.pwritev(buffers, self._end)
        self._file.datasync()
        self._end += sum(map(len, buffers))

    def close(self) -> None:
        self._file.close()


def calls_per_s(call: Callable[[], object], seconds: float) -> float:
    """How often something can be done in a second, one after another."""
    calls = 0
    start = time.perf_counter()
    while True:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return calls / elapsed


def latencies_s(call: Callable[[], object], calls: int) -> list[float]:
    """How long each call takes."""
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def in_turns(calls: list[Callable[[float], float]], seconds: float) -> list[float]:
    """Medians of several measurements, taken in turns so that a busy moment of the machine meets all of them."""
    measured: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call(seconds / ROUNDS / 4)
    for _ in range(ROUNDS):
        for call, taken in zip(calls, measured, strict=True):
            taken.append(call(seconds / ROUNDS))
    return [median(taken) for taken in measured]
