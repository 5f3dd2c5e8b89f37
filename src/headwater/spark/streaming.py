"""The streaming reader: micro-batches that follow the log.

An offset of the stream is a plain dict: for each root the next offset to read. What is not in it (a root that has
appeared since) is read from its oldest message on. The planner keeps one reader for the life of a query; tasks get
spans, as those of a batch read do.

With option `subscription` the broker knows where the query is. What Spark 4.3 calls, always in the planner:

| call                       | when                                                 | what it says                    |
|----------------------------|------------------------------------------------------|---------------------------------|
| initialOffset              | twice for micro-batch 0, once more if it is repeated | nothing                         |
| latestOffset(start, limit) | before each micro-batch, at each idle trigger, and   | all before `start` is noted as  |
|                            | after the last micro-batch of AvailableNow           | done in the checkpoint          |
| partitions(start, end)     | each micro-batch; one that a crash cut short is      | the same                        |
|                            | repeated, without latestOffset                       |                                 |
| commit(end)                | when the next micro-batch is planned                 | the same, later                 |
| stop                       | at the end, unless it is that of AvailableNow        | nothing                         |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.arrow.conditions import Conditions
from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.errors import Conflict
from headwater.spark import limits, plan
from headwater.spark.options import EARLIEST, ReadOptions
from headwater.spark.progress import Progress
from headwater.spark.reading import SpansPartition, open_log, partitions_of, read_spans, with_lake
from headwater.spark.served import Served
from headwater.spark.spans import Extent, Log
from headwater.store import folder as folders
from headwater.store.files import DiskFiles

Offsets = dict[str, int]

LOOK_S = 1.0
"""A folder in which nothing is published is opened so often to look what was deleted."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log."""

    def __init__(self, options: ReadOptions, schema: StructType, clock: Clock | None = None) -> None:
        self.options = options
        self.schema = schema
        self._served: Served | None = None
        self._log: Log | None = None
        """What is served, and with a lake the history before it."""
        self._target: Offsets | None = None
        """With Trigger.AvailableNow: where to stop."""
        self._begin: Offsets | None = None
        """Of a new query: where it begins, as it was first told."""
        self._is_planned = self._is_begun = False
        """Whether this reader was asked where a micro-batch ends; and what one reads."""
        self._clock = clock or SystemClock()
        self._seen: tuple[bytes | None, int, dict[str, Extent]] | None = None
        """What was there when it was last looked: the watermarks, the time, and the extents."""
        self._progress = Progress(options, self._connected) if options.subscription is not None else None
        self._waiting = limits.Waiting()
        self._ended_us: int | None = None
        """When it was last said where a micro-batch ends: with a least size, the next one waits from then on."""

    @contextmanager
    def _looking(self) -> Iterator[Log]:
        """The log as it is now.

        A folder is opened for each look that finds something new, as Spark may kill the planner at any time and a
        secondary of the state leaves files behind then; a connection is kept.
        """
        if self.options.data is not None:
            with closing(open_log(self.options)) as log:
                yield log
            return
        if self._log is None:
            self._log = with_lake(self._connected(), self.options)
        else:
            self._log.refresh()
        yield self._log

    def _connected(self) -> Served:
        if self._served is None:
            self._served = Served(self.options.url or "", self.options.topics)
        return self._served

    # What Spark asks, in its planner

    def initialOffset(self) -> Offsets:
        """Where a new query begins; Spark asks twice, and the end of the log may have moved in between."""
        if self._begin is None:
            with self._looking() as log:
                self._begin = self._starting(log)
        return self._begin

    def _starting(self, log: Log) -> Offsets:
        extents = log.extents(self.options.topics)
        plan.check_named(self.options, extents)
        return {extent.root: plan.starting(log, self.options, extent) for extent in extents}

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most so many messages a micro-batch."""
        most = self.options.messages_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything up to now, and nothing that comes later."""
        self._target = self._ends()

    def _ends(self) -> Offsets:
        return {root: extent.end for root, extent in self._extents_of_late().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next micro-batch ends."""
        self._is_planned = True
        extents = self._extents_of_late()
        self._tell(start, extents)
        if self._is_to_wait(start, extents):
            return start
        if start == self._begin and not self._is_begun and _backlog(start, extents):
            # What retention deleted before it knew of this query is no loss.
            extents = self._extents()
            start = self._begin = {
                root: max(place, extents[root].first) if self._is_from_oldest(root) and root in extents else place
                for root, place in start.items()
            }
        ends = {root: extent.end for root, extent in extents.items()}
        if self._target is not None:
            ends = {root: min(end, self._target[root]) for root, end in ends.items() if root in self._target}
        begin = {root: start.get(root, extents[root].first) for root in ends}
        backlog = {root: max(0, end - begin[root]) for root, end in ends.items()}
        if isinstance(limit, ReadMaxRows) and sum(backlog.values()) > limit.max_rows:
            ends = limits.ends_of(self._looking, self.options.topics, begin, backlog, limit.max_rows)
        # Roots that have nothing new stay as they are, so that a batch without news equals its start.
        return {**start, **{root: end for root, end in ends.items() if end > begin[root]}}

    def _is_to_wait(self, start: Offsets, extents: dict[str, Extent]) -> bool:
        """Whether the next micro-batch is to be larger, and has time to become so. The first one of a run does not
        wait, and neither does what is to end."""
        least = self.options.messages_per_trigger_min
        if least is None or self._target is not None:
            return False
        backlog, now_us = _backlog(start, extents), self._clock.monotonic_us()
        delay_us = self.options.trigger_delay_s * SECOND_US
        if self._ended_us is not None and now_us - self._ended_us < delay_us:
            topics = self.options.topics
            if backlog < least or not self._waiting.are(least, self._looking, topics, start, extents):
                return True
        if backlog:
            self._ended_us = now_us
        return False

    def reportLatestOffset(self) -> Offsets | None:
        """How far the log goes, for the query's progress to show its lag."""
        return self._ends() or None

    def metrics(self, end: Offsets) -> dict[str, str]:
        """How far a query is behind that has read up to there, for its progress; with the names of Kafka's source, too.
        PySpark does not ask a source in Python, but the reader in Spark's own process says it."""
        behind = [
            max(0, extent.end - end.get(root, extent.first)) for root, extent in self._extents_of_late().items()
        ] or [0]
        told = {
            "messagesBehind": sum(behind),
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
        }
        return {name: str(value) for name, value in told.items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What a micro-batch reads."""
        if start == self._begin and not self._is_planned:
            start = self._begun(start, end)
        self._is_begun = True
        with self._looking() as log:
            extents = {extent.root: extent for extent in log.extents(self.options.topics)}
            self._tell(start, extents)
            ranges = {
                root: (start.get(root, _oldest(extents.get(root), upto)), upto)
                for root, upto in end.items()
                if start.get(root) != upto
            }
            return partitions_of(log, ranges, self.options, self.schema)

    def commit(self, end: Offsets) -> None:
        """Spark keeps its own place, in the checkpoint; a subscription shows it on the broker."""
        if self._progress is not None:
            self._progress.tell(end)

    def _extents(self) -> dict[str, Extent]:
        mark = self._watermarks()  # before the look, so that what comes meanwhile is looked at again
        with self._looking() as log:
            extents = {extent.root: extent for extent in log.extents(self.options.topics)}
        self._seen = (mark, self._clock.monotonic_us(), extents)
        return extents

    def _extents_of_late(self) -> dict[str, Extent]:
        """The same, without opening a folder in which nothing was published since the last look, for a moment: Spark
        asks a hundred times a second."""
        if self._seen is not None:
            mark, seen_us, extents = self._seen
            is_fresh = self._clock.monotonic_us() - seen_us < LOOK_S * SECOND_US
            if mark is not None and is_fresh and mark == self._watermarks():
                return extents
        return self._extents()

    def _watermarks(self) -> bytes | None:
        """How far every stream of a folder is; None of a server."""
        if self.options.data is None:
            return None
        try:
            return DiskFiles().read(f"{self.options.data}/{folders.WATERMARKS}")
        except FileNotFoundError:
            return None

    def _tell(self, start: Offsets, extents: dict[str, Extent]) -> None:
        """Everything before it is done, if it is of this bus. Roots that the query read once, and whose topics it was
        started without since, keep their place in the checkpoint, and nobody asks what became of them."""
        start = {root: place for root, place in start.items() if self.options.topics.covers_root(root)}
        for root, place in start.items():
            plan.check_end(extents.get(root, Extent(root, 1, 1)), place, self.options.fail_on_data_loss)
        if self._progress is not None:
            self._progress.tell(start)

    def _is_from_oldest(self, root: str) -> bool:
        start = self.options.start
        return start.time_us is None and (start.roots or {}).get(root, start.word) == EARLIEST

    def _begun(self, start: Offsets, end: Offsets) -> Offsets:
        """Where a first micro-batch began that is repeated: Spark's checkpoint has its end, and asks anew for its
        beginning."""
        start = {root: place for root, place in start.items() if root in end}  # others have appeared since
        known = None if self._progress is None else self._progress.known()
        if known is not None:
            # A place may have risen beyond the end, over messages that do not match.
            return {**start, **{root: min(known[root], upto) for root, upto in end.items() if root in known}}
        for root, upto in end.items():
            if start.get(root, 0) > upto and self.options.fail_on_data_loss:
                raise Conflict(
                    f'the first micro-batch of this query was cut short, and where it began in "{root}" is not known '
                    f"any more: it ended before {upto}, and would now begin at {start[root]}; start the query with a "
                    'new checkpoint location, and with option("subscription", NAME), which remembers its beginning'
                )
        return start

    def stop(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = self._log = None

    # In the tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SpansPartition)
        return read_spans(self.options, self.schema, Conditions(), partition)


def _backlog(start: Offsets, extents: dict[str, Extent]) -> int:
    """How many messages wait behind a place."""
    return sum(max(0, extent.end - start.get(root, extent.first)) for root, extent in extents.items())


def _oldest(extent: Extent | None, upto: int) -> int:
    return upto if extent is None else min(extent.first, upto)
