"""Connections that another process passes on: each counts as its client's address as soon as that is told."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.mqtt.tunnel import TunnelledConnection, preamble
from mqtt.peer import Served


class Doorkeeper:
    """Hears of addresses, and closes the door to all."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_address(self, connection: Any, address: str) -> None:
        self.heard.append(address)
        connection.is_closed = True


@pytest.mark.parametrize("piece", [1, 4, 10, 100])
def test_an_address_counts_once_its_last_byte_is_there(piece: int) -> None:
    told, doorkeeper = preamble("192.0.2.7"), Doorkeeper()
    assert len(told) == 10
    with Served() as served:
        tunnel: Any = TunnelledConnection(served.server.listener, served.protocol._greeter)
        tunnel._doorkeeper = doorkeeper
        for start in range(0, len(told), piece):
            assert doorkeeper.heard == []
            tunnel.take(memoryview(told[start : start + piece]))
        assert doorkeeper.heard == ["192.0.2.7"]
