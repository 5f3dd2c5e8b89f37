"""`headwater acl`: what clients of a served bus may do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.cli.options import Data, Json, Url, folder, look, own
from headwater.cli.output import console, emit, safe, say
from headwater.errors import Malformed

app = typer.Typer(help="Rules for what clients may do: allow, deny, remove, list, confirm.", no_args_is_help=True)

User = Annotated[str, typer.Argument(help="Which client; '*' for every one.")]
Action = Annotated[
    str, typer.Argument(help="publish, subscribe, create (new topics), channel (have it pushed), or admin.")
]
Filter = Annotated[
    str | None, typer.Argument(help="Which topics, such as 'home/#'; a level %u is the client's name. Not for admin.")
]


@app.command()
def allow(
    user: User, action: Action, filter: Filter = None, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Let a client do something. What no rule allows is not allowed."""
    topics = _topics(action, filter)
    with own(data, url) as bus:
        bus.acl.allow(user, _as_given(action), topics)
    _done("allowed", user, action, topics, json)


@app.command()
def deny(
    user: User, action: Action, filter: Filter = None, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Forbid a client something, whatever other rules allow."""
    topics = _topics(action, filter)
    with own(data, url) as bus:
        bus.acl.deny(user, _as_given(action), topics)
    _done("denied", user, action, topics, json)


@app.command()
def remove(
    user: User, action: Action, filter: Filter = None, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Take a rule back, whether it allows or denies."""
    topics = _topics(action, filter)
    with own(data, url) as bus:
        bus.acl.remove(user, _as_given(action), topics)
    _done("removed", user, action, topics, json)


@app.command()
def confirm(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Say that rules, clients and tokens are right as they are, after some may have been lost: till then none counts.

    It needs the folder for itself: end the server, look at acl list and clients list, put right what is wrong, confirm.
    """
    place = folder(data, url, "confirm is for whoever has the folder, as nobody is let in over the network")
    with own(place, None) as bus:
        count = bus.acl.confirm()
    if json:
        emit({"confirmed": count})
    else:
        say(f"{count} loss{'' if count == 1 else 'es'} confirmed; rules count")


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Argument(help="Those that hold for this client; all if left out.")] = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List rules.

    With --json: an object for each (user, action, filter, allow).
    """
    with look(data, url) as bus:
        found = [rule for rule in bus.acl.list() if user is None or rule.user in (user, "*")]
    if json:
        for rule in found:
            emit({"user": rule.user, "action": rule.action, "filter": rule.filter, "allow": rule.allow})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "user", "action", "filter"):
        table.add_column(title, overflow="fold")
    for rule in found:
        table.add_row(
            Text("allow", style="green") if rule.allow else Text("deny", style="red"),
            Text(safe(rule.user), style="cyan"),
            rule.action,
            Text(safe(rule.filter)),
        )
    console().print(table)


def _topics(action: str, filter: str | None) -> str:
    """The filter of a rule; only an admin rule has one by itself."""
    if filter is not None:
        return filter
    if action != "admin":
        raise Malformed(f"say which topics to {action}, such as 'home/#'; '#' is all of them")
    return "#"


def _as_given(action: str) -> Any:
    """The rules themselves say which actions there are."""
    return action


def _done(what: str, user: str, action: str, filter: str, json: bool) -> None:
    if json:
        emit({"user": user, "action": action, "filter": filter, "done": what})
    else:
        say((safe(user), "cyan"), f"  {action} {safe(filter)}  {what}")
