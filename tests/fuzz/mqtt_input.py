"""What may come out of bytes on an MQTT connection: one function that every fuzzer of the packets calls.

The bytes are read as a server would, from the CONNECT on or after it, and as a client would, in both versions. Allowed
are packets, a wait for more, and `MqttError`; whatever is read must be written again, and read from that as it was.
"""

from __future__ import annotations

from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Connect, Packet
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import MqttError
from mqtt.samples import LIMITS, each, outcome

SIDES = [(True, 0), (True, V4), (True, V5), (False, V4), (False, V5)]


def feed_all(data: bytes, step: int, is_server: bool, version: int) -> tuple[list[Packet], str, int]:
    """The packets of these bytes, fed so many at a time, the error after them, and the version that was spoken."""
    reader = PacketReader(LIMITS, is_server=is_server, version=version)
    found: list[Packet] = []
    try:
        for at in range(0, len(data), step):
            found += each(reader.feed(data[at : at + step]))
            assert len(reader.partial or b"") <= min(LIMITS.packet_bytes_max, at + step)
        if reader.error is not None:
            raise reader.error
    except MqttError as error:
        assert error.reason >= 0x80
        return found, str(error), reader.version
    return found, "", reader.version


def check(data: bytes) -> None:
    """Raises if bytes make the reader do anything but what it promises; the first byte says how they are split."""
    step, data = (data[0] % 32 + 1, data[1:]) if data else (1, b"")
    for is_server, start in SIDES:
        found, error, version = feed_all(data, step, is_server, start)
        whole = feed_all(data, max(1, len(data)), is_server, start)
        assert (found, error, version) == whole, "packets depend on how their bytes were split"
        for packet in found:
            reader = PacketReader(LIMITS, is_server=is_server, version=0 if isinstance(packet, Connect) else version)
            assert outcome(reader, [encode(packet, version)]) == ([packet], 0), "a packet is not written as it was read"
