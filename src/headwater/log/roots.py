"""All roots of a bus, put together: looked at, recovered, made, removed and closed.

The way of a publish to disk goes through the parts that are made here: `commit` gathers what arrives into groups, and
the `committer` stores one after another, in one thread at a time, which thereby owns every root: `admission` lets
publishes in, the `group` gives them their places, `checkpoints` bring the state up to what the streams have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

import msgspec

from headwater.clock import Clock
from headwater.config import Config
from headwater.counts import Counts
from headwater.errors import Failed
from headwater.log.admission import Admission
from headwater.log.checkpoints import Checkpoints
from headwater.log.committer import Committer
from headwater.log.due_rows import DueRows
from headwater.log.free_room import FreeRoom
from headwater.log.group_commit import GroupCommit
from headwater.log.new_roots import NewRoots
from headwater.log.refusals import Refusals
from headwater.log.root import DELAYED, LETTERS, SYS, Root, RootRow
from headwater.log.root_limits import RootLimits
from headwater.log.showing import Showing
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.log import Checkpoint, Found, Hole, Log, Stream
from headwater.store.state import Rows, State
from headwater.topics.name import filter_covers_root, root_of_filter

STAGED = "$staged"
"""Root in which staged bodies wait; also how the batches say so that a commit of them makes."""
OWN_ROOTS = (DELAYED, STAGED, SYS, LETTERS)
"""Roots that are the broker's own."""
SWEPT_ROWS = 1000
"""Rows of a removed root that are deleted at once."""
LOOKS_MAX = 10
"""Tries to look between two checkpoints before waiting for a turn."""

R = TypeVar("R")


