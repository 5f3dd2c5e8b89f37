"""`headwater pipeline run`: a pipeline of your own, with its session, sources, checkpoints and restarts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from headwater.cli.following import pause
from headwater.cli.options import At
from headwater.cli.output import emit, remark, safe, say, side
from headwater.cli.pipeline import Master, SparkLogs, check_source, running, source_of
from headwater.errors import Malformed

if TYPE_CHECKING:
    from headwater.spark.pipelines.run import Progress, Run

FUNCTION = "pipeline"
MODULE = "headwater_pipeline"
CHECKPOINTS = "headwater-checkpoints"


def run(
    at: At,
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help=f"A file with a function {FUNCTION}(run).")],
    once: Annotated[bool, typer.Option("--once", help="Work on what there is now, and end.")] = False,
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints", metavar="DIR", help="Where queries keep their place: DIR/FILE/NAME. Any path Spark knows."
        ),
    ] = CHECKPOINTS,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="For run.setting(NAME); as often as you like."),
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="End after so many failures with nothing done in between.")
    ] = 10,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="Read what is archived there, too.", show_default=False)
    ] = None,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Run a pipeline of your own, until Ctrl-C.

    FILE.py has a function pipeline(run): run.stream("home/#") and run.read("home/#") give DataFrames of topics,
    run.write(frame, "name") starts a query, with a checkpoint of its own; run.spark is the session. A query that fails
    for a reason that may pass (the server is away, a worker died) is started again, from its checkpoint.

    With --json: an object for each micro-batch (query, batch, rows, rows_per_s, lag).
    """
    given = _settings(settings or [])
    function = _function(file)
    if at.url is None:  # a server that is away is waited for
        check_source(at)
    with running(master, spark_logs, f"headwater {file.stem}") as spark:
        from headwater.spark.pipelines.run import Run, Supervision

        source = {**source_of(at), **({} if lake is None else {"lake": lake})}

        folder = f"{checkpoints if '://' in checkpoints else Path(checkpoints).absolute()}/{file.stem}"

        def start() -> Run:
            made = Run(spark, source, folder, once=once, settings=given)
            try:
                function(made)
            except BaseException:
                made.stop()
                raise
            return made

        with _shown(at.json) as show:
            Supervision(
                start,
                str(file.absolute()),
                restarts_max=restarts,
                pause=pause,
                on_progress=show,
                on_trouble=lambda trouble, wait_s: remark(f"{trouble.sentence}; trying again in {wait_s:.0f} s"),
            ).run()


def _settings(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Malformed(f'--set "{text}" says nothing; write --set NAME=VALUE')
        found[name] = value
    return found


def _function(file: Path) -> Callable[[Any], object]:
    """The function of a pipeline; what is wrong with its file is said before Spark is started for it."""
    from headwater.spark.pipelines.troubles import PipelineFailed, trouble_of

    path = str(file.absolute())
    if not file.is_file():
        raise Malformed(f'there is no file "{file}"; name one with a function {FUNCTION}(run)')
    module = ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module
    try:
        exec(compile(file.read_bytes(), path, "exec"), module.__dict__)  # noqa: S102  # it is what the user asks for
    except Exception as error:
        raise PipelineFailed(trouble_of(error, path)) from error
    function: Callable[[Any], object] | None = getattr(module, FUNCTION, None)
    if not callable(function):
        raise Malformed(f'"{file}" has no function {FUNCTION}; write: def {FUNCTION}(run): …')
    _send_along(module)
    return function


def _send_along(module: ModuleType) -> None:
    """Have Spark send what the file defines to its workers, which cannot import it."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types


@contextmanager
def _shown(as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """What is done with each micro-batch: an object, a line that stays where it is on a terminal, or a line each."""
    if as_json:
        yield _emit
        return
    if not side().is_terminal:
        yield lambda progress: say(_line(progress)) if progress.rows else None
        return
    from rich.live import Live
    from rich.text import Text

    latest: dict[str, str] = {}
    with Live(console=side(), transient=True, refresh_per_second=4) as live:

        def show(progress: Progress) -> None:
            latest[progress.query] = _line(progress)
            live.update(Text("\n".join(latest.values())))

        yield show


def _emit(progress: Progress) -> None:
    emit(asdict(progress))
    sys.stdout.flush()


def _line(progress: Progress) -> str:
    lag = "" if progress.lag is None else f"  {progress.lag:,} behind"
    rate = f"{progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s"
    return f"{safe(progress.query)}  batch {progress.batch:,}  {rate}{lag}"
