"""`headwater sessions`: who is connected to a served bus, and who may come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from headwater.admin import Admin
from headwater.admin.client import Sessions
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import Columns, clock_time, done, emit, iso, named, safe, say, show_all
from headwater.clock import to_datetime
from headwater.errors import Malformed, NotFound
from headwater.server.session_row import SessionRow, stored_sessions
from headwater.units import size
from headwater.wire.administration import SessionInfo

app = CommandGroup(help="Sessions of a server: list, show, disconnect, end.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Which session.")]
Found = SessionInfo | SessionRow
"""As a server tells it, or as it is stored."""


@app.command("list")
def list_(at: At) -> None:
    """List sessions. Who is connected, a server alone knows; a folder has the sessions that are stored.

    With --json: an object for each (id, user, expire_after_s, subscriptions: kind, filter and id of each; of a server
    also address, connected, waiting_bytes, dropped).
    """
    show_all(_found(at), COLUMNS, _object, at.json)


@app.command()
def show(at: At, id: Id) -> None:
    """Show a session, and what it subscribes to.

    With --json: an object as those of list.
    """
    (one,) = _found(at, id)
    if at.json:
        emit(_object(one))
        return
    names = ("address", "connected", "waiting", "dropped")
    for name, value in (
        ("id", safe(one.id)),
        ("user", safe(one.user)),
        *zip(names, _doing(one), strict=True),
        ("kept for", f"{one.expire_after_s:g} s without a connection"),
    ):
        say((f"{name:<14}", "bold"), value)
    for part in one.subscriptions:
        say((f"{part.kind:<14}", "bold"), safe(part.filter), f"  {safe(part.id)}" if part.id else "")


@app.command()
def disconnect(at: At, id: Id) -> None:
    """Cut a session's connection. Its client is told, and may come back."""
    _at_server(at, lambda sessions: sessions.disconnect(id))
    done(id, "disconnected", at.json)


@app.command()
def end(at: At, id: Id) -> None:
    """End a session for good, and its own subscriptions with it; named ones stay."""
    _at_server(at, lambda sessions: sessions.end(id))
    done(id, "ended", at.json)


def _found(at: At, id: str | None = None) -> Sequence[Found]:
    """Sessions by user and id; with an id, that one."""
    bus = at.server()
    if bus is not None:
        with bus:
            found: list[Found] = Admin(bus).sessions.list() if id is None else Admin(bus).sessions.show(id)
    else:
        with at.look() as bus:
            found = [row for row in stored_sessions(bus.core.state) if id in (None, row.id)]
    if id is not None and not found:
        raise NotFound(f'there is no session "{id}"; headwater sessions list shows those that are')
    return sorted(found, key=lambda one: (one.user, one.id))


def _at_server(at: At, work: Callable[[Sessions], Any]) -> Any:
    bus = at.server()
    if bus is None:
        raise Malformed("a session is cut or ended at the server that serves it, and no server has this folder")
    with bus:
        return work(Admin(bus).sessions)


def _doing(one: Found) -> tuple[str, str, str, str]:
    """Address, since when, what waits and what was dropped, as people see them."""
    if isinstance(one, SessionRow) or not one.connected_us:
        return "–", "–", "–", "–"
    return safe(one.address), clock_time(to_datetime(one.connected_us)), size(one.waiting_bytes), f"{one.dropped:,}"


COLUMNS: Columns[Found] = {
    "user": lambda one: named(one.user),
    "id": lambda one: safe(one.id),
    "address": lambda one: _doing(one)[0],
    "connected": lambda one: _doing(one)[1],
    ">subscriptions": lambda one: f"{len(one.subscriptions):,}",
    ">waiting": lambda one: _doing(one)[2],
    ">dropped": lambda one: _doing(one)[3],
}


def _object(one: Found) -> dict[str, Any]:
    found = {
        "id": one.id,
        "user": one.user,
        "expire_after_s": one.expire_after_s,
        "subscriptions": [{"kind": part.kind, "filter": part.filter, "id": part.id} for part in one.subscriptions],
    }
    if isinstance(one, SessionInfo):
        connected = iso(to_datetime(one.connected_us)) if one.connected_us else None
        found |= {"address": one.address, "connected": connected}
        found |= {"waiting_bytes": one.waiting_bytes, "dropped": one.dropped}
    return found
