"""Writing rows to topics, exactly once: tasks stage, the driver commits.

    task     rows ── Piles ── bodies of one root ── Stage(producer, epoch, part) ──┐
    task     …                                                                     ├── names of parts ── driver
    driver   CommitStage(producer, epoch, parts of the tasks that count): each root's rows are seen at once, once

Promises: nobody sees rows before the commit; an epoch that was committed is committed once, however often Spark runs it
and in whatever order its rows then come; what other attempts staged is dropped by the commit. They hold because
a part's name is drawn anew by each attempt, so nothing that an earlier one left behind can be taken for it, and
because the key of an epoch is what Spark itself keeps for a query (its id, and the number of the micro-batch), or what
the user says (`writeId`).

| option     | meaning                                                                   | default |
|------------|---------------------------------------------------------------------------|---------|
| url        | server to write to: headwater://name:secret@host:7411                     |         |
| writeId    | of a batch write: a name under which it is done once, however often it runs |       |
| writeEpoch | of a batch write with a writeId: a number that grows with each write      | 0       |
| mode       | redrive: rows are mended dead letters, see `redriving`                    | publish |
| reconnectS | seconds for which a server that is away is waited for                     | 60      |
| topic      | of rows that name none: where there is no such column, or it is null      |         |
| ttl        | for how long the messages are kept: 90s, 15m, 7d                          |         |
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headwater.client.bus import Bus
from headwater.client.url import parse_url
from headwater.clock import SECOND_US, from_datetime
from headwater.config import Config, Connecting
from headwater.errors import Conflict, Failed, HeadwaterError, Malformed
from headwater.spark.options import (
    MESSAGES,
    NAMES,
    OF_CATALOG,
    OF_KAFKA,
    WRITE_NAMES,
    check_names,
    given_options,
    seconds,
)
from headwater.spark.served import awaited
from headwater.spark.topics import Topics, topics_of
from headwater.staging import EPOCH_MAX
from headwater.store.batch import checksum
from headwater.topics.name import check_topic, is_utf8, is_wild
from headwater.units import number_of

if TYPE_CHECKING:
    from headwater.spark.bodies import Encoded

COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("map<string,string>",),
    "retain": ("boolean",),
}
REQUIRED = ("topic", "payload")
GIVEN = ("root", "offset", "timestamp", "value", "misfit")
"""Columns of a table that the broker gives its messages: what an INSERT says of them is left out."""
TTL_US_MAX = 36_500 * 86_400 * SECOND_US
OF_PUBLISHING_ALONE = ("topic", "ttl")
OF_BATCHES_ALONE = ("writeId", "writeEpoch")
PUBLISH, REDRIVE = "publish", "redrive"
OF_SPARK = ("checkpointlocation", "queryname", "path")
"""What Spark itself puts among the options."""
RECONNECT_S = 60.0
RECONNECT_S_MAX = 86_400.0
ANSWER_S = 10.0
"""How long a server that is there may take to let a client in, or to answer where it is not waited for."""
IN_FLIGHT_MAX = 2
"""Bodies of a task that are on their way to the server's disk while the next is made."""
WRITE_ID_BYTES_MAX = 128
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class WriteOptions(msgspec.Struct, frozen=True):
    """Checked options of a write."""

    url: str
    write_id: str | None
    write_epoch: int
    reconnect_s: float
    mode: str = PUBLISH
    topic: str | None = None
    ttl_us: int = 0
    table: Topics | None = None
    """The topics of a table in a catalog; others are refused there."""

    def __repr__(self) -> str:
        # The address may have a secret in it.
        return f"WriteOptions({parse_url(self.url)}, write_id={self.write_id!r}, write_epoch={self.write_epoch})"


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Understand the options of a write; `Malformed` says what to write instead."""
    table = _table(given)
    stated = given_options(given, (*WRITE_NAMES, "data"), (*NAMES, *OF_KAFKA))
    options = {name: value for name, value in stated.items() if name not in OF_SPARK}
    if "data" in options:
        raise Malformed(
            'option "data": a folder has one owner, and Spark is not it; start `headwater serve` on it, '
            'and write with option("url", "headwater://127.0.0.1:7411")'
        )
    check_names(options, WRITE_NAMES, {}, " of a write", "a write has")
    url = options.get("url")
    if url is None:
        raise Malformed('say where to write: option("url", "headwater://host:7411"), the address of a server')
    parse_url(url)
    write_id = options.get("writeid")
    if write_id is not None and not (write_id and is_utf8(write_id) and "\0" not in write_id):
        raise Malformed(f'option "writeId" is {write_id!r}; use a name that this write alone has')
    if write_id is not None and len(write_id.encode()) > WRITE_ID_BYTES_MAX:
        raise Malformed(f'option "writeId" has {len(write_id.encode())} bytes; use at most {WRITE_ID_BYTES_MAX}')
    if write_id is None and "writeepoch" in options:
        raise Malformed('option "writeEpoch" counts the writes of one "writeId"; state that too')
    mode = options.get("mode", PUBLISH)
    if mode not in (PUBLISH, REDRIVE):
        raise Malformed(f'option "mode" is "{mode}"; use "{PUBLISH}", or "{REDRIVE}" for mended dead letters')
    epoch, use = _epoch(options.get("writeepoch", "0")), f"seconds from 0 to {RECONNECT_S_MAX:.0f}"
    patience_s = seconds("reconnectS", options, lambda found: 0 <= found <= RECONNECT_S_MAX, use)
    if mode == REDRIVE:
        for name in OF_PUBLISHING_ALONE:
            if name in options:
                raise Malformed(f'option "{name}" is for messages that are published; mended dead letters keep theirs')
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic, Config())
        except Malformed as error:
            raise Malformed(f'option "topic": {error.args[0]}') from error
    elif table is not None and len(table.filters) == 1 and not is_wild(table.filters[0]):
        topic = table.filters[0]
    ttl_us = _ttl_us(options.get("ttl"))
    patience_s = RECONNECT_S if patience_s is None else patience_s
    return WriteOptions(url, write_id, epoch, patience_s, mode, topic, ttl_us, table)


def _table(given: Mapping[str, str]) -> Topics | None:
    """The topics of a table in a catalog, if it is one."""
    options = {name.lower(): value for name, value in given.items()}
    if OF_CATALOG not in options:
        return None
    if options.get("table", MESSAGES) != MESSAGES:
        raise Malformed(f'table "{options["table"]}" shows what the broker knows; INSERT INTO a table of topics')
    return topics_of(options.get("topics", "#"))


def _ttl_us(text: str | None) -> int:
    if text is None:
        return 0
    try:
        ttl_us = round(number_of("ttl_s", text) * SECOND_US)
    except ValueError:
        ttl_us = 0
    if not 0 < ttl_us <= TTL_US_MAX:
        raise Malformed(f'option "ttl" is "{text}"; use a time such as 90s, 15m or 7d, and at most 36500d')
    return ttl_us


def _epoch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) < EPOCH_MAX):
        raise Malformed(f'option "writeEpoch" is "{text}"; use a whole number from 0 on, such as the batch id')
    return int(text)


def check_columns(schema: StructType, topic: str | None = None, *, is_table: bool = False) -> None:
    """That rows of this schema are messages, of a topic of their own or this one; a table has columns besides that the
    broker gives."""
    seen = Counter(schema.fieldNames())
    shape = "topic string, payload binary or string[, key binary or string, headers map<string,string>, retain boolean]"
    for column in schema.fields:
        kind, wanted = column.dataType.simpleString(), COLUMNS.get(column.name)
        if wanted is None and is_table and column.name in GIVEN:
            continue
        if wanted is None:
            near = get_close_matches(column.name.lower(), COLUMNS, 1, 0.6)
            hint = f'rename it to "{near[0]}"' if near and near[0] not in seen else "drop it, or make it a header"
            raise Malformed(f'the sink has no column "{column.name}"; {hint}: a message is {shape}')
        if kind not in wanted:
            raise Malformed(f'column "{column.name}" is {kind}; cast it to {" or ".join(wanted)}: a message is {shape}')
        if seen[column.name] > 1:
            raise Malformed(f'there are {seen[column.name]} columns "{column.name}"; drop all but one')
    for name in REQUIRED:
        if name not in seen and not (name == "topic" and topic is not None):
            advice = 'add it, or name one topic for all rows with option("topic", …)' if name == "topic" else "add it"
            raise Malformed(f'there is no column "{name}"; {advice}: a message is {shape}')


# In a task


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task staged; sent to the driver."""

    producer: str
    epoch: int
    partition: int
    parts: tuple[str, ...]
    bodies: dict[str, int] = field(default_factory=dict)
    """How many for each root."""


