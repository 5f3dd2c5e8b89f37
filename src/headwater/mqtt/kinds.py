"""The kinds of packets, as the first byte of each says them, and who may send which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

V4: Final = 4
"""MQTT 3.1.1, by the level that its CONNECT states."""
V5: Final = 5


class Kind(IntEnum):
    """What a packet is: the upper four bits of its first byte. C from the client, S from the server, B from both."""

    CONNECT = 1  # C
    CONNACK = 2  # S
    PUBLISH = 3  # B
    PUBACK = 4  # B
    PUBREC = 5  # B
    PUBREL = 6  # B
    PUBCOMP = 7  # B
    SUBSCRIBE = 8  # C
    SUBACK = 9  # S
    UNSUBSCRIBE = 10  # C
    UNSUBACK = 11  # S
    PINGREQ = 12  # C
    PINGRESP = 13  # S
    DISCONNECT = 14  # B; in 3.1.1, C
    AUTH = 15  # B; not in 3.1.1


FLAGS: Final = {kind: 0b0010 if kind in (Kind.PUBREL, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE) else 0 for kind in Kind}
"""The lower four bits of a packet's first byte, which are reserved in all but PUBLISH."""

BOTH: Final = frozenset({Kind.PUBLISH, Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP, Kind.DISCONNECT, Kind.AUTH})
FROM_CLIENT: Final = BOTH | {Kind.CONNECT, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.PINGREQ}
FROM_SERVER: Final = BOTH | {Kind.CONNACK, Kind.SUBACK, Kind.UNSUBACK, Kind.PINGRESP}
