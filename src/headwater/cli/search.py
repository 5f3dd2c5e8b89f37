"""`headwater search`: messages by what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from headwater import Message
from headwater.admin.search.search import MOST_MAX, Asked, Search
from headwater.admin.search.wanted import Wanted
from headwater.bus import Bus
from headwater.cli.options import At, Hex, Lake, Raw, lake_of, moment
from headwater.cli.output import Messages, remark


def search(
    at: At,
    filter: Annotated[str, typer.Argument(help="Which topics: home/+/temp, home/#")],
    where: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="""'$.sensor == "a" and $.celsius > 20'""")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="What is in the payload, as it is written.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="What is in the key.")] = None,
    header: Annotated[
        str | None,
        typer.Option("--header", metavar="NAME[=VALUE]", help="A header that it has, and what is in its value."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End before 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many.")] = None,
    hex: Hex = False,
    raw: Raw = False,
    lake: Lake = None,
) -> None:
    """Show the stored messages for which all that is stated holds, in order.

    Fields are those of JSON payloads: $.sensor, $.sensor.id, $["any name"], $.items[0], $.items[*] for any of them.
    They are compared with ==, !=, <, <=, > and >= to numbers and texts in quotes; contains looks into a text or an
    array; a field alone has to be there. Works beside the process that owns the folder.
    """
    messages = Messages(at.json, hex, raw)
    asked = Asked(
        filter,
        Wanted(where=where, text=text, key=key, header=header),
        since=moment(since, ago=True) if since is not None else None,
        until=moment(until, ago=True) if until is not None else None,
        most=MOST_MAX,
    )
    with at.look(lake_of(lake, at.url)) as bus:
        printed = messages.print_all(_found(bus, asked), count)
    if not printed:
        remark("nothing was found")
        raise typer.Exit(1)


def _found(bus: Bus, asked: Asked) -> Iterator[Message | None]:
    """What is found, as it is, and None after each lot."""
    while True:
        found = Search(bus, asked).to_its_end()
        for gap in found.gaps:
            remark(f'messages {gap.first} to {gap.last} of "{gap.root}" are gone: {gap.reason}')
        yield from found.found
        yield None
        if found.is_end:
            return
        asked = asked._replace(after=found.places)
