"""`headwater pipeline`: jobs on Spark over topics, live and archived."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from msgspec.structs import asdict

from headwater import settings
from headwater.cli.following import pause
from headwater.cli.options import RELATIVE, UNITS_S, At, CommandGroup, connect
from headwater.cli.output import counted, emit, progress, remark, safe, say, tell
from headwater.config import Config, Retention
from headwater.errors import Conflict, Failed, HeadwaterError, Malformed
from headwater.units import size
from headwater.wire.administration import ListSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.lake.erasure import Carried
    from headwater.spark.pipelines.archive import Archive, Compacted, Step
    from headwater.spark.pipelines.rollup import Rolled

app = CommandGroup(help="Jobs on Spark over topics: archive them, roll them up, replay them.", no_args_is_help=True)

LakeDir = Annotated[
    str, typer.Option("--lake", metavar="DIR", help="The lake: a folder, or catalog:NAME of pyiceberg's configuration.")
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME", help="Again and again, so often: 30s, 5m; until Ctrl-C.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs; this machine's cores if nothing is said."),
]
SparkLogs = Annotated[bool, typer.Option("--spark-logs", help="Show what Spark has to say.")]
COMPACT_ALL = 1
SHARED: SparkSession | None = None
"""The session of all pipelines of this process, where it runs those of a server."""


@app.command()
def archive(
    at: At,
    lake: LakeDir,
    topics: Annotated[
        str, typer.Option("--topics", metavar="FILTERS", help="Which roots: home/#, or home/#,office/#.")
    ] = "#",
    partition: Annotated[
        str,
        typer.Option("--partition", metavar="NAMES", help="Of new tables: day, hour, topic, bucket(16) of the key."),
    ] = "day",
    sort: Annotated[
        str, typer.Option("--sort", metavar="NAMES", help="Of their files: offset, timestamp, topic, key.")
    ] = "offset",
    once: Annotated[bool, typer.Option("--once", help="Archive what there is, and end (the default).")] = False,
    every: Every = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Join small files now, and not only where there are many.")
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long replaced files stay for those who read them.")
    ] = "6h",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where messages were lost before they were archived.")
    ] = False,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Keep an Iceberg table of each root: what is new is written by Spark and committed with the offset it reaches.

    It works beside the process that owns the folder, or from a server (as a user with the rights subscribe and admin),
    and can be killed at any moment: the next run goes on from what was committed. The log keeps what is not archived
    yet (up to the hard limits of its retention).

    With --json: an object for each commit (root, first, last, rows, bytes, files, seconds), each day compacted (root,
    day, files_before, files_after, rows), each root in which purges were carried out (root, erased, files_before,
    files_after) or retention left files behind (root, retention_files), and each sweep (deleted).
    """
    wait_s = interval(once, every)
    grace_s = seconds(grace, "--grace")
    check_source(at)
    with running(master, spark_logs, "headwater archive") as spark:
        from headwater.lake.layout import layout_of
        from headwater.spark.pipelines.archive import Archive, Options

        layout = layout_of(partition, sort)
        options = Options(topics, skip_lost=skip_lost, grace_s=grace_s, layout=layout, config=rules_of(at))
        job = Archive(spark, lake, source_of(at), options)
        if not job.pending() and not every:
            remark("nothing new: the lake has all that the log has")
        again(lambda: _archive_once(job, COMPACT_ALL if compact else None, at.json), every, wait_s, Conflict)


def _archive_once(job: Archive, small_files_max: int | None, as_json: bool) -> None:
    pending = job.pending()
    total = sum(last - first + 1 for first, last in pending.values())
    with progress("archiving", total or None) as advance:
        for step in job.round():
            advance(step.last - step.first + 1)
            _show_step(step, as_json)
    for root, files in job.retain():
        left = f"  {counted(len(files), 'file')} left by retention, {size(sum(file.bytes for file in files))}"
        tell(as_json, {"root": root, "retention_files": len(files)}, f"{safe(root)}{left}")
    for carried in job.erase():
        _show_carried(carried, as_json)
    for compacted in job.compact(small_files_max):
        _show_compacted(compacted, as_json)
    deleted = job.sweep()
    if deleted:
        tell(as_json, {"deleted": deleted}, f"deleted: {counted(deleted, 'file')} that nobody needs any more")


