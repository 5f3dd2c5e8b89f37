"""A tcp channel's greeting: the broker connects, and says whose messages it brings.

    broker                          receiver
      │ ── HELLO ─────────────────────▶ │   versions, the channel, limits
      │ ◀──────────────────────── OK ── │   version, credit (or GOODBYE, and why)
      │ ── DELIVER ───────────────────▶ │   messages, as far as there is credit
      │ ◀── TAKEN, ACK, CREDIT ──────── │   and REQUEST: Nack, Reject, Extend
      │ ── REPLY, ERROR ──────────────▶ │   to each ACK and REQUEST

From there on every frame is what it is between a server and its client; the subscription's number is 1.
"""

from __future__ import annotations

import msgspec

from headwater.wire.handshake import VERSIONS
from headwater.wire.request import U64, Seconds

NUMBER = 1
"""Of the only subscription of such a connection."""


class ChannelHello(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker says first."""

    versions: tuple[int, ...] = VERSIONS
    software: str = ""
    channel: str
    """Its id."""
    name: str = ""
    filter: str = ""
    bus: str = ""
    """The id of the bus that the messages are of."""
    frame_bytes_max: U64 = 0
    """The longest frame that comes."""
    keepalive_s: Seconds = 0.0
    """With nothing heard for so long, either side sends PING; with nothing for twice as long, it closes."""
    trial: bool = False
    """Whether somebody only tries: nothing will be delivered."""


class ChannelWelcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver answers."""

    version: int
    software: str = ""
    credit_messages: U64 = 0
    credit_bytes: U64 = 0
