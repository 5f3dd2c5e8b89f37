"""Retained messages of one root: the last one published to each topic with the retain flag.

They are kept as copies, so that retention cannot take them. Those that changed since the last checkpoint are in
memory, the rest in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.message import Headers
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.state import Rows, State


class RetainedRow(msgspec.Struct, frozen=True, array_like=True):
    """A copy of a message."""

    offset: int
    payload: bytes
    time_us: int
    key: bytes | None
    headers: Headers
    expires_us: int
    """When its ttl ends; 0 for never."""
    flags: int = 0
    """How it was published, as its batch said."""


class Retained:
    """The retained messages of a root."""

    def __init__(self, stream: int, state: State, config: Config, count: int, expires_from_us: int = 0) -> None:
        self.count = count
        self.expires_from_us = expires_from_us
        """None of them expires before; 0 if none does."""
        self._stream = stream
        self._state = state
        self._config = config
        self._changed: dict[str, RetainedRow | None] = {}
        self._promised: set[str] = set()

    def get(self, topic: str) -> RetainedRow | None:
        """The retained message of a topic, expired or not."""
        if topic in self._changed:
            return self._changed[topic]
        row = self._state.get(rows.key_name(rows.RETAINED, self._stream, topic))
        return None if row is None else msgspec.msgpack.decode(row, type=RetainedRow)

    def is_kept(self, topic: str, now_us: int) -> bool:
        """Whether a topic has a retained message whose ttl has not ended."""
        row = self.get(topic)
        return row is not None and not 0 < row.expires_us <= now_us

    def matching(self, wanted: Callable[[str], bool], now_us: int) -> Iterator[tuple[str, RetainedRow]]:
        """Those of the wanted topics whose ttl has not ended, by name."""
        if not self.count:
            return
        found: dict[str, RetainedRow] = {}
        for key, value in self._state.scan(rows.key_u32(rows.RETAINED, self._stream)):
            topic = rows.name_in(key)
            if wanted(topic) and topic not in self._changed:
                found[topic] = msgspec.msgpack.decode(value, type=RetainedRow)
        changed = dict(self._changed)
        found.update({topic: row for topic, row in changed.items() if row is not None and wanted(topic)})
        for topic in sorted(found):
            if not 0 < found[topic].expires_us <= now_us:
                yield topic, found[topic]

    def admit(self, topics: Sequence[str]) -> None:
        """Refuse more than the limit allows; changes nothing."""
        if self.count + len(self._promised) + len(topics) > self._config.retained_per_root_max:
            check_retained(self.count, len(self._promised | self._fresh(topics)), self._config)

    def promise(self, topics: Sequence[str]) -> None:
        """These will be retained, if all goes well."""
        self._promised |= self._fresh(topics)

    def forget_promises(self) -> None:
        """Their group was appended, or was not."""
        if self._promised:
            self._promised.clear()

    def _fresh(self, topics: Sequence[str]) -> set[str]:
        return {topic for topic in topics if self.get(topic) is None}

    def apply(self, batch: Batch) -> None:
        """Keep a copy of the last retained message of each topic; an empty payload clears it."""
        body = batch.body
        retain = body.retain if body.retain is not None else ()
        places = [place for place, flag in enumerate(retain) if flag]
        for place, message in zip(places, body.messages(batch.first_offset, places), strict=True):
            before = self.get(message.topic)
            if not message.payload:
                self.count -= before is not None
                self._changed[message.topic] = None
                continue
            self.count += before is None
            expires_us = body.expiries[place] if body.expiries is not None else 0
            if expires_us:
                self.expires_from_us = min(self.expires_from_us or expires_us, expires_us)
            self._changed[message.topic] = RetainedRow(
                message.offset,
                message.payload,
                message.time_us,
                message.key,
                message.headers,
                expires_us,
                batch.header.flags,
            )

    def expire(self, now_us: int) -> int:
        """Drop those whose ttl has ended; answers how many."""
        if not 0 < self.expires_from_us <= now_us:
            return 0
        expired, next_us = [], 0
        stored = (
            (rows.name_in(key), msgspec.msgpack.decode(value, type=RetainedRow))
            for key, value in self._state.scan(rows.key_u32(rows.RETAINED, self._stream))
            if rows.name_in(key) not in self._changed
        )
        for topic, row in (*stored, *self._changed.items()):
            if row is None or not row.expires_us:
                continue
            if row.expires_us <= now_us:
                expired.append(topic)
            else:
                next_us = min(next_us or row.expires_us, row.expires_us)
        self._changed.update(dict.fromkeys(expired))
        self.count -= len(expired)
        self.expires_from_us = next_us
        return len(expired)

    def forget(self, wanted: Callable[[str], bool]) -> Rows:
        """Rows that remove the wanted topics' messages, now."""
        gone: Rows = {}
        for key, _ in self._state.scan(rows.key_u32(rows.RETAINED, self._stream)):
            if wanted(rows.name_in(key)):
                gone[key] = None
        topics = {rows.name_in(key) for key in gone} | {topic for topic in self._changed if wanted(topic)}
        self.count -= sum(self.get(topic) is not None for topic in topics)
        for topic in topics:
            self._changed[topic] = None
        return gone

    def rows(self) -> Rows:
        """What changed since the last checkpoint."""
        return {
            rows.key_name(rows.RETAINED, self._stream, topic): None if row is None else rows.pack(row)
            for topic, row in self._changed.items()
        }

    def checkpointed(self) -> None:
        """The rows are in the state."""
        self._changed = {}


def check_retained(known: int, more: int, config: Config) -> None:
    """Refuse more retained messages than a root may have."""
    if known + more > config.retained_per_root_max:
        raise QuotaExceeded(
            f"{known} topics of this root have a retained message, and retained_per_root_max is "
            f"{config.retained_per_root_max}; clear some with an empty payload, or raise the setting"
        )
