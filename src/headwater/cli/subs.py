"""`headwater subs`: durable subscriptions, how far behind they are, and what to do about them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from headwater import StateInfo, SubscriptionInfo
from headwater.admin import Admin
from headwater.bus import Bus
from headwater.cli.options import At, CommandGroup, Data, Json, Url, place, start
from headwater.cli.output import Columns, clock_time, done, emit, iso, named, number, safe, say, show_all
from headwater.errors import Malformed

app = CommandGroup(help="Durable subscriptions: list them, or show, create, delete, pause, resume, seek one.")

Id = Annotated[str, typer.Argument(help="Which subscription.")]


@app.callback(invoke_without_command=True)
def subs(context: typer.Context, data: Data = None, url: Url = None, json: Json = False) -> None:
    """List durable subscriptions, as `list` does; or show, create, delete, pause, resume or seek one."""
    command = context.invoked_subcommand
    if command is None:
        _list(place(data, url, json))
    elif data is not None or url is not None or json:
        raise Malformed(f"say where, and how, behind {command}: headwater subs {command} … --data FOLDER")


@app.command("list")
def list_(at: At) -> None:
    """List durable subscriptions: lag, retrying, dead.

    It works beside the process that owns the folder. What is in flight, and how many consumers there are, only that
    process knows; a server says it.

    With --json: an object for each (id, filter, order, lag, retrying, dead, paused, floors: per root, the offset up to
    which everything is done; of a server also in_flight, consumers, and who they are: active and standing_by, each with
    its host, pid, user and session).
    """
    _list(at)


def _list(at: At) -> None:
    with at.look() as bus:
        found = bus.subscriptions()
    show_all(found, COLUMNS, _object, at.json)


def _known(count: int | None) -> str:
    """A number, or a dash where nobody knows it."""
    return "–" if count is None else f"{count:,}"


COLUMNS: Columns[SubscriptionInfo] = {
    "id": lambda info: named(info.id),
    "filter": lambda info: safe(info.filter),
    "order": lambda info: info.order,
    ">lag": lambda info: number(info.lag),
    ">in flight": lambda info: _known(info.in_flight),
    ">retrying": lambda info: number(info.retrying, "yellow"),
    ">dead": lambda info: number(info.dead, "red"),
    ">consumers": lambda info: _known(info.consumers),
    "who": lambda info: safe(taken_by(info)),
    "": lambda info: Text("paused" if info.paused else "", style="yellow"),
}
STATES: Columns[StateInfo] = {
    "topic": lambda one: named(one.topic or f"{one.root}/…"),
    ">offset": lambda one: str(one.offset),
    "state": lambda one: Text(one.state.replace("_", " "), style="red" if one.state == "dead" else ""),
    "since": lambda one: clock_time(one.since) if one.since else "–",
    "by": lambda one: safe(one.consumer or "–"),
    ">attempts": lambda one: str(one.attempts),
    ">deliveries": lambda one: str(one.deliveries),
    "again": lambda one: clock_time(one.retry_at) if one.retry_at else "–",
    "last error": lambda one: Text(safe(_first_line(one.error)), style="red"),
}


def _object(info: SubscriptionInfo) -> dict[str, Any]:
    """For machines; what is not known is left out."""
    found = {name: value for name, value in msgspec.structs.asdict(info).items() if value is not None}
    if info.consumers is None:
        del found["active"], found["standing_by"]
    return found


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]


@app.command()
def show(at: At, id: Id) -> None:
    """Show a subscription, and what became of its messages that are neither simply pending nor acked.

    Which of them are in flight only the process that owns the folder knows; a server says it.

    With --json: an object as of `list`, with `states`: an object for each (root, topic, offset, state, attempts,
    deliveries, errors, retry_at, since, consumer; what is not known is left out).
    """
    with at.look() as bus:
        info = _info(bus, id)
        states = bus.states(id)
    if at.json:
        emit({**_object(info), "states": [_state_object(one) for one in states]})
    else:
        show_all([info], COLUMNS, _object, as_json=False)
        if states:
            say("")
            show_all(states, STATES, _state_object, as_json=False)


def _state_object(one: StateInfo) -> dict[str, Any]:
    found = {**msgspec.structs.asdict(one), "retry_at_us": None, "since_us": None}
    found.update({name: iso(time) for name in ("retry_at", "since") if (time := getattr(one, name)) is not None})
    return {name: value for name, value in found.items() if value is not None}


def taken_by(info: SubscriptionInfo) -> str:
    """The first of its active consumers, and how many others there are."""
    if not info.active:
        return ""
    first, others, standing_by = info.active[0], len(info.active) - 1, len(info.standing_by)
    process = f" pid {first.pid}" if first.pid else ""
    more = f" and {others:,} more" if others else ""
    return f"{first.host or '?'}{process}{more}{f'; {standing_by:,} stand by' if standing_by else ''}"


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
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", help="redrive: dead letters come first for whoever comes back; keep.")
    ] = None,
    states: Annotated[
        str | None, typer.Option("--states", help="stream: tell what becomes of messages on $sys/states/…; off.")
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
        "on_resume": on_resume,
        "ack_timeout_s": ack_timeout_s,
        "expire_after_s": expire_after_s,
        "states": states,
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


def _info(bus: Any, id: str) -> SubscriptionInfo:
    """One as users see it."""
    return bus.durables.info(id) if isinstance(bus, Bus) else Admin(bus).subscriptions.show(id).info


def _durables(bus: Any) -> Any:
    return bus.durables if isinstance(bus, Bus) else Admin(bus).subscriptions
