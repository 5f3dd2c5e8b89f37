"""Readings on a node that follows: live subscriptions, replay and follow, of what this node has applied.

A core that only reads stands on the folder beside the replica, and is told what was applied; a server stands on it, for
clients that asked for `read=any`. Their sessions are rows of no record: they stay in memory here, over those that all
nodes have, and end with their connections or with this node's following. Promises: nothing is shown that is not
committed; nothing is written to the folder; what is published here is refused, and durable subscriptions are; nobody
comes in but by this node's doors, which say whose each connection is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter

import msgspec

from headwater import threads
from headwater.cluster.record import Entry, Rows
from headwater.cluster.replica import Replica
from headwater.core import Core
from headwater.errors import HeadwaterError, NotAllowed, ReadOnly
from headwater.native.protocol import NativeProtocol
from headwater.server.accepting import Introductions, Peer
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.server.watch.cluster import ClusterView
from headwater.settings import Loaded
from headwater.store import state as rows
from headwater.store.log import Hole
from headwater.store.state import State
from headwater.wire.administration import ClusterStatus

LOOPBACK = "127.0.0.1"
DRAIN_S = 0.1
"""How long those who read may take to leave a node that follows no more."""
APART_S = 0.002
"""Between two looks at what was applied: what comes meanwhile is shown together."""
WAKE_S_MAX = 1.0
COMING_US = 10_000_000
"""How long one who comes may take to be connected."""
OF_ROOTS = frozenset((rows.STREAM,))
"""With these come rows that count what batches have brought, which is counted here, too."""
OF_ACCESS = frozenset((rows.CLIENT, rows.RULE, rows.TOKEN, rows.DECOY))
OVER_BYTES_MAX = 64 << 20
"""Of rows that are kept in memory over the stored ones; more are refused with ReadOnly (503)."""
REFUSAL = "this node follows, and serves what was asked for with ?read=any: connect without it for anything else"

_key = itemgetter(0)
log = Log("headwater.cluster.reading")


class Overlay:
    """The state of a reading core: rows of its own in memory, over those of a replica, which it never changes."""

    def __init__(self, below: State) -> None:
        self._below = below
        self._rows: dict[bytes, bytes | None] = {}
        self._bytes = 0
        self._lock = threads.Lock()
        self.failed: str | None = None

    def get(self, key: bytes) -> bytes | None:
        """A row, of its own if there is one."""
        return self._rows[key] if key in self._rows else self._below.get(key)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows in order."""
        with self._lock:
            over = {key: value for key, value in self._rows.items() if key.startswith(prefix)}
        if start is not None:
            over = {key: value for key, value in over.items() if key >= start}
        below = (row for row in self._below.scan(prefix, start) if row[0] not in over)
        for key, value in merge(below, ((key, over[key]) for key in sorted(over)), key=_key):
            if value is not None:
                yield key, value

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Keep rows, in memory alone."""
        with self._lock:
            more = sum([len(key) + len(value) for key, value in rows.items() if value is not None])
            if more and self._bytes + more > OVER_BYTES_MAX:
                raise ReadOnly(f"what is kept for those who read here takes more than {OVER_BYTES_MAX} bytes")
            for key, value in rows.items():
                if key in self._rows:
                    self._bytes -= len(key) + len(self._rows.pop(key) or b"")
                if value is not None or self._below.get(key) is not None:
                    self._rows[key] = value
                    self._bytes += len(key) + len(value or b"")

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        """The same: nothing of it outlives this node's following."""
        self.write(rows)

    def sync(self) -> None:
        """Nothing is to be brought to disk."""

    def mend(self) -> bool:
        """It does not fail."""
        return True

    def snapshot(self, path: str) -> None:
        """Refused."""
        raise ReadOnly(REFUSAL)

    def close(self) -> None:
        """The rows below are another's to close."""


class _BehindDoors:
    """A node, as what serves behind its doors sees it: who comes without a word of theirs came another way."""

    def __init__(self, node: ClusterView) -> None:
        self._node = node
        self.node = node.node
        self.secret = node.secret

    def introductions(self, door: str) -> Introductions:
        """What is believed at a door."""
        return _Introduced(self._node.introductions(door))

    def status(self) -> ClusterStatus:
        """How the cluster is."""
        return self._node.status()


