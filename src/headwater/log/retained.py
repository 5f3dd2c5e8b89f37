"""Retained messages of one root: the last one published to each topic with the retain flag.

They are kept as copies, so that retention cannot take them; their number and their bytes have limits. Those that
changed since the last checkpoint are in memory, the rest in the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.message import Headers
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.state import Rows, State
from headwater.topics.name import compile_filter, is_wild


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

    @property
    def size(self) -> int:
        """Its bytes, as the limit counts them."""
        return retained_size(self.payload, self.key, self.headers)


pack_row = msgspec.msgpack.Encoder().encode
decode_row = msgspec.msgpack.Decoder(RetainedRow).decode
INSERTED_MAX = 1000
"""Names that are put in their places one by one; more are sorted."""


class Page(NamedTuple):
    """Some retained messages, by topic."""

    found: list[tuple[str, RetainedRow]]
    last: str | None
    """The topic that was looked at last; None if there are no more."""
    looked: int
    """Rows that were looked at,"""
    size: int
    """and bytes of the messages."""


class Retained:
    """The retained messages of a root."""

    def __init__(
        self, stream: int, state: State, config: Config, count: int, expires_from_us: int = 0, size: int | None = None
    ) -> None:
        """Without a size, which folders of an earlier version do not tell, they are counted."""
        self.count = count
        self.expires_from_us = expires_from_us
        """None of them expires before; 0 if none does."""
        self._prefix = rows.key_u32(rows.RETAINED, stream)
        self._state = state
        self._config = config
        self._changed: dict[str, RetainedRow | None] = {}
        self._in_order: tuple[dict[str, RetainedRow | None], list[str]] = (self._changed, [])
        self._promised: dict[str, int] = {}
        """Bytes by topic, after what was admitted and is not appended yet."""
        self._promised_count = self._promised_size = 0
        """By how much that is more than there is now."""
        self.size = size if size is not None else self._count_bytes() if count else 0
        """Bytes of them all."""

    def _count_bytes(self) -> int:
        found = self._state.scan(self._prefix)
        return sum(decode_row(value).size for _, value in found)

    def get(self, topic: str) -> RetainedRow | None:
        """The retained message of a topic, expired or not."""
        changed = self._changed  # which a checkpoint exchanges, once the state has all of it
        return changed[topic] if topic in changed else self._stored(topic)

    def _stored(self, topic: str) -> RetainedRow | None:
        row = self._state.get(self._prefix + topic.encode())
        return None if row is None else decode_row(row)

    def is_kept(self, topic: str, now_us: int) -> bool:
        """Whether a topic has a retained message whose ttl has not ended."""
        row = self.get(topic)
        return row is not None and not 0 < row.expires_us <= now_us

    def find(self, filter: str, now_us: int) -> Iterator[tuple[str, RetainedRow]]:
        """Those that a filter matches and whose ttl has not ended, by name; rows that do not begin as the filter does
        are not read."""
        return _valid(self._walk(filter, ""), now_us)

    def matching(self, wanted: Callable[[str], bool], now_us: int) -> Iterator[tuple[str, RetainedRow]]:
        """Those of the wanted topics whose ttl has not ended, by name."""
        return _valid(self._between(wanted, "", ""), now_us)

    def matching_after(
        self, after: str, beginning: str, wanted: Callable[[str], bool], now_us: int
    ) -> Iterator[tuple[str, RetainedRow | None]]:
        """The same, after a topic, of those that begin so, as far as somebody takes them; also the names of those that
        are not wanted."""
        for topic, row in self._between(wanted, beginning, after):
            yield topic, None if row is None or 0 < row.expires_us <= now_us else row

    def page(self, filter: str, after: str, now_us: int, rows_max: int, bytes_max: int) -> Page:
        """Some of those that a filter matches, after a topic: so many rows are looked at, or fewer once the messages
        have so many bytes."""
        found: list[tuple[str, RetainedRow]] = []
        looked = size = 0
        for topic, row in self._walk(filter, after):
            looked += 1
            if row is not None and not 0 < row.expires_us <= now_us:
                found.append((topic, row))
                size += row.size
            if looked >= rows_max or size >= bytes_max:
                return Page(found, topic, looked, size)
        return Page(found, None, looked, size)

    def _walk(self, filter: str, after: str) -> Iterator[tuple[str, RetainedRow | None]]:
        """The topics that are looked at for a filter, by name, after one; without their messages if they do not match
        or have none."""
        is_open = filter.endswith("/#") and "+" not in filter
        if is_open or not is_wild(filter):
            topic = filter.removesuffix("/#")
            if topic > after and self.count:
                yield topic, self.get(topic)
        if is_wild(filter):
            start = filter[:-1] if is_open else filter.partition("+")[0].rstrip("#")
            yield from self._between(compile_filter(filter), start, after)

    def _between(
        self, wanted: Callable[[str], bool], start: str, after: str
    ) -> Iterator[tuple[str, RetainedRow | None]]:
        """The same of the topics that begin so."""
        if not self.count:
            return
        changed = self._changed
        prefix = self._prefix + start.encode()
        if after < start or not after:
            fresh, stored = self._fresh(changed, start, bisect_left, start), self._state.scan(prefix)
        else:
            fresh = self._fresh(changed, start, bisect_right, after)
            stored = self._state.scan(prefix, self._prefix + after.encode() + b"\0")
        for topic, value in merged(fresh, ((rows.name_in(key), value) for key, value in stored)):
            if not wanted(topic):
                yield topic, None
            elif topic in changed:
                yield topic, changed[topic]
            else:
                yield topic, decode_row(value or b"")

    def _fresh(
        self, changed: dict[str, RetainedRow | None], start: str, place: Callable[[list[str], str], int], name: str
    ) -> Iterator[str]:
        """Names among what changed that begin so, in order, from a place on."""
        names = self._names_of(changed)
        for at in range(place(names, name), len(names)):
            if not names[at].startswith(start):
                return
            yield names[at]

    def _names_of(self, changed: dict[str, RetainedRow | None]) -> list[str]:
        """The names among what changed, in order. They are asked for page after page, and put in order once: names are
        only ever added, the new ones as the last."""
        known, names = self._in_order
        if known is not changed:
            names = []
        fresh = list(changed)[len(names) :]
        if len(fresh) > INSERTED_MAX:
            names = sorted(names + fresh)
        elif fresh:
            names = names.copy()  # others may be at the one before
            for name in fresh:
                insort(names, name)
        if fresh:
            self._in_order = changed, names
        return names

    def admit(self, sizes: Mapping[str, int], fresh: Container[str] = ()) -> None:
        """Refuse more than the limits allow; changes nothing. Sizes are those that each topic has after it; the fresh
        ones were no topics before."""
        config = self._config
        count, size = self.count + self._promised_count, self.size + self._promised_size
        if (
            count + len(sizes) > config.retained_per_root_max
            or size + sum(sizes.values()) > config.retained_bytes_per_root_max
        ):
            check_retained(count, size, *self._growth(sizes, fresh), config)

    def promise(self, sizes: Mapping[str, int], fresh: Container[str] = ()) -> None:
        """These will be retained, if all goes well."""
        more, bigger = self._growth(sizes, fresh)
        self._promised_count += more
        self._promised_size += bigger
        self._promised.update(sizes)

    def forget_promises(self) -> None:
        """Their group was appended, or was not."""
        if self._promised:
            self._promised.clear()
            self._promised_count = self._promised_size = 0

    def _growth(self, sizes: Mapping[str, int], fresh: Container[str]) -> tuple[int, int]:
        """How many more there would be, and how many more bytes."""
        more = bigger = 0
        for topic, size in sizes.items():
            before = self._promised.get(topic)
            if before is None:
                row = self.get(topic) if topic not in fresh else None
                before = row.size if row is not None else 0
            more += bool(size) - bool(before)
            bigger += size - before
        return more, bigger

    def apply(self, batch: Batch, fresh: Container[str] = ()) -> None:
        """Keep a copy of the last retained message of each topic; an empty payload clears it. Of the fresh ones, which
        were no topics before, the state has none."""
        changed = self._changed
        for topic, row in self._copies(batch):
            self._account(changed.get(topic) if topic in fresh else self.get(topic), row)
            changed[topic] = row

    def gather(self, batch: Batch) -> None:
        """As `apply`, without counting: `settle` does."""
        self._changed.update(self._copies(batch))

    def settle(self) -> None:
        """Count what was gathered since the state was read."""
        for topic in sorted(self._changed):
            self._account(self._stored(topic), self._changed[topic])

    def _copies(self, batch: Batch) -> Iterator[tuple[str, RetainedRow | None]]:
        """What each retained message of a batch leaves of its topic."""
        body = batch.body
        retain = body.retain if body.retain is not None else ()
        places = [place for place, flag in enumerate(retain) if flag]
        for place, message in zip(places, body.messages(batch.first_offset, places), strict=True):
            if not message.payload:
                yield message.topic, None
                continue
            expires_us = body.expiries[place] if body.expiries is not None else 0
            if expires_us:
                self.expires_from_us = min(self.expires_from_us or expires_us, expires_us)
            yield (
                message.topic,
                RetainedRow(
                    message.offset,
                    message.payload,
                    message.time_us,
                    message.key,
                    message.header_pairs,
                    expires_us,
                    batch.header.flags,
                ),
            )

    def _account(self, before: RetainedRow | None, after: RetainedRow | None) -> None:
        if before is not None:
            self.count -= 1
            self.size -= before.size
        if after is not None:
            self.count += 1
            self.size += after.size

    def expire(self, now_us: int) -> int:
        """Drop those whose ttl has ended; answers how many."""
        if not 0 < self.expires_from_us <= now_us:
            return 0
        expired, next_us = [], 0
        stored = (
            (rows.name_in(key), decode_row(value))
            for key, value in self._state.scan(self._prefix)
            if rows.name_in(key) not in self._changed
        )
        for topic, row in (*stored, *self._changed.items()):
            if row is None or not row.expires_us:
                continue
            if row.expires_us <= now_us:
                expired.append(topic)
                self.size -= row.size
            else:
                next_us = min(next_us or row.expires_us, row.expires_us)
        self._changed.update(dict.fromkeys(expired))
        self.count -= len(expired)
        self.expires_from_us = next_us
        return len(expired)

    def forget(self, wanted: Callable[[str], bool]) -> Rows:
        """Rows that remove the wanted topics' messages, now."""
        gone: Rows = {}
        for key, _ in self._state.scan(self._prefix):
            if wanted(rows.name_in(key)):
                gone[key] = None
        topics = {rows.name_in(key) for key in gone} | {topic for topic in self._changed if wanted(topic)}
        for topic in topics:
            row = self.get(topic)
            if row is not None:
                self.count -= 1
                self.size -= row.size
            self._changed[topic] = None
        return gone

    def of_key(self, key: bytes, filter: str) -> set[str]:
        """The topics that a filter matches and whose retained message has this key."""
        wanted = compile_filter(filter)
        topics = {rows.name_in(found) for found, value in self._state.scan(self._prefix) if key in value}
        topics.update(self._changed)
        return {topic for topic in topics if wanted(topic) and (row := self.get(topic)) is not None and row.key == key}

    def rows(self) -> Rows:
        """What changed since the last checkpoint."""
        prefix = self._prefix
        return {prefix + topic.encode(): None if row is None else pack_row(row) for topic, row in self._changed.items()}

    def checkpointed(self) -> None:
        """The rows are in the state."""
        self._changed = {}
        self._in_order = (self._changed, [])


