"""`headwater replay`: history, and with --follow what comes after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated

import typer

from headwater import Message
from headwater.bus import Bus
from headwater.cli.following import Follower, messages_of, served
from headwater.cli.options import At, Hex, Lake, Raw, lake_of, moment
from headwater.cli.options import after as after_of
from headwater.cli.output import Messages


def replay(
    at: At,
    filter: Annotated[str, typer.Argument(help="Which topics: home/+/temp, home/#")],
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after", metavar="OFFSET", help="Begin after this offset; with several roots, home=1200 for each."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Then go on with what is new, until Ctrl-C.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many.")] = None,
    hex: Hex = False,
    raw: Raw = False,
    lake: Lake = None,
) -> None:
    """Show the messages that are stored, in order; works beside the process that owns the folder.

    With a lake, those too that are archived and in the log no more; a server reads its own.
    """
    messages = Messages(at.json, hex, raw)
    begin = after_of(after or [])
    moment_ = moment(since, ago=True) if since is not None else None
    with at.look(lake_of(lake, at.url)) as bus:
        found: Iterable[Message | None]
        if follow:
            found = _followed(bus, filter, begin, moment_, at.is_served)
        else:
            found = messages_of(bus.replay(filter, after=begin, since=moment_))
        messages.print_all(found, count)


def _followed(
    bus: Bus, filter: str, after: int | Mapping[str, int] | None, since: datetime | None, is_served: bool
) -> Iterator[Message | None]:
    if is_served:
        return served(bus.follow(filter, after=after, since=since), None)
    return Follower(bus, filter, after, since).messages(None)
