"""`headwater work`: run the handlers of a bus as a process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.options import Json
from headwater.cli.output import Columns, complain, console, emit, named, number, safe, table
from headwater.errors import Malformed
from headwater.work.handlers import WORKERS_MAX
from headwater.work.shift import Shift, Tally


def work(
    bus: Annotated[str, typer.Argument(metavar="MODULE:BUS", help="Where the bus is, as in house.heating:bus.")],
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, max=WORKERS_MAX, help="Handlers that run at once; as the handlers state, if not said."
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Begin anew when a Python file below this folder changes; to develop with.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the handlers of a bus, until SIGTERM or Ctrl-C.

    The module is imported from this folder, and has a bus with handlers (`@bus.handler(…)`), for threads or of
    headwater.aio, or a function that gives one. When it ends it takes no more, finishes the handlers that run, acks
    their messages, and shows what was done; a second signal does not wait. Each failure is one line on stderr.

    With --json: an object for each handler (handler, subscription, done, retried, rejected, recalled, busy_us).
    """
    if reload:
        from headwater.cli.reloading import run_and_reload

        raise typer.Exit(run_and_reload(_arguments(bus, workers, json), Path.cwd()))
    # Events of the bus would say of each failure what its handler's line says.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    _show(_run(_found(bus), workers), json)


def _arguments(bus: str, workers: int | None, json: bool) -> list[str]:
    return [bus, *(["--workers", str(workers)] if workers is not None else []), *(["--json"] if json else [])]


def _run(bus: Any, workers: int | None) -> Shift:
    if inspect.iscoroutinefunction(bus.run):
        found: Shift = asyncio.run(bus.run(workers=workers))
        return found
    with bus:
        shift: Shift = bus.run(workers=workers)
        return shift


def _found(place: str) -> Any:
    """The bus that was named; Malformed (422) if there is none."""
    module, colon, path = place.partition(":")
    if not (module and colon and path):
        raise Malformed(f'"{safe(place)}" names no bus; write module:bus, as in house.heating:bus')
    sys.path.insert(0, str(Path.cwd()))
    found: Any = imported(module)
    for name in path.split("."):
        if not hasattr(found, name):
            raise Malformed(f'module "{safe(module)}" has no "{safe(path)}"; name the bus that its handlers are of')
        found = getattr(found, name)
    if callable(found) and not hasattr(found, "consume"):
        found = _given(place, found)
    if not (hasattr(found, "consume") and hasattr(found, "run")):
        raise Malformed(f'"{safe(place)}" is {type(found).__name__}, and no bus; name what headwater.open(…) gave')
    return found


def _given(place: str, function: Any) -> Any:
    """What a function gives that takes nothing, as one that opens a bus; Malformed (422) for any other."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise Malformed(
            f'"{safe(place)}" is a function that takes something, as a handler does; name the bus, or one that gives it'
        ) from None
    except ValueError:  # it does not tell
        pass
    return function()


def imported(module: str) -> Any:
    """A module of this folder, or one that is installed; Malformed (422) if there is none."""
    try:
        return import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            raise Malformed(f'there is no module "{safe(module)}" in this folder, nor is it installed') from None
        traceback.print_exc()
        complain(f'"{module}" cannot be imported: {type(error).__name__}: {error}')
        raise typer.Exit(2) from None


def _show(shift: Shift, as_json: bool) -> None:
    if as_json:
        for tally in shift.handlers:
            emit(msgspec.to_builtins(tally))
        return
    columns: Columns[Tally] = {
        "handler": lambda tally: named(tally.handler),
        "subscription": lambda tally: safe(tally.subscription),
        ">done": lambda tally: number(tally.done),
        ">retried": lambda tally: number(tally.retried, "yellow"),
        ">rejected": lambda tally: number(tally.rejected, "red"),
        ">come again": lambda tally: number(tally.recalled, "yellow"),
        ">ms each": _each_ms,
    }
    console().print(table(shift.handlers, columns))
    print(f"{shift.done:,} done and {shift.failed:,} failed in {shift.seconds:,.1f} s")


def _each_ms(tally: Tally) -> str:
    count = tally.done + tally.retried + tally.rejected + tally.recalled
    return f"{tally.busy_us / count / 1000:,.2f}" if count else ""
