"""`headwater subs`: durable subscriptions, how far behind they are, and what to do about them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from headwater import Bus, SubscriptionInfo
from headwater.admin import Admin
from headwater.cli.options import At, CommandGroup, Data, Json, Url, place, start
from headwater.cli.output import Columns, done, named, number, safe, show_all

app = CommandGroup(help="Durable subscriptions: list them, or create, delete, pause, resume, seek one.")

Id = Annotated[str, typer.Argument(help="Which subscription.")]


@app.callback(invoke_without_command=True)
def subs(context: typer.Context, data: Data = None, url: Url = None, json: Json = False) -> None:
    """List durable subscriptions: lag, retrying, dead; or create, delete, pause, resume or seek one.

    It works beside the process that owns the folder. What is in flight, and how many consumers there are, only that
    process knows; a server says it.

    With --json: an object for each (id, filter, order, lag, retrying, dead, paused, floors: per root, the offset up to
    which everything is done; of a server also in_flight, consumers).
    """
    if context.invoked_subcommand is not None:
        return
    at = place(data, url, json)
    with at.look() as bus:
        found = bus.subscriptions()
    show_all(found, columns(at.is_served), lambda info: _object(info, at.is_served), json)


def columns(is_owner: bool) -> Columns[SubscriptionInfo]:
    """Subscriptions as people see them; what is in flight, and with whom, only an owner knows."""
    return {
        "id": lambda info: named(info.id),
        "filter": lambda info: safe(info.filter),
        "order": lambda info: info.order,
        ">lag": lambda info: number(info.lag),
        ">in flight": lambda info: f"{info.in_flight:,}" if is_owner else "–",
        ">retrying": lambda info: number(info.retrying, "yellow"),
        ">dead": lambda info: number(info.dead, "red"),
        ">consumers": lambda info: f"{info.consumers:,}" if is_owner else "–",
        "": lambda info: Text("paused" if info.paused else "", style="yellow"),
    }


def _object(info: SubscriptionInfo, is_owner: bool) -> dict[str, Any]:
    found = msgspec.structs.asdict(info)
    if not is_owner:
        del found["in_flight"], found["consumers"]
    return found


@app.command()
def create(
    at: At,
    id: Id,
    filter: Annotated[str, typer.Argument(help="Which topics: home/+/temp, home/#")],
    from_: Annotated[
        str, typer.Option("--start", metavar="WHERE", help="latest, earliest, an offset, a moment, or 10m (ago).")
    ] = "latest",
    order: Annotated[str | None, typer.Option("--order", help="strict (if not said), key or none.")] = None,
    max_in_flight: Annotated[int | None, typer.Option("--max-in-flight", help="Messages handed out at once.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Then a message is a dead letter; 0: never.")
    ] = None,
    max_deliveries: Annotated[
        int | None,
        typer.Option("--max-deliveries", help="To consumers that die; then a message is a dead letter; 0: never."),
    ] = None,
    ack_timeout_s: Annotated[
        float | None, typer.Option("--ack-timeout-s", help="Then a message is handed out again; 0: never.")
    ] = None,
    expire_after_s: Annotated[
        float | None, typer.Option("--expire-after-s", help="Unused for so long, it is deleted; if not said, never.")
    ] = None,
) -> None:
    """Make a subscription that nobody takes from yet. The same again changes nothing."""
    stated = {
        "order": order,
        "max_in_flight": max_in_flight,
        "max_attempts": max_attempts,
        "max_deliveries": max_deliveries,
        "ack_timeout_s": ack_timeout_s,
        "expire_after_s": expire_after_s,
    }
    given = {name: value for name, value in stated.items() if value is not None}
    begin = start(from_)
    with at.own(make=True) as bus:
        _durables(bus).create(id, filter, start=begin, **given)
    done(id, "is there", at.json)


@app.command()
def delete(
    at: At, id: Id, force: Annotated[bool, typer.Option("--force", help="Also while somebody takes from it.")] = False
) -> None:
    """Delete a subscription, its place and its dead letters. Who takes from it is told."""
    with at.own() as bus:
        _durables(bus).delete(id, force=force)
    done(id, "deleted", at.json)


@app.command()
def pause(at: At, id: Id) -> None:
    """Hand out nothing, to any consumer, until it is resumed."""
    with at.own() as bus:
        _durables(bus).pause(id)
    done(id, "paused", at.json)


@app.command()
def resume(at: At, id: Id) -> None:
    """Go on after pause."""
    with at.own() as bus:
        _durables(bus).resume(id)
    done(id, "resumed", at.json)


@app.command()
def seek(
    at: At, id: Id, to: Annotated[str, typer.Argument(help="earliest, latest, an offset, a moment, or 10m (ago).")]
) -> None:
    """Go on from another place, whoever takes from it."""
    where = start(to)
    with at.own() as bus:
        _durables(bus).seek(id, where)
    done(id, f"goes on from {to}", at.json)


def _durables(bus: Any) -> Any:
    return bus.durables if isinstance(bus, Bus) else Admin(bus).subscriptions
