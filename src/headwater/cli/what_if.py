"""`headwater what-if`: what new code would do with recorded messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import headwater
import headwater.aio
from headwater.cli.options import DATA, At, Lake, lake_of, moment
from headwater.cli.options import after as after_of
from headwater.cli.output import (
    Columns,
    clock_time,
    console,
    counted,
    emit,
    iso,
    number,
    payload_object,
    remark,
    safe,
    table,
)
from headwater.cli.work import imported
from headwater.clock import to_datetime
from headwater.errors import Malformed
from headwater.store.data_folder import MEMORY
from headwater.store.files import DiskFiles
from headwater.work.comparison import CHANGES, Comparison, Outcome, Trial
from headwater.work.shadow import MESSAGES_MAX, listened_to

SHOWN_MAX = 20
"""Messages that a table shows."""


def what_if(
    at: At,
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="The new code: house.heating:better.")],
    id: Annotated[str, typer.Option("--id", metavar="ID", help="Of which subscription.")],
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="OFFSET", help="Begin after this offset; with several roots, home=1200."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODULE:FUNCTION", help="Compare with other code, not with what happened."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Try so many messages at most.")] = MESSAGES_MAX,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a report with a picture, as one page.")
    ] = None,
    lake: Lake = None,
) -> None:
    """Have new code handle recorded messages, and show what would be different.

    The subscription is not touched, and it works beside the process that owns the folder. What the code publishes,
    through whichever bus, is noted and not done; folders that its module opens are opened to read. What it does
    elsewhere, as in a database, is done. If no folder and no server is named, the bus that the module opens is the one.

    It ends with 1 if messages would newly fail. With --json: an object for each message with which something else
    would happen (topic, offset, time, changes, before and after, each with end, attempts, error, took_us, published),
    then one with what was found in all (subscription, handler, against, messages, counts, ends, took_us_p50,
    took_us_p99, notes).
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    begin = after_of(after or [])
    moment_ = moment(since, ago=True) if since is not None else None
    with _alone() as opened:
        new = _function(handler)
        other = None if against is None else _function(against)
        asked: dict[str, Any] = {"since": moment_, "after": begin, "against": other, "messages_max": count}
        found = _compared(at, lake, opened, id, new, asked)
    if html is not None:
        DiskFiles().write(html, found.html().encode())
    _show(found, html, at.json)
    if found.counts["fails"]:
        raise typer.Exit(1)


def _compared(
    at: At, lake: str | None, opened: list[Any], id: str, new: Callable[[Any], Any], asked: dict[str, Any]
) -> Comparison:
    """What comes of it, with threads or with asyncio, as the code is."""
    if inspect.iscoroutinefunction(new):
        return asyncio.run(_compared_async(at, lake, id, new, asked))
    if at.url is None and at.data == DATA and len(opened) == 1:
        found: Comparison = opened[0].what_if(id, new, **asked)
        return found
    with at.look(lake_of(lake, at.url)) as bus:
        return bus.what_if(id, new, **asked)


async def _compared_async(
    at: At, lake: str | None, id: str, new: Callable[[Any], Any], asked: dict[str, Any]
) -> Comparison:
    if at.url is not None:
        async with headwater.aio.connect(at.url) as served:
            return await served.what_if(id, new, **asked)
    async with headwater.aio.open(at.data, read_only=True, lake=lake_of(lake, at.url)) as bus:
        return await bus.what_if(id, new, **asked)


def _function(place: str) -> Any:
    """The function that was named; Malformed (422) if there is none."""
    module, colon, path = place.partition(":")
    if not (module and colon and path):
        raise Malformed(f'"{safe(place)}" names no function; write module:function, as in house.heating:better')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found: Any = imported(module)
    for name in path.split("."):
        if not hasattr(found, name):
            raise Malformed(f'module "{safe(module)}" has no "{safe(path)}"; name the function that handles a message')
        found = getattr(found, name)
    return found


# Buses that the code opens


@contextmanager
def _alone() -> Iterator[list[Any]]:
    """Have folders opened to read, and nothing done of what is asked of any bus; those for threads that were opened."""
    with ExitStack() as listening:
        opened: list[Any] = []
        real = headwater.open, headwater.connect, headwater.aio.open, headwater.aio.connect

        def open_read(folder: Any, config: Any = None, **doors: Any) -> Any:
            return _heard(listening, opened, real[0](folder, config, **_to_read(folder, doors)))

        def connect(*given: Any, **options: Any) -> Any:
            return _heard(listening, opened, real[1](*given, **options))

        def open_async(folder: Any, config: Any = None, **doors: Any) -> Any:
            return _heard_later(listening, real[2](folder, config, **_to_read(folder, doors)))

        def connect_async(*given: Any, **options: Any) -> Any:
            return _heard_later(listening, real[3](*given, **options))

        _put(open_read, connect, open_async, connect_async)
        try:
            yield opened
        finally:
            _put(*real)
            for bus in opened:
                bus.close()


