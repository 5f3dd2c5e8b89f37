"""`headwater channels`: what is pushed where."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from headwater.access.destination import Destinations
from headwater.bus import Bus
from headwater.channels.table import read_table, write_table
from headwater.cli.clients import given_secret
from headwater.cli.options import At, CommandGroup, Data, Url, is_served, place
from headwater.cli.output import Columns, complain, counted, done, emit, iso, named, safe, say, show_all
from headwater.clock import to_datetime
from headwater.errors import Conflict, HeadwaterError, Malformed
from headwater.settings import load
from headwater.wire.administration import ChannelInfo, ChannelSpec

app = CommandGroup(
    help="Push destinations: add, list, show, change, remove, pause, resume, test, export, import.",
    no_args_is_help=True,
)

TABLE_BYTES_MAX = 8 * 1024 * 1024
ONE_OF = re.compile(r"channel (\d+) of \d+: ")

Id = Annotated[str, typer.Argument(help="Which channel: its id, or its name if no other is called so.")]
Name = Annotated[str, typer.Argument(help="What people call it.")]
Filter = Annotated[str, typer.Argument(help="What is pushed, such as 'home/+/alarm'.")]
Destination = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where somebody listens.")]
Path = Annotated[str | None, typer.Option("--path", help="Of an http channel: where to POST.")]
Batch = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", help="Messages that are sent at once: 100 with http, 1000 with tcp."),
]
SecretStdin = Annotated[
    bool, typer.Option("--secret-stdin", help="Take the secret (whsec_…) from the first line of the input.")
]


@app.command()
def add(
    at: At,
    name: Name,
    filter: Filter,
    destination: Destination,
    kind: Annotated[str, typer.Option("--kind", help="tcp, or http.")] = "tcp",
    id: Annotated[str | None, typer.Option("--id", help="Its id, instead of one that is drawn.")] = None,
    path: Path = None,
    start: Annotated[str, typer.Option("--start", help="earliest, or latest.")] = "latest",
    batch: Batch = None,
    attempts: Annotated[int | None, typer.Option("--attempts", help="Then a message is dead; 0: never.")] = None,
    ack_timeout_s: Annotated[float | None, typer.Option("--ack-timeout", metavar="S", help="For each message.")] = None,
    secret_stdin: SecretStdin = False,
) -> None:
    """Push what a filter matches to where somebody listens; of an http channel, show its secret: once.

    With --json: an object, as of show, with the secret if it was drawn.
    """
    host, port = _destination(destination)
    options = {"max_attempts": attempts, "ack_timeout_s": ack_timeout_s}
    secret = given_secret(secret_stdin)
    spec = _spec(
        name=name,
        filter=filter,
        destination_host=host,
        destination_port=port,
        kind=kind,
        id=id,
        path=path or "/",
        secret=secret,
        start=start,
        batch_messages_max=batch,
        options={option: value for option, value in options.items() if value is not None},
    )
    with _own(at) as bus:
        (made,) = bus.channels.add_many([spec])
    _show_made(made, "added", secret is None, at.json)


@app.command("list")
def list_(at: At) -> None:
    """List channels: where they push to, how they are doing, and how far behind they are.

    With --json: an object for each, as of show.
    """
    with at.watch() as bus:
        found = bus.channels.list()
    show_all(found, COLUMNS, _object, at.json)


@app.command()
def show(at: At, id: Id) -> None:
    """Show one channel.

    With --json: an object (id, name, filter, kind, destination_host, destination_port, path, owner, created,
    batch_messages_max, state, error, address, delivered, lag, retrying, dead).
    """
    with at.watch() as bus:
        (info,) = bus.channels.list(_known(bus, id))
    found = _object(info)
    if at.json:
        emit(found)
        return
    for field, value in found.items():
        say((f"{field:<20}", "bold"), safe(str(value)))


@app.command()
def change(
    at: At,
    id: Id,
    name: Annotated[str | None, typer.Option("--name", help="What people call it.")] = None,
    destination: Annotated[
        str | None, typer.Option("--to", metavar="HOST:PORT", help="Where somebody listens.")
    ] = None,
    path: Path = None,
    batch: Batch = None,
    new_secret: Annotated[bool, typer.Option("--new-secret", help="Draw another secret, and show it: once.")] = False,
    secret_stdin: SecretStdin = False,
) -> None:
    """Change a channel; its place stays. For another filter make another channel.

    With --json: an object, as of show, with the secret if it was drawn.
    """
    host, port = _destination(destination) if destination is not None else (None, None)
    secret = "" if new_secret else given_secret(secret_stdin)
    with _own(at) as bus:
        made = bus.channels.change(
            _known(bus, id),
            name=name,
            destination_host=host,
            destination_port=port,
            path=path,
            batch_messages_max=batch,
            secret=secret,
        )
    _show_made(made, "changed", new_secret, at.json)


@app.command()
def remove(
    at: At,
    id: Id,
    force: Annotated[
        bool, typer.Option("--force", help="Also if it has messages to deliver yet, or dead letters.")
    ] = False,
) -> None:
    """Push no more. What has messages to deliver yet, or dead letters, is removed by force alone."""
    with _own(at) as bus:
        bus.channels.remove(_known(bus, id), force=force)
    done(id, "removed", at.json)


@app.command()
def pause(at: At, id: Id) -> None:
    """Push nothing until it is resumed; its place stays."""
    with _own(at) as bus:
        bus.channels.change(_known(bus, id), paused=True)
    done(id, "paused", at.json)


@app.command()
def resume(at: At, id: Id) -> None:
    """Push on after a pause."""
    with _own(at) as bus:
        bus.channels.change(_known(bus, id), paused=False)
    done(id, "resumed", at.json)


@app.command("test")
def try_out(at: At, id: Id) -> None:
    """Try to reach a channel's destination; exit code 1 if that fails. It is the server that tries.

    With --json: an object (ok, detail, took_s).
    """
    with at.watch() as bus:
        trial = bus.channels.test(_known(bus, id))
    if at.json:
        emit(msgspec.structs.asdict(trial))
    elif trial.ok:
        say((safe(trial.detail), "green"), f"  ({trial.took_s * 1000:.1f} ms)")
    else:
        complain(trial.detail)
    if not trial.ok:
        raise typer.Exit(1)


@app.command()
def export(data: Data = None, url: Url = None) -> None:
    """Write all channels as CSV, without their secrets: headwater channels export > channels.csv."""
    with place(data, url).look() as bus:
        found = bus.channels.list()
    sys.stdout.write(write_table(found))


@app.command("import")
def import_(
    at: At,
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="A CSV file; - is the input.")],
    filter: Annotated[
        str | None,
        typer.Option("--filter", help="What is pushed, for a table id,name,destination_host,destination_port."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with it; change nothing.")] = False,
) -> None:
    """Add the channels of a CSV file: all of them, or none. Secrets of http channels are drawn, and shown: once.

    With --json: an object for each that was added, as of show, with its secret if it has one.
    """
    lines, specs = _read(file.read(TABLE_BYTES_MAX + 1), filter)
    with _own(at) as bus:
        try:
            made = bus.channels.add_many(specs, check=check)
        except HeadwaterError as error:
            raise _with_line(error, lines) from None
    if check:
        done(counted(len(specs), "channel"), "can be added", at.json)
        return
    for info in made:
        _show_made(info, "added", info.secret is not None, at.json)


def _read(table: bytes, filter: str | None) -> tuple[list[int], list[ChannelSpec]]:
    if len(table) > TABLE_BYTES_MAX:
        raise Malformed(f"the table is larger than {TABLE_BYTES_MAX} bytes; import it in parts")
    try:
        found = read_table(table.decode(), filter)
    except UnicodeDecodeError:
        raise Malformed("the table is not UTF-8; save it as that") from None
    return [line for line, _ in found], [spec for _, spec in found]


def _with_line(error: HeadwaterError, lines: list[int]) -> HeadwaterError:
    """The same error, about a line instead of a place in the list."""
    said = str(error.args[0])
    about = ONE_OF.match(said)
    if about is not None:
        return type(error)(f"line {lines[int(about[1]) - 1]}: {said[about.end() :]}")
    return type(error)(f"line {lines[0]}: {said}") if len(lines) == 1 else error


def _own(at: At) -> Bus:
    """The bus, to change its channels; those of a folder may push where the server's settings say."""
    bus = at.own(make=True)
    if not is_served(bus):
        try:
            bus.channels.destinations = Destinations(load(environment=os.environ).serving.channel_hosts)
        except BaseException:
            bus.close()
            raise
    return bus


