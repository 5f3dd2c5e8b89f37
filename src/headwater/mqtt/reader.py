"""Received bytes become packets, and what comes most becomes few values: PUBLISH packets without properties that
follow one another are one `Run`, acknowledgements that follow one another one `Acks`.

Promises, as for the native frames: bytes that are no packet raise `MqttError` and nothing else; the same messages come
out, and the same error after them, however the bytes were split; after an error nothing more is taken; what waits for
the rest of a packet is never more than was received, and never more than the limit, which is looked at with the fixed
header; the work is linear in what was received, even byte by byte.
"""

from __future__ import annotations

import re
from typing import Final

from headwater.mqtt.decoding import Decoder, Limits
from headwater.mqtt.fields import Fields
from headwater.mqtt.kinds import FLAGS, FROM_CLIENT, FROM_SERVER, V4, V5, Kind
from headwater.mqtt.packets import Connect, Packet, Pingreq, Received
from headwater.mqtt.reasons import MqttError, Reason, VersionRefused, violation
from headwater.mqtt.runs import ACK_FIRSTS, PUBLISH_FIRST, read_acks, read_run

KINDS: Final = {int(kind): kind for kind in Kind}
PING_FIRST: Final = Kind.PINGREQ << 4
PINGS: Final = re.compile(rb"(?:\xc0\x00)+")
PINGREQ: Final = Pingreq()
OTHER_PROTOCOLS: Final = {0x16: " (it looks like TLS, and this port speaks none)", ord("G"): " (it looks like HTTP)"}
"""What the first byte of others looks like."""


class PacketReader:
    """Turns received bytes into packets."""

    __slots__ = ("_decoder", "_needed", "bytes_max", "error", "is_server", "limits", "partial")

    def __init__(self, limits: Limits, *, is_server: bool = True, version: int = 0) -> None:
        self.limits = limits
        self.is_server = is_server
        """Whether the peer is a client."""
        self.bytes_max = limits.packet_bytes_max if version else limits.connect_bytes_max
        """The longest packet that is taken, its fixed header included."""
        self.error: MqttError | None = None
        """What was wrong with the bytes after the last packet; every later call raises it. Look here after handling
        the packets of a call, so as not to wait for more bytes of a connection that is lost."""
        self._decoder = Decoder(limits, is_server=is_server, version=version)
        self.partial: bytearray | None = None
        """What has come of a packet that has not ended."""
        self._needed = 0  # how long the partial packet must be before it is worth another look

    @property
    def version(self) -> int:
        """4 or 5; 0 before the CONNECT. Known, too, where the rest of the CONNECT was wrong."""
        return self._decoder.version

    def feed(self, received: bytes) -> list[Received]:
        """What these bytes complete.

        Bytes that are no packet raise at once if no packet came before them in this call; else those are returned,
        and `error` says what came after them.
        """
        if self.error is not None:
            raise _alike(self.error)
        data = received
        if self.partial is not None:
            self.partial += received
            if len(self.partial) < self._needed:
                return []
            data, self.partial = bytes(self.partial), None
        found: list[Received] = []
        at, end = 0, len(data)
        try:
            while at < end:
                first, begin, version = data[at], at, self._decoder.version
                if version:
                    if first & 0xF0 == PUBLISH_FIRST:
                        at = read_run(data, at, version, self.bytes_max, found)
                    elif first in ACK_FIRSTS:
                        at = read_acks(data, at, found)
                    elif first == PING_FIRST and self.is_server:
                        pings = PINGS.match(data, at)
                        if pings is not None:
                            at = pings.end()
                            found += [PINGREQ] * ((at - begin) // 2)
                if at == begin:
                    at = self._read_one(data, at, found)
                    if at == begin:
                        self.partial = bytearray(memoryview(data)[at:])
                        break
        except MqttError as error:
            self.error = _alike(error)
            if not found:
                raise
        return found

    def _read_one(self, data: bytes, at: int, found: list[Received]) -> int:
        """Any packet; where it ends, or the same place if it has not ended yet."""
        kind = self._kind(data[at])
        length, length_bytes = _read_length(data, at + 1)
        if not length_bytes:
            self._needed = len(data) - at + 1
            return at
        self._check_minimal(length, length_bytes)
        start = at + 1 + length_bytes
        end = start + length
        if end - at > self.bytes_max:
            is_open = self.version and self.bytes_max == self.limits.packet_bytes_max
            setting = "message_bytes_max" if is_open else "hello_bytes_max"
            raise MqttError(
                f"a packet of {end - at} bytes is over the limit of {self.bytes_max}; send less, or raise {setting}",
                Reason.PACKET_TOO_LARGE,
            )
        if end > len(data):
            self._needed = end - at
            return at
        found.append(self._read_body(kind, data[at] & 0x0F, Fields(data, start, end), length_bytes))
        return end

    def _read_body(self, kind: Kind, flags: int, fields: Fields, length_bytes: int) -> Packet:
        length = fields.end - fields.at
        packet = self._decoder.decode(kind, flags, fields)
        if kind == Kind.CONNECT:  # before it, nobody knew which rules hold
            self._check_minimal(length, length_bytes)
            if isinstance(packet, Connect) and packet.properties.authentication_method is None:
                self.bytes_max = self.limits.packet_bytes_max
            # Who announces a proof has that to send, and nothing longer: whoever finds it right raises the limit.
        return packet

    def let_go(self) -> None:
        """Take nothing more, and hold nothing: the connection is gone."""
        self.partial = None
        self.error = MqttError("the connection is gone")

    def _kind(self, first: int) -> Kind:
        """What a packet is, if it may come now; seen with its first byte."""
        kind = KINDS.get(first >> 4)
        if kind is None or (kind == Kind.AUTH and self.version == V4):
            raise MqttError(f"there is no packet of kind {first >> 4}")
        if kind != Kind.PUBLISH and first & 0x0F != FLAGS[kind]:
            other = "" if self.version else OTHER_PROTOCOLS.get(first, "")
            raise MqttError(
                f"the flags of a {kind.name} are {first & 0x0F}; they are reserved, and {FLAGS[kind]}{other}"
            )
        if not self.version and kind != Kind.CONNECT:
            raise violation(f"the first packet is a {kind.name}; it has to be a CONNECT")
        if self.version and kind == Kind.CONNECT and self.is_server:
            raise violation("a second CONNECT came; there is one in a connection")
        if kind not in (FROM_CLIENT if self.is_server else FROM_SERVER):
            raise violation(f"a {kind.name} came from the side that sends none")
        if kind == Kind.DISCONNECT and self.version == V4 and not self.is_server:
            raise violation("a DISCONNECT came from a server, which sends none in MQTT 3.1.1")
        return kind

    def _check_minimal(self, length: int, length_bytes: int) -> None:
        """MQTT 5 wants the fewest bytes that hold a length; 3.1.1 does not say so."""
        if self.version == V5 and length_bytes > 1 and length < 1 << 7 * (length_bytes - 1):
            raise MqttError("the remaining length has more bytes than it takes")


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    """The remaining length and how many bytes it has; none if it has not ended yet."""
    length = 0
    for count in range(4):
        if at + count == len(data):
            return 0, 0
        byte = data[at + count]
        length |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return length, count + 1
    raise MqttError("the remaining length goes on after its fourth byte")


def _alike(error: MqttError) -> MqttError:
    """The same error without its traceback, which would keep alive what was received."""
    if isinstance(error, VersionRefused):
        return VersionRefused(error.args[0], error.level)
    return MqttError(error.args[0], error.reason)