def stage(options: WriteOptions, producer: str, epoch: int, batches: Iterable[Any]) -> Staged:
    """Stage the rows of a task, under names of this attempt alone."""
    attempt = uuid4().hex[:16]
    bodies: Counter[str] = Counter()
    with connected(options, options.reconnect_s) as bus, ThreadPoolExecutor(IN_FLIGHT_MAX) as pool:
        under_way: deque[Future[None]] = deque()
        for one in _encoded(bus, options, batches):
            if len(under_way) == IN_FLIGHT_MAX:
                under_way.popleft().result()
            # A name serves all roots: there are no more of them than the largest root has bodies.
            part = f"{attempt}-{bodies[one.root]}"
            under_way.append(pool.submit(_stage_one, bus, producer, epoch, part, one))
            bodies[one.root] += 1
        for future in under_way:
            future.result()
    parts = tuple(f"{attempt}-{number}" for number in range(max(bodies.values(), default=0)))
    return Staged(producer, epoch, _task().partitionId(), parts, dict(bodies))


def _encoded(bus: Bus, options: WriteOptions, batches: Iterable[Any]) -> Iterator[Encoded]:
    from headwater.spark.bodies import Piles  # here, as planning and committing have no need of Arrow

    piles = Piles(bus.config, options.topic, options.ttl_us, options.table)
    for batch in batches:
        yield from piles.add(batch, from_datetime(bus.now))
    yield from piles.rest(from_datetime(bus.now))


