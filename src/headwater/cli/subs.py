"""`headwater subs`: durable subscriptions, how far behind they are, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from headwater import Bus, NotFound, SubscriptionInfo
from headwater.cli.options import Data, Json, Url, look, own, place, start
from headwater.cli.output import console, emit, safe, say

app = typer.Typer(help="Durable subscriptions: list them, or delete, pause, resume, seek one.")

Id = Annotated[str, typer.Argument(help="Which subscription.")]


@app.callback(invoke_without_command=True)
def subs(context: typer.Context, data: Data = None, url: Url = None, json: Json = False) -> None:
    """List durable subscriptions: lag, retrying, dead; or delete, pause, resume or seek one.

    It works beside the process that owns the folder. What is in flight, and how many consumers there are, only that
    process knows; a server says it.

    With --json: an object for each (id, filter, order, lag, retrying, dead, paused, floors: per root, the offset up to
    which everything is done; of a server also in_flight, consumers).
    """
    if context.invoked_subcommand is not None:
        return
    is_owner = place(data, url).is_served
    with look(data, url) as bus:
        found = bus.subscriptions()
    if not json:
        console().print(table_of(found, is_owner))
        return
    for info in found:
        one = msgspec.structs.asdict(info)
        if not is_owner:
            del one["in_flight"], one["consumers"]
        emit(one)


def table_of(found: Sequence[SubscriptionInfo], is_owner: bool) -> Table:
    """Subscriptions as people see them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "filter", "order"):
        table.add_column(name, overflow="fold")
    for name in ("lag", "in flight", "retrying", "dead", "consumers"):
        table.add_column(name, justify="right")
    table.add_column("")
    for info in found:
        table.add_row(
            f"[cyan]{_escaped(info.id)}[/]",
            _escaped(info.filter),
            info.order,
            _warn(info.lag, "default"),
            f"{info.in_flight:,}" if is_owner else "–",
            _warn(info.retrying, "yellow"),
            _warn(info.dead, "red"),
            f"{info.consumers:,}" if is_owner else "–",
            "[yellow]paused[/]" if info.paused else "",
        )
    return table


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(safe(text))


def _warn(count: int, style: str) -> str:
    return f"[{style}]{count:,}[/]" if count else "[dim]0[/]"


@app.command()
def delete(id: Id, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Delete a subscription, its place and its dead letters."""
    with own(data, url) as bus:
        bus.unsubscribe(id)
    _done(id, "deleted", json)


@app.command()
def pause(id: Id, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Hand out nothing, to any consumer, until it is resumed."""
    with own(data, url) as bus, bus.subscribe(_filter_of(bus, id), id=id) as consumer:
        consumer.pause()
    _done(id, "paused", json)


@app.command()
def resume(id: Id, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Go on after pause."""
    with own(data, url) as bus, bus.subscribe(_filter_of(bus, id), id=id) as consumer:
        consumer.resume()
    _done(id, "resumed", json)


@app.command()
def seek(
    id: Id,
    to: Annotated[str, typer.Argument(help="earliest, latest, an offset, a moment, or 10m (ago).")],
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Go on from another place."""
    where = start(to)
    with own(data, url) as bus, bus.subscribe(_filter_of(bus, id), id=id) as consumer:
        consumer.seek(where)
    _done(id, f"goes on from {to}", json)


def _filter_of(bus: Bus, id: str) -> str:
    for info in bus.subscriptions():
        if info.id == id:
            return info.filter
    raise NotFound(f'there is no subscription "{id}"; headwater subs lists those that are')


def _done(id: str, what: str, json: bool) -> None:
    if json:
        emit({"id": id, "done": what})
    else:
        say((safe(id), "cyan"), f"  {what}")
