"""The way into the roots: publishes of every session go to the group commit here, and its answers come back.

The group commit is each root's single owner, and what waits for it is its mailbox. Promises: an answer leaves after
the message is on disk; what one group committed is answered with one frame to each connection; a session that brings
more than may be in flight is not read from until there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headwater.outgoing import Desk
from headwater.server.bell import Bell
from headwater.topics.roots import Part, Publish, Roots
from headwater.wire.batches import Publish as PublishFrame
from headwater.wire.batches import pack_published
from headwater.wire.requests import pack_error

if TYPE_CHECKING:
    import asyncio

    from headwater.server.connection import Connection


AGAIN_S = 0.002
"""How long a publish waits for a group that others have filled."""


class Served(Publish):
    """A publish of a client, and how to answer it."""

    __slots__ = ("connection", "entry", "id", "is_quiet")

    entry: Entry
    connection: Connection
    id: int
    is_quiet: bool

    def __init__(
        self, topics: Sequence[str], parts: list[Part], weight: int, producer: str | None, sequence: int, is_one: bool
    ) -> None:
        super().__init__(topics, parts, weight, producer, sequence, is_one)
        self.is_quiet = False

    def finish(self, error: BaseException | None = None) -> None:
        super().finish(error)
        self.entry.on_done(self)


class Entry:
    """Where publishes enter, for all sessions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, desk: Desk, roots: Roots) -> None:
        self._loop = loop
        self._bell = Bell(loop, self._answer)
        self._desk = desk
        self._roots = roots
        self._done: deque[Served] = deque()
        self._waiting: deque[Served] = deque()
        """Those that found the group full; bounded by what each connection may have in flight."""
        self._on_empty: list[Callable[[], None]] = []
        self._in_flight = 0

    def check(
        self, connection: Connection, id: int, publish: PublishFrame, is_quiet: bool
    ) -> tuple[Served, tuple[str, ...]]:
        """A publish ready to be committed, and its topics; raises what is wrong with it."""
        item, body = self._desk.body(
            publish.root, publish.count, publish.crc, publish.body, publish.producer, publish.sequence, Served
        )
        item.entry, item.connection, item.id, item.is_quiet = self, connection, id, is_quiet
        return item, body.names

    def commit(self, item: Served) -> None:
        """Have it committed; its client hears of it."""
        self._in_flight += 1
        self._waiting.append(item)
        if len(self._waiting) == 1:
            self._submit()

    def _submit(self) -> None:
        """Have committed what there is room for."""
        while self._waiting and not self._roots.commit.is_full:
            self._roots.commit.submit(self._waiting.popleft())
        if self._waiting and len(self._waiting) == self._in_flight:
            # Others have filled the group, so that none of ours will tell when there is room.
            self._loop.call_later(AGAIN_S, self._submit)

    def on_done(self, item: Served) -> None:
        """An item is finished; from the thread that commits."""
        self._done.append(item)
        self._bell.ring()

    def _answer(self) -> None:
        """Tell each client what became of its publishes."""
        by_connection: dict[Connection, list[Served]] = {}
        for _ in range(len(self._done)):
            item = self._done.popleft()
            by_connection.setdefault(item.connection, []).append(item)
            self._in_flight -= 1
        for connection, items in by_connection.items():
            connection.on_published(sum(item.weight for item in items), len(items), answers(items))
        self._submit()
        if not self._in_flight:
            waiting, self._on_empty = self._on_empty, []
            for call in waiting:
                call()

    def when_empty(self, call: Callable[[], None]) -> None:
        """Call back once nothing is in flight."""
        if self._in_flight:
            self._on_empty.append(call)
        else:
            call()


def answers(items: Sequence[Served]) -> bytes:
    """The frames that answer these publishes."""
    frames = b""
    done: list[tuple[int, bool, int, int]] = []
    for item in items:
        if item.error is not None:
            if not item.is_quiet:
                frames += pack_error(item.id, item.error)
        elif not item.is_quiet:
            _, first, time_us, is_repeat = item.runs[0]
            done.append((item.id, is_repeat, first, time_us))
    return frames + pack_published(done) if done else frames
