"""`headwater schedule`: messages that are published again and again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater import ScheduleInfo
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import (
    Columns,
    clock_time,
    done,
    emit,
    iso,
    named,
    payload_object,
    preview,
    safe,
    say,
    show_all,
)
from headwater.cli.pub import pair_of

app = CommandGroup(help="Messages that are published again and again: add, list, remove.", no_args_is_help=True)


@app.command()
def add(
    at: At,
    topic: Annotated[str, typer.Argument(help="Where to: jobs/nightly")],
    payload: Annotated[str, typer.Argument(help="What: text.")] = "",
    cron: Annotated[
        str, typer.Option("--cron", help="When: minute, hour, day of month, month, day of week. '0 3 * * *'")
    ] = ...,  # type: ignore[assignment]  # it has to be given
    id: Annotated[str | None, typer.Option("--id", help="Its id; if not said, the topic's name.")] = None,
    zone: Annotated[str, typer.Option("--zone", help="Whose time that is: Europe/Berlin.")] = "UTC",
    retain: Annotated[bool, typer.Option("--retain", help="Keep it for new subscribers.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Messages with one key stay in order.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be given more than once.")
    ] = None,
    ttl_s: Annotated[float | None, typer.Option("--ttl-s", help="Seconds after which nobody gets it.")] = None,
) -> None:
    """Publish a message again and again, or another one in place of what this id had.

    It is published by the process that has the folder, or the server, while that runs; of the times that it missed, one
    is caught up.

    With --json: an object, as of list.
    """
    with at.own(make=True) as bus:
        made = bus.schedule(
            topic,
            payload.encode(errors="surrogateescape"),
            cron=cron,
            id=id,
            zone=zone,
            retain=retain,
            key=None if key is None else key.encode(),
            headers=tuple(pair_of(text) for text in header or ()),
            ttl_s=ttl_s,
        )
    if at.json:
        emit(_object(made))
    else:
        say((safe(made.id), "cyan"), f"  next {clock_time(made.next_at)}")


@app.command("list")
def list_(at: At) -> None:
    """List schedules, and when each is due next; beside the process that owns the folder, too.

    With --json: an object for each (id, topic, cron, zone, next, last, payload or payload_base64, headers, retain,
    ttl_s, client).
    """
    with at.look() as bus:
        found = bus.schedules()
    show_all(found, COLUMNS, _object, at.json)


@app.command()
def remove(at: At, id: Annotated[str, typer.Argument(help="Which schedule.")]) -> None:
    """Publish it no more."""
    with at.own() as bus:
        bus.unschedule(id)
    done(id, "removed", at.json)


COLUMNS: Columns[ScheduleInfo] = {
    "id": lambda one: named(one.id),
    "topic": lambda one: safe(one.topic),
    "cron": lambda one: safe(one.cron),
    "zone": lambda one: safe(one.zone),
    "next": lambda one: clock_time(one.next_at),
    "last": lambda one: "" if one.last_at is None else clock_time(one.last_at),
    "payload": lambda one: preview(one.payload),
    "client": lambda one: safe(one.client),
}


def _object(one: ScheduleInfo) -> dict[str, Any]:
    return {
        "id": one.id,
        "topic": one.topic,
        "cron": one.cron,
        "zone": one.zone,
        "next": iso(one.next_at),
        "last": None if one.last_at is None else iso(one.last_at),
        **payload_object(one.payload),
        "headers": one.headers,
        "retain": one.retain,
        "ttl_s": one.ttl_s,
        "client": one.client,
    }
