"""The replay: history published again under a prefix, at the recorded pace or faster, each message once.

It prepares, then it plays. Preparing, Spark reads lake and log as one table and writes what was asked for into files
in the folder of the replay (its checkpoint), in the order in which it is due. Playing, one window of these files after
another goes through the sink when its time has come; the driver only waits between them.

What holds:

- A message is due when it was sent, and not before one that stands before it in its topic: order within a topic is
  that of its offsets, whatever the senders' clocks did.
- A window is noted in the folder, durably, before it is written, and the sink knows it by the replay's token and the
  window's number. Killed anywhere, the next run writes the noted window again, which counts once, and goes on after it.
- What is replayed is what there was when it was prepared: nothing that is published, archived or deleted later, and
  none of the replayed messages themselves.
"""

from __future__ import annotations

import secrets
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

import headwater
from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.errors import Conflict, Failed, Malformed
from headwater.lake import files as lake_files
from headwater.lake.lake import LakeFile
from headwater.lake.stores import located
from headwater.spark.history import SCHEMA, table_of
from headwater.spark.pipelines.archive import own_session
from headwater.spark.pipelines.attempts import teaching
from headwater.spark.topics import Topics
from headwater.store.files import DiskFiles, Lock
from headwater.topics.name import root_of, root_of_filter

PLAN = "plan.json"
MESSAGES = "messages"
LOCK = "lock"
DAY_US = 86_400 * SECOND_US
FILE_MESSAGES = 200_000
"""Messages of a file, and so of a window, at most."""
WINDOW_BYTES = 64 << 20
"""About how many bytes a window has, at most: its commit is held in the server's memory."""
ORDER = ("due", "root", "offset")


class Asked(msgspec.Struct, frozen=True):
    """What is to be replayed; a checkpoint is for one of these."""

    topics: str
    to: str
    """What is put before each topic; it ends in a slash."""
    since: str | None = None
    until: str | None = None
    """As they were written: relative ones mean what they meant at the first run."""


class History(msgspec.Struct, frozen=True):
    """Where messages are, and of which time."""

    source: dict[str, str]
    """Options of the source: data or url."""
    lake: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def frame(self, spark: SparkSession, asked: Asked) -> DataFrame:
        """The messages that are asked for."""
        frame = self._all(spark, asked.topics)
        if self.since_us is not None:
            frame = frame.where(f.unix_micros("timestamp") >= self.since_us)
        if self.until_us is not None:
            frame = frame.where(f.unix_micros("timestamp") < self.until_us)
        if root_of_filter(asked.topics) is None:  # what was replayed before is not part of everything
            frame = frame.where(f.col("root") != root_of(asked.to))
        return frame

    def _all(self, spark: SparkSession, topics: str) -> DataFrame:
        source = {**self.source, "topics": Topics((topics,)).option}
        if self.lake is None:
            return spark.read.format("headwater").options(**source).load()
        return table_of(spark, source, self.lake, self._may_have)

    def _may_have(self, _: str, file: LakeFile) -> bool:
        is_later = self.until_us is not None and file.day * DAY_US >= self.until_us
        return not is_later and (self.since_us is None or file.newest_us >= self.since_us)


class File(msgspec.Struct, frozen=True):
    """A file of prepared messages."""

    path: str
    rows: int
    bytes: int


class Plan(msgspec.Struct, frozen=True):
    """What was prepared, and how far it is played."""

    asked: Asked
    bus: str
    token: str
    """Part of the key under which the sink knows windows."""
    files: tuple[File, ...]
    epoch: int = 0
    """Windows that are done."""
    done: int = 0
    """Messages in them."""
    file: int = 0
    from_us: int = 0
    """Of this file, what was due before is done."""
    upto_us: int = 0
    """The window under way ends before this; 0 if none is."""

    @property
    def messages(self) -> int:
        """All that there are to play."""
        return sum(file.rows for file in self.files)

    @property
    def is_done(self) -> bool:
        """Whether everything is played."""
        return self.file == len(self.files)


class Window(msgspec.Struct, frozen=True):
    """A window that was played."""

    epoch: int
    messages: int
    since_us: int
    upto_us: int
    """When its first and its last message were sent."""
    seconds: float
    behind_s: float
    """How much later it is than the pace would have it."""


class Pace:
    """How recorded time goes by; `speed` times as fast as it did, or as fast as possible."""

    def __init__(self, speed: float | None, clock: Clock | None = None) -> None:
        self._speed = speed
        self._clock = clock or SystemClock()
        self._origin_us: int | None = None
        self._started_us = 0

    def reach(self, due_us: int) -> int | None:
        """Wait until a message is due; the recorded time that it is by now, None if there is no pace."""
        if self._speed is None:
            return None
        condition = threading.Condition()
        with condition:
            while (left_us := self._left_us(due_us)) > 0:
                self._clock.wait(condition, left_us)
        assert self._origin_us is not None
        return self._origin_us + round((self._clock.monotonic_us() - self._started_us) * self._speed)

    def behind_s(self, due_us: int) -> float:
        """How long ago a message was due."""
        return 0.0 if self._speed is None else max(0, -self._left_us(due_us)) / SECOND_US

    def _left_us(self, due_us: int) -> int:
        assert self._speed is not None
        if self._origin_us is None:  # what comes first is due at once, also after a restart in the middle of a window
            self._origin_us, self._started_us = due_us, self._clock.monotonic_us()
        return self._started_us + round((due_us - self._origin_us) / self._speed) - self._clock.monotonic_us()