class Roots:
    """Every root of a bus, and the parts that store what comes to them."""

    def __init__(
        self,
        log: Log,
        state: State,
        config: Config,
        clock: Clock,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._log = log
        self._state = state
        self._config = config
        self._on_trouble = on_trouble
        self._roots: dict[str, Root] = {}
        self._seen: dict[Root, int] = {}
        """Beside the owner: up to which offset each reflects its stream."""
        self.get = self._roots.get
        """A root, if there is one of that name."""
        self.unswept: Sequence[int] = ()
        """Streams of removed roots of which the state had rows when it was opened."""
        self.is_near = log.is_near
        """Whether a small commit takes no longer than this machine's disk."""
        self.made = 0
        """Rises whenever a root is made or removed."""
        self.counts = Counts()
        self.room = FreeRoom(log, config)
        self.checkpoints = Checkpoints(self._roots, log, state, config, on_trouble)
        self.due_rows = DueRows(state, config, self.checkpoints)
        self.refusals = Refusals(config)
        self.limits = RootLimits(self._roots, config)
        self.showing = Showing(self)
        self.new_roots = NewRoots(
            self._roots, self._open, log, self.room, self.limits, clock, self.checkpoints, self.showing
        )
        self.committer = Committer(
            log,
            clock,
            self.counts,
            Admission(self._roots, self.new_roots, self.room, self.limits, self.due_rows, self.refusals),
            self.room,
            self.due_rows,
            self.refusals,
            self.checkpoints,
            self.showing,
            on_trouble,
        )
        self.commit = GroupCommit(
            "log",
            self.committer.commit,
            config.group_bytes_max,
            config.group_messages_max,
            self.committer.prepare_bulk,
            config.bulk_bytes_min,
            self.new_roots.prepare,
        )
        self.commit.on_given_up = self._give_up
        commit = self.commit
        self.new_roots.is_at_once = lambda: commit.is_large_apart
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

    def covered(self, filter: str) -> list[Root]:
        """Those that may have messages that a filter matches."""
        name = root_of_filter(filter)
        if name is not None:
            root = self._roots.get(name)
            return [] if root is None else [root]
        return [root for root in self._roots.values() if filter_covers_root(filter, root.name)]

    def free_bytes(self) -> int:
        """Room left on the disk."""
        return self._log.free_bytes()

    def look_at(self, read: Callable[[], R]) -> R:
        """Read what is partly in memory and partly in the state, from any thread: not across a checkpoint."""
        for _ in range(LOOKS_MAX):
            version = self.checkpoints.version
            if version % 2 == 0:
                found = read()
                if self.checkpoints.version == version:
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
            self.due_rows.apply(root.name, batch)

        met = self._log.recover(checkpoint, lambda number: acked.get(number, 0), self.holes, apply, first=DELAYED)
        for stream in self._log.all():
            if stream.durable:  # else its first message is yet to come
                self._root_of(stream, known).settle()
        self.unswept = [number for number in known if number in self._log.removed]
        self._keep_holes(met)
        self.due_rows.recover()
        if any(found.batches or found.holes for found in met.values()):
            self.checkpoints.make()
        return met

    def look(self) -> None:
        """See the roots as they are now, beside a process that owns them."""
        known: dict[int, RootRow] = {}
        for key, value in self._state.scan(rows.STREAM):
            known[int.from_bytes(key[1:5], "big")] = msgspec.msgpack.decode(value, type=RootRow)
        self._log.look(self.holes)
        self._roots.clear()
        self._seen.clear()
        self.made += 1
        for stream in self._log.all():
            if not stream.durable:
                continue
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
            self._seen[root] = offset - 1

    def look_on(self, *, anew: bool = False) -> dict[Root, list[Batch]]:
        """See what was written since the last look, beside a process that owns them; answers that. It has to be `anew`
        once the owner has written rows about its roots, which count what was counted here, too."""
        shown = {name: self._seen[root] for name, root in self._roots.items() if root in self._seen}
        if anew:
            self.look()
        else:
            self._log.look(self.holes)
        streams = {stream.root: stream for stream in self._log.all()}
        for name in [name for name, root in self._roots.items() if streams.get(name) is not root.stream]:
            self._seen.pop(self._roots.pop(name), None)  # it was removed meanwhile
        appended: dict[Root, list[Batch]] = {}
        for stream in streams.values():
            if stream.durable:
                self._look_on(self._root_of(stream, {}), shown, appended)
        return appended

    def _look_on(self, root: Root, shown: Mapping[str, int], appended: dict[Root, list[Batch]]) -> None:
        stream = root.stream
        applied = self._seen.get(root, stream.first_offset - 1)
        offset = min(applied, shown.get(root.name, stream.first_offset - 1)) + 1
        while offset <= stream.durable:
            for found in stream.read(offset, self._config.read_bytes):
                offset = (found.last_offset if isinstance(found, Batch) else found.last) + 1
                if isinstance(found, Batch):
                    appended.setdefault(root, []).append(found)
                    if found.first_offset > applied:
                        root.apply(found, found.body.topics)
        self._seen[root] = max(applied, offset - 1)

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
            for hole in found.holes:
                number = self._roots[name].stream.number
                changed[rows.key_offset(rows.GAP, number, hole.first)] = rows.pack((hole.last, hole.reason))
        if changed:
            self._state.commit(changed)

    def _open(self, name: str, owner: str = "") -> Root:
        root = self._roots.get(name)
        if root is None:
            root = self._root_of(self._log.create(name), {})
            root.note_made(owner if name not in OWN_ROOTS else "", root.stream.first_offset - 1)
        return root

    # Removing

    def remove(self, root: Root) -> None:
        """A root is no more, nor is anything of it; in the committing role. What is left of it in the state and on disk
        is garbage, which `sweep` deletes; if that is interrupted, the next opening does."""
        root.is_dirty = True  # its row, which is deleted last, says what is left to do
        self.checkpoints.make()
        half_way = self.checkpoints.half_way
        if half_way is not None:
            raise Failed(f"no root can be removed: {half_way}; close the bus and open it again")
        self._log.remove(root.stream)
        del self._roots[root.name]
        self.made += 1
        self.refusals.drop_root(root.name)
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

    def close(self) -> None:
        """Commit what is pending, checkpoint, and let go."""
        self.commit.close()
        if any(root.stream.failed for root in self._roots.values()):
            return
        try:
            self.checkpoints.make()
        except Failed as error:
            if self._state.failed is None:
                raise
            self._on_trouble(f"{error}; the next opening notes what they changed")

    def _give_up(self, reason: str) -> None:
        """Nothing is stored any more, and memory may be half way: nothing may be called applied till the next open."""
        self.checkpoints.half_way = reason
        self.on_given_up(reason)
        self._on_trouble(reason)