def _valid(found: Iterable[tuple[str, RetainedRow | None]], now_us: int) -> Iterator[tuple[str, RetainedRow]]:
    """Those of whom there is a message whose ttl has not ended."""
    for topic, row in found:
        if row is not None and not 0 < row.expires_us <= now_us:
            yield topic, row


def merged(fresh: Iterable[str], stored: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | None]]:
    """Names in order, each once, with what is stored of them."""
    waiting = iter(fresh)
    name = next(waiting, None)
    for known, value in stored:
        while name is not None and name < known:
            yield name, None
            name = next(waiting, None)
        if name == known:
            name = next(waiting, None)
        yield known, value
    while name is not None:
        yield name, None
        name = next(waiting, None)


def retained_size(payload: bytes, key: bytes | None, headers: Headers) -> int:
    """Bytes of a retained message, as the limit counts them; 0 of an empty payload, which clears one."""
    if not payload:
        return 0
    size = len(payload) + len(key or b"")
    return size + sum(len(name) + len(value) for name, value in headers) if headers else size


def check_retained(known: int, known_size: int, more: int, bigger: int, config: Config) -> None:
    """Refuse more retained messages, or more bytes of them, than a root may have."""
    if more > 0 and known + more > config.retained_per_root_max:
        raise QuotaExceeded(
            f"{known} topics of this root have a retained message, and retained_per_root_max is "
            f"{config.retained_per_root_max}; clear some with an empty payload, or raise the setting"
        )
    if bigger > 0 and known_size + bigger > config.retained_bytes_per_root_max:
        raise QuotaExceeded(
            f"the retained messages of this root have {known_size} bytes, and retained_bytes_per_root_max is "
            f"{config.retained_bytes_per_root_max}; clear some with an empty payload, or raise the setting"
        )
