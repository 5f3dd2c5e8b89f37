"""Staged publishes: messages of a producer's epoch that nobody sees before they are committed, and then all see.

Tasks stage parts, each a body of one root, into `$staged`; one commit makes the named parts of an epoch visible, each
root's at once, and drops the others. Promises: what was staged is on disk when `stage` returns; an epoch that was
committed is committed once, however often it is asked for, and in whatever order its parts were staged; a commit that
a crash interrupts is finished when the folder is opened again, since the decision to commit is on disk before the
first message of it is; what is never committed is dropped after `stage_age_s`.

    state: "H" producer 0 epoch part 0 root → place of the body in $staged, count, crc, when
           "K" producer → the last committed epoch, what it gave, and a commit that is under way
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.rows import RowCommit
from headwater.errors import Conflict, Malformed, NotFound, TooLarge
from headwater.message import Outgoing
from headwater.outgoing import Desk
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.state import Rows, State
from headwater.topics.name import is_utf8
from headwater.topics.roots import STAGED, Part, Publish, Roots

BATCHES_PER_EPOCH_MAX = 4096
"""Batches of one root in an epoch; a producer's sequence is its epoch times this, and the batch."""
EPOCH_MAX = (1 << 62) // BATCHES_PER_EPOCH_MAX
PART_BYTES_MAX = 256
_EPOCH = struct.Struct(">Q")

Span = tuple[int, int]
"""The first and the last offset of an epoch in a root."""


class StagedRow(msgspec.Struct, frozen=True, array_like=True):
    """A part that was staged."""

    offset: int
    count: int
    crc: int
    time_us: int


class CommittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer has committed."""

    last: int = -1
    gave: dict[str, Span] = {}
    """Of the last epoch, per root."""
    under_way: tuple[int, tuple[str, ...]] | None = None
    """An epoch, and the parts of it that are being committed."""


class Staging:
    """All staged publishes of a bus."""

    def __init__(self, desk: Desk, roots: Roots, state: State, commit: RowCommit, config: Config, clock: Clock) -> None:
        self._desk = desk
        self._roots = roots
        self._state = state
        self._commit = commit
        self._config = config
        self._clock = clock

    def recover(self) -> None:
        """Finish commits that were interrupted, and drop what was staged too long ago."""
        for key, value in list(self._state.scan(rows.COMMITTED)):
            row = msgspec.msgpack.decode(value, type=CommittedRow)
            if row.under_way is not None:
                self._finish(key[1:].decode(), row, *row.under_way)
        self.expire()

    # Staging

    def stage(self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes) -> None:
        """Keep a body until its epoch is committed; staging a part of a root again replaces it."""
        self._check(producer, epoch, part)
        self._desk.body(root, count, crc, body, None, 0, Publish)
        if epoch <= self._row(producer).last:
            return  # it is committed, and staging it once more changes nothing
        offset = self._store(body)
        row = StagedRow(offset, count, crc, self._clock.now_us())
        self._commit.write({self._key(producer, epoch, part, root): rows.pack(row)})

    def stage_messages(
        self, producer: str, epoch: int, part: str, messages: Iterable[tuple[str, bytes] | Outgoing]
    ) -> None:
        """The same for messages of any roots."""
        self._check(producer, epoch, part)
        for one in self._desk.many(messages, None, None).parts:
            assert one.body is not None
            self.stage(producer, epoch, part, one.root, len(one.topics), one.crc, one.body)

    def _store(self, body: bytes) -> int:
        """A body as one message of `$staged`; its offset."""
        part = Part(STAGED, (STAGED,), (body,), (0,))
        item = Publish((STAGED,), [part], len(body), None, 0, is_one=True)
        self._roots.commit.submit_and_wait(item)
        return item.runs[0][1]

    def _check(self, producer: object, epoch: object, *parts: object) -> None:
        if type(producer) is not str or not producer or not is_utf8(producer) or "\0" in producer:
            raise Malformed(f"producer is {producer!r}; use a name")
        if len(producer.encode()) > self._config.producer_bytes_max - len(STAGED) - 1:
            raise Malformed(f"a producer's name of {len(producer)} characters is over producer_bytes_max")
        if type(epoch) is not int or not 0 <= epoch < EPOCH_MAX:
            raise Malformed(f"epoch is {epoch!r}; use a whole number from 0 on that grows with each commit")
        for part in parts:
            if type(part) is not str or not is_utf8(part) or "\0" in part or len(part.encode()) > PART_BYTES_MAX:
                raise Malformed(f"part is {part!r}; use a name of up to {PART_BYTES_MAX} bytes")

    # Committing

    def commit(self, producer: str, epoch: int, parts: Sequence[str]) -> dict[str, Span]:
        """Make these parts of an epoch visible, once; answers the first and last offset in each root."""
        self._check(producer, epoch, *parts)
        row = self._row(producer)
        if row.under_way is not None and row.under_way[0] != epoch:
            raise Conflict(f'epoch {row.under_way[0]} of producer "{producer}" is being committed; wait for it')
        if epoch == row.last:
            return row.gave
        if epoch < row.last:
            return {}
        there = {part for _, part, _, _ in self._staged(producer, epoch)}
        missing = [part for part in parts if part not in there and part]
        if missing:
            raise NotFound(
                f'part "{missing[0]}" of epoch {epoch} of producer "{producer}" was not staged; stage it again'
            )
        chosen = tuple(dict.fromkeys(parts))
        under_way = msgspec.structs.replace(row, under_way=(epoch, chosen))
        self._commit.write({self._committed_key(producer): rows.pack(under_way)})
        return self._finish(producer, under_way, epoch, chosen)

    def _finish(self, producer: str, row: CommittedRow, epoch: int, parts: tuple[str, ...]) -> dict[str, Span]:
        """Bring an epoch that is decided into its roots, however far that got before."""
        order = {part: place for place, part in enumerate(parts)}
        by_root: dict[str, list[tuple[int, StagedRow]]] = {}
        for _, part, root, staged in self._staged(producer, epoch):
            if part in order:
                by_root.setdefault(root, []).append((order[part], staged))
        items: list[tuple[str, Publish]] = []
        for root, found in sorted(by_root.items()):
            if len(found) > BATCHES_PER_EPOCH_MAX:
                raise TooLarge(f'epoch {epoch} has {len(found)} parts for "{root}"; stage larger ones')
            for number, (_, staged) in enumerate(sorted(found, key=lambda one: one[0])):
                items.append((root, self._item(producer, epoch, number, root, staged)))
        self._roots.commit.submit_all([item for _, item in items])
        gave: dict[str, Span] = {}
        for root, item in items:
            item.wait()
            _, first, _, _ = item.runs[0]
            last = first + len(item.topics) - 1
            gave[root] = (min(first, gave.get(root, (first, 0))[0]), max(last, gave.get(root, (0, last))[1]))
        done: Rows = {self._committed_key(producer): rows.pack(CommittedRow(last=epoch, gave=gave))}
        done.update(dict.fromkeys(self._keys_upto(producer, epoch)))
        self._commit.write(done)
        self._trim()
        return gave

    def _item(self, producer: str, epoch: int, number: int, root: str, staged: StagedRow) -> Publish:
        stream = self._roots.get(STAGED)
        found = stream.stream.read(staged.offset, 1)[:1] if stream is not None else ()
        for batch in found:
            if isinstance(batch, Batch):
                data = batch.body.payload(staged.offset - batch.first_offset)
                item, _ = self._desk.body(root, staged.count, staged.crc, data, None, 0, Publish)
                item.producer = f"{STAGED}/{producer}"
                item.sequence = epoch * BATCHES_PER_EPOCH_MAX + number
                return item
        raise NotFound(f'what was staged for epoch {epoch} of producer "{producer}" is gone; stage it again')

    # Dropping

    def drop(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch, unless it is committed or being committed."""
        self._check(producer, epoch)
        row = self._row(producer)
        if row.under_way is not None and row.under_way[0] == epoch:
            raise Conflict(f'epoch {epoch} of producer "{producer}" is being committed')
        self._commit.write(
            {self._key(producer, epoch, part, root): None for _, part, root, _ in self._staged(producer, epoch)}
        )
        self._trim()

    def expire(self) -> None:
        """Drop what was staged too long ago and never committed."""
        before_us = self._clock.now_us() - round(self._config.stage_age_s * SECOND_US)
        busy = {
            (key[1:].decode(), row.under_way[0])
            for key, value in self._state.scan(rows.COMMITTED)
            if (row := msgspec.msgpack.decode(value, type=CommittedRow)).under_way is not None
        }
        gone: Rows = {}
        for key, value in self._state.scan(rows.STAGED):
            if msgspec.msgpack.decode(value, type=StagedRow).time_us < before_us and _place(key)[:2] not in busy:
                gone[key] = None
        if gone:
            self._commit.write(gone)
        self._trim()

    def _trim(self) -> None:
        """Delete the bodies that nothing refers to any more."""
        root = self._roots.get(STAGED)
        if root is None:
            return
        needed = min(
            (msgspec.msgpack.decode(value, type=StagedRow).offset for _, value in self._state.scan(rows.STAGED)),
            default=None,
        )
        stream = root.stream
        if needed is None and stream.durable >= stream.first_offset:
            self._roots.commit.run(lambda: stream.trim(stream.durable) if not self._any() else 0)
        elif needed is not None and needed > stream.first_offset:
            upto = needed - 1
            self._roots.commit.run(lambda: stream.trim(upto))

    def _any(self) -> bool:
        return next(iter(self._state.scan(rows.STAGED)), None) is not None

    # Rows

    def _row(self, producer: str) -> CommittedRow:
        value = self._state.get(self._committed_key(producer))
        return CommittedRow() if value is None else msgspec.msgpack.decode(value, type=CommittedRow)

    def _committed_key(self, producer: str) -> bytes:
        return rows.COMMITTED + producer.encode()

    def _key(self, producer: str, epoch: int, part: str, root: str) -> bytes:
        return rows.STAGED + producer.encode() + b"\0" + _EPOCH.pack(epoch) + part.encode() + b"\0" + root.encode()

    def _staged(self, producer: str, epoch: int) -> Iterator[tuple[int, str, str, StagedRow]]:
        prefix = rows.STAGED + producer.encode() + b"\0" + _EPOCH.pack(epoch)
        for key, value in list(self._state.scan(prefix)):
            _, _, part, root = _place(key)
            yield epoch, part, root, msgspec.msgpack.decode(value, type=StagedRow)

    def _keys_upto(self, producer: str, epoch: int) -> Iterator[bytes]:
        prefix = rows.STAGED + producer.encode() + b"\0"
        for key, _ in list(self._state.scan(prefix)):
            if _place(key)[1] <= epoch:
                yield key


def _place(key: bytes) -> tuple[str, int, str, str]:
    """Producer, epoch, part and root in a key."""
    producer, _, rest = key[1:].partition(b"\0")
    part, _, root = rest[_EPOCH.size :].partition(b"\0")
    return producer.decode(), _EPOCH.unpack_from(rest)[0], part.decode(), root.decode()