def _stage_one(bus: Bus, producer: str, epoch: int, part: str, one: Encoded) -> None:
    crc = checksum(one.body)
    try:
        bus.stage_body(producer, epoch, part, one.root, one.rows, crc, one.body)
    except Conflict:
        # A driver that was killed while it committed this epoch has left it decided, and under way. To commit a part
        # that was never staged finishes what is decided, and changes nothing (404) where nothing is.
        bus.commit_stage(producer, epoch, [f"{part}-finish"])
        bus.stage_body(producer, epoch, part, one.root, one.rows, crc, one.body)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise Failed("rows are written in a task of Spark, and this is none")
    return task


def _key_of_query() -> tuple[str, int]:
    """The query that a task works for, and its micro-batch."""
    task = _task()
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if not query or batch is None:
        raise Failed("Spark does not say which query this task is of; the sink needs micro-batches (PySpark 4.3)")
    return query, int(batch)


# On the driver


def commit(options: WriteOptions, producer: str, epoch: int, staged: Sequence[Staged]) -> None:
    """Make what the tasks staged visible, in the order of their partitions."""
    parts = [part for one in sorted(staged, key=lambda one: one.partition) for part in one.parts]
    with connected(options, options.reconnect_s) as bus:
        bus.commit_stage(producer, epoch, parts)


def drop(options: WriteOptions, producer: str, epoch: int) -> None:
    """Forget what was staged; where that fails, `stage_age_s` does it."""
    try:
        with connected(options, 0) as bus:
            bus.drop_stage(producer, epoch)
    except HeadwaterError:
        return


def all_of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """What the tasks say; each has said something."""
    staged = [one for one in messages if isinstance(one, Staged)]
    if len(staged) != len(messages):
        raise Failed(f"{len(messages) - len(staged)} tasks did not say what they staged; write again")
    return staged


def connected(options: WriteOptions, patience_s: float) -> Bus:
    """A connection that outlasts a server's restart, and waits for one at the beginning too."""
    waits_s = max(patience_s, ANSWER_S)
    settings = Connecting(
        reconnect_s_max=patience_s,
        request_timeout_s=waits_s,
        connect_timeout_s=ANSWER_S,
        session_expire_after_s=waits_s,
    )
    return awaited(options.url, settings, patience_s)


# What Spark talks to


class BatchWriter(DataSourceArrowWriter):
    """One batch write: made once, and pickled to its tasks and to the driver's commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._producer = f"write:{options.write_id or uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self._options, self._producer, self._options.write_epoch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, self._producer, self._options.write_epoch, all_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        drop(self._options, self._producer, self._options.write_epoch)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writes of a query: made anew for each commit, so what a query is called comes from its tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self._options, *_key_of_query(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        staged = all_of(messages)
        if staged:
            commit(self._options, staged[0].producer, self._epoch(staged, batchId), staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        for one in messages:
            if isinstance(one, Staged):
                drop(self._options, one.producer, one.epoch)
                return

    def _epoch(self, staged: Sequence[Staged], batch: int) -> int:
        if any(one.epoch != batch for one in staged):
            raise Failed(f"tasks of micro-batch {batch} took it for another; nothing of it is committed")
        return batch


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """A writer of a batch; what is wrong is said before any row is written."""
    options = write_options(given)
    if overwrite:
        raise Malformed('topics are logs, which are not overwritten; use mode("append")')
    if options.mode == REDRIVE:
        from headwater.spark.redriving import RedriveWriter, check_letters

        check_letters(schema)
        return RedriveWriter(options)
    check_columns(schema, options.topic, is_table=options.table is not None)
    return BatchWriter(options)


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """A writer of a stream; what is wrong is said before any row is written."""
    options = write_options(given)
    if options.mode == REDRIVE:
        raise Malformed('mode "redrive" is for batch writes; in a stream, redrive in foreachBatch')
    for name in OF_BATCHES_ALONE:
        if name.lower() in {stated.lower() for stated in given}:
            raise Malformed(f'option "{name}" is for batch writes: a stream is exactly once by its checkpoint')
    check_columns(schema, options.topic, is_table=options.table is not None)
    return StreamWriter(options)