def _show_step(step: Step, as_json: bool) -> None:
    if as_json:
        emit(asdict(step))
        return
    rate = step.rows / step.seconds if step.seconds else 0
    say(
        (safe(step.root), "cyan"),
        f"  {step.first:,} to {step.last:,}  {counted(step.rows, 'message')}",
        f"  {counted(step.files, 'file')}, {size(step.bytes)}",
        (f"  {rate:,.0f} messages/s", "dim"),
    )


def _show_carried(done: Carried, as_json: bool) -> None:
    if as_json:
        told = {"root": done.root, "erased": done.rows}
        emit({**told, "files_before": done.files_before, "files_after": done.files_after})
    elif done.rows:
        files = counted(done.files_before, "file")
        say((safe(done.root), "cyan"), f"  {counted(done.rows, 'message')} erased, {files} written anew")


def rules_of(at: At) -> Config:
    """The settings that a lake goes by: the server's; of a folder, those that a server of it would have here."""
    if at.url is None:
        return settings.load(environment=os.environ).config
    with connect(at.url) as bus:
        found = {one.name: one.value for one in cast(Any, bus).ask(ListSettings())}
    roots: dict[str, dict[str, Any]] = {"": {}}
    for name, value in found.items():
        place, _, field = name.rpartition(".")
        if field in ("lake_age_s", "lake_bytes"):
            root = place.removeprefix("retention").removeprefix("_roots").removeprefix(".")
            roots.setdefault(root, {})[field] = value
    rule = Retention(**roots.pop(""))
    rules = {root: Retention(**fields) for root, fields in roots.items()}
    within_s = found.get("erase_within_s", Config().erase_within_s)
    return Config(erase_within_s=within_s, retention=rule, retention_roots=rules)


def _show_compacted(done: Compacted, as_json: bool) -> None:
    if as_json:
        emit(asdict(done))
        return
    say((safe(done.root), "cyan"), f"  {counted(done.files_before, 'small file')} became {done.files_after}")


