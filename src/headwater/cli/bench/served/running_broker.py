"""A broker that runs already, measured over the wire; roots that are made for it are purged if that is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import MANY_TOPICS
from headwater.cli.bench.served import deliver as delivering
from headwater.cli.bench.served import publish as publishing
from headwater.cli.bench.served.raw import Raw, address_of
from headwater.cli.output import remark
from headwater.errors import NotAllowed
from headwater.wire.requests import Purge

TOPICS = ("-1", f"-{MANY_TOPICS}")
MEASURED: dict[str, tuple[Callable[..., Iterator[Figure]], tuple[str, ...]]] = {
    "publish": (publishing.measure, ("",)),
    "deliver": (delivering.measure, TOPICS),
    "replay": (delivering.measure_replay, TOPICS),
}
"""What measures each part, and how the roots end that it makes."""


def measure(part: str, url: str, amount: float) -> Iterator[Figure]:
    """The figures of a part, measured for so many seconds, or with so many messages."""
    measured, endings = MEASURED[part]
    address, login = address_of(url)
    root = f"bench-{os.urandom(4).hex()}"
    try:
        yield from measured(address, login, amount, root)
    finally:
        with Raw(address, login) as client:
            for ending in endings:
                try:
                    client.ask(Purge(filter=f"{root}{ending}/#"))
                except NotAllowed:
                    remark(f'what was stored under "{root}{ending}" stays: purging takes the right "admin"')
