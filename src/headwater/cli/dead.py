"""`headwater dead`: messages that a subscription gave up on."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from headwater import DeadLetter, Malformed
from headwater.cli.options import At, CommandGroup, Hex
from headwater.cli.output import (
    Columns,
    clock_time,
    counted,
    emit,
    iso,
    message_object,
    named,
    preview,
    safe,
    say,
    show_all,
    shown,
    tell,
)

app = CommandGroup(help="Dead letters: list, show, redrive, drop.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Which subscription.")]
Offsets = Annotated[list[int] | None, typer.Argument(help="Which of them, by offset.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
COLUMNS: Columns[DeadLetter] = {
    "subscription": lambda letter: named(letter.subscription),
    "topic": lambda letter: safe(letter.topic),
    ">offset": lambda letter: str(letter.offset),
    ">attempts": lambda letter: str(letter.attempts),
    "given up": lambda letter: clock_time(letter.dead_at),
    "last error": lambda letter: Text(safe(letter.errors[-1]) if letter.errors else "", style="red"),
    "payload": lambda letter: preview(letter.payload),
}


@app.command("list")
def list_(
    at: At, id: Annotated[str | None, typer.Argument(help="Of this subscription; all if left out.")] = None
) -> None:
    """List dead letters.

    With --json: an object for each, as a message, with subscription, attempts, errors and dead_at.
    """
    with at.look() as bus:
        ids = [id] if id is not None else [info.id for info in bus.subscriptions() if info.dead]
        letters = [letter for name in ids for letter in bus.dead_letters(name)]
    show_all(letters, COLUMNS, _object, at.json)


@app.command()
def show(at: At, id: Id, offset: Annotated[int, typer.Argument(help="Which of them.")], hex: Hex = False) -> None:
    """Show a dead letter whole: its errors, headers and payload."""
    with at.look() as bus:
        letter = bus.dead_letter(id, offset)
    if at.json:
        emit(_object(letter))
        return
    rows = [
        ("subscription", safe(letter.subscription)),
        ("topic", safe(letter.topic)),
        ("offset", str(letter.offset)),
        ("published", clock_time(letter.time)),
        ("given up", clock_time(letter.dead_at)),
        ("attempts", str(letter.attempts)),
        *(("error", safe(error)) for error in letter.errors),
        *(("header", safe(f"{name}: {value}")) for name, value in letter.headers.items()),
        *([("key", shown(letter.key))] if letter.key is not None else []),
        ("payload", shown(letter.payload, hex)),
    ]
    for name, value in rows:
        say((f"{name:<14}", "bold"), (value, "red" if name == "error" else ""))


@app.command()
def redrive(
    at: At,
    id: Id,
    offsets: Offsets = None,
    all: All = False,
    payload: Annotated[str | None, typer.Option("--payload", help="Mended: with this text instead.")] = None,
) -> None:
    """Hand dead letters to their subscription again, in order, and to no other."""
    _check(offsets, all)
    with at.own() as bus:
        if payload is None:
            count = bus.redrive(id, offsets or None)
        else:
            letters = [bus.dead_letter(id, offset) for offset in offsets] if offsets else bus.dead_letters(id)
            new = payload.encode(errors="surrogateescape")
            count = bus.redrive(id, mended=[letter.mend(payload=new) for letter in letters])
    _done(id, "redriven", count, offsets, at.json)


@app.command()
def drop(at: At, id: Id, offsets: Offsets = None, all: All = False) -> None:
    """Forget dead letters for good."""
    _check(offsets, all)
    with at.own() as bus:
        count = bus.drop_dead_letters(id, offsets or None)
    _done(id, "dropped", count, offsets, at.json)


def _check(offsets: list[int] | None, all: bool) -> None:
    if bool(offsets) == all:
        raise Malformed("say which: offsets, or --all")


def _done(id: str, what: str, count: int, offsets: list[int] | None, json: bool) -> None:
    said = f"  {counted(count, 'dead letter')} {what}"
    tell(json, {"id": id, what: count}, (safe(id), "cyan"), said)
    if offsets and count < len(set(offsets)):
        raise typer.Exit(1)


def _object(letter: DeadLetter) -> dict[str, Any]:
    return {
        "subscription": letter.subscription,
        **message_object(letter),
        "attempts": letter.attempts,
        "errors": letter.errors,
        "dead_at": iso(letter.dead_at),
    }
