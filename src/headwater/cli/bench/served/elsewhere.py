"""A broker that runs already, measured over the wire; roots that are made for it are purged if that is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import MANY_TOPICS
from headwater.cli.bench.served import deliver as delivering
from headwater.cli.bench.served import publish as publishing
from headwater.cli.bench.served.raw import Address, Login, Raw, address_of
from headwater.cli.output import remark
from headwater.errors import NotAllowed
from headwater.wire.requests import Purge

Measure = Callable[[Address, Login | None, str], Iterator[Figure]]


def publish(url: str, seconds: float) -> Iterator[Figure]:
    """Publishing."""
    return _in_roots(url, ("",), lambda address, login, root: publishing.measure(address, login, seconds, root))


def deliver(url: str, count: int) -> Iterator[Figure]:
    """Durable delivery."""
    return _in_roots(url, TOPICS, lambda address, login, root: delivering.measure(address, login, count, root))


def replay(url: str, count: int) -> Iterator[Figure]:
    """History."""
    return _in_roots(url, TOPICS, lambda address, login, root: delivering.measure_replay(address, login, count, root))


TOPICS = ("-1", f"-{MANY_TOPICS}")


def _in_roots(url: str, endings: tuple[str, ...], measure: Measure) -> Iterator[Figure]:
    address, login = address_of(url)
    root = f"bench-{os.urandom(4).hex()}"
    try:
        yield from measure(address, login, root)
    finally:
        with Raw(address, login) as client:
            for ending in endings:
                try:
                    client.ask(Purge(filter=f"{root}{ending}/#"))
                except NotAllowed:
                    remark(f'what was stored under "{root}{ending}" stays: purging takes the right "admin"')
