"""The chain of the state's writes: each write carries a row that says which one it is, and what came before it.

RocksDB's checksums tell that bytes went bad, not whether anybody was promised them, and a log or a table that is gone
altogether they do not miss at all. So every write to the state puts one more row, always with the same key:

      0                       8                       16                      24
      ├───────────────────────┼───────────────────────┼───────────────────────┤
   0  │ number (u64)          │ synced (u64)          │ time, µs (i64)        │
      ├───────────┬───────────┼───────────────────────┴───────────────────────┤
  24  │ digest    │ groups    │ per group: the last write before this one that │
      ├───────────┴───────────┘ had rows of it (u64 each)                      │
      └───────────────────────────────────────────────────────────────────────┘

All big-endian. `number` counts writes from 1. `synced` is the last number that was durable when this was written, so
that later writes bear witness to earlier ones. `digest` is the CRC32C of the digest before and of this write's rows.
`groups` are the bits of those that this write has rows of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from headwater.store import state as rows
from headwater.store.batch import checksum

GROUPS = ("access", "subscriptions", "sessions", "topics", "others")
"""What a row is about, as users are told."""
ACCESS, SUBSCRIPTIONS, SESSIONS, TOPICS, OTHERS = range(len(GROUPS))

_MEMBERS: Mapping[int, tuple[bytes, ...]] = {
    ACCESS: (rows.CLIENT, rows.RULE, rows.TOKEN, rows.DECOY),
    SUBSCRIPTIONS: (
        rows.SUBSCRIPTION,
        rows.COUNTERS,
        rows.FLOOR,
        rows.ACKED,
        rows.FAILURE,
        rows.COPY,
        rows.DEAD,
        rows.POSTED,
        rows.KEPT,
        rows.MENDED,
        rows.REDRIVEN,
    ),
    SESSIONS: (rows.SESSION, rows.HELD, rows.SENT, rows.RECEIVED, rows.WILL),
    TOPICS: (rows.STREAM, rows.TOPIC, rows.RETAINED, rows.PRODUCER, rows.DELAYED),
}
TOLD: Mapping[int, str] = {
    ACCESS: "clients, rules and tokens",
    SUBSCRIPTIONS: "subscriptions, acks, retries and dead letters",
    SESSIONS: "sessions",
    TOPICS: "topics, retained messages and producers (which the streams tell again)",
    OTHERS: "channels, staged messages, purges and gaps",
}

BITS = [1 << OTHERS] * 256
"""By the first byte of a key, the bit of its group."""
for _group, _kinds in _MEMBERS.items():
    for _kind in _kinds:
        BITS[_kind[0]] = 1 << _group

OF_BITS = [tuple(group for group in range(len(GROUPS)) if bits >> group & 1) for bits in range(1 << len(GROUPS))]
"""The groups that bits stand for."""

_first_byte = itemgetter(0)
_LINK = struct.Struct(f">QQqII{len(GROUPS)}Q")
LINK_BYTES = _LINK.size
pack = _LINK.pack
"""The row of a link: its fields, and those of `before` one by one."""
_NONE = (0,) * len(GROUPS)


class ChainLink(NamedTuple):
    """What one write says about itself and those before it."""

    number: int = 0
    synced: int = 0
    time_us: int = 0
    digest: int = 0
    groups: int = 0
    before: tuple[int, ...] = _NONE

    def pack(self) -> bytes:
        return pack(*self[:5], *self.before)

    def last(self) -> tuple[int, ...]:
        """Per group, the last write that had rows of it, this one included."""
        if not self.groups:
            return self.before
        return tuple(self.number if self.groups >> group & 1 else last for group, last in enumerate(self.before))


def unpack(value: bytes) -> ChainLink | None:
    """The link in a row; None if it is none."""
    if len(value) != LINK_BYTES:
        return None
    number, synced, time_us, digest, groups, *before = _LINK.unpack(value)
    return ChainLink(number, synced, time_us, digest, groups, tuple(before))


def digest_of(before: int, changed: Mapping[bytes, bytes | None]) -> int:
    """The digest of a write of these rows, after one with this digest."""
    return checksum(b"".join((before.to_bytes(4, "big"), *changed, *filter(None, changed.values()))))


def groups_of(changed: Iterable[bytes]) -> int:
    """The bits of the groups that rows with these keys are of."""
    groups = 0
    for kind in set(map(_first_byte, changed)):
        groups |= BITS[kind]
    return groups


def told(groups: int) -> str:
    """Groups as words."""
    return "; ".join(text for group, text in TOLD.items() if groups >> group & 1)
