"""All roots of a bus: takes publishes in, appends them in groups, applies what they change, and tells who waits.

A message's way through the embedded bus is this module read from top to bottom. Everything from `_commit` down runs
in one thread at a time, the one that commits, which thereby owns every root. A batch is the unit: loose messages that
arrive together for one root become one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec

from headwater import threads
from headwater.clock import Clock
from headwater.config import Config
from headwater.counts import Counts
from headwater.errors import Conflict, DiskFull, Failed, HeadwaterError, QuotaExceeded, ReadOnly, Unwritable
from headwater.log.delays import due_key
from headwater.log.group_commit import GroupCommit
from headwater.log.pools import Pools
from headwater.log.publish import MESSAGE_WEIGHT, ONLY, Part, Publish
from headwater.log.retained import check_retained
from headwater.log.root import DELAYED, SYS, UNCOUNTED, WILLS, Root, RootRow, check_share, check_topics
from headwater.log.showing import Showing, Shown
from headwater.store import state as rows
from headwater.store.batch import ONCE, Batch, checksum
from headwater.store.body import encode_body
from headwater.store.log import Appending, Checkpoint, Found, Hole, Log, Stream, Write
from headwater.store.state import Rows, State

STAGED = "$staged"
"""Root in which staged bodies wait; also how the batches say so that a commit of them makes."""
OWN_ROOTS = (DELAYED, STAGED, SYS)
"""Roots that are the broker's own."""
DISK_CHECK_BYTES = 4 * 1024 * 1024
"""Free room is asked for again after this much was written."""

SHARED_US = 1_000_000
"""So long after a group, the disk is counted as shared by a large one that comes."""
SHOWN_BYTES_MAX = 256 * 1024
"""How much of what came one by one and was shown goes to disk as one batch."""
SWEPT_ROWS = 1000
"""Rows of a removed root that are deleted at once."""
LOOKS_MAX = 10
"""Tries to look between two checkpoints before waiting for a turn."""

R = TypeVar("R")
OnDurable = Callable[[Mapping[Root, Sequence[Batch]]], Callable[[Publish], None] | None]
"""Hears of what is on disk. What it answers, if anything, finishes clients' publishes of that in its own time: so that
none publishes faster than is delivered."""


class _Loose(msgspec.Struct, eq=False):
    """Messages of one root that came one by one and go as one batch."""

    flags: int
    is_shown: bool
    weight: int = 0
    """Of what was shown."""
    has_options: bool = False
    """Whether any of them is retained, expires, or has a key or headers."""
    items: list[Publish] = []
    parts: list[Part] = []


class _Placement(msgspec.Struct, eq=False, gc=False):
    """A batch on its way: what it carries, and for whom."""

    write: Write
    topics: Sequence[str]
    owner: Publish | None
    part: Part | None
    loose: Sequence[Publish] = ()
    is_shown: bool = False


class _Group(msgspec.Struct, eq=False):
    """What is committed together."""

    now_us: int
    """When it began to be, by which its messages are stamped;"""
    begun_us: int
    """and on the monotonic clock."""
    promised: list[Root] = []
    """Roots that count on topics or retained messages of this group."""
    places: dict[Root, list[_Placement]] = {}
    loose: dict[Root, _Loose] = {}
    coming: dict[tuple[str, str], dict[int, tuple[Publish, Part]]] = {}
    """Idempotent publishes of this group, by root and producer, then sequence."""
    echoes: list[tuple[Publish, Part, Publish, Part]] = []
    """Repeats of a publish in this same group, with the first of them."""
    partly: list[Publish] = []
    """Calls of which some roots' messages are admitted, and others' refused."""
    finish: Callable[[Publish], None] | None = None
    """Finishes what is not with all of its subscribers yet; no thread of this process waits for that."""
    admitted: list[Publish] = []
    """Calls that are finished when it is on disk;"""
    repeats: list[Publish] = []
    """of them, those of which everything was stored before."""


