"""The committer: a group of publishes is appended, reflected in memory, and answered.

Promises: a group is on disk before anything in memory reflects it, and memory reflects it before anybody is answered;
if it cannot be stored, each of its calls is refused once; if memory got only half way, nothing is called applied until
the next start, which finds the group on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headwater.clock import Clock
from headwater.counts import Counts
from headwater.errors import DiskFull, Failed, HeadwaterError
from headwater.log.admission import Admission
from headwater.log.checkpoints import Checkpoints
from headwater.log.disk_share import DiskShare
from headwater.log.due_rows import DueRows
from headwater.log.free_room import FreeRoom
from headwater.log.group import CommitGroup
from headwater.log.publish import ONLY, Publish
from headwater.log.refusals import Refusals
from headwater.log.root import DELAYED, Root
from headwater.log.showing import Showing
from headwater.store.batch import Batch
from headwater.store.log import Appending, Log


class Hearers(Protocol):
    """Whoever is told of what is on disk."""

    is_any: bool
    """Whether there is anybody to tell; else nobody need be asked."""

    def on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> Callable[[Publish], None] | None:
        """Messages are on disk. What it answers, if anything, finishes clients' publishes of that in its own time: so
        that none publishes faster than is delivered."""


class Committer:
    """What is done with a group; by one thread at a time, which thereby owns every root."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        counts: Counts,
        admission: Admission,
        room: FreeRoom,
        due_rows: DueRows,
        refusals: Refusals,
        checkpoints: Checkpoints,
        showing: Showing,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._counts = counts
        self._room = room
        self._showing = showing
        self._admission = admission
        self._due_rows = due_rows
        self._refusals = refusals
        self._checkpoints = checkpoints
        self.hearers: Hearers | None = None
        self._on_trouble = on_trouble
        self.since_us: int | None = None
        """When the group that is being committed began to be, on the monotonic clock; None while none is."""
        self.bulk_since_us: int | None = None
        """The same of a large group, which is committed while others are."""
        self._share = DiskShare(clock)
        self.took_us = 0
        """How long the last group took to be on disk."""

    def commit(self, items: list[Publish]) -> Sequence[Publish]:
        """Commit a group, whatever comes of it: one batch per call and root, single messages of a root together.
        Answers those that are to come again once roots of them are made."""
        now_us, begun_us = self._clock.read()
        self.since_us = begun_us
        group = CommitGroup(now_us, begun_us)
        checkpoints, done = self._checkpoints, items
        try:
            try:
                self._admission.admit(items, group)
                for root, singles in group.singles.items():
                    group.gather(root, singles)
                if group.places:
                    self._append(group)
                    self._reflect(group)
            except HeadwaterError as error:
                done = group.others(items)
                self._refuse_all(done, group, error)
                return group.waits
            finally:
                if group.promised or self._due_rows.promised:
                    self._admission.forget_promises(group)
            self._finish(group)
            # While a large group is written none is made: its end looks, too.
            if checkpoints.is_due and not checkpoints.is_held and self.bulk_since_us is None:
                checkpoints.make_in_time()
            if group.waits:
                done = group.others(items)
            return group.waits
        finally:
            self.since_us = None
            if self._showing.is_watching:
                self._showing.leave(done)

    def _append(self, group: CommitGroup) -> None:
        share, roots = self._share, [root.name for root in group.places]
        if roots == share.roots:
            share.begun_us = group.begun_us
        else:
            share.note(roots, group.begun_us)
        writes = [(root.stream, [place.write for place in places]) for root, places in group.places.items()]
        try:
            self._log.append(writes, group.now_us)
        except BaseException as error:
            self._note_failure(group, error)
            raise
        self.took_us = self._clock.monotonic_us() - group.begun_us
        self._counts.commits.add(self.took_us)

    def prepare_bulk(self, items: list[Publish]) -> Bulk:
        """Give a large group of one root its places, unless it waits for that root; it is written while others are
        committed."""
        now_us, begun_us = self._clock.read()
        self.bulk_since_us = begun_us
        group = CommitGroup(now_us, begun_us)
        bulk = Bulk(self, items, group)
        try:
            self._admission.admit(items, group)
            bulk.items = group.others(items)
            if group.waits:  # it has one root, which is to be made
                self._close_bulk(bulk)
                return bulk
            roots = [*group.places, *group.singles]
            if roots:
                bulk.appending = self._log.append_apart(roots[0].stream, now_us, self._share)
        except HeadwaterError as error:
            bulk.refusal = error
        except BaseException:
            self._close_bulk(bulk)
            raise
        return bulk

    def end_bulk(self, bulk: Bulk, error: BaseException | None, behind: Sequence[Publish]) -> bool:
        """Let everything reflect a large group, or refuse it and what came behind it, and tell who waits; whether it is
        the latter."""
        group, appending = bulk.group, bulk.appending
        try:
            if appending is not None and error is not None:
                appending.drop()
                self._note_failure(group, error)
            elif appending is not None:
                appending.show()
                self._counts.commits.add(self._clock.monotonic_us() - group.begun_us)
            error = error or bulk.refusal
            if error is None:
                if group.places:
                    self._reflect(group)
                self._finish(group)
        except HeadwaterError as failure:
            error = failure
        finally:
            if isinstance(error, HeadwaterError):
                self._refuse_all([*bulk.items, *behind], group, error)
                self._showing.leave(behind)
            self._close_bulk(bulk)
        if error is None and self._checkpoints.is_due:
            self._checkpoints.make_in_time()
        return isinstance(error, HeadwaterError)

    def _close_bulk(self, bulk: Bulk) -> None:
        """Whatever became of it, it is over."""
        self._admission.forget_promises(bulk.group)
        self.bulk_since_us = None
        self._showing.leave(bulk.items)

    def _note_failure(self, group: CommitGroup, error: BaseException) -> None:
        """A group could not be written."""
        if isinstance(error, DiskFull):
            self._room.is_left = False
        elif not isinstance(error, Exception):  # Ctrl-C in the middle: nobody can say how far it got
            for root in (*group.places, *group.singles):
                root.stream.fail(f"a commit was interrupted ({error!r})")

    def _reflect(self, group: CommitGroup) -> None:
        """The group is durable: let everything reflect it, wholly, and say where its messages stand; or say that
        nothing is to be trusted."""
        stored_bytes = batch_count = topic_count = 0
        appended: dict[Root, list[Batch]] = {}
        try:
            for root, places in group.places.items():
                batches = appended[root] = []
                before_bytes = stored_bytes
                for place in places:
                    batch = place.write.batch
                    assert batch is not None
                    batch.is_shown = place.is_shown
                    producer = batch.header.producer
                    owner = place.owner.owner if producer is not None and place.owner is not None else ""
                    topic_count += root.apply(batch, place.topics, owner)
                    if producer is not None or root.name == DELAYED:
                        items = place.singles if place.owner is None else (place.owner,)
                        self._due_rows.apply(root.name, batch, [item.owner for item in items])
                    # Tell each call where its messages stand; nobody asks about those that were shown.
                    first, time_us = batch.first_offset, batch.header.time_us
                    if place.part is not None and place.owner is not None and not place.is_shown:
                        place.owner.runs.append((place.part.positions, first, time_us, False))
                    for offset, item in enumerate(place.singles, first):
                        item.runs.append((ONLY, offset, time_us, False))
                    stored_bytes += len(place.write.body)
                    batches.append(batch)
                batch_count += len(places)
                root.bytes_in += stored_bytes - before_bytes
            if self.hearers is not None and self.hearers.is_any:
                group.finish = self.hearers.on_durable(appended)
            self._checkpoints.grow(stored_bytes, batch_count, topic_count)
            self._room.since_bytes += stored_bytes
            for item, part, first_item, first_part in group.echoes:
                _, first, time_us, _ = next(run for run in first_item.runs if run[0] is first_part.positions)
                item.runs.append((part.positions, first, time_us, True))
        except MemoryError:
            raise
        except BaseException as error:
            # It is on disk, and memory is half way: recovery re-applies it, if nothing calls it applied till then.
            half_way = self._checkpoints.half_way = f"what a publish changed could not be noted ({error!r})"
            for root in group.places:
                root.stream.fail(half_way)
            if not isinstance(error, Exception):
                raise
            raise Failed(f"{half_way}; it may be stored or not: close the bus and open it again") from error

    def _finish(self, group: CommitGroup) -> None:
        """A group is on disk: tell who waits."""
        for item in group.admitted:
            if group.finish is not None and item.is_answered_late:
                group.finish(item)
            else:
                item.finish()
        for item in group.partly:
            self._refusals.note_all(item)
            item.finish(item.outcome())

    def _refuse_all(self, items: Sequence[Publish], group: CommitGroup, error: HeadwaterError) -> None:
        """A group is not on disk: tell who waits."""
        if isinstance(error, Failed):
            self._on_trouble(str(error))
        for item in group.repeats:
            item.finish()
        for item in items:
            if item.is_waiting:
                self._refusals.refuse(item, error)
        group.places.clear()  # the error knows of it, and the collector sees nothing of what is placed


class Bulk:
    """A large group of one root: prepared and ended by the thread that commits, and written while others are."""

    def __init__(self, committer: Committer, items: list[Publish], group: CommitGroup) -> None:
        self._committer = committer
        self.items = items
        self.group = group
        self.appending: Appending | None = None
        self.refusal: HeadwaterError | None = None
        """Why nothing of it is written."""

    @property
    def waits(self) -> Sequence[Publish]:
        """What is to come again once its root is made; then nothing of it is written."""
        return self.group.waits

    def write(self) -> None:
        """Encode what was not yet, and bring it to disk."""
        group = self.group
        if self.appending is None or self.refusal is not None:
            return
        for root, singles in group.singles.items():
            group.gather(root, singles)
        (places,) = group.places.values()
        self.appending.write([place.write for place in places])

    def end(self, error: BaseException | None, behind: Sequence[Publish]) -> bool:
        """Let everything reflect it, or refuse it and what came behind it, and tell who waits."""
        return self._committer.end_bulk(self, error, behind)
