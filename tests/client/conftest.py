"""A scripted server and clients of it, gone at the end of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import headwater
from client.peer import Peer, Talk
from headwater.client.bus import Bus

Connect = Callable[..., tuple[Bus, Talk]]


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def connect(peer: Peer) -> Iterator[Connect]:
    """Connect to the peer: the bus, and the peer's side of its connection."""
    with ExitStack() as closing:

        def make(**settings: Any) -> tuple[Bus, Talk]:
            settings = {"reconnect_delay_s": 0.01, "reconnect_delay_s_max": 0.05, "request_timeout_s": 60.0, **settings}
            bus = headwater.connect(peer.url, headwater.Connecting(**settings))
            closing.callback(_leave, bus)
            return bus, peer.talk()

        yield make


def _leave(bus: Bus) -> None:
    """Leave without waiting for publishes that the script never answered."""
    if not bus._closed:
        bus._loop.call_soon_threadsafe(bus._client.link.close)
        bus.close()