class Roots:
    """Every root of a bus, and the way into them."""

    def __init__(
        self,
        log: Log,
        state: State,
        config: Config,
        clock: Clock,
        on_durable: OnDurable,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._log = log
        self._state = state
        self._config = config
        self._clock = clock
        self._on_durable = on_durable
        self._on_trouble = on_trouble
        self._roots: dict[str, Root] = {}
        self.get = self._roots.get
        """A root, if there is one of that name."""
        self._since_bytes = 0
        self._since_batches = 0
        self._since_topics = 0
        self._since_disk_check = DISK_CHECK_BYTES
        self.has_room = True
        """Whether the disk has, as far as is known."""
        self._delayed = 0
        """Delayed messages that wait."""
        self._delays_promised = 0
        self._delayed_by: Counter[str] = Counter()
        """Of them, those of each client;"""
        self._delays_promised_by: Counter[str] = Counter()
        self._broken: dict[tuple[str, str], int] = {}
        """By root and producer: a sequence that failed; later ones are refused until it has been sent again."""
        shares = (config.producers_per_client_max, config.producers_max)
        self._broken_of: Pools[tuple[str, str]] = Pools(*shares)
        self._noting = threads.Lock()
        """Held while either of them changes."""
        self._unsure: Pools[tuple[str, str | None, int]] = Pools(*shares)
        """Root, producer and sequence of what may be stored or not, as the disk failed."""
        self.unswept: Sequence[int] = ()
        """Streams of removed roots of which the state had rows when it was opened."""
        self.owed: Rows = {}
        """Rows that memory reflects and the state could not take."""
        self.half_way: str | None = None
        """Why nothing may be called applied any more."""
        self.made = 0
        """Rises whenever a root is made or removed."""
        self.counts = Counts()
        self.since_us: int | None = None
        """When the group that is being committed began to be, on the monotonic clock; None while none is."""
        self.bulk_since_us: int | None = None
        """The same of a large group, which is committed while others are."""
        self._last_us = -SHARED_US
        """When a group, large ones apart, last began to be."""
        self.took_us = 0
        """How long the last group took to be on disk."""
        self.is_hurried = False
        """Whether whoever commits sees to checkpoints itself."""
        self.version = 0
        """Odd while a checkpoint moves what memory knows into the state; whoever looks at both looks again then."""
        self.showing = Showing(self)
        self.commit = GroupCommit(
            "log",
            self._commit,
            config.group_bytes_max,
            config.group_messages_max,
            self.showing.enter,
            self._prepare_bulk,
            config.bulk_bytes_min,
        )
        self.commit.on_given_up = self._give_up
        self.on_given_up: Callable[[str], None] = lambda _: None
        """Hears that nothing can be stored any more, and why."""

    # Looking

    def all(self) -> list[Root]:
        """Every root."""
        return list(self._roots.values())

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._roots)

    @property
    def delayed(self) -> int:
        """How many delayed messages wait."""
        return self._delayed

    def free_bytes(self) -> int:
        """Room left on the disk."""
        return self._log.free_bytes()

    def look_at(self, read: Callable[[], R]) -> R:
        """Read what is partly in memory and partly in the state, from any thread: not across a checkpoint."""
        for _ in range(LOOKS_MAX):
            version = self.version
            if version % 2 == 0:
                found = read()
                if self.version == version:
                    return found
        return self.commit.run(read)

    def settled(self, read: Callable[[list[Root]], R]) -> R:
        """Look at all roots between two groups, while nothing of a group is half done."""
        return self.commit.run(lambda: read(self.all()))

    # Opening

    def recover(self) -> dict[str, Found]:
        """Bring back every stream, and what is remembered about it."""
        known: dict[int, RootRow] = {}
        for key, value in self._state.scan(rows.STREAM):
            known[int.from_bytes(key[1:5], "big")] = msgspec.msgpack.decode(value, type=RootRow)
        acked = self._acked()

        def checkpoint(number: int) -> Checkpoint:
            return known[number].checkpoint if number in known else Checkpoint()

        def apply(stream: Stream, batch: Batch) -> None:
            root = self._root_of(stream, known)
            root.apply_again(batch)
            self._note_taken(root, batch)

        met = self._log.recover(checkpoint, lambda number: acked.get(number, 0), self.holes, apply, first=DELAYED)
        for stream in self._log.all():
            self._root_of(stream, known).settle()
        self.unswept = [number for number in known if number in self._log.removed]
        self._keep_holes(met)
        self._delayed_by = Counter(owner.decode() for _, owner in self._state.scan(rows.DELAYED))
        self._delayed = self._delayed_by.total()
        if any(found.batches or found.holes for found in met.values()):
            self.checkpoint()
        return met

    def look(self) -> None:
        """See the roots as they are now, beside a process that owns them."""
        known: dict[int, RootRow] = {}
        for key, value in self._state.scan(rows.STREAM):
            known[int.from_bytes(key[1:5], "big")] = msgspec.msgpack.decode(value, type=RootRow)
        self._log.look(self.holes)
        self._roots.clear()
        self.made += 1
        for stream in self._log.all():
            root = self._root_of(stream, known)
            offset = root.checkpoint.applied + 1
            while offset <= stream.durable:
                for found in stream.read(offset, self._config.read_bytes):
                    if isinstance(found, Batch):
                        root.apply_again(found)
                        offset = found.last_offset + 1
                    else:
                        offset = found.last + 1
            root.settle()

    def _root_of(self, stream: Stream, known: dict[int, RootRow]) -> Root:
        root = self._roots.get(stream.root)
        if root is None:
            root = self._roots[stream.root] = Root(stream, self._state, self._config, known.get(stream.number))
            self.made += 1
        return root

    def _acked(self) -> dict[int, int]:
        """The highest offset of each stream that a consumer said something about: it was durable."""
        highest: dict[int, int] = {}
        for key, value in self._state.scan(rows.FLOOR):
            _, stream = rows.pair_in(key)
            highest[stream] = max(highest.get(stream, 0), int.from_bytes(value[:8], "big"))
        for key, _ in self._state.scan(rows.ACKED):
            _, stream = rows.pair_in(key)
            highest[stream] = max(highest.get(stream, 0), rows.offset_in(key))
        return highest

    def holes(self, number: int) -> list[Hole]:
        """Gaps that are known in a stream."""
        return [
            Hole(rows.offset_in(key), *msgspec.msgpack.decode(value, type=tuple[int, str]))
            for key, value in self._state.scan(rows.key_u32(rows.GAP, number))
        ]

    def _keep_holes(self, met: dict[str, Found]) -> None:
        changed: Rows = {}
        for name, found in met.items():
            number = self._roots[name].stream.number
            for hole in found.holes:
                changed[rows.key_offset(rows.GAP, number, hole.first)] = rows.pack((hole.last, hole.reason))
        if changed:
            self._state.commit(changed)

    # A publish, on its way to disk

    def _commit(self, items: list[Publish]) -> None:
        """Commit a group, whatever comes of it."""
        now_us, self._last_us = self._clock.read()
        self.since_us = self._last_us
        try:
            self._commit_group(items, _Group(now_us, self.since_us))
        finally:
            self.since_us = None
            self.showing.leave(items)

    def _commit_group(self, items: list[Publish], group: _Group) -> None:
        """Append a group: one batch per call, loose messages of a root together; then finish every item."""
        try:
            self._admit_all(items, group)
            for root, messages in group.loose.items():
                self._gather(root, messages, group)
            if group.places:
                self._append(group)
        except HeadwaterError as error:
            self._refuse_all(items, group, error)
            return
        finally:
            if group.promised or self._delays_promised:
                self._forget_promises(group)
        self._finish(group)
        if not self.is_hurried and self.is_checkpoint_due:
            self.checkpoint_in_time()

    def _admit_all(self, items: list[Publish], group: _Group) -> None:
        if self._since_disk_check >= DISK_CHECK_BYTES or not self.has_room:
            self._check_room()
        group.admitted = [item for item in items if self._is_admitted(item, group)]
        # What was stored before is so whatever becomes of the others.
        group.repeats = [
            item for item in group.admitted if item.producer is not None and len(item.runs) == len(item.parts)
        ]

    def _forget_promises(self, group: _Group) -> None:
        for root in group.promised:
            root.forget_promises()
        self._delays_promised = 0
        self._delays_promised_by.clear()

    def _finish(self, group: _Group) -> None:
        """A group is on disk: tell who waits."""
        for item in group.admitted:
            if group.finish is not None and item.is_answered_late:
                group.finish(item)
            else:
                item.finish()
        for item in group.partly:
            self._note_refusals(item)
            item.finish(item.outcome())

    def _refuse_all(self, items: list[Publish], group: _Group, error: HeadwaterError) -> None:
        """A group is not on disk: tell who waits."""
        if isinstance(error, Failed):
            self._on_trouble(str(error))
        for item in group.repeats:
            item.finish()
        for item in items:
            if item.is_waiting:
                self._refuse(item, error)
        group.places.clear()  # the error knows of it, and the collector sees nothing of what is placed

    def _prepare_bulk(self, items: list[Publish]) -> _Bulk:
        """Give a large group of one root its places; it is written while others are committed."""
        now_us, begun_us = self._clock.read()
        self.bulk_since_us = begun_us
        bulk = _Bulk(self, items, _Group(now_us, begun_us))
        try:
            self._admit_all(items, bulk.group)
            roots = [*bulk.group.places, *bulk.group.loose]
            if roots:
                bulk.appending = self._log.append_apart(roots[0].stream, now_us, self._is_shared)
        except HeadwaterError as error:
            bulk.refusal = error
        except BaseException:
            bulk.close()
            raise
        return bulk

    def _is_shared(self) -> bool:
        """Whether others use the disk, besides a large group; from any thread."""
        return self._clock.monotonic_us() - self._last_us < SHARED_US

    def _is_admitted(self, item: Publish, group: _Group) -> bool:
        if item.is_plain and self.has_room:
            part = item.parts[0]
            root = self._roots.get(part.root)
            if root is not None and root.stream.failed is None and root.knows(part.topics[0]):
                self._loosely(root, group, item, part)
                return True
        try:
            if isinstance(item, Shown):
                self._admit_shown(item, group)
                return True
            return self._admit(item, group)
        except HeadwaterError as error:
            self._refuse(item, error)
            return False

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether recovery would have enough to look at; not while a large group is written, which looks itself."""
        return self._has_grown() and not self.commit.is_apart

    def _has_grown(self) -> bool:
        config = self._config
        return (
            self._since_bytes >= config.checkpoint_bytes
            or self._since_batches >= config.checkpoint_batches
            or self._since_topics >= config.checkpoint_topics
        )

    def checkpoint_in_time(self) -> None:
        """What recovery would have to look at stays bounded. The messages are safe whether or not this works."""
        try:
            self.checkpoint()
        except Failed as error:
            self._since_bytes = self._since_batches = self._since_topics = 0
            self._on_trouble(str(error))

    def _check_room(self) -> None:
        self.has_room = self._log.free_bytes() >= self._config.disk_free_bytes_min
        self._since_disk_check = 0

    def _admit(self, item: Publish, group: _Group) -> bool:
        """Give a call its places in the group, each root's messages on their own: all of them, or none; whether all
        roots' are admitted."""
        parts = item.parts
        if len(parts) == 1:
            self._admit_parts(item, parts, self._familiar(item, parts), group)
            return True
        roots = self._familiar(item, parts)
        if roots is not None and item.producer is None:
            self._admit_parts(item, parts, roots, group)
            return True
        refusals = []
        for part in parts:
            try:
                self._admit_parts(item, [part], self._familiar(item, (part,)), group)
            except HeadwaterError as error:
                refusals.append((part, error))
        item.refusals = refusals
        if len(refusals) == len(parts):
            raise refusals[0][1]
        if refusals:
            group.partly.append(item)
        return not refusals

    def _admit_parts(self, item: Publish, parts: list[Part], roots: list[Root] | None, group: _Group) -> None:
        """Give parts their places, all of them or none; with their roots, if they can go over no limit."""
        fresh = self._unrepeated(item, parts, group)
        if fresh and not self.has_room and not item.is_urgent:
            raise self._no_room()
        if len(fresh) < len(parts) and roots is not None:
            roots = self._familiar(item, fresh)
        if roots is None:
            self._check_quotas(item, fresh)
            roots = self._promised(item, fresh, group)
        producer = item.producer.encode() if item.producer is not None else None
        for root, part in zip(roots, fresh, strict=True):
            if producer is None and len(part.payloads) == 1 and (part.body is None or item.is_plain):
                self._loosely(root, group, item, part)
                continue
            if part.body is None:
                part.encode(part.time_us if part.time_us >= 0 else group.now_us)
            assert part.body is not None
            self._place(root, group, item, part, part.body, producer)
            if item.producer is not None:
                group.coming.setdefault((part.root, item.producer), {})[item.sequence] = (item, part)

    def _place(self, root: Root, group: _Group, item: Publish, part: Part, body: bytes, producer: bytes | None) -> None:
        """Give what one call brings to a root its place as a batch, after what came before it."""
        if root in group.loose:
            self._gather(root, group.loose.pop(root), group)
        write = Write(body, part.crc, len(part.topics), producer, item.sequence, item.flags, part.columns)
        place = _Placement(write, part.topics, item, part, (), isinstance(item, Shown))
        places = group.places.get(root)
        if places is None:
            group.places[root] = [place]
        else:
            places.append(place)

    def _admit_shown(self, item: Shown, group: _Group) -> None:
        """Give what was shown of a root its places: nothing is shown that may be refused, if the disk does not."""
        if not self.has_room:
            raise self._no_room()
        root = self._open(item.root)
        if root.stream.failed is not None:
            raise _read_only(root)
        for part in item.parts:
            if part.is_plain:
                self._loosely(root, group, item, part, is_shown=True)
            else:
                assert part.body is not None
                self._place(root, group, item, part, part.body, None)

    def _no_room(self) -> DiskFull:
        return DiskFull(
            f"less than {self._config.disk_free_bytes_min} bytes are free (disk_free_bytes_min), so it was not stored: "
            "free some room and publish again"
        )

    def _familiar(self, item: Publish, parts: Sequence[Part]) -> list[Root] | None:
        """The roots of parts that can go over no limit, as all their topics are known; None if some may."""
        if item.is_delayed:
            return None
        known = self._roots
        roots = []
        for part in parts:
            root = known.get(part.root)
            if root is None or root.stream.failed is not None or part.retain is not None:
                return None
            if not root.knows_all(part.names):
                return None
            roots.append(root)
        return roots

    def _promised(self, item: Publish, parts: list[Part], group: _Group) -> list[Root]:
        """The roots of parts that were admitted, made if they are new; others of the group are admitted with these
        parts in mind."""
        roots = [self._open(part.root, item.owner) for part in parts]
        for root, part in zip(roots, parts, strict=True):
            if part.retain is not None or not root.knows_all(part.names):
                group.promised.append(root)
                root.promise(part.names, part.retains(), item.owner)
        return roots

    def _unrepeated(self, item: Publish, parts: list[Part], group: _Group) -> list[Part]:
        """The parts that are to be stored; what an idempotent producer sent before is answered as it was then."""
        if item.producer is None or item.producer.startswith(UNCOUNTED):
            return parts
        self._check_order(item, parts)
        fresh = []
        for part in parts:
            coming = group.coming.get((part.root, item.producer), {})
            if item.sequence in coming:
                _check_same(item, part, len(coming[item.sequence][1].topics))
                group.echoes.append((item, part, *coming[item.sequence]))
                continue
            root = self._roots.get(part.root)
            stored = root.producers.repeated(item.producer, item.sequence) if root is not None else None
            if stored is not None:
                _check_same(item, part, stored.count)
                item.runs.append((part.positions, stored.first_offset, stored.time_us, True))
                continue
            if coming and item.sequence < max(coming):
                raise Conflict(
                    f'sequence {item.sequence} of producer "{item.producer}" comes after {max(coming)}; '
                    "a producer's sequences grow with each publish"
                )
            fresh.append(part)
        return fresh

    def _check_order(self, item: Publish, parts: list[Part]) -> None:
        """A producer whose publish failed sends that one again before any later one."""
        for part in parts:
            broken = self._broken.get((part.root, item.producer or ""))
            if broken is None:
                continue
            if item.sequence > broken:
                raise Conflict(
                    f'sequence {broken} of producer "{item.producer}" failed, so {item.sequence} is refused to keep '
                    f"their order; send {broken} again first"
                )
            if item.sequence == broken:
                with self._noting:
                    self._broken.pop((part.root, item.producer or ""), None)
                    self._broken_of.forget((part.root, item.producer or ""))

    def check_all(self, items: Sequence[Publish]) -> None:
        """Refuse what would be refused of these, if they came together; in the committing role."""
        joined: dict[str, tuple[dict[str, None], dict[str, int]]] = {}
        for item in items:
            for part in item.parts:
                topics, retained = joined.setdefault(part.root, ({}, {}))
                topics.update(dict.fromkeys(part.topics))
                retained.update(part.retains())
        parts = []
        for name, (topics, retained) in joined.items():
            part = Part(name, tuple(topics), (), ())
            part.retain, part.retained = [topic in retained for topic in topics], retained
            parts.append(part)
        self._check_quotas(Publish((), parts, 0, None, 0, is_one=False), parts)

    def foresee(self, part: Part) -> None:
        """QuotaExceeded (429) if a part would go over a limit, as of a moment ago; from any thread. Whoever commits
        decides: what is on its way is not counted here."""
        root = self._roots.get(part.root)
        if root is None:
            self._check_new([part.root])
            self._check_first(part)
        elif part.retain is not None or not root.knows_all(part.names):
            root.foresee(part.names, part.retains())

    def _check_new(self, unknown: list[str], owner: str = "") -> None:
        """Refuse more roots than there may be, or than one client may have made."""
        if unknown and owner:
            made, limit = sum(root.owner == owner for root in self._roots.values()), self._config.roots_per_client_max
            if made + len(unknown) > limit:
                raise QuotaExceeded(
                    f'client "{owner}" has made {made} roots, and roots_per_client_max is {limit}; publish '
                    f'"{unknown[0]}/…" under a root that exists, have some removed, or raise the setting'
                )
        known_count = len(self._roots) - (SYS in self._roots)
        if unknown and known_count + len(unknown) > self._config.roots_max:
            raise QuotaExceeded(
                f'there are {known_count} roots, and roots_max is {self._config.roots_max}; publish "{unknown[0]}/…" '
                "under a root that exists, or raise the setting"
            )

    def _check_first(self, part: Part) -> None:
        """Refuse what is too much for a root that is new."""
        check_topics(part.root, 0, len(set(part.names)), self._config)
        sizes = [size for size in part.retains().values() if size]
        check_retained(0, 0, len(sizes), sum(sizes), self._config)

    def _check_quotas(self, item: Publish, parts: list[Part]) -> None:
        config = self._config
        for part in parts:
            known = self._roots.get(part.root)
            if known is not None and known.stream.failed is not None:
                raise _read_only(known)
        unknown = [part.root for part in parts if part.root not in self._roots and part.root != SYS]
        if unknown:
            self._check_new(unknown, item.owner if not item.is_delayed else "")
        if item.is_delayed:
            self._check_delayed(item.owner)
            if self._delayed + self._delays_promised >= config.delayed_max:
                raise QuotaExceeded(
                    f"{self._delayed} delayed messages wait already, and delayed_max is {config.delayed_max}; "
                    "publish without deliver_at, wait for some to be due, or raise the setting"
                )
            self._delays_promised += 1
            self._delays_promised_by[item.owner] += 1
        for part in parts:
            root = self._roots.get(part.root)
            if root is not None:
                if part.retain is not None or not root.knows_all(part.names):
                    root.admit(part.names, part.retains(), item.owner)
            else:
                self._check_first(part)
                if item.owner:
                    check_share(part.root, item.owner, 0, len(set(part.names)), config)

    def _check_delayed(self, owner: str) -> None:
        waiting, limit = self._delayed_by[owner] + self._delays_promised_by[owner], self._config.delayed_per_client_max
        if owner and waiting >= limit:
            raise QuotaExceeded(
                f'{waiting} delayed messages of client "{owner}" wait already, and delayed_per_client_max is {limit}; '
                "publish without deliver_at, wait for some to be due, or raise the setting"
            )

    def _open(self, name: str, owner: str = "") -> Root:
        root = self._roots.get(name)
        if root is None:
            root = self._root_of(self._log.create(name), {})
            root.note_made(owner if name not in OWN_ROOTS else "", root.stream.first_offset - 1)
        return root

    def _loosely(self, root: Root, group: _Group, item: Publish, part: Part, is_shown: bool = False) -> None:
        loose = group.loose.get(root)
        if loose is not None and (
            loose.flags != item.flags or loose.is_shown is not is_shown or loose.weight > SHOWN_BYTES_MAX
        ):
            self._gather(root, group.loose.pop(root), group)
            loose = None
        if loose is None:
            loose = group.loose[root] = _Loose(item.flags, is_shown)
        loose.parts.append(part)
        if part.retain or part.keys or part.headers or part.expiries:
            loose.has_options = True
        if is_shown:  # nobody waits for it
            loose.weight += len(part.payloads[0]) + MESSAGE_WEIGHT
        else:
            loose.items.append(item)

    def _gather(self, root: Root, loose: _Loose, group: _Group) -> None:
        """Give loose messages their place as one batch; one that is alone and was encoded elsewhere stays as it is."""
        parts, now_us = loose.parts, group.now_us
        topics = [part.topics[0] for part in parts]
        if len(parts) == 1 and (body := parts[0].body) is not None:
            write = Write(body, parts[0].crc, 1, flags=loose.flags, columns=parts[0].columns)
        else:
            times = [part.time_us for part in parts]
            body = encode_body(
                topics,
                [part.payloads[0] for part in parts],
                now_us if max(times) < 0 else [now_us if time_us < 0 else time_us for time_us in times],
                **(_options(parts) if loose.has_options else {}),
            )
            write = Write(body, checksum(body), len(topics), flags=loose.flags)
        group.places.setdefault(root, []).append(_Placement(write, topics, None, None, loose.items, loose.is_shown))

    def _append(self, group: _Group) -> None:
        writes = [(root.stream, [place.write for place in places]) for root, places in group.places.items()]
        try:
            wait = self._log.append(writes, group.now_us)
            wait()
            self.took_us = self._clock.monotonic_us() - group.begun_us
            self.counts.commits.add(self.took_us)
        except DiskFull:
            self.has_room = False
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C in the middle: nobody can say how far it got
                for stream, _ in writes:
                    stream.fail(f"a commit was interrupted ({error!r})")
            raise
        self._apply(group)

    def _apply(self, group: _Group) -> None:
        """The group is durable: let everything reflect it, wholly, or say that nothing is to be trusted."""
        try:
            self._reflect(group)
        except BaseException as error:
            if isinstance(error, MemoryError):
                raise
            # It is on disk, and memory is half way: recovery re-applies it, if nothing calls it applied till then.
            self.half_way = f"what a publish changed could not be noted ({error!r})"
            for root in group.places:
                root.stream.fail(self.half_way)
            if not isinstance(error, Exception):
                raise
            raise Failed(f"{self.half_way}; it may be stored or not: close the bus and open it again") from error

    def _reflect(self, group: _Group) -> None:
        """The group is durable: let everything reflect it, and tell who waits."""
        stored_bytes = 0
        appended: dict[Root, list[Batch]] = {}
        for root, places in group.places.items():
            batches = appended[root] = []
            before_bytes = stored_bytes
            for place in places:
                batch = place.write.batch
                assert batch is not None
                batch.is_shown = place.is_shown
                owner = place.owner.owner if batch.header.producer is not None and place.owner is not None else ""
                self._since_topics += root.apply(batch, place.topics, owner)
                if batch.header.producer is not None or root.name == DELAYED:
                    items = place.loose if place.owner is None else (place.owner,)
                    self._note_taken(root, batch, [item.owner for item in items])
                # Tell each call where its messages stand; nobody asks about those that were shown.
                first, time_us = batch.first_offset, batch.header.time_us
                if place.part is not None and place.owner is not None and not place.is_shown:
                    place.owner.runs.append((place.part.positions, first, time_us, False))
                for offset, item in enumerate(place.loose, first):
                    item.runs.append((ONLY, offset, time_us, False))
                stored_bytes += len(place.write.body)
                batches.append(batch)
            self._since_batches += len(places)
            root.bytes_in += stored_bytes - before_bytes
        group.finish = self._on_durable(appended)
        self._since_bytes += stored_bytes
        self._since_disk_check += stored_bytes
        for item, part, first_item, first_part in group.echoes:
            _, first, time_us, _ = next(run for run in first_item.runs if run[0] is first_part.positions)
            item.runs.append((part.positions, first, time_us, True))

    def _refuse(self, item: Publish, error: HeadwaterError) -> None:
        """Refuse what has not been refused of a call; messages that were stored before keep their receipts."""
        if item.producer is not None:
            error = self._as_unsure(item, error)
        done = [positions for positions, *_ in item.runs] if len(item.parts) > 1 else []
        known = {part.root for part, _ in item.refusals}
        others = [
            (part, error)
            for part in item.parts
            if part.root not in known and not any(part.positions is positions for positions in done)
        ]
        item.refusals = (*item.refusals, *others)
        self._note_refusals(item)
        item.finish(item.outcome() if done else error)

    def _as_unsure(self, item: Publish, error: HeadwaterError) -> HeadwaterError:
        """The error to refuse a producer's call with: one that may be stored since the disk failed under it is not
        refused for sure when it comes again, as the next start may find it."""
        names = [(part.root, item.producer, item.sequence) for part in item.parts]
        if isinstance(error, Failed):
            for name in names:
                self._unsure.use(name, item.owner)
        elif isinstance(error, ReadOnly) and any(name in self._unsure for name in names):
            return Failed(f"{error.args[0]}; it may be stored or not, as the disk failed when it came before")
        return error

    def _note_refusals(self, item: Publish) -> None:
        if item.producer is None or item.producer.startswith(UNCOUNTED) or item.flags & ONCE:
            return
        for part, error in item.refusals:
            if error.code != 409:
                self.note_refusal(part.root, item.producer, item.sequence, item.owner)

    def note_refusal(self, root: str, producer: str, sequence: int, owner: str = "") -> None:
        """A producer's publish was refused: what it sent after that is refused too, to keep their order. From any
        thread."""
        if len(root) > self._config.root_bytes_max or len(producer) > 2 * self._config.producer_bytes_max:
            return  # nothing of it can ever be stored
        key = (root, producer)
        with self._noting:
            for other in self._broken_of.use(key, owner):
                self._broken.pop(other, None)
            self._broken[key] = min(sequence, self._broken.get(key, sequence))

    def _note_taken(self, root: Root, batch: Batch, owners: Sequence[str] = ()) -> None:
        """A delayed message has begun to wait, or has reached its topic and waits no more; a will is published."""
        producer = batch.header.producer
        if root.name == DELAYED:
            messages = batch.body.messages(batch.first_offset)
            known = owners if len(owners) == len(messages) else [""] * len(messages)
            self._note({due_key(message): owner.encode() for message, owner in zip(messages, known, strict=True)})
            self._delayed += len(messages)
            self._delayed_by.update(known)
        elif producer is not None and producer.startswith(DELAYED):
            due_us = int(producer.removeprefix(DELAYED + "/"))
            key = rows.key_due(due_us, batch.header.sequence)
            owner = (self._state.get(key) or b"").decode()
            self._note({key: None})
            self._delayed -= 1
            self._delayed_by[owner] -= 1
            if self._delayed_by[owner] <= 0:
                del self._delayed_by[owner]
        elif producer is not None and producer.startswith(WILLS):
            self._state.write({rows.WILL + producer.removeprefix(WILLS + "/").encode(): None})

    def _note(self, changed: Rows) -> None:
        """Write rows at once; if the state fails, with the next checkpoint. Recovery knows them without that, too."""
        try:
            self._state.write(changed)
        except (Failed, Unwritable):
            self.owed.update(changed)

    # Removing

    def remove(self, root: Root) -> None:
        """A root is no more, nor is anything of it; in the committing role. What is left of it in the state and on disk
        is garbage, which `sweep` deletes; if that is interrupted, the next opening does."""
        root.is_dirty = True  # its row, which is deleted last, says what is left to do
        self.checkpoint()
        if self.half_way is not None:
            raise Failed(f"no root can be removed: {self.half_way}; close the bus and open it again")
        self._log.remove(root.stream)
        del self._roots[root.name]
        self.made += 1
        for key in [key for key in self._broken if key[0] == root.name]:
            self._broken.pop(key, None)
        self.showing.drop(root.name)

    def sweep(self, numbers: Sequence[int], rows_of: Callable[[int], Iterator[bytes]]) -> None:
        """Delete what streams of removed roots have left, a part at a time, so that nobody waits for all of it; in no
        role. `rows_of` gives the keys of what subscriptions have of a stream."""
        for number in numbers:
            kinds = (rows.TOPIC, rows.RETAINED, rows.PRODUCER, rows.PURGE, rows.GAP)
            found = (key for kind in kinds for key, _ in self._state.scan(rows.key_u32(kind, number)))
            keys = chain(rows_of(number), found)
            while part := list(islice(keys, SWEPT_ROWS)):
                self._state.write(dict.fromkeys(part))
            self._state.commit({rows.key_u32(rows.STREAM, number): None})
        while bool(numbers) and self.commit.run(self._log.sweep):
            pass

    # Checkpoints: in the committing role.

    def checkpoint(self) -> None:
        """Let the state reflect every stream, all in one atomic write."""
        if self.half_way is not None:
            return
        self._pay()
        changed: Rows = {}
        marks: list[tuple[Root, Checkpoint]] = []
        for root in self._roots.values():
            if root.is_dirty:
                mark = self._log.checkpoint(root.stream)
                changed.update(root.rows(mark))
                marks.append((root, mark))
        self.version += 1
        try:
            if changed:
                self._state.commit(changed)
            for root, mark in marks:
                root.checkpointed(mark)
        except MemoryError:
            raise
        except Exception as error:
            # The streams have everything, and memory knows what to write: so nothing is lost till the next one.
            if any(self._state.get(key) == row for key, row in changed.items() if key[:1] == rows.STREAM):
                self.owed.update(changed)  # it is seen as if it were there, until the state is opened again
                for root, mark in marks:
                    root.checkpointed(mark)
            raise self._no_checkpoint(error) from error
        finally:
            self.version += 1
        self._since_bytes = self._since_batches = self._since_topics = 0

    def _give_up(self, reason: str) -> None:
        """Nothing is stored any more, and memory may be half way: nothing may be called applied till the next open."""
        self.half_way = reason
        self.on_given_up(reason)
        self._on_trouble(reason)

    def _pay(self) -> None:
        """Write what the state could not take before, since what comes next builds on it."""
        if self.owed:
            try:
                self._state.commit(self.owed)
            except Exception as error:
                raise self._no_checkpoint(error) from error
            self.owed = {}

    def _no_checkpoint(self, error: Exception) -> Failed:
        return Failed(f"no checkpoint could be made, the state store failed ({error}); messages are safe")

    def checkpoint_all(self) -> None:
        """As `checkpoint`, also for roots whose files alone have changed."""
        for root in self._roots.values():
            root.is_dirty = True
        self.checkpoint()

    def close(self) -> None:
        """Commit what is pending, checkpoint, and let go."""
        self.commit.close()
        if any(root.stream.failed for root in self._roots.values()):
            return
        try:
            self.checkpoint()
        except Failed as error:
            if self._state.failed is None:
                raise
            self._on_trouble(f"{error}; the next opening notes what they changed")