def _put(opens: Any, connects: Any, opens_async: Any, connects_async: Any) -> None:
    vars(headwater).update(open=opens, connect=connects)
    vars(headwater.aio).update(open=opens_async, connect=connects_async)


def _to_read(folder: Any, doors: dict[str, Any]) -> dict[str, Any]:
    return doors if str(folder) == MEMORY else {**doors, "read_only": True}


def _heard(listening: ExitStack, opened: list[Any], bus: Any) -> Any:
    listening.enter_context(listened_to(bus, is_asynchronous=False, is_alone=True))
    opened.append(bus)
    return bus


def _heard_later(listening: ExitStack, opening: Any) -> Any:
    """The same for a bus that is opened in a loop, later."""
    make = opening._make

    async def made() -> Any:
        bus = await make()
        listening.enter_context(listened_to(bus, is_asynchronous=True, is_alone=True))
        return bus

    opening._make = made
    return opening


# What was found


def _show(found: Comparison, html: str | None, as_json: bool) -> None:
    if as_json:
        for line in _objects(found):
            emit(line)
        return
    other = "what happened" if found.against is None else safe(found.against)
    print(
        f'{counted(found.messages, "message")} of "{safe(found.subscription)}", {safe(found.handler)} against {other}'
    )
    print()
    console().print(table(CHANGES, {"": lambda one: CHANGES[one], ">messages": lambda one: _changes(found, one)}))
    print()
    console().print(table(found.ends.items(), {"before → after": lambda one: one[0], ">messages": _count}))
    if found.changed:
        print()
        console().print(table(found.changed[:SHOWN_MAX], COLUMNS))
    print(f"\n{found.took_us(0.5) / 1000:,.2f} ms p50, {found.took_us(0.99) / 1000:,.2f} ms p99")
    if len(found.changed) > SHOWN_MAX:
        remark(f"and {len(found.changed) - SHOWN_MAX:,} more; --json or --html shows them")
    for note in found.notes:
        remark(note)
    if found.is_cut:
        remark(f"there are more messages; the first {found.messages:,} were tried (--count)")
    if html is not None:
        print(f"report: {safe(html)}")


def _objects(found: Comparison) -> Iterator[dict[str, Any]]:
    yield from map(_trial_object, found.changed)
    yield _summary(found)


def report_lines(found: Comparison) -> bytes:
    """What `--json` prints, as the dashboard reads it from a message."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in _objects(found))


def _changes(found: Comparison, change: Any) -> Any:
    return number(found.counts[change], "red" if change == "fails" else "green" if change == "succeeds" else "yellow")


def _count(one: tuple[str, int]) -> str:
    return f"{one[1]:,}"


COLUMNS: Columns[Trial] = {
    "message": lambda trial: f"{safe(trial.topic)} {trial.offset}",
    "time": lambda trial: clock_time(to_datetime(trial.time_us)),
    "": lambda trial: ", ".join(CHANGES[change] for change in trial.changes),
    "before": lambda trial: _shown(trial.before),
    "after": lambda trial: _shown(trial.after),
}


def _shown(outcome: Outcome) -> str:
    published = [f"→ {one.topic}" for one in outcome.published or ()]
    error = (outcome.error or "").partition("\n")[0]
    tried = f"{outcome.attempts} attempts" if (outcome.attempts or 1) > 1 else ""
    return safe("; ".join(part for part in (outcome.end, tried, error, *published) if part))


def _trial_object(trial: Trial) -> dict[str, Any]:
    return {
        "topic": trial.topic,
        "offset": trial.offset,
        "time": iso(to_datetime(trial.time_us)),
        "changes": trial.changes,
        "before": _outcome_object(trial.before),
        "after": _outcome_object(trial.after),
    }


def _outcome_object(outcome: Outcome) -> dict[str, Any]:
    published = outcome.published
    return {
        "end": outcome.end,
        "attempts": outcome.attempts,
        "error": outcome.error,
        "took_us": outcome.took_us,
        "published": None
        if published is None
        else [{"verb": one.verb, "topic": one.topic, **payload_object(one.payload)} for one in published],
    }


def _summary(found: Comparison) -> dict[str, Any]:
    return {
        "subscription": found.subscription,
        "filter": found.filter,
        "handler": found.handler,
        "against": found.against,
        "messages": found.messages,
        "is_cut": found.is_cut,
        "counts": found.counts,
        "ends": found.ends,
        "took_us_p50": found.took_us(0.5),
        "took_us_p99": found.took_us(0.99),
        "notes": found.notes,
    }
