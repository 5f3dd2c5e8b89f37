"""`headwater acl`: what clients of a served bus may do."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.text import Text

import headwater
from headwater.access.acl import Rule
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import Columns, counted, named, safe, show_all, tell
from headwater.errors import Malformed

app = CommandGroup(help="Rules for what clients may do: allow, deny, remove, list, confirm.", no_args_is_help=True)

User = Annotated[str, typer.Argument(help="Which client; '*' for every one.")]
Action = Annotated[
    str, typer.Argument(help="publish, subscribe, create (new topics), channel (have it pushed), or admin.")
]
Filter = Annotated[
    str | None, typer.Argument(help="Which topics, such as 'home/#'; a level %u is the client's name. Not for admin.")
]
DONE = {"allow": "allowed", "deny": "denied", "remove": "removed"}
COLUMNS: Columns[Rule] = {
    "": lambda rule: Text("allow", style="green") if rule.allow else Text("deny", style="red"),
    "user": lambda rule: named(rule.user),
    "action": lambda rule: rule.action,
    "filter": lambda rule: safe(rule.filter),
}


@app.command()
def allow(at: At, user: User, action: Action, filter: Filter = None) -> None:
    """Let a client do something. What no rule allows is not allowed."""
    _change(at, "allow", user, action, filter)


@app.command()
def deny(at: At, user: User, action: Action, filter: Filter = None) -> None:
    """Forbid a client something, whatever other rules allow."""
    _change(at, "deny", user, action, filter)


@app.command()
def remove(at: At, user: User, action: Action, filter: Filter = None) -> None:
    """Take a rule back, whether it allows or denies."""
    _change(at, "remove", user, action, filter)


@app.command()
def confirm(at: At) -> None:
    """Say that rules, clients and tokens are right as they are, after some may have been lost: till then none counts.

    It needs the folder for itself: end the server, look at acl list and clients list, put right what is wrong, confirm.
    """
    with headwater.open(
        at.folder("confirm is for whoever has the folder, as nobody is let in over the network")
    ) as bus:
        count = bus.acl.confirm()
    tell(at.json, {"confirmed": count}, f"{counted(count, 'loss')} confirmed; rules count")


@app.command("list")
def list_(
    at: At, user: Annotated[str | None, typer.Argument(help="Those that hold for this client; all if left out.")] = None
) -> None:
    """List rules.

    With --json: an object for each (user, action, filter, allow).
    """
    with at.look() as bus:
        found = [rule for rule in bus.acl.list() if user is None or rule.user in (user, "*")]
    show_all(found, COLUMNS, asdict, at.json)


def _change(at: At, verb: str, user: str, action: str, filter: str | None) -> None:
    if filter is None and action != "admin":
        raise Malformed(f"say which topics to {action}, such as 'home/#'; '#' is all of them")
    topics = "#" if filter is None else filter
    with at.own(make=verb != "remove") as bus:
        getattr(bus.acl, verb)(user, action, topics)
    found = {"user": user, "action": action, "filter": topics, "done": DONE[verb]}
    tell(at.json, found, (safe(user), "cyan"), f"  {action} {safe(topics)}  {DONE[verb]}")
