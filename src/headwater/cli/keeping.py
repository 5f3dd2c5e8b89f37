"""`headwater purge`, `backup` and `restore`: what an operator does now and then."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

import headwater
from headwater import Malformed
from headwater.cli.options import Data, Json, Url, folder, own, place, without_secret
from headwater.cli.output import emit, safe, say, side


def purge(
    filter: Annotated[str, typer.Argument(help="Which topics: home/old/#")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Remove messages for good: those that a filter matches, their retained values and topics."""
    with own(data, url) as bus:
        if not yes:
            _ask(filter, len(bus.topics(filter)))
        count = bus.purge(filter)
    if json:
        emit({"filter": filter, "topics": count})
    else:
        say((safe(filter), "cyan"), f"  {count:,} topic{'' if count == 1 else 's'} purged")


def _ask(filter: str, count: int) -> None:
    if not sys.stdin.isatty():
        raise Malformed("purge removes messages for good; where nobody can be asked, say --yes")
    side().print(f"{count:,} topics and all their messages will be gone.")
    typer.confirm(f"Purge {safe(filter)}?", abort=True, err=True)


def backup(
    target: Annotated[str, typer.Argument(help="A new folder.")],
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a copy of the folder as of now; segments are linked, not copied, where the target is on the same disk.

    With --url the server makes it, while it goes on serving: the target is a folder on its machine.
    """
    at = place(data, url)
    start = time.perf_counter()
    with own(data, url) as bus, side().status("backing up"):
        bus.backup(target)
    _done("backup", without_secret(at.url) if at.url is not None else at.data, target, start, json)


def restore(
    backup: Annotated[str, typer.Argument(help="A folder that backup made.")],
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a data folder of a backup; the folder must not exist yet, or be empty."""
    target = folder(data, url, "restore makes a folder, which no server may hold while it does")
    start = time.perf_counter()
    with side().status("restoring"):
        headwater.restore(backup, target)
    _done("restored", backup, target, start, json)


def _done(what: str, source: str, target: str, start: float, json: bool) -> None:
    seconds = time.perf_counter() - start
    if json:
        emit({"from": source, "to": target, "seconds": round(seconds, 6)})
    else:
        say(f"{what}: {safe(source)} → ", (safe(target), "cyan"), f"  {seconds:.2f} s")
