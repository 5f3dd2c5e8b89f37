"""The fields that packets consist of: numbers, texts, bytes; big-endian, texts and bytes after their length.

A number of variable length has seven bits a byte, the lowest first, and the top bit set in all bytes but the last.
Promises: what is not in the bytes is not read, and nothing but `MqttError` comes out of them.
"""

from __future__ import annotations

from typing import Final

from headwater.mqtt.reasons import MqttError, Reason

VARIABLE_MAX: Final = 268_435_455
"""The largest number of variable length: four bytes."""
LENGTH_MAX: Final = 65_535
"""The longest text."""


class Fields:
    """Reads one field after another between two places of some bytes."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def skip(self, count: int, what: str) -> int:
        """Steps over so many bytes; where they begin."""
        at = self.at
        if at + count > self.end:
            raise MqttError(f"the packet ends within {what}")
        self.at = at + count
        return at

    def byte(self, what: str) -> int:
        """A number of one byte."""
        return self.data[self.skip(1, what)]

    def short(self, what: str) -> int:
        """A number of two bytes."""
        at = self.skip(2, what)
        return self.data[at] << 8 | self.data[at + 1]

    def long(self, what: str) -> int:
        """A number of four bytes."""
        at = self.skip(4, what)
        return int.from_bytes(self.data[at : at + 4], "big")

    def variable(self, what: str) -> int:
        """A number of one to four bytes, in as few as it takes."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise MqttError(f"{what} has more bytes than it takes")
                return value
        raise MqttError(f"{what} goes on after its fourth byte")

    def binary(self, what: str) -> bytes:
        """Bytes, after their length."""
        length = self.short(what)
        at = self.skip(length, what)
        return self.data[at : at + length]

    def text(self, what: str) -> str:
        """UTF-8, after its length in bytes; neither U+0000 nor half of a surrogate pair is in it."""
        return text_of(self.binary(what), what)

    def packet_id(self) -> int:
        """A packet's number, which is never 0."""
        number = self.short("the packet identifier")
        if not number:
            raise MqttError("the packet identifier is 0; the first is 1", Reason.PROTOCOL_ERROR)
        return number

    def rest(self) -> bytes:
        """All that is left."""
        at, self.at = self.at, self.end
        return self.data[at : self.end]

    def finish(self) -> None:
        """Nothing may be left."""
        if self.at < self.end:
            raise MqttError(f"{self.end - self.at} bytes are left after the end of the packet")


def text_of(raw: bytes, what: str) -> str:
    """UTF-8 as a text, if it is one that may be in a packet."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MqttError(f"{what} is not UTF-8 (byte {error.start}); encode it as UTF-8") from None
    if "\0" in text:
        raise MqttError(f"{what} contains a NUL character; leave it out")
    return text


def check_topic_name(topic: str, what: str = "the topic") -> None:
    """A name to publish to has no wildcards."""
    if "+" in topic or "#" in topic:
        raise MqttError(f"{what} contains + or #, which only filters may", Reason.TOPIC_NAME_INVALID)


def variable_bytes(value: int) -> bytes:
    """A number of variable length, in as few bytes as it takes."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value <= VARIABLE_MAX:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    raise MqttError(f"{value} does not fit into four bytes of seven bits", Reason.PACKET_TOO_LARGE)


def binary_bytes(value: bytes) -> bytes:
    """Bytes, after their length."""
    if len(value) > LENGTH_MAX:
        raise MqttError(f"a field of {len(value)} bytes is over MQTT's {LENGTH_MAX}", Reason.PACKET_TOO_LARGE)
    return len(value).to_bytes(2, "big") + value


def text_bytes(text: str) -> bytes:
    """UTF-8, after its length in bytes."""
    return binary_bytes(text.encode())
