"""The Python libraries that run jobs, beside Headwater's handlers: each stands on a broker that is measured anyway."""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Library:
    """One from elsewhere."""

    key: str
    title: str
    package: str
    """What it is installed as, with all that it takes to speak to its broker."""
    peer: str
    """The broker that it stands on."""
    promise: str


LIBRARIES = {
    library.key: library
    for library in (
        Library("celery", "Celery", "celery[redis]", "redis", "acks a job after it ran (`task_acks_late`), no results"),
        Library("dramatiq", "dramatiq", "dramatiq[redis]", "redis", "acks a job after it ran, no results"),
        Library("rq", "RQ", "rq", "redis", "takes a job off the list of started ones after it ran, no results"),
        Library("faststream", "FastStream", "faststream[nats]", "nats", "acks a job after it ran, pulled by the 100"),
    )
}


def is_there(key: str) -> bool:
    """Whether this Python can import it."""
    return importlib.util.find_spec(key) is not None


def missing(peers: Container[str]) -> dict[str, str]:
    """Those whose broker is there, and they are not; with how they are installed."""
    wanted = (one for one in LIBRARIES.values() if one.peer in peers)
    return {one.key: f'pip install "{one.package}"' for one in wanted if not is_there(one.key)}


def versions(peers: Container[str]) -> dict[str, str]:
    """Of those that can be measured."""
    return {key: metadata.version(key) for key, one in LIBRARIES.items() if one.peer in peers and is_there(key)}
