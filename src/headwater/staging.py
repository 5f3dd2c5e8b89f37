"""Staged publishes: messages of a producer's epoch that nobody sees before they are committed, and then all see.

Tasks stage parts, each a body of one root, into `$staged`; one commit makes the named parts of an epoch visible, each
root's at once, and drops the others. Promises: what was staged is on disk when `stage` returns; an epoch that was
committed is committed once, however often it is asked for, and in whatever order its parts were staged; a commit that
a crash interrupts is finished when the folder is opened again, since the decision to commit is on disk before the
first message of it is; one that the limits would refuse is refused before it is decided; what is never committed is
dropped after `stage_age_s`.

    state: "H" producer 0 epoch part 0 root → place of the body in $staged, count, crc, when
           "K" producer → the last committed epoch, what it gave, and a commit that is under way
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from zlib import crc32

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.rows import RowCommit
from headwater.errors import Conflict, HeadwaterError, Malformed, NotFound, QuotaExceeded, TooLarge
from headwater.log.checks import Checks
from headwater.log.publish import Part, Publish
from headwater.log.roots import STAGED, Roots
from headwater.memo import Memo
from headwater.message import Outgoing
from headwater.store import state as rows
from headwater.store.batch import Batch, checksum
from headwater.store.body import Body, joined_bodies
from headwater.store.state import Rows, State
from headwater.topics.name import is_utf8

BATCHES_PER_EPOCH_MAX = 4096
"""Batches of one root in an epoch; a producer's sequence is its epoch times this, and the batch."""
EPOCH_MAX = (1 << 62) // BATCHES_PER_EPOCH_MAX
PART_BYTES_MAX = 256
SIZES_MAX = 10_000
"""Epochs whose bytes are remembered; those of others are counted again."""
BODIES_TOGETHER = 256
"""Bodies that follow one another in `$staged` and are counted together: those before the first that is needed go."""
KEEPERS = 16
"""Producers are told apart by so many locks, each held while rows of theirs change."""
_EPOCH = struct.Struct(">Q")

Span = tuple[int, int]
"""The first and the last offset of an epoch in a root."""


class StagedRow(msgspec.Struct, frozen=True, array_like=True):
    """A part that was staged."""

    offset: int
    count: int
    crc: int
    time_us: int
    bytes: int = 0
    owner: str = ""
    """The id of the client that staged it, where there is a registry of them: another of its name cannot commit it."""
    share: str = ""
    """The client of a server whose share it counts in."""


class CommittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer has committed."""

    last: int = -1
    gave: dict[str, Span] = {}
    """Of the last epoch, per root."""
    under_way: tuple[int, tuple[str, ...]] | None = None
    """An epoch, and the parts of it that are being committed."""


class Bodies:
    """What of `$staged` is needed, and how much of it each client of a server has; counted once, when the folder is
    opened, and kept up to date from then on, so that nobody looks at what others have staged."""

    def __init__(self) -> None:
        self._lock = threads.Lock()
        self._counts: dict[int, int] = {}
        """By place in `$staged`, so many together: bodies that have a row."""
        self._places: list[int] = []
        """A heap of them; those without a count are passed over."""
        self._by_share: Counter[str] = Counter()
        self.count = 0
        """Bodies that have a row."""

    def load(self, row: StagedRow) -> None:
        """A body was staged before the folder was opened."""
        with self._lock:
            self._by_share[row.share] += row.bytes
        self.add(row)

    def take(self, share: str, size: int, replaced: int, limit: int) -> None:
        """Have room for a body in a client's share, which comes in place of so much; QuotaExceeded (429) if there is
        none."""
        with self._lock:
            known = self._by_share[share]
            if share and known - replaced + size > limit:
                raise QuotaExceeded(
                    f'client "{share}" has staged {known} bytes, and stage_bytes_per_client_max is '
                    f"{limit}; commit or drop some epochs, or raise the setting"
                )
            self._by_share[share] += size

    def give_back(self, share: str, size: int) -> None:
        """It is not stored, or not any more."""
        with self._lock:
            self._by_share[share] -= size
            if self._by_share[share] <= 0:
                del self._by_share[share]

    def add(self, row: StagedRow) -> None:
        """A body has a row; its room was taken before."""
        place = row.offset // BODIES_TOGETHER
        with self._lock:
            self.count += 1
            if place not in self._counts:
                heapq.heappush(self._places, place)
            self._counts[place] = self._counts.get(place, 0) + 1

    def remove(self, row: StagedRow) -> None:
        """A body has no row any more."""
        place = row.offset // BODIES_TOGETHER
        with self._lock:
            self.count -= 1
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]
        self.give_back(row.share, row.bytes)

    def first(self) -> int | None:
        """No body before this offset is needed; None if none is."""
        with self._lock:
            while self._places and self._places[0] not in self._counts:
                heapq.heappop(self._places)
            return self._places[0] * BODIES_TOGETHER if self._places else None


class Staging:
    """All staged publishes of a bus."""

    def __init__(
        self,
        checks: Checks,
        roots: Roots,
        state: State,
        commit: RowCommit,
        config: Config,
        clock: Clock,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._checks = checks
        self._roots = roots
        self._state = state
        self._commit = commit
        self._config = config
        self._clock = clock
        self._on_trouble = on_trouble
        self._deciding = threads.Lock()
        """Held by whoever commits, drops or expires."""
        self._sizes: Memo[tuple[str, int], int] = Memo(SIZES_MAX)
        """By producer and epoch: bytes that were staged, at most."""
        self._bodies = Bodies()
        self._keepers = tuple(threads.Lock() for _ in range(KEEPERS))
        self._coming: dict[object, int] = {}
        """Of bodies that have no row yet: offsets that they are not before."""

    @property
    def count(self) -> int:
        """How many bodies are staged and not committed."""
        return self._bodies.count

    def recover(self) -> None:
        """Finish commits that were interrupted, and drop what was staged too long ago."""
        for _, value in self._state.scan(rows.STAGED):
            self._bodies.load(msgspec.msgpack.decode(value, type=StagedRow))
        for key, value in list(self._state.scan(rows.COMMITTED)):
            row = msgspec.msgpack.decode(value, type=CommittedRow)
            if row.under_way is None:
                continue
            producer, (epoch, _) = key[1:].decode(), row.under_way
            try:
                self._finish(producer, epoch, self._items(producer, *row.under_way))
            except HeadwaterError as error:
                # The folder opens all the same: whoever commits this epoch, or another, tries again.
                self._on_trouble(f'epoch {epoch} of producer "{producer}" could not be committed: {error}')
        self.expire()
        self._trim()

    # Staging

    def stage(
        self,
        producer: str,
        epoch: int,
        part: str,
        root: str,
        count: int,
        crc: int,
        body: bytes,
        *,
        owner: str = "",
        share: str = "",
    ) -> None:
        """Keep a body until its epoch is committed; staging a part of a root again replaces it."""
        self._check(producer, epoch, part)
        _check_fit(self._checks.body(root, count, crc, body))
        known = self._row(producer)
        if epoch <= known.last:
            return  # it is committed, and staging it once more changes nothing
        if known.under_way is not None and known.under_way[0] == epoch:
            raise Conflict(f'epoch {epoch} of producer "{producer}" is being committed; stage a later one')
        key = self._key(producer, epoch, part, root)
        self._admit(producer, epoch, part, root, len(body))
        before = self._staged_at(key)
        replaced = before.bytes if before is not None and before.share == share else 0
        self._bodies.take(share, len(body), replaced, self._config.stage_bytes_per_client_max)
        coming = object()
        self._coming[coming] = self._end() + 1
        try:
            offset = self._store(body)
            row = StagedRow(offset, count, crc, self._clock.now_us(), len(body), owner, share)
            with self._keeper(producer):
                before = self._staged_at(key)
                self._commit.write({key: rows.pack(row)})
                self._bodies.add(row)
                if before is not None:
                    self._bodies.remove(before)
        except BaseException:
            self._bodies.give_back(share, len(body))
            raise
        finally:
            del self._coming[coming]

    def _keeper(self, producer: str) -> threads.Lock:
        """Held while rows of a producer change, so that what was there before is known."""
        return self._keepers[crc32(producer.encode()) % KEEPERS]

    def _staged_at(self, key: bytes) -> StagedRow | None:
        value = self._state.get(key)
        return None if value is None else msgspec.msgpack.decode(value, type=StagedRow)

    def _remove(self, producer: str, find: Callable[[], Iterable[bytes]], also: Rows | None = None) -> None:
        """Forget what was staged under these keys of a producer, together with other rows that change."""
        with self._keeper(producer):
            gone = {key: row for key in find() if (row := self._staged_at(key)) is not None}
            self._commit.write({**(also or {}), **dict.fromkeys(gone)})
            for row in gone.values():
                self._bodies.remove(row)

    def _admit(self, producer: str, epoch: int, part: str, root: str, size: int) -> None:
        """TooLarge (413) if an epoch would have more bytes than its commit may hold."""
        key, limit = (producer, epoch), self._config.stage_bytes_max
        known = self._sizes.known.get(key)
        if known is None or known + size > limit:  # of what was replaced since, the last counts
            known = sum(
                staged.bytes
                for _, other, name, staged in self._staged(producer, epoch)
                if (other, name) != (part, root)
            )
        if known + size > limit:
            raise TooLarge(
                f'epoch {epoch} of producer "{producer}" has {known} bytes, and stage_bytes_max is {limit}; '
                "commit smaller epochs, or raise the setting"
            )
        self._sizes.keep(key, known + size)

    def stage_messages(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        """The same for messages of any roots."""
        self._check(producer, epoch, part)
        parts = self._checks.many(messages).parts
        for one in parts:
            _check_fit(one)
        for one in parts:
            assert one.body is not None
            self.stage(producer, epoch, part, one.root, len(one.topics), one.crc, one.body)

    def _store(self, body: bytes) -> int:
        """A body as one message of `$staged`; its offset."""
        part = Part(STAGED, (STAGED,), (body,), (0,))
        item = Publish((STAGED,), [part], is_one=True, is_plain=True, weight=len(body))
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

    def commit(
        self,
        producer: str,
        epoch: int,
        parts: Sequence[str] = ("",),
        *,
        owner: str = "",
        allow: Callable[[Part], None] | None = None,
    ) -> dict[str, Span]:
        """Make these parts of an epoch visible, once; answers the first and last offset in each root. `allow` raises
        what keeps its client from publishing what it staged; what is decided stays so, whatever schema comes then."""
        if isinstance(parts, str):
            raise Malformed(f"parts is {parts!r}; use a list of names")
        self._check(producer, epoch, *parts)
        with self._deciding:
            row = self._row(producer)
            if row.under_way is not None and row.under_way[0] != epoch:  # it was decided, and failed at the disk
                self._finish(producer, row.under_way[0], self._items(producer, *row.under_way))
                row = self._row(producer)
            if epoch == row.last:
                return row.gave
            if epoch < row.last:
                return {}
            chosen = tuple(dict.fromkeys(parts))
            if row.under_way is not None:
                chosen = row.under_way[1]
            else:
                self._check_staged(producer, epoch, chosen, owner)
            items = self._items(producer, epoch, chosen)
            if row.under_way is None:
                for _, item in items:
                    if allow is not None:
                        allow(item.parts[0])
                    _check_fit(item.parts[0])
                self._roots.commit.run(lambda: self._roots.limits.check_all([item for _, item in items]))
                under_way = msgspec.structs.replace(row, under_way=(epoch, chosen))
                self._commit.write({self._committed_key(producer): rows.pack(under_way)})
            return self._finish(producer, epoch, items)

    def _check_staged(self, producer: str, epoch: int, parts: Sequence[str], owner: str) -> None:
        """NotFound (404) if one of these parts was not staged; what a client of the same name staged that was removed
        since is dropped first."""
        staged = list(self._staged(producer, epoch))
        gone = [
            self._key(producer, epoch, part, root)
            for _, part, root, row in staged
            if owner and row.owner not in ("", owner)
        ]
        if gone:
            self._remove(producer, lambda: gone)
            raise NotFound(f'what was staged for epoch {epoch} of producer "{producer}" was another client\'s')
        there = {part for _, part, _, _ in staged}
        missing = [part for part in parts if part not in there and part]
        if missing:
            raise NotFound(
                f'part "{missing[0]}" of epoch {epoch} of producer "{producer}" was not staged; stage it again'
            )

    def _items(self, producer: str, epoch: int, parts: Sequence[str]) -> list[tuple[str, Publish]]:
        """What an epoch brings to each root, in the order of its parts."""
        order = {part: place for place, part in enumerate(parts)}
        by_root: dict[str, list[tuple[int, StagedRow]]] = {}
        for _, part, root, staged in self._staged(producer, epoch):
            if part in order:
                by_root.setdefault(root, []).append((order[part], staged))
        items: list[tuple[str, Publish]] = []
        for root, found in sorted(by_root.items()):
            rows_of_root = [staged for _, staged in sorted(found, key=lambda one: one[0])]
            # Many small parts make as many batches as there are numbers for: the same ones, whenever it is asked.
            together = -(-len(rows_of_root) // BATCHES_PER_EPOCH_MAX)
            for number, first in enumerate(range(0, len(rows_of_root), together)):
                chosen = rows_of_root[first : first + together]
                items.append((root, self._item(producer, epoch, number, root, chosen)))
        return items

    def _finish(self, producer: str, epoch: int, items: Sequence[tuple[str, Publish]]) -> dict[str, Span]:
        """Bring an epoch that is decided into its roots, however far that got before."""
        before = self._roots.commit.run(lambda: self._known_before(items))
        fresh = [(root, item) for root, item in items if id(item) not in before]
        self._roots.commit.submit_all([item for _, item in fresh])
        gave: dict[str, Span] = {}
        for root, item in fresh:
            item.wait()
            _, first, _, _ = item.runs[0]
            last = first + len(item.topics) - 1
            gave[root] = (min(first, gave.get(root, (first, 0))[0]), max(last, gave.get(root, (0, last))[1]))
        for root, item in items:
            if id(item) in before and root in gave:
                gave[root] = (gave[root][0] - len(item.topics), gave[root][1])
        done: Rows = {self._committed_key(producer): rows.pack(CommittedRow(last=epoch, gave=gave))}
        self._remove(producer, lambda: self._keys_upto(producer, epoch), done)
        self._trim()
        return gave

    def _known_before(self, items: Sequence[tuple[str, Publish]]) -> set[int]:
        """Those that were stored before a crash, so long ago that their root cannot answer for them any more."""
        stored: dict[str, list[int]] = {}
        for name, item in items:
            root = self._roots.get(name)
            if root is not None and item.sequence <= root.producers.last(item.producer or ""):
                stored.setdefault(name, []).append(id(item))
        window = self._config.producer_window
        return {one for found in stored.values() for one in found[: max(0, len(found) - window)]}

    def _item(self, producer: str, epoch: int, number: int, root: str, staged: Sequence[StagedRow]) -> Publish:
        bodies = [self._body(producer, epoch, row) for row in staged]
        if len(bodies) == 1:
            part = self._checks.body(root, staged[0].count, staged[0].crc, bodies[0])
        else:
            data = joined_bodies(list(map(Body, bodies)))
            part = self._checks.body(root, sum(row.count for row in staged), checksum(data), data)
        assert part.body is not None
        name, sequence = f"{STAGED}/{producer}", epoch * BATCHES_PER_EPOCH_MAX + number
        weight, made_by = len(part.body), staged[0].share
        return Publish(part.topics, [part], name, sequence, made_by=made_by, weight=weight)

    def _body(self, producer: str, epoch: int, staged: StagedRow) -> bytes:
        stream = self._roots.get(STAGED)
        for batch in stream.stream.read(staged.offset, 1)[:1] if stream is not None else ():
            if isinstance(batch, Batch):
                return batch.body.payload(staged.offset - batch.first_offset)
        raise NotFound(f'what was staged for epoch {epoch} of producer "{producer}" is gone; stage it again')

    # Dropping

    def drop(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch, unless it is committed or being committed."""
        self._check(producer, epoch)
        with self._deciding:
            row = self._row(producer)
            if row.under_way is not None and row.under_way[0] == epoch:
                raise Conflict(f'epoch {epoch} of producer "{producer}" is being committed')
            self._remove(
                producer,
                lambda: [self._key(producer, epoch, part, root) for _, part, root, _ in self._staged(producer, epoch)],
            )
        self._trim()

    def expire(self) -> None:
        """Drop what was staged too long ago and never committed; at another time, if somebody commits just now."""
        if not self._deciding.acquire(blocking=False):  # who has it may wait for the thread that calls this
            return
        try:
            gone: dict[str, list[bytes]] = {}
            for key in self._expired():
                gone.setdefault(_place(key)[0], []).append(key)
            for producer, keys in gone.items():
                self._remove(producer, partial(iter, keys))
        finally:
            self._deciding.release()
        if gone:
            self._trim()

    def _expired(self) -> Iterator[bytes]:
        before_us = self._clock.now_us() - round(self._config.stage_age_s * SECOND_US)
        busy = {
            (key[1:].decode(), row.under_way[0])
            for key, value in self._state.scan(rows.COMMITTED)
            if (row := msgspec.msgpack.decode(value, type=CommittedRow)).under_way is not None
        }
        for key, value in self._state.scan(rows.STAGED):
            if msgspec.msgpack.decode(value, type=StagedRow).time_us < before_us and _place(key)[:2] not in busy:
                yield key

    def _trim(self) -> None:
        """Delete the bodies that nothing refers to any more."""
        self._roots.commit.run(self._trim_in_role)

    def _trim_in_role(self) -> None:
        root = self._roots.get(STAGED)
        if root is None:
            return
        # In this order: a body gets its row before it is no longer among those that come.
        needed = [*tuple(self._coming.values()), root.stream.durable + 1]
        first = self._bodies.first()
        if first is not None:
            needed.append(first)
        if min(needed) > root.stream.first_offset:
            root.stream.trim(min(needed) - 1)

    def _end(self) -> int:
        root = self._roots.get(STAGED)
        return 0 if root is None else root.stream.durable

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
        for key, _ in self._state.scan(prefix):
            if _place(key)[1] > epoch:
                return  # they come in the order of their epochs
            yield key


def _check_fit(part: Part) -> None:
    """SchemaMismatch (422) unless its payloads are what the schemas of their topics say."""
    if part.misfit is not None:
        raise part.misfit


def _place(key: bytes) -> tuple[str, int, str, str]:
    """Producer, epoch, part and root in a key."""
    producer, _, rest = key[1:].partition(b"\0")
    part, _, root = rest[_EPOCH.size :].partition(b"\0")
    return producer.decode(), _EPOCH.unpack_from(rest)[0], part.decode(), root.decode()
