"""`headwater tokens`: what opens the HTTP API of a served bus."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.access.tokens import ROLES, TokenInfo
from headwater.admin import Admin
from headwater.cli.addresses import addresses, hint
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import Columns, clock_time, done, emit, iso, named, safe, say, show_all
from headwater.clock import to_datetime
from headwater.errors import Malformed

app = CommandGroup(help="Tokens that open the HTTP API for clients: add, list, remove.", no_args_is_help=True)

COLUMNS: Columns[TokenInfo] = {
    "client": lambda token: named(token.client),
    "role": lambda token: token.role,
    "id": lambda token: token.id,
    "created": lambda token: clock_time(to_datetime(token.created_us)),
}


@app.command()
def add(
    at: At,
    client: Annotated[str, typer.Argument(help="Which client's; it is registered already.")],
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            help="reader: may look. operator: may publish, and look after what is there. admin: may do everything.",
        ),
    ] = None,
) -> None:
    """Make a token for a client, and show it: once. It is gone with the client.

    With --json: an object with id, client, role and token.
    """
    if role is None:
        raise Malformed(f"say what the token may do: --role {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if role not in ROLES:  # as the bus says it; a server would say that it cannot read the request
        raise Malformed(f'"{safe(role)}" is no role; use one of {", ".join(ROLES)}')
    with at.own() as bus:
        made = tokens_of(bus).add(client, role)
        where = addresses(at, bus)
    if at.json:
        emit({"id": made.id, "client": made.client, "role": made.role, "token": made.token})
        return
    say((safe(made.client), "cyan"), f"  {made.role}  token {made.id} added")
    say("token: ", (made.token, "bold"), "  (shown this once: keep it now)")
    say(f"use it: {where.curl(made.token, 'topics')}", hint(where.http))


@app.command()
def remove(at: At, id: Annotated[str, typer.Argument(help="Which token, by its id.")]) -> None:
    """Let a token open nothing more."""
    with at.own() as bus:
        tokens_of(bus).remove(id)
    done(id, "removed", at.json)


@app.command("list")
def list_(at: At) -> None:
    """List tokens, without their texts.

    With --json: an object for each (id, client, role, created).
    """
    with at.look() as bus:
        found = tokens_of(bus).list()
    show_all(found, COLUMNS, _object, at.json)


def _object(token: TokenInfo) -> dict[str, str]:
    created = iso(to_datetime(token.created_us))
    return {"id": token.id, "client": token.client, "role": token.role, "created": created}


def tokens_of(bus: Any) -> Any:
    """The tokens of a bus, or of a server's."""
    from headwater.bus import Bus

    return bus.tokens if isinstance(bus, Bus) else Admin(bus).tokens
