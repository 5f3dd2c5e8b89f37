"""`headwater clients`: who may log in to a served bus."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headwater.access.name import check_name
from headwater.cli.addresses import Addresses, addresses, hint
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import Columns, clock_time, emit, iso, named, remark, safe, say, show_all
from headwater.clock import to_datetime
from headwater.errors import Malformed
from headwater.wire.administration import Client

app = CommandGroup(help="Clients that may log in: add, list, rotate, remove.", no_args_is_help=True)

SECRET_LINE_MAX = 4096

Name = Annotated[str, typer.Argument(help="Which client.")]
SecretStdin = Annotated[
    bool,
    typer.Option("--secret-stdin", help="Take the secret from the first line of the input, instead of drawing it."),
]
COLUMNS: Columns[Client] = {
    "name": lambda client: named(client.name),
    "id": lambda client: client.id,
    "created": lambda client: clock_time(to_datetime(client.created_us)),
    "secret since": lambda client: clock_time(to_datetime(client.rotated_us)),
}


@app.command()
def add(at: At, name: Name, secret_stdin: SecretStdin = False) -> None:
    """Register a client, and show its secret: once.

    With --json: an object with id, name, and secret if it was drawn.
    """
    given = given_secret(secret_stdin)
    with at.own(make=True) as bus:
        made = bus.clients.add(name, given)
        where = addresses(at, bus)
    _show(made, "added", given is None, where, at.json)


@app.command()
def rotate(at: At, name: Name, secret_stdin: SecretStdin = False) -> None:
    """Give a client another secret, and show it: once. The one before is of no use from then on.

    With --json: an object with id, name, and secret if it was drawn.
    """
    given = given_secret(secret_stdin)
    with at.own() as bus:
        made = bus.clients.rotate(name, given)
        where = addresses(at, bus)
    _show(made, "has a new secret", given is None, where, at.json)


@app.command()
def remove(at: At, name: Name) -> None:
    """Let a client log in no more. Rules that name it stay."""
    name = check_name(name)
    with at.own() as bus:
        bus.clients.remove(name)
        left = sum(rule.user == name for rule in bus.acl.list())
    if at.json:
        emit({"name": name, "done": "removed", "rules_left": left})
        return
    say((safe(name), "cyan"), "  removed")
    if left:
        remark(
            f'rules that name it, and would hold for a new client "{name}": {left}; headwater acl list shows them, '
            "headwater acl remove takes them back"
        )


@app.command("list")
def list_(at: At) -> None:
    """List clients.

    With --json: an object for each (id, name, created, rotated).
    """
    with at.look() as bus:
        found = bus.clients.list()
    show_all(found, COLUMNS, _object, at.json)


def _object(client: Client) -> dict[str, str]:
    created, rotated = iso(to_datetime(client.created_us)), iso(to_datetime(client.rotated_us))
    return {"id": client.id, "name": client.name, "created": created, "rotated": rotated}


def given_secret(secret_stdin: bool) -> str | None:
    """The secret in the first line of the input, if it is to be there."""
    if not secret_stdin:
        return None
    line = sys.stdin.buffer.readline(SECRET_LINE_MAX)
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Malformed("the secret in the input is not UTF-8") from None


def _show(made: Any, what: str, is_drawn: bool, where: Addresses, json: bool) -> None:
    if json:
        emit({"id": made.id, "name": made.name, **({"secret": made.secret} if is_drawn else {})})
        return
    say((safe(made.name), "cyan"), f"  {what}")
    if is_drawn:
        say("secret: ", (made.secret, "bold"), "  (shown this once: keep it now)")
    url = where.of(made.name, quote(made.secret, safe="") if is_drawn else "SECRET")
    say(f"use it: {url}", hint(url))