@app.command()
def rollup(
    at: At,
    lake: LakeDir,
    topics: Annotated[str, typer.Option("--topics", metavar="FILTER", help="Which topics.")] = "#",
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="How long a window is: 10s, 1m, 1h.")] = "1m",
    watermark: Annotated[
        str, typer.Option("--watermark", metavar="TIME", help="How much later a message is that completes a window.")
    ] = "1m",
    name: Annotated[str, typer.Option("--name", help="Of the rollup; its table is headwater._rollup_NAME.")] = "topics",
    picture: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw rates, sizes and gaps: FILE.png, .svg or .pdf.")
    ] = None,
    every: Every = None,
    once: Annotated[bool, typer.Option("--once", help="Roll up what is complete, and end (the default).")] = False,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Roll up topics in windows of event time: counts, bytes, rates, payload sizes, gaps, and the numbers in JSON.

    A window is rolled up once, when it is complete: when a message was seen that is later than its end by the
    watermark. The result is an Iceberg table in the lake; each run goes on where the last one ended, and reads lake and
    log as one.

    With --json: an object for each run (rows, late, since_us, upto_us, seconds).
    """
    wait_s = interval(once, every)
    window_s, delay_s = seconds(window, "--window"), seconds(watermark, "--watermark")
    check_source(at)
    if picture is not None:
        check_picture(picture)
    with running(master, spark_logs, "headwater rollup") as spark:
        from headwater.spark.pipelines import rollup as rollups

        job = rollups.Rollup(spark, lake, source_of(at), name, rollups.Settings(topics, window_s, delay_s))

        def work() -> None:
            _show_rolled(job.run(), at.json)
            if picture is not None:
                drawn = rollups.plot(job.frame(), picture, f"{topics}, windows of {window}")
                if not at.json:
                    say(f"{picture} shows ", (", ".join(map(safe, drawn)), "cyan"))

        again(work, every, wait_s)


def check_picture(path: str) -> None:
    """That a picture can be drawn, before Spark is started for it."""
    if find_spec("matplotlib") is None:
        raise Malformed("--plot needs matplotlib: pip install matplotlib")
    if not path.lower().endswith((".png", ".svg", ".pdf")):
        raise Malformed(f'--plot "{path}" is no picture; end its name in .png, .svg or .pdf')


def _show_rolled(done: Rolled, as_json: bool) -> None:
    if as_json:
        emit(asdict(done))
        return
    if done.since_us == done.upto_us:
        say("no further window is complete yet")
        return
    from headwater.spark.pipelines.rollup import moment

    late = f", {counted(done.late, 'message')} came too late" if done.late else ""
    say(
        f"{counted(done.rows, 'row')}, from {moment(done.since_us)} to {moment(done.upto_us)}{late}",
        (f"  {done.seconds:.1f} s", "dim"),
    )


# What pipelines share


def seconds(text: str, name: str) -> float:
    """A length of time: 500ms, 30s, 5m, 2h, 1d."""
    found = RELATIVE.fullmatch(text.strip())
    if not found or found[1]:
        raise Malformed(f'{name} "{text}" is no length of time; write 500ms, 30s, 5m, 2h or 1d')
    return float(found[2]) * UNITS_S[found[3]]


def interval(once: bool, every: str | None) -> float | None:
    """Seconds after which to begin again; None to end."""
    if once and every is not None:
        raise Malformed("--once ends, --every goes on; give one of them")
    return None if every is None else seconds(every, "--every")


def again(work: Callable[[], None], every: str | None, wait_s: float | None, *passing: type[HeadwaterError]) -> None:
    """Work once; or again and again, also after an error that passes: one that is retryable, or of these."""
    while True:
        try:
            work()
        except HeadwaterError as error:
            if wait_s is None or not (error.retryable or isinstance(error, passing)):
                raise
            remark(f"{error}; trying again in {every}")
        if wait_s is None:
            return
        pause(wait_s)


def source_of(at: At) -> dict[str, str]:
    """The options of the source for a place."""
    return {"url": at.url} if at.url is not None else {"data": at.data}


def check_source(at: At) -> None:
    """That there is something to read, before Spark is started for it."""
    if at.url is not None:
        connect(at.url).close()
        return
    from headwater.store import folder as folders
    from headwater.store.files import DiskFiles

    folders.check(DiskFiles(), at.data)


@contextmanager
def running(master: str | None, logs: bool, name: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, ended with the command; SIGTERM ends it as Ctrl-C does."""
    try:
        import pyiceberg  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Malformed(f"pipelines need Spark ({error.name} is missing): pip install 'headwater[spark]'") from None
    from headwater.spark import session
    from headwater.spark.pipelines.attempts import teaching

    if SHARED is not None:
        with teaching():
            yield SHARED.newSession()
        return

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)

    def start() -> SparkSession:
        return session(name, master=master, logs=logs, conf=conf)

    spark = start() if logs else _quiet(start)
    try:
        with teaching():
            yield spark
    finally:
        signal.signal(signal.SIGTERM, before)
        spark.stop()


def _quiet(start: Callable[[], SparkSession]) -> SparkSession:
    """Start a session whose Java process has no stderr: it talks before it can be told not to."""
    from pyspark.errors import PySparkException

    from headwater.store.files import open_nowhere

    ours, nowhere = os.dup(2), open_nowhere()
    os.dup2(nowhere, 2)
    try:
        return start()
    except PySparkException as error:
        raise Failed(f"Spark does not start ({error}); --spark-logs shows what it has to say") from error
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(nowhere)
