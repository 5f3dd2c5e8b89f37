"""A tunnelled connection: an MQTT client behind a WebSocket, whose bytes the process that serves HTTP passes on.

    u8 length | address of the client, ASCII | the client's bytes, as they come

Whoever it is, it is not the process at the other end of the line: limits and delays go by the address that is stated,
and it is trusted with nothing for being near.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import Malformed
from headwater.mqtt.connection import MqttConnection

if TYPE_CHECKING:
    from headwater.mqtt.greeting import Greeter
    from headwater.server.listener import Listener

ADDRESS_BYTES_MAX = 255


def preamble(address: str) -> bytes:
    """What is sent before the client's bytes."""
    told = address.encode("ascii", "replace")[:ADDRESS_BYTES_MAX]
    return bytes((len(told),)) + told


class TunnelledConnection(MqttConnection):
    """A client's connection, at the inner end of its tunnel."""

    __slots__ = ("_doorkeeper", "_told")

    def __init__(self, listener: Listener, greeter: Greeter) -> None:
        super().__init__(listener, greeter)
        self.is_tunnelled = self.is_passed_on = True
        self._doorkeeper = listener
        self._told: bytes | None = b""
        """What has come of the preamble; None once it is over."""

    def take(self, data: memoryview) -> None:
        if self._told is not None:
            told = self._told + bytes(data)
            size = 1 + told[0]
            if len(told) < size:
                self._told = told
                return
            self._told = None
            address = told[1:size].decode("ascii", "replace")
            if not address:
                raise Malformed("a tunnel begins with its client's address")
            self._doorkeeper.on_address(self, address)
            data = memoryview(told)[size:]
        if data and not self.is_closed:
            super().take(data)