class _Introduced:
    """Refuses whoever is not passed on: on loopback, where this listens, are others whom the settings keep out."""

    def __init__(self, introductions: Introductions) -> None:
        self._introductions = introductions

    async def read(self, loop: asyncio.AbstractEventLoop, made: socket.socket) -> Peer:
        stated = await self._introductions.read(loop, made)
        if stated is None:
            raise NotAllowed("this is for those whom the doors of this node pass on; connect to one of them")
        return stated


class Reading:
    """What serves those who read at one node, as long as it follows."""

    def __init__(
        self, node: ClusterView, replica: Replica, loaded: Loaded, on_bad: Callable[[str, Hole], None] | None = None
    ) -> None:
        """Begin with what the replica has by now; its position may move on meanwhile. `on_bad` hears of what went bad
        in the folder, as `Streams.on_bad` says."""
        self.core = core = Core(replica.path, replica.config, read_only=True, state=Overlay(replica.state))
        if on_bad is not None:
            core.data.streams.on_bad = on_bad
        core.feed()
        serving = msgspec.structs.replace(
            loaded.serving,
            host=LOOPBACK,
            port=0,
            unix_path="",
            tls_certificate="",
            tls_key="",
            mqtt=False,
            http=False,
            sys_every_s=0.0,
            drain_s=DRAIN_S,
        )
        self.server = Server(core, serving, loaded, (NativeProtocol,))
        self.server.cluster = _BehindDoors(node)
        self._replica = replica
        self._work = threads.Condition()
        self._looking = threads.Lock()
        self._came_us = 0
        """When somebody came last, on the clock that never jumps."""
        self._has_news = self._is_anew = self._is_other = self._is_over = False
        self._thread = threads.Thread(target=self._run, name="headwater-reading", daemon=True)

    async def start(self) -> int:
        """Serve; the port, on loopback."""
        await self.server.start()
        self._replica.on_applied = self._note
        self._note(())  # what came between
        self._thread.start()
        return self.server.port

    async def stop(self) -> None:
        """Serve nobody any more, and let go of the folder."""
        self._replica.on_applied = None
        with self._work:
            self._is_over = True
            self._work.notify()
        loop = asyncio.get_running_loop()
        if self._thread.is_alive():
            await loop.run_in_executor(None, self._thread.join)
        await self.server.stop()
        await loop.run_in_executor(None, self.core.close)

    def _note(self, entries: Sequence[Entry]) -> None:
        """A record was applied; in the replica's thread."""
        kinds = {key[:1] for entry in entries if isinstance(entry, Rows) for key in entry.rows}
        with self._work:
            self._has_news = True
            self._is_anew |= not kinds.isdisjoint(OF_ROOTS)
            self._is_other |= not kinds.isdisjoint(OF_ACCESS)
            if self._is_watched:
                self._work.notify()

    @property
    def _is_watched(self) -> bool:
        """Whether anybody reads here, or is about to: for nobody nothing is looked at."""
        return self.server.listener.count > 0 or self.core.clock.monotonic_us() < self._came_us + COMING_US

    def come(self) -> None:
        """Somebody is about to read here, and finds what was applied by now; by any thread but the loop's."""
        with self._work:
            self._came_us = self.core.clock.monotonic_us()
            self._work.notify()
        self._look()

    def _run(self) -> None:
        while True:
            with self._work:
                while not (self._has_news and self._is_watched) and not self._is_over:
                    self._work.wait(WAKE_S_MAX)
                if self._is_over:
                    return
            pause_s = APART_S if self._look() else WAKE_S_MAX
            with self._work:
                if not self._is_over:
                    self._work.wait(pause_s)

    def _look(self) -> bool:
        """Show what was applied since the last look; whether that could be."""
        with self._looking:
            with self._work:
                if not self._has_news:
                    return True
                is_anew, is_other = self._is_anew, self._is_other
                self._has_news = self._is_anew = self._is_other = False
            if is_other:
                self.server.loop.call_soon_threadsafe(self.server.reload)
            try:
                self.core.see(anew=is_anew)
            except (HeadwaterError, OSError) as error:
                log.at_will(logging.WARNING, "not-shown", reason=error, advice="it is tried again")
                self._is_anew = self._has_news = True
                return False
            return True
