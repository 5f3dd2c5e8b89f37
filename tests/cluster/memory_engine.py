"""An engine in memory, for tests: one stream and some rows that several nodes share, and a view of them for each node.

It does to a node what the real one may do: requests are lost, answers are lost, requests come twice or late, nobody
answers at all; and what it must never do, too, since nodes have to notice: it loses the end of what it had stored.
Faults come from a seed, callbacks in a thread of each view's own.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headwater.cluster.engine import Acked, Handler, ReaderLost, Refused, Row, Seen, StreamLost, Told, Unanswered
from headwater.errors import HeadwaterError, Unavailable

LEASE = "lease"
SILENCE_S = 0.002
PATIENCE_S = 10.0


class Bed:
    """The stream and the rows: what all nodes share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[int, bytes] = {}
        self.first = 1
        self.last = 0
        self.is_made = True
        self.rows: dict[str, Row] = {}
        self.revision = 0
        self.handlers: dict[str, Mapping[str, Handler]] = {}
        self.now_us = 0

    def store(self, after: int, data: bytes) -> Told:
        """What the server that leads does with a message."""
        with self.changed:
            if self.last != after:
                return Refused(self.last)
            self.last += 1
            self.messages[self.last] = data
            self.changed.notify_all()
            return Acked(self.last)

    def lose(self, count: int) -> None:
        """What an engine must not do: forget the end of its stream."""
        with self.changed:
            for _ in range(count):
                del self.messages[self.last]
                self.last -= 1


class Faults:
    """What happens to a request: how often of a thousand."""

    def __init__(self, seed: int = 0, *, lost: int = 0, unheard: int = 0, doubled: int = 0, late: int = 0) -> None:
        self._rng = random.Random(seed)
        self._of_1000 = {"lost": lost, "unheard": unheard, "doubled": doubled, "late": late}

    def draw(self) -> str:
        """The fate of a request."""
        place = self._rng.randrange(1000)
        for fate, share in self._of_1000.items():
            if place < share:
                return fate
            place -= share
        return ""

    def shuffle(self, waiting: deque[Callable[[], None]]) -> Callable[[], None]:
        """The next of what waits: now and then not the first."""
        if len(waiting) > 1 and any(self._of_1000.values()) and self._rng.randrange(4) == 0:
            waiting.rotate(-self._rng.randrange(len(waiting)))
        return waiting.popleft()


