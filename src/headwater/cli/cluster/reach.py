"""How a command finds the nodes: by the NATS servers, whose addresses stand where those of a node's settings stand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.following import pause
from headwater.clock import SECOND_US, SystemClock
from headwater.cluster.overview import Overview, look
from headwater.config import Clustering
from headwater.errors import Malformed, Unavailable
from headwater.settings import load

if TYPE_CHECKING:
    from headwater.cluster.engine import Engine

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="URLS",
        help="NATS servers of the nodes: nats://h1:4222,h2,h3. Left out: as headwater.toml or HEADWATER_CLUSTER says.",
        show_default=False,
    ),
]
BusName = Annotated[
    str | None, typer.Option("--bus", metavar="NAME", help="Which bus, if it has a name.", show_default=False)
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Instead of HEADWATER_CONFIG or ./headwater.toml.", show_default=False
    ),
]
ASK_AGAIN_S = 0.2


def hush() -> None:
    """Have a connection to NATS servers log nothing: a command says in a sentence what went wrong."""
    logging.getLogger("headwater.cluster").addHandler(logging.NullHandler())


def settings(cluster: str | None, bus: str | None, config: str | None) -> Clustering:
    """What the settings, or the flags, say of the cluster."""
    flags: dict[str, tuple[str, object]] = {
        name: (f"--{name}", value) for name, value in (("cluster", cluster), ("bus", bus)) if value is not None
    }
    return load(flags, os.environ, config).clustering


@contextmanager
def engine_of(cluster: str | None, bus: str | None, config: str | None) -> Iterator[Engine]:
    """The engine of a cluster, for questions; Malformed if nothing says where it is."""
    from headwater.cluster.nats_engine import NatsEngine

    found = settings(cluster, bus, config)
    if not found.cluster:
        raise Malformed(
            "say which NATS servers the nodes use: --cluster nats://h1:4222,h2,h3, or --config FILE of one of them"
        )
    hush()
    engine = NatsEngine(found, "command line")
    try:
        yield engine
    finally:
        engine.close()


def overview(engine: Engine, bus: str) -> Overview:
    """How the cluster is; Unavailable (503) if no node answers."""
    found = look(engine)
    if not found.reports:
        known = f"; {', '.join(found.members)} belong to it" if found.members else ""
        raise Unavailable(
            f'no node of bus "{bus}" answers at these NATS servers{known}; start one with headwater serve --cluster, '
            "or say --bus if it has another name"
        )
    return found


def wait_for(engine: Engine, is_so: Callable[[Overview], bool], patience_s: float) -> Overview | None:
    """The cluster once something is so; None if it is not so in time."""
    clock = SystemClock()
    until_us = clock.monotonic_us() + round(patience_s * SECOND_US)
    while True:
        try:
            found = look(engine, ASK_AGAIN_S * 2)
        except Unavailable:
            found = None
        if found is not None and is_so(found):
            return found
        if clock.monotonic_us() > until_us:
            return None
        pause(ASK_AGAIN_S)
