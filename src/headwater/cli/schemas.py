"""`headwater schemas`: what the payloads of topics have to be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headwater import SchemaInfo
from headwater.cli.options import At, CommandGroup
from headwater.cli.output import Columns, clock_time, done, emit, iso, named, safe, say, show_all
from headwater.cli.work import imported
from headwater.errors import Malformed, NotFound
from headwater.schemas import DEPTHS

app = CommandGroup(help="What payloads have to be: add, list, show, remove.", no_args_is_help=True)

TEXT_BYTES_MAX = 8 * 1024 * 1024
"""Of a file; the bus has a limit of its own."""
SHOWN_CHARS = 60

Filter = Annotated[str, typer.Argument(help="Of which topics, such as 'home/+/temp'.")]


@app.command()
def add(
    at: At,
    filter: Filter,
    schema: Annotated[str, typer.Argument(help="A file with a JSON Schema, - for the input, or MODULE:TYPE.")],
    check: Annotated[
        str, typer.Option("--check", help="Stored messages to look at before: recent, all, or none.")
    ] = "recent",
) -> None:
    """Refuse payloads that do not fit, from now on; another schema takes the place of what a filter had.

    MODULE:TYPE is a dataclass, msgspec.Struct, TypedDict or pydantic model of a module in this folder. If a stored
    message that is looked at does not fit, nothing is changed.

    With --json: an object, as of list.
    """
    if check not in DEPTHS:
        raise Malformed(f'--check is "{safe(check)}"; say recent, all or none')
    given = _given(schema)
    with at.own(make=True) as bus:
        made = bus.schema(filter, given, check=check)  # type: ignore[arg-type]  # it is one of them
    if at.json:
        emit(_object(made))
    else:
        say((safe(made.filter), "cyan"), "  ", _shortened(made))


@app.command("list")
def list_(at: At) -> None:
    """List schemas; beside the process that owns the folder, too.

    With --json: an object for each (filter, schema, changed).
    """
    with at.look() as bus:
        found = bus.schemas()
    show_all(found, COLUMNS, _object, at.json)


@app.command()
def show(at: At, filter: Filter) -> None:
    """Show one schema, in full.

    With --json: an object, as of list.
    """
    with at.look() as bus:
        found = next((one for one in bus.schemas() if one.filter == filter), None)
    if found is None:
        raise NotFound(f'there is no schema of "{filter}"; bus.schemas() lists those that there are')
    if at.json:
        emit(_object(found))
    else:
        for line in msgspec.json.format(found.text, indent=2).splitlines():
            say(safe(line))


@app.command()
def remove(at: At, filter: Filter) -> None:
    """Let everything be published to these topics again."""
    with at.own() as bus:
        bus.remove_schema(filter)
    done(filter, "removed", at.json)


def _shortened(one: SchemaInfo) -> str:
    text = safe(one.text)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


COLUMNS: Columns[SchemaInfo] = {
    "filter": lambda one: named(one.filter),
    "changed": lambda one: clock_time(one.changed_at),
    "schema": _shortened,
}


def _object(one: SchemaInfo) -> dict[str, Any]:
    return {"filter": one.filter, "schema": one.schema, "changed": iso(one.changed_at)}


def _given(schema: str) -> object:
    """What was named: the text of a JSON Schema, or a type."""
    if schema == "-":
        return sys.stdin.buffer.read(TEXT_BYTES_MAX)
    path = Path(schema)
    if path.is_file():
        return path.read_bytes()[:TEXT_BYTES_MAX]
    module, colon, name = schema.partition(":")
    if not (module and colon and name):
        raise Malformed(
            f'"{safe(schema)}" is no file; write - for the input, or module:type, as in house.types:Reading'
        )
    sys.path.insert(0, str(Path.cwd()))
    found: Any = imported(module)
    for step in name.split("."):
        if not hasattr(found, step):
            raise Malformed(f'module "{safe(module)}" has no "{safe(name)}"; name the type of what is published')
        found = getattr(found, step)
    return found