class _Bulk:
    """A large group of one root: prepared and ended by the thread that commits, and written while others are."""

    def __init__(self, roots: Roots, items: list[Publish], group: _Group) -> None:
        self._roots = roots
        self._items = items
        self.group = group
        self.appending: Appending | None = None
        self.refusal: HeadwaterError | None = None
        """Why nothing of it is written."""

    def write(self) -> None:
        """Encode what was not yet, and bring it to disk."""
        group = self.group
        if self.appending is None or self.refusal is not None:
            return
        for root, messages in group.loose.items():
            self._roots._gather(root, messages, group)
        (places,) = group.places.values()
        self.appending.write([place.write for place in places])

    def end(self, error: BaseException | None, behind: Sequence[Publish]) -> bool:
        """Let everything reflect it, or refuse it and what came behind it, and tell who waits."""
        roots, group = self._roots, self.group
        try:
            if self.appending is not None:
                self._land(self.appending, error)
            error = error or self.refusal
            if error is None:
                if group.places:
                    roots._apply(group)
                roots._finish(group)
        except HeadwaterError as failure:
            error = failure
        finally:
            if isinstance(error, HeadwaterError):
                roots._refuse_all([*self._items, *behind], group, error)
                roots.showing.leave(behind)
            self.close()
        if error is None and roots._has_grown():
            roots.checkpoint_in_time()
        return isinstance(error, HeadwaterError)

    def _land(self, appending: Appending, error: BaseException | None) -> None:
        roots, group = self._roots, self.group
        if error is None:
            appending.show()
            roots.counts.commits.add(roots._clock.monotonic_us() - group.begun_us)
            return
        appending.drop()
        if isinstance(error, DiskFull):
            roots.has_room = False
        elif not isinstance(error, Exception):  # Ctrl-C in the middle: nobody can say how far it got
            for root in (*group.places, *group.loose):
                root.stream.fail(f"a commit was interrupted ({error!r})")

    def close(self) -> None:
        """Whatever became of it, it is over."""
        self._roots._forget_promises(self.group)
        self._roots.bulk_since_us = None
        self._roots.showing.leave(self._items)


def _options(parts: Sequence[Part]) -> dict[str, list[Any]]:
    """The optional columns of messages that go as one batch, as far as any of them has something in one."""
    columns: dict[str, list[Any]] = {}
    for name, missing in (("retain", False), ("keys", None), ("headers", ()), ("expiries", 0)):
        values = [getattr(part, name) for part in parts]
        if any(values):
            columns[name] = [missing if value is None else value[0] for value in values]
    return columns


def _read_only(root: Root) -> ReadOnly:
    return ReadOnly(f'stream "{root.name}" takes no messages: {root.stream.failed}; close the bus and open it again')


def _check_same(item: Publish, part: Part, count: int) -> None:
    if count != len(part.topics):
        raise Conflict(
            f'sequence {item.sequence} of producer "{item.producer}" was {count} messages to "{part.root}" the first '
            f"time and is {len(part.topics)} now; give what is new a new sequence"
        )