class Replay:
    """One replay, by its folder."""

    def __init__(self, spark: SparkSession, checkpoint: str, history: History, url: str, asked: Asked) -> None:
        """From `history` to the server at `url`; the history is looked at once, when the checkpoint is made."""
        self.spark = own_session(spark)
        self._files = DiskFiles()
        self._folder = str(Path(checkpoint).absolute())
        self._url = url
        with headwater.connect(url) as bus:
            bus_id = bus.id
        is_known = self._is_known()
        self._files.make_folder(self._folder)
        self._lock: Lock = self._files.lock(f"{self._folder}/{LOCK}")
        try:
            self.plan = self._read(asked, bus_id) if is_known else self._prepare(history, asked, bus_id)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    # The folder

    def _is_known(self) -> bool:
        """Whether a replay was prepared there; a folder of something else is refused."""
        names = self._files.list(self._folder)
        if PLAN not in names and not set(names) <= {LOCK, MESSAGES, f"{PLAN}.tmp"}:
            raise Malformed(f'"{self._folder}" has files that are not of a replay; name a new folder')
        return PLAN in names

    def _read(self, asked: Asked, bus_id: str) -> Plan:
        plan = msgspec.json.decode(self._files.read(f"{self._folder}/{PLAN}"), type=Plan)
        if plan.asked != asked:
            raise Conflict(f'"{self._folder}" is of another replay ({plan.asked}); name a new folder for this one')
        if plan.bus != bus_id:
            raise Conflict(f'"{self._folder}" is of a replay on another bus (id {plan.bus}); name a new folder')
        return plan

    def _note(self, plan: Plan) -> None:
        self._files.write(f"{self._folder}/{PLAN}", msgspec.json.encode(plan) + b"\n")
        self.plan = plan

    # Preparing

    def _prepare(self, history: History, asked: Asked, bus_id: str) -> Plan:
        """Have Spark put what is asked for in order, and note it as the plan."""
        place = f"{self._folder}/{MESSAGES}"
        by_topic = Over.partitionBy("topic").orderBy("offset").rowsBetween(Over.unboundedPreceding, 0)
        written = Observation()
        with teaching():
            (
                history.frame(self.spark, asked)
                .withColumn("due", f.max(f.unix_micros("timestamp")).over(by_topic))
                .repartitionByRange(*ORDER)
                .sortWithinPartitions(*ORDER)
                .observe(written, f.count(f.lit(1)).alias("rows"))
                .write.option("maxRecordsPerFile", FILE_MESSAGES)
                .mode("overwrite")
                .parquet(place)
            )
        files = [_described(path) for path in lake_files.written(place)]
        plan = Plan(asked, bus_id, secrets.token_hex(8), tuple(file for file in files if file.rows))
        if plan.messages != written.get["rows"]:
            raise Failed(
                f"Spark wrote {written.get['rows']} messages, and {plan.messages} of them are to be found in {place}: "
                "every executor must see the checkpoint at this path; use storage that they share with the driver"
            )
        self._note(plan)
        return plan

    # Playing

    def play(self, pace: Pace) -> Iterator[Window]:
        """Publish window after window; each is done when it comes out of here."""
        while not self.plan.is_done:
            dues = self._dues(self.plan.files[self.plan.file].path)
            while (start := bisect_left(dues, self.plan.from_us)) < len(dues):
                if not self.plan.upto_us:
                    self._note(msgspec.structs.replace(self.plan, upto_us=self._reached(pace, dues, start)))
                yield self._played(pace, dues, start, bisect_left(dues, self.plan.upto_us))
            self._note(msgspec.structs.replace(self.plan, file=self.plan.file + 1, from_us=0))
        self._files.remove_tree(f"{self._folder}/{MESSAGES}")

    def _reached(self, pace: Pace, dues: array[int], start: int) -> int:
        """Where the next window ends: at what is due by now, and at what may be written at once."""
        now_us = pace.reach(dues[start])
        file = self.plan.files[self.plan.file]
        end = start + max(1, file.rows * WINDOW_BYTES // max(1, file.bytes))
        last_us = dues[-1] + 1 if end >= len(dues) else dues[end]
        return max(dues[start] + 1, last_us if now_us is None else min(last_us, now_us + 1))

    def _played(self, pace: Pace, dues: array[int], start: int, end: int) -> Window:
        started_us, plan = SystemClock().monotonic_us(), self.plan
        self._write(plan)
        self._note(
            msgspec.structs.replace(
                plan, epoch=plan.epoch + 1, done=plan.done + end - start, from_us=plan.upto_us, upto_us=0
            )
        )
        seconds = (SystemClock().monotonic_us() - started_us) / SECOND_US
        return Window(plan.epoch, end - start, dues[start], dues[end - 1], seconds, pace.behind_s(dues[end - 1]))

    def _write(self, plan: Plan) -> None:
        rows = self.spark.read.schema(f"{SCHEMA}, due long").parquet(plan.files[plan.file].path)
        window = rows.where((f.col("due") >= plan.from_us) & (f.col("due") < plan.upto_us)).orderBy(*ORDER)
        topic = f.concat(f.lit(plan.asked.to), f.col("topic")).alias("topic")
        with teaching():
            (
                window.select(topic, "payload", "key", "headers")
                .write.format("headwater")
                .options(url=self._url, writeId=f"replay:{plan.token}", writeEpoch=str(plan.epoch))
                .mode("append")
                .save()
            )

    def _dues(self, path: str) -> array[int]:
        """When the messages of a file are due, in order."""
        filesystem, place = located(path)
        with filesystem.open_input_file(place) as opened:
            return array("q", pq.read_table(opened, columns=["due"])["due"].to_pylist())


def _described(path: str) -> File:
    filesystem, place = located(path)
    with filesystem.open_input_file(place) as opened:
        about = pq.ParquetFile(opened).metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        return File(path, about.num_rows, sum(group.total_byte_size for group in groups))
