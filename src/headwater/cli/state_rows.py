"""How `headwater verify` decodes each kind of row of the state, in one table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headwater.access.acl import Rule
from headwater.access.clients import ClientRow
from headwater.access.tokens import TokenRow
from headwater.channels.row import ChannelRow
from headwater.cluster.checkpoint import WRITTEN, Synced
from headwater.cluster.record import Position
from headwater.delivery.lane import Failure
from headwater.delivery.letterbox import Posted
from headwater.delivery.mending import MendedRow, RedrivenRow
from headwater.delivery.rows import DeadRow, KeptRow, SubscriptionRow, decode_waiting
from headwater.log.producers import Producer
from headwater.log.purges import PurgeRow
from headwater.log.retained import RetainedRow
from headwater.log.root import RootRow
from headwater.message import SchemaInfo
from headwater.mqtt.receiving import ReceivedRow
from headwater.mqtt.wills import WillRow
from headwater.mqtt.window import Sent
from headwater.schedules import ScheduleRow
from headwater.server.session_row import SessionRow, SubscriptionOf
from headwater.server.watch.history import Block
from headwater.staging import CommittedRow, StagedRow
from headwater.store import state as rows
from headwater.store.state_verify import Decode


def _row(type_: object, name_at: int | None = None, key_bytes: int | None = None) -> Decode:
    """MessagePack of a type; the key ends with a name from there on, or has so many bytes."""
    decoder = msgspec.msgpack.Decoder(type_)

    def decode(key: bytes, value: bytes) -> object:
        _check_key(key, name_at, key_bytes)
        return decoder.decode(value)

    return decode


def _plain(least: int, most: int, key_bytes: int | None) -> Decode:
    """So many bytes."""

    def decode(key: bytes, value: bytes) -> object:
        _check_key(key, None, key_bytes)
        if not least <= len(value) <= most:
            raise ValueError(f"it has {len(value)} bytes")
        return value

    return decode


def _waiting(key: bytes, value: bytes) -> object:
    _check_key(key, None, 17)
    return decode_waiting(value or b"\0")


def _node(key: bytes, value: bytes) -> object:
    """What a cluster's node notes of itself: how far its folder is on disk, and the last record whose rows it has."""
    return msgspec.msgpack.decode(value, type=Position if key == WRITTEN else Synced)


def _check_key(key: bytes, name_at: int | None, key_bytes: int | None) -> None:
    if name_at is not None:
        key[name_at:].decode("utf-8", "surrogatepass")
    if key_bytes is not None and len(key) != key_bytes:
        raise ValueError(f"its key has {len(key)} bytes")


OWNER_BYTES_MAX = 4096
"""Of the client that a delayed message is of: an address and an id, or a user."""

DECODERS: Mapping[bytes, Decode] = {
    rows.STREAM: _row(RootRow, key_bytes=5),
    rows.TOPIC: _row(tuple[int, int], name_at=5),
    rows.RETAINED: _row(RetainedRow, name_at=5),
    rows.PRODUCER: _row(Producer, name_at=5),
    rows.DELAYED: _plain(0, OWNER_BYTES_MAX, key_bytes=17),
    rows.SUBSCRIPTION: _row(SubscriptionRow, name_at=1),
    rows.FLOOR: _plain(8, 16, key_bytes=9),
    rows.ACKED: _plain(0, 0, key_bytes=17),
    rows.FAILURE: _row(Failure, key_bytes=17),
    rows.COPY: _waiting,
    rows.DEAD: _row(DeadRow, key_bytes=17),
    rows.POSTED: _row(Posted, key_bytes=9),
    rows.KEPT: _row(KeptRow, name_at=1),
    rows.MENDED: _row(MendedRow),
    rows.REDRIVEN: _row(RedrivenRow, name_at=5),
    rows.PURGE: _row(PurgeRow, key_bytes=13),
    rows.GAP: _row(tuple[int, str], key_bytes=13),
    rows.SESSION: _row(SessionRow, name_at=1),
    rows.HELD: _row(SubscriptionOf, name_at=1),
    rows.SENT: _row(Sent),
    rows.RECEIVED: _row(ReceivedRow, name_at=1),
    rows.WILL: _row(WillRow, name_at=1),
    rows.SCHEDULE: _row(ScheduleRow, name_at=1),
    rows.SCHEMA: _row(SchemaInfo, name_at=1),
    rows.STAGED: _row(StagedRow),
    rows.COMMITTED: _row(CommittedRow, name_at=1),
    rows.COUNTERS: _plain(4, 4, None),
    rows.CLIENT: _row(ClientRow, name_at=1),
    rows.RULE: _row(Rule, name_at=1),
    rows.TOKEN: _row(TokenRow, name_at=1),
    rows.DECOY: _plain(1, 64, key_bytes=1),
    rows.CHANNEL: _row(ChannelRow, name_at=1),
    rows.HISTORY: _row(Block, key_bytes=9),
    rows.IDENTITY: _plain(1, 64, key_bytes=1),
    rows.NODE: _node,
}
"""By kind; the state's own are known to `store.state_verify`."""
