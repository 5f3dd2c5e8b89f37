"""The handshake: five frames, after which both sides are authenticated and know the limits.

    client                          server
      │ ── HELLO ─────────────────────▶ │   versions, mechanism, user, SCRAM's first message
      │ ◀───────────────── CHALLENGE ── │   version, the server's hello, SCRAM's first answer
      │ ── RESPONSE ──────────────────▶ │   SCRAM's proof
      │ ◀──────────────────────── OK ── │   the server's signature, client id, limits
      │ ── OK ────────────────────────▶ │   the signature was right
      │ ── REQUEST register ──────────▶ │   a session, new or resumed

Everything that says which frame may come when is in `TRANSITIONS`.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from headwater.errors import Malformed
from headwater.wire.frame import Frame, Kind

VERSIONS = (1,)
"""Protocol versions that are spoken here, the newest first."""

VERSIONS_NAMED = 8
"""Versions that an error repeats of those that were offered."""

Mechanism = Literal["none", "scram-sha-256", "certificate", "gatekeeper", "oauthbearer"]


class Phase(Enum):
    """Where a connection is, as the server sees it."""

    GREETING = "waits for HELLO"
    CHALLENGED = "waits for RESPONSE"
    PROVEN = "waits for OK"
    OPEN = "waits for a registration"
    REGISTERED = "is in use"


BATCHES = (Kind.PUBLISH, Kind.ACK, Kind.TAKEN, Kind.CREDIT)

TRANSITIONS: dict[tuple[Phase, int], Phase] = {
    (Phase.GREETING, Kind.HELLO): Phase.CHALLENGED,
    (Phase.CHALLENGED, Kind.RESPONSE): Phase.PROVEN,
    (Phase.PROVEN, Kind.OK): Phase.OPEN,
    (Phase.OPEN, Kind.REQUEST): Phase.OPEN,  # a registration that succeeds makes it REGISTERED
    (Phase.REGISTERED, Kind.REQUEST): Phase.REGISTERED,
    **{(Phase.REGISTERED, kind): Phase.REGISTERED for kind in BATCHES},
    **{(state, kind): state for state in Phase for kind in (Kind.PING, Kind.PONG, Kind.GOODBYE)},
}


IN_USE = frozenset(kind for state, kind in TRANSITIONS if state is Phase.REGISTERED)
"""What may come, in any order, once a connection is registered."""


def step(state: Phase, frame: Frame) -> Phase:
    """The state after a frame; Malformed if it may not come now."""
    after = TRANSITIONS.get((state, frame.kind))
    if after is None:
        raise Malformed(f"a frame {Kind(frame.kind).name} came while the connection {state.value}")
    return after


READS = 1
"""The flag of a HELLO whose connection only reads, so that any node of a cluster may serve it: PUBLISH is refused, and
each request besides those of the trait `READS`. It is a flag, which a node sees before it reads the rest."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says first."""

    versions: tuple[int, ...] = VERSIONS
    software: str = ""
    mechanism: Mechanism = "none"
    user: str = ""
    """Who it says it is; with SCRAM, its first message says so."""
    first: bytes = b""
    """SCRAM's client-first-message; with OAUTHBEARER, all that it says."""


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The server's hello, and what the client has to prove."""

    version: int
    software: str
    first: bytes = b""
    """SCRAM's server-first-message."""
    time_us: int = 0
    """The server's clock, by which a client corrects the times in what it publishes."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The client's proof."""

    final: bytes = b""
    """SCRAM's client-final-message."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the server takes; more than that gets an error."""

    frame_bytes_max: int
    batch_bytes_max: int
    message_bytes_max: int
    key_bytes_max: int
    headers_max: int
    header_bytes_max: int
    topic_bytes_max: int
    topic_levels_max: int
    root_bytes_max: int
    producer_bytes_max: int
    producer_window: int
    max_in_flight_max: int
    publishes_in_flight_max: int
    subscriptions_per_session_max: int
    session_expire_after_s_max: float
    keepalive_s: float
    """With nothing heard for so long, either side sends PING; with nothing for twice as long, it closes."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's OK."""

    final: bytes = b""
    """SCRAM's server-final-message."""
    user: str
    client_id: str
    limits: Limits


def choose_version(offered: tuple[int, ...]) -> int:
    """The newest version that both support; Malformed if there is none."""
    for version in VERSIONS:
        if version in offered:
            return version
    some = f"{list(offered[:VERSIONS_NAMED])}{' and more' if len(offered) > VERSIONS_NAMED else ''}"
    raise Malformed(f"versions {some} of the protocol are not spoken here, but {list(VERSIONS)} are")