def _known(bus: Any, given: str) -> str:
    """The id of the channel that is meant, as it is typed: by its id, or by its name."""
    everyone: list[ChannelInfo] = bus.channels.list()
    found = [one.id for one in everyone if one.name == given]
    if not found or any(one.id == given for one in everyone):
        return given
    if len(found) > 1:
        raise Conflict(f'{len(found)} channels are called "{safe(given)}"; say which by its id: {", ".join(found)}')
    return found[0]


def _spec(**given: object) -> ChannelSpec:
    try:
        return msgspec.convert(given, ChannelSpec)
    except msgspec.ValidationError as error:
        raise Malformed(f"that is no channel: {error}") from None


def _destination(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise Malformed(f'"{text}" is no destination; write HOST:PORT, such as 127.0.0.1:9000')
    return host.removeprefix("[").removesuffix("]"), int(port)


def _where(info: ChannelInfo) -> str:
    host = f"[{info.destination_host}]" if ":" in info.destination_host else info.destination_host
    at = f"{host}:{info.destination_port}"
    return f"http://{at}{info.path}" if info.kind == "http" else f"tcp {at}"


STYLES = {"failing": "red", "paused": "yellow", "stopped": "dim"}
COLUMNS: Columns[ChannelInfo] = {
    "id": lambda info: named(info.id),
    "name": lambda info: safe(info.name),
    "filter": lambda info: safe(info.filter),
    "destination": lambda info: safe(_where(info)),
    "state": lambda info: Text(info.state, style=STYLES.get(info.state, "green")),
    ">lag": lambda info: f"{info.lag:,}",
    ">delivered": lambda info: f"{info.delivered:,}",
    ">dead": lambda info: Text(f"{info.dead:,}", style="red" if info.dead else ""),
    "": lambda info: Text(safe(info.error), style="yellow"),
}


def _object(info: ChannelInfo) -> dict[str, Any]:
    found = msgspec.structs.asdict(info)
    found["created"] = iso(to_datetime(found.pop("created_us")))
    if found["secret"] is None:
        del found["secret"]
    return found


def _show_made(made: ChannelInfo, what: str, is_drawn: bool, json: bool) -> None:
    secret = made.secret if is_drawn else None
    if json:
        emit(_object(msgspec.structs.replace(made, secret=secret)))
        return
    say((made.id, "cyan"), f"  {what}: {safe(made.name)}, {safe(made.filter)} to {safe(_where(made))}")
    if secret is not None:
        say("secret: ", (secret, "bold"), "  (shown this once: keep it now)")
