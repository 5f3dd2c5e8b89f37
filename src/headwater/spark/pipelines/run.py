"""A pipeline of your own: what its function is given, and how its queries are kept running.

    def pipeline(run):
        hot = run.stream("home/+/temp").where("cast(cast(payload as string) as double) > 30")
        run.write(hot.select(lit("alerts/heat").alias("topic"), "payload"), "alerts")

Promises: each query has a checkpoint of its own, by its name, so a pipeline that is stopped, killed or restarted goes
on where it was; a failure that may pass (`Trouble.is_passing`) starts all of its queries again, after a delay that
grows; any other ends it, and then no query is left running.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.delivery.retry import delay_s
from headwater.errors import Malformed
from headwater.spark.pipelines.troubles import PipelineFailed, Trouble, trouble_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
HEADWATER = "headwater"
LOOK_EVERY_S = 0.25
"""How often it is seen what the queries do."""
RESTART_S = 1.0
RESTART_S_MAX = 60.0


class Progress(msgspec.Struct, frozen=True):
    """A micro-batch of a query."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    lag: int | None
    """Messages that wait after it; None if its source does not tell."""


class Run:
    """What the function of a pipeline is given: the session, and sources and sinks that know where they are."""

    def __init__(
        self,
        spark: SparkSession,
        source: Mapping[str, str],
        checkpoints: str,
        *,
        once: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.once = once
        self.queries: dict[str, StreamingQuery] = {}
        self._source = dict(source)
        self._checkpoints = checkpoints
        self._settings = dict(settings or {})

    def setting(self, name: str, default: str | None = None) -> str:
        """What `--set NAME=VALUE` says."""
        value = self._settings.get(name, default)
        if value is None:
            raise Malformed(f'this pipeline needs a setting "{name}"; give it with --set {name}=VALUE')
        return value

    def read(self, topics: str | None = None, **options: object) -> DataFrame:
        """Messages of these topics as they are now, or another table (`table="dead_letters"`); options as in Spark."""
        return self._load(self.spark.read, topics, options)

    def stream(self, topics: str | None = None, **options: object) -> DataFrame:
        """Messages of these topics as they come, from the earliest on."""
        return self._load(self.spark.readStream, topics, options)

    def _load(self, reader: Any, topics: str | None, options: Mapping[str, object]) -> DataFrame:
        wanted = {**self._source, **({} if topics is None else {"topics": topics}), **_texts(options)}
        frame: DataFrame = reader.format(HEADWATER).options(**wanted).load()
        return frame

    def write(
        self,
        frame: DataFrame,
        name: str,
        *,
        format: str = HEADWATER,
        each: Callable[[DataFrame, int], None] | None = None,
        mode: str = "append",
        every: str | None = None,
        **options: object,
    ) -> StreamingQuery:
        """Start a query of this name that writes a stream: to topics, in another format, or with `each` micro-batch.

        `every` is how often (`"10 seconds"`); without, a micro-batch follows the other. With `--once` it ends by
        itself.
        """
        self._check(frame, name)
        writer = frame.writeStream.queryName(name).outputMode(mode)
        if each is not None:
            writer = writer.foreachBatch(each)
        else:
            writer = writer.format(format).options(**self._to(format, options))
        if self.once:
            writer = writer.trigger(availableNow=True)
        elif every is not None:
            writer = writer.trigger(processingTime=every)
        query = writer.option("checkpointLocation", f"{self._checkpoints}/{name}").start()
        self.queries[name] = query
        return query

    def _check(self, frame: DataFrame, name: str) -> None:
        if not NAME.fullmatch(name):
            raise Malformed(f'"{name}" is no name for a query; use letters, digits, "_", "-" and "."')
        if name in self.queries:
            raise Malformed(f'there are two queries "{name}", and each has its own checkpoint; give them other names')
        if not frame.isStreaming:
            raise Malformed(
                f'run.write("{name}") takes a stream, as run.stream gives; write this frame with frame.write'
            )

    def _to(self, format: str, options: Mapping[str, object]) -> dict[str, str]:
        given = _texts(options)
        if format == HEADWATER and "url" not in given:
            if "url" not in self._source:
                raise Malformed(
                    "topics are written through a server, and this pipeline reads a folder; "
                    "run it with --url, or say run.write(…, url=…)"
                )
            given["url"] = self._source["url"]
        return given

    def stop(self) -> None:
        for query in self.queries.values():
            with suppress(PySparkException, Py4JError):
                query.stop()


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


class Supervision:
    """Keeps the queries of a pipeline running."""

    def __init__(
        self,
        start: Callable[[], Run],
        file: str,
        *,
        restarts_max: int,
        pause: Callable[[float], None],
        on_progress: Callable[[Progress], None],
        on_trouble: Callable[[Trouble, float], None],
    ) -> None:
        self._start = start
        """Makes a run and has the pipeline's function start its queries."""
        self._file = file
        self._restarts_max = restarts_max
        self._pause = pause
        self._on_progress = on_progress
        self._on_trouble = on_trouble
        """Told of what went wrong, and in how many seconds it is tried again."""
        self._failures = 0
        """In a row, without a micro-batch between them."""

    def run(self) -> None:
        """Until all queries have ended by themselves; PipelineFailed if it makes no sense to go on."""
        while True:
            try:
                self._run_once()
            except Exception as error:
                trouble = trouble_of(error, self._file)
                self._failures += 1
                if not trouble.is_passing or self._failures > self._restarts_max:
                    raise PipelineFailed(trouble) from error
                wait_s = delay_s(self._failures, RESTART_S, RESTART_S_MAX, 0.0, lambda: 0.0)
                self._on_trouble(trouble, wait_s)
                self._pause(wait_s)
            else:
                return

    def _run_once(self) -> None:
        run = self._start()
        try:
            watched = [Watch(name, query) for name, query in run.queries.items()]
            while True:
                is_active = any(watch.query.isActive for watch in watched)
                for watch in watched:
                    self._report(watch)
                    watch.check()
                if not is_active:
                    return
                self._pause(LOOK_EVERY_S)
        finally:
            run.stop()

    def _report(self, watch: Watch) -> None:
        for progress in watch.news():
            if progress.rows:
                self._failures = 0
            self._on_progress(progress)


class Watch:
    """Looks at one query."""

    def __init__(self, name: str, query: StreamingQuery) -> None:
        self.name = name
        self.query = query
        self._seen: tuple[int, str] = (-1, "")

    def news(self) -> Iterator[Progress]:
        """Micro-batches since the last look."""
        for one in self.query.recentProgress:
            place = (one["batchId"], one["timestamp"])
            if place > self._seen:
                self._seen = place
                rate = one["processedRowsPerSecond"] if one["numInputRows"] else 0.0
                yield Progress(self.name, one["batchId"], one["numInputRows"], rate or 0.0, lag_of(one["sources"]))

    def check(self) -> None:
        """Raise what the query ended with."""
        error = self.query.exception()
        if error is not None:
            raise error


def lag_of(sources: Any) -> int | None:
    """Messages between where a micro-batch ended and where the log does; None if no source is ours."""
    found: int | None = None
    for source in sources:
        end, latest = _places(source["endOffset"]), _places(source["latestOffset"])
        if end is not None and latest is not None:
            found = (found or 0) + sum(max(0, place - end.get(root, 1)) for root, place in latest.items())
    return found


def _places(text: Any) -> dict[str, int] | None:
    """An offset of our source: a whole number for each root."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    is_ours = isinstance(found, dict) and all(type(place) is int for place in found.values())
    return found if is_ours else None
