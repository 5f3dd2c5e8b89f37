"""An attempt to write to a table: a folder of its own, deleted at once where it is certain that nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from headwater.errors import Failed
from headwater.lake import files as lake_files
from headwater.lake.columns import Store
from headwater.lake.lake import LostRace
from headwater.lake.stores import for_hadoop, hadoop_of
from headwater.spark import plan, stores
from headwater.spark.pipelines.troubles import said_by_us


class TaskFailed(Failed):
    """A task or the planner ended with an error of ours; nothing was committed."""


class TaskFailedForNow(TaskFailed):
    """The same, with an error that may go away by itself, as when a server is being restarted."""

    retryable = True


@contextmanager
def teaching(advice: str = plan.ADVICE) -> Iterator[None]:
    """What a task or the planner said, rather than the stack of it; with what to do where messages are gone."""
    try:
        yield
    except PySparkException as error:
        ours = said_by_us(str(error))
        if ours is None:
            raise
        kind = TaskFailedForNow if ours.is_passing else TaskFailed
        raise kind(ours.sentence.replace(plan.ADVICE, advice)) from error


def write(frame: DataFrame, attempt: str, store: Store, apart: Sequence[str] = ("day",)) -> int:
    """Have Spark write Parquet into the folder of an attempt, by these columns; how many rows it wrote."""
    if not stores.reaches(frame.sparkSession, attempt):
        return stores.write(frame, attempt, store, apart)
    written = Observation()
    observed = frame.observe(written, f.count(f.lit(1)).alias("rows"))
    observed.write.options(**hadoop_of(store)).partitionBy(*apart).parquet(for_hadoop(attempt))
    return int(written.get["rows"])


@contextmanager
def attempt_of(table: Table, what: str) -> Iterator[str]:
    """A folder to write into. Where the outcome of a commit is unknown, its files are left for the sweep."""
    attempt = lake_files.new_attempt(table, what)
    try:
        yield attempt
    except (LostRace, TaskFailed, PySparkException):
        lake_files.drop_attempt(attempt)
        raise