class MemoryEngine:
    """The engine, as one node sees it."""

    def __init__(self, bed: Bed, faults: Faults | None = None, part_bytes_max: int = 1 << 20) -> None:
        self.bed = bed
        self.part_bytes_max = part_bytes_max
        self.faults = faults or Faults()
        self.is_up = True
        """Whether anybody answers."""
        self.published = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._work = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="memory-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._waiting and not self._is_closed:
                    self._work.wait()
                if self._is_closed:
                    return
                work = self.faults.shuffle(self._waiting)
            work()

    def _later(self, work: Callable[[], None]) -> None:
        with self._work:
            self._waiting.append(work)
            self._work.notify()

    # The stream

    def publish(self, after: int, data: bytes, attempt: int, told: Callable[[Told], None]) -> None:
        self.published += 1
        self._later(lambda: self._publish(after, data, told))

    def _publish(self, after: int, data: bytes, told: Callable[[Told], None]) -> None:
        fate = self.faults.draw() if self.is_up else "lost"
        if fate == "lost":
            threading.Event().wait(SILENCE_S)
            told(Unanswered())
        elif fate == "late":
            self._later(lambda: self._unheard(after, data))
            told(Unanswered("late"))
        else:
            answer = self.bed.store(after, data)
            if fate == "doubled":
                self._later(lambda: self._unheard(after, data))
            told(Unanswered() if fate == "unheard" else answer)

    def _unheard(self, after: int, data: bytes) -> None:
        self.bed.store(after, data)

    def look(self, sequence: int, told: Callable[[Seen | None], None]) -> None:
        self._later(lambda: self._look(sequence, told))

    def _look(self, sequence: int, told: Callable[[Seen | None], None]) -> None:
        if not self.is_up or self.faults.draw() == "lost":
            threading.Event().wait(SILENCE_S)
            told(None)
            return
        with self.bed.changed:
            seen = Seen(self.bed.messages.get(sequence), self.bed.first, self.bed.last)
        told(seen)

    def bounds(self) -> tuple[int, int]:
        self._check()
        return self.bed.first, self.bed.last

    def extent(self) -> tuple[int, int, int]:
        return *self.bounds(), sum(map(len, self.bed.messages.values()))

    def time_us(self) -> int:
        self._check()
        return self.bed.now_us

    def make(self, first: int = 1) -> None:
        with self.bed.changed:
            if not self.bed.is_made:
                self.bed.is_made, self.bed.first, self.bed.last = True, first, first - 1
                self.bed.messages.clear()

    def unmake(self) -> None:
        with self.bed.changed:
            self.bed.is_made = False
            self.bed.messages.clear()

    def read(self, after: int) -> MemoryReader:
        self._check()
        return MemoryReader(self, after)

    def trim(self, upto: int) -> None:
        self._check()
        with self.bed.changed:
            for sequence in range(self.bed.first, min(upto, self.bed.last) + 1):
                del self.bed.messages[sequence]
                self.bed.first = sequence + 1

    def _check(self) -> None:
        if not self.is_up or self._is_closed:
            raise Unavailable("the engine does not answer")
        if not self.bed.is_made:
            raise StreamLost("there is no stream")

    def unsynced(self) -> list[str]:
        return []

    # Other nodes

    def ask(self, node: str, verb: str, data: bytes, timeout_s: float) -> bytes:
        self._check()
        if node not in self.bed.handlers:
            raise Unavailable(f"{node} does not answer")
        return self.bed.handlers[node][verb](data)

    def ask_all(self, verb: str, data: bytes, timeout_s: float, enough: int) -> list[bytes]:
        self._check()
        found = []
        for handlers in tuple(self.bed.handlers.values()):
            with suppress(HeadwaterError):
                found.append(handlers[verb](data))
        return found

    def answer(self, node: str, handlers: Mapping[str, Handler]) -> None:
        self.bed.handlers[node] = handlers

    # Rows

    def open_rows(self) -> None:
        if not self.is_up or self._is_closed:
            raise Unavailable("the engine does not answer")

    def take_lease(self, value: bytes) -> int | None:
        return self.put_row(LEASE, value, 0)

    def renew_lease(self, value: bytes, revision: int) -> int | None:
        return self.put_row(LEASE, value, revision)

    def release_lease(self, revision: int) -> None:
        with self.bed.changed:
            row = self.bed.rows.get(LEASE)
            if row is not None and row.revision == revision:
                del self.bed.rows[LEASE]

    def lease(self) -> Row | None:
        return self.row(LEASE)

    def row(self, key: str) -> Row | None:
        self._check()
        return self.bed.rows.get(key)

    def rows(self, prefix: str) -> dict[str, Row]:
        self._check()
        return {key: row for key, row in self.bed.rows.items() if key.startswith(prefix)}

    def put_row(self, key: str, value: bytes, revision: int | None = None) -> int | None:
        self._check()
        with self.bed.changed:
            row = self.bed.rows.get(key)
            if revision is not None and revision != (row.revision if row is not None else 0):
                return None
            self.bed.revision += 1
            self.bed.rows[key] = Row(value, self.bed.revision)
            return self.bed.revision

    def delete_row(self, key: str) -> None:
        self._check()
        self.bed.rows.pop(key, None)

    def close(self) -> None:
        with self._work:
            self._is_closed = True
            self._work.notify()
        self._thread.join(PATIENCE_S)


class MemoryReader:
    """Messages of the stream, in order."""

    def __init__(self, engine: MemoryEngine, after: int) -> None:
        self._engine = engine
        self._next = after + 1

    def next(self, timeout_s: float) -> Sequence[tuple[int, bytes]]:
        """What has come."""
        bed = self._engine.bed
        with bed.changed:
            if not self._engine.is_up:
                raise ReaderLost("the engine does not answer")
            bed.changed.wait_for(lambda: bed.last >= self._next, timeout_s)
            if bed.first > self._next:
                raise ReaderLost(f"the stream begins at {bed.first}")
            found = [(sequence, bed.messages[sequence]) for sequence in range(self._next, bed.last + 1)]
            self._next = bed.last + 1
            return found

    def close(self) -> None:
        """Ask for no more."""
