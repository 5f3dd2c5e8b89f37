"""The idempotent producers of a root: the last sequences of each, and what they were given.

They reflect the stream: what a batch changes is noted in memory, and reaches the state with the next checkpoint.
Promises: a client has at most `producers_per_client_max` of them, and forgets those that it used longest ago itself,
whatever others do; no publish looks at other producers than its own.
"""

from __future__ import annotations

import msgspec

from headwater.config import Config
from headwater.errors import Conflict
from headwater.log.pools import Pools
from headwater.memo import Memo
from headwater.store import state as rows
from headwater.store.batch import ONCE, Header
from headwater.store.state import Rows, State

ONCE_WINDOW = 1024
"""Sequences that are remembered of an MQTT session's publishes of QoS 2: as many as it may have open."""
LOOKED_UP_MAX = 10_000
"""Producers whose rows are remembered as they are in the state."""


class StoredPublish(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an idempotent publish was given the first time."""

    first_offset: int
    count: int
    time_us: int


class Producer(msgspec.Struct, array_like=True):
    """The last sequences of an idempotent producer, oldest first."""

    window: dict[int, StoredPublish] = {}
    last: int = -1
    used_us: int = 0
    owner: str = ""
    """The client of a server who used it last; empty if that was nobody's, or is not known."""


class Use(msgspec.Struct, array_like=True):
    """The same without its sequences, which take long to read."""

    window: msgspec.Raw
    last: int = -1
    used_us: int = 0
    owner: str = ""


class Producers:
    """All producers of a root; only the thread that commits changes them."""

    def __init__(self, stream: int, state: State, config: Config, count: int) -> None:
        self._stream = stream
        self._state = state
        self._config = config
        self.count = count
        """How many are remembered."""
        self._noted: dict[str, Producer] = {}
        """Those that changed since the last checkpoint,"""
        self._gone: set[str] = set()
        """and those that were forgotten since, and may have a row."""
        self._looked_up: Memo[str, Producer] = Memo(LOOKED_UP_MAX)
        self._pools: Pools[str] | None = None
        """Whose they are, in the order of their use; put together once there are so many that it matters."""

    def repeated(self, name: str, sequence: int) -> StoredPublish | None:
        """What this sequence was given the first time, if this is a repeat; Conflict if it cannot be told any more."""
        known = self._of(name)
        if sequence > known.last:
            return None
        stored = known.window.get(sequence)
        if stored is None:
            raise Conflict(
                f'sequence {sequence} of producer "{name}" is not above {known.last} and not among its last '
                f"{self._config.producer_window}; it was stored long ago, or never: count on from {known.last + 1}"
            )
        return stored

    def sequences(self, name: str) -> tuple[int, ...]:
        """The last sequences of a producer that were stored, oldest first; from any thread."""
        return tuple((self._noted.get(name) or self._read(name)).window)

    def last(self, name: str) -> int:
        """The highest sequence of a producer that was stored; -1 if none was."""
        return self._of(name).last

    def note(self, name: str, header: Header, owner: str | None) -> None:
        """A batch of a producer is durable, or is met again by recovery, which does not know whose it is."""
        known = self._of(name)
        is_new = known.last < 0
        known.last = max(known.last, header.sequence)
        known.used_us = header.time_us
        known.window[header.sequence] = StoredPublish(header.first_offset, header.count, header.time_us)
        window = ONCE_WINDOW if header.flags & ONCE else self._config.producer_window
        while len(known.window) > window:
            del known.window[next(iter(known.window))]
        if owner is not None:
            known.owner = owner
        self._noted[name] = known
        self._looked_up.known.pop(name, None)
        self._gone.discard(name)
        self.count += is_new
        if owner is not None:
            self._make_room(name, owner)

    def _make_room(self, name: str, owner: str) -> None:
        """Forget producers of a client that has too many, or of the one who has most, where all have too many."""
        config = self._config
        if self._pools is None:
            if self.count <= min(config.producers_per_client_max, config.producers_max):
                return
            for key in self._load():
                self._forget(key)
        assert self._pools is not None
        for key in self._pools.use(name, owner):
            self._forget(key)

    def _load(self) -> list[str]:
        """Put together whose producers there are, by their use; those that are too many."""
        decode = msgspec.msgpack.Decoder(Use).decode
        found: dict[str, tuple[int, str]] = {}
        for key, value in self._state.scan(rows.key_u32(rows.PRODUCER, self._stream)):
            row = decode(value)
            found[rows.name_in(key)] = row.used_us, row.owner
        for name in self._gone:
            found.pop(name, None)
        found.update((name, (known.used_us, known.owner)) for name, known in self._noted.items())
        self._pools = Pools(self._config.producers_per_client_max, self._config.producers_max)
        gone: list[str] = []
        for name, (_, owner) in sorted(found.items(), key=lambda pair: pair[1][0]):
            gone += self._pools.use(name, owner)
        return gone

    def _forget(self, name: str) -> None:
        self._noted.pop(name, None)
        self._looked_up.known.pop(name, None)
        self._gone.add(name)
        self.count -= 1

    def _of(self, name: str) -> Producer:
        known = self._noted.get(name) or self._looked_up.known.get(name)
        return known if known is not None else self._looked_up.keep(name, self._read(name))

    def _read(self, name: str) -> Producer:
        row = None if name in self._gone else self._state.get(rows.key_name(rows.PRODUCER, self._stream, name))
        return Producer() if row is None else msgspec.msgpack.decode(row, type=Producer)

    # Checkpoints

    def rows(self) -> Rows:
        """Rows that bring the state up to this moment."""
        changed: Rows = {rows.key_name(rows.PRODUCER, self._stream, name): None for name in self._gone}
        for name, known in self._noted.items():
            changed[rows.key_name(rows.PRODUCER, self._stream, name)] = rows.pack(known)
        return changed

    def checkpointed(self) -> None:
        """The rows are in the state."""
        for name, known in self._noted.items():
            self._looked_up.keep(name, known)
        self._noted.clear()
        self._gone.clear()
