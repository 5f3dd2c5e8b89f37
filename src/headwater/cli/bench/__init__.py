"""`headwater bench`: how fast this machine lets Headwater be, each figure beside the raw limit of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import CommandGroup, Json

if TYPE_CHECKING:
    from headwater.cli.bench.figure import Figure

app = CommandGroup(
    no_args_is_help=True,
    help="Measure: publish, deliver, replay, match, open, import, or all of these; served: the broker over the wire; "
    "fair: the same beside a noisy neighbour; cluster: three nodes beside JetStream alone. "
    "400-byte messages; one topic, then 1,000.",
)

Where = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Where to make the temporary folders that are measured: on the disk that you want to know about.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Measure a broker that runs, headwater://[USER:SECRET@]HOST[:PORT]; what is stored for that is purged.",
    ),
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.05, help="How long each figure is measured.")]
Count = Annotated[int, typer.Option("--count", min=1000, help="Messages stored before they are read.")]
Stored = Annotated[int, typer.Option("--stored", min=10_000, help="Messages stored before kill -9.")]
Subscriptions = Annotated[int, typer.Option("--subscriptions", min=100, help="Filters in the tree.")]

SECONDS = 2.0
COUNT = 200_000
STORED = 1_000_000
SUBSCRIPTIONS = 1_000_000

MODULES = {"open": "reopen", "import": "importing"}
"""Of parts whose names are none for a module."""

Part = tuple[str, Callable[[], "Iterable[Figure]"]]


@app.command()
def publish(data: Where = ".", url: Url = "", seconds: Seconds = SECONDS, json: Json = False) -> None:
    """publish_many, single publish, 16 threads, and 100 roots at once; against synced raw appends.

    With --url: over the wire to a broker that runs, in batches and one by one, one client and 16.
    """
    _run([_elsewhere("publish", url, seconds) if url else _part("publish", data, seconds)], json)


@app.command()
def deliver(data: Where = ".", url: Url = "", count: Count = COUNT, json: Json = False) -> None:
    """A durable subscription: batch(100) and sub.ack, each ack on disk.

    With --url: over the wire from a broker that runs, to a receiver that acks whole hand-outs.
    """
    _run([_elsewhere("deliver", url, count) if url else _part("deliver", data, count)], json)


@app.command()
def replay(data: Where = ".", url: Url = "", count: Count = COUNT, json: Json = False) -> None:
    """History as message objects, against reading the same bytes with their checksums.

    With --url: over the wire from a broker that runs, as batches.
    """
    _run([_elsewhere("replay", url, count) if url else _part("replay", data, count)], json)


@app.command()
def served(
    data: Where = ".",
    quick: Annotated[bool, typer.Option("--quick", help="A third of the time, with less stored.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="publish, deliver, fan-out, latency, idle or connecting."),
    ] = None,
    json: Json = False,
) -> None:
    """A broker of its own and its clients, in processes of their own, over loopback: all that a server promises."""
    from headwater.cli.bench.served.measure import PARTS, measure
    from headwater.errors import Malformed

    parts = tuple(only or PARTS)
    if not set(parts) <= set(PARTS):
        raise Malformed(f"--only is one of {', '.join(PARTS)}")
    _run([(part, partial(measure, data, quick, (part,))) for part in parts], json)


@app.command()
def fair(
    data: Where = ".",
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the time.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ROW", help="One of them, by its name; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """What a neighbour can do to you: a broker of its own, alone and beside somebody who takes all he can get."""
    from headwater.cli.bench.fair.rows import measure
    from headwater.cli.bench.fair.table import ROWS
    from headwater.errors import Malformed

    rows = tuple(only or ROWS)
    if not set(rows) <= set(ROWS):
        raise Malformed(f"--only is one of {', '.join(ROWS)}")
    _run([(row, lambda row=row: measure(data, quick, (row,))) for row in rows], json)  # type: ignore[misc]


@app.command()
def cluster(
    data: Where = ".",
    seconds: Seconds = 10.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each kind of loss is tried.")] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="publish, single, step-down, failover or engine."),
    ] = None,
    lease_s: Annotated[float, typer.Option("--lease-s", help="Of the nodes.")] = 3.0,
    json: Json = False,
) -> None:
    """Three nodes over three NATS servers, by turns with JetStream alone (R3, synced): publishing, lag and failover."""
    from headwater.cli.bench.cluster.measure import PARTS, measure
    from headwater.errors import Malformed

    parts = tuple(only or PARTS)
    if not set(parts) <= set(PARTS):
        raise Malformed(f"--only is one of {', '.join(PARTS)}")
    _run([("cluster", partial(measure, data, seconds, rounds, parts, lease_s))], json)


@app.command()
def match(seconds: Seconds = SECONDS, subscriptions: Subscriptions = SUBSCRIPTIONS, json: Json = False) -> None:
    """Look-up of the subscribers of a topic: warm, cold, and while filters come and go."""
    _run([_part("match", subscriptions, seconds)], json)


@app.command("open")
def open_(data: Where = ".", stored: Stored = STORED, json: Json = False) -> None:
    """How long open takes after kill -9, with a tenth of the messages stored, with all of them, and with as many
    retained topics."""
    _run([_part("open", data, stored)], json)


@app.command("import")
def import_(json: Json = False) -> None:
    """How long `import headwater` takes."""
    _run([_part("import")], json)


@app.command("all")
def all_(
    data: Where = ".",
    seconds: Seconds = SECONDS,
    count: Count = COUNT,
    stored: Stored = STORED,
    subscriptions: Subscriptions = SUBSCRIPTIONS,
    json: Json = False,
) -> None:
    """Everything, in two or three minutes.

    With --json, as with all of them: one object (machine, figures: each with name, variant, value, unit, raw, raw_name,
    ratio, goal, is_met).
    """
    parts = [
        _part("import"),
        _part("publish", data, seconds),
        _part("deliver", data, count),
        _part("replay", data, count),
        _part("match", subscriptions, seconds),
        _part("open", data, stored),
    ]
    _run(parts, json)


def _part(name: str, *given: object) -> Part:
    """What is measured, by a module that is loaded now."""
    return name, partial(import_module(f"{__name__}.{MODULES.get(name, name)}").measure, *given)


def _elsewhere(name: str, url: str, amount: float) -> Part:
    """The same of a broker that runs, over the wire."""
    from headwater.cli.bench.served.running_broker import measure

    return name, partial(measure, name, url, amount)


def _run(parts: list[Part], json: bool) -> None:
    from headwater.cli.bench.figure import show
    from headwater.cli.output import side

    figures: list[Figure] = []
    with side().status("measuring") as status:
        for name, measure in parts:
            status.update(f"measuring: {name}")
            for figure in measure():
                figures.append(figure)
                status.update(f"measuring: {name}, {figure.name}")
    show(figures, json)
