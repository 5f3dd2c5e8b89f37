"""Schemas of a bus: rows that say what the payloads of topics have to be, and how they come to stand.

Promises: a schema stands once `add` returns, over crashes too; one that contradicts what is looked at of the stored
messages changes nothing, and no message that came meanwhile is passed over; what is refused is refused at every door,
from that moment on. What was accepted for later (a delayed message, a schedule) is looked at again when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal

import msgspec

from headwater import threads
from headwater.audit import Audit
from headwater.book import Book
from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.replay import Reading
from headwater.delivery.retained import RetainedReading
from headwater.delivery.selection import Selection
from headwater.errors import Conflict, Gap, HeadwaterError, Malformed, NotFound, QuotaExceeded
from headwater.events import Events
from headwater.log.checks import Checks
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.log.schemas import Standing
from headwater.message import SchemaInfo
from headwater.pacing import Pacing
from headwater.schema.checker import Schema
from headwater.store import state as rows
from headwater.store.state import State, key_words, pack
from headwater.topics.name import check_filter

Depth = Literal["recent", "all", "none"]
"""Which stored messages are looked at when a schema is made."""
DEPTHS = ("recent", "all", "none")

_decode = msgspec.msgpack.Decoder(SchemaInfo).decode


class Schemas:
    """The schemas of one bus; from any thread but the one that commits."""

    def __init__(
        self,
        state: State,
        roots: Roots,
        checks: Checks,
        config: Config,
        clock: Clock,
        events: Events,
        audit: Audit,
        *,
        read_only: bool,
    ) -> None:
        self._state = state
        self._book = Book(state, read_only=read_only, audit=audit)
        self._roots = roots
        self._checks = checks
        self._config = config
        self._clock = clock
        self._events = events
        self._lock = threads.Lock()
        """Held while a schema comes to stand, or goes."""
        self._known: dict[str, SchemaInfo] = {}
        self.reload()

    def reload(self) -> None:
        """See what another process wrote meanwhile."""
        known: dict[str, SchemaInfo] = {}
        standing: dict[str, Schema] = {}
        for key, value in self._state.scan(rows.SCHEMA):
            try:
                info = _decode(value)
                standing[info.filter] = Schema.stored(info.text)
                known[info.filter] = info
            except (msgspec.DecodeError, HeadwaterError) as error:
                self._events.trouble(f"the row of schema {key[1:]!r} cannot be used ({error}); make it again")
        self._known = known
        self._stand(standing)

    def _stand(self, schemas: Mapping[str, Schema]) -> None:
        self._checks.standing = Standing(schemas, self._config.schema_payload_bytes_max) if schemas else None

    @property
    def _standing(self) -> Mapping[str, Schema]:
        standing = self._checks.standing
        return {} if standing is None else standing.schemas

    # Changing

    def add(self, filter: str, schema: object, check: Depth = "recent") -> SchemaInfo:
        """A schema, or another one in place of what this filter had; the same again changes nothing. Conflict (409) if
        a stored message that is looked at does not fit, and nothing is changed."""
        self._check_filter(filter)
        if check not in DEPTHS:
            raise Malformed(f'check is {check!r}; use "recent", "all" or "none"')
        made = Schema.of(schema, self._config)
        with self._lock:
            there = self._known.get(filter)
            if there is not None and there.text == made.document.text:
                return there
            self._book.check_writable()
            self._check_room(filter)
            info = SchemaInfo(filter, made.document.text, self._clock.now_us())
            before = self._standing
            ends = self._look_back(filter, made, check)
            self._stand({**before, filter: made})
            try:
                if check != "none":
                    self._look_at_rest(filter, made, ends)
                self._book.write({_key(filter): pack(info)})
            except BaseException:
                self._stand(before)
                raise
            self._known = {**self._known, filter: info}
            self._book.note("schema-set", filter, _told(there), _told(info))
        return info

    def remove(self, filter: str) -> None:
        """Let everything be published again; NotFound (404) if there is none."""
        with self._lock:
            there = self._known.get(filter)
            if there is None:
                raise NotFound(f'there is no schema of "{filter}"; bus.schemas() lists those that there are')
            self._book.write({_key(filter): None})
            self._known = {name: one for name, one in self._known.items() if name != filter}
            self._stand({name: one for name, one in self._standing.items() if name != filter})
            self._book.note("schema-removed", filter, _told(there))

    def _check_filter(self, filter: str) -> None:
        first = check_filter(filter, self._config)
        if first.startswith("$"):
            raise Malformed(f'topics of "{first}" are the broker\'s own, and have no schema; name topics of yours')

    def _check_room(self, filter: str) -> None:
        if filter not in self._known and len(self._known) >= self._config.schemas_max:
            raise QuotaExceeded(
                f"there are {len(self._known)} schemas, and schemas_max is {self._config.schemas_max}; remove some, or "
                "raise the setting"
            )

    # What is stored

    def _look_back(self, filter: str, schema: Schema, check: Depth) -> dict[str, int]:
        """Conflict (409) if a message that is stored now does not fit; answers how far each root goes now."""
        covered = self._roots.covered(filter)
        ends = _ends(covered)
        if check == "none" or not covered:
            return ends
        most = self._config.schema_recent_messages
        back = max(1, most // len(covered)) if check == "recent" else max(ends.values())
        self._look(filter, schema, {root.name: _before(root, ends[root.name] - back) for root in covered}, ends)
        self._look_at_retained(filter, schema, most if check == "recent" else None)
        return ends

    def _look_at_rest(self, filter: str, schema: Schema, after: Mapping[str, int]) -> None:
        """The same of what came after that, and was let in before the schema stood."""
        self._roots.commit.run(lambda: None)  # what was let in by then is stored now
        covered = self._roots.covered(filter)
        begin = {root.name: _before(root, after.get(root.name, 0)) for root in covered}
        self._look(filter, schema, begin, _ends(covered))

    def _look(self, filter: str, schema: Schema, after: Mapping[str, int], upto: Mapping[str, int]) -> None:
        pacing = Pacing()
        with Reading(
            *(self._roots, filter, after, None, False, self._config, self._clock, None, lambda: None, upto)
        ) as reading:
            while True:
                try:
                    found = reading.take()
                except Gap:
                    continue  # nobody will read it
                if found is None:
                    return
                for topic, offset, payload, retain in _messages(found):
                    _check(schema, filter, topic, offset, payload, retain)
                pacing.take()

    def _look_at_retained(self, filter: str, schema: Schema, most: int | None) -> None:
        reading = self._roots.commit.run(lambda: RetainedReading(self._roots, self._clock, filter))
        count, pacing = 0, Pacing()
        while not reading.is_over and (most is None or count < most):
            if reading.is_unread:
                reading.read_on()
            while (found := reading.take()) is not None:
                count += found.count
                for message in found.messages:
                    _check(schema, filter, message.topic, message.offset, message.payload, True)
            pacing.take()

    # Looking

    def all(
        self, *, after: str | None = None, limit: int | None = None, sees: Callable[[str], bool] | None = None
    ) -> list[SchemaInfo]:
        """Every schema, by its filter, of those that may be seen; with a limit a page of them, after a filter."""
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")
        return list(islice(self.each(after, sees), limit))

    def each(self, after: str | None = None, sees: Callable[[str], bool] | None = None) -> Iterator[SchemaInfo]:
        """The same one after another, as somebody takes them."""
        if self._book.is_read_only:
            self.reload()
        known = self._known
        for name in sorted(known):
            if (after is None or name > after) and (sees is None or sees(name)):
                yield known[name]


def _check(schema: Schema, filter: str, topic: str, offset: int, payload: bytes, retain: bool) -> None:
    why = None if retain and not payload else schema.misfit(payload)
    if why is not None:
        raise Conflict(
            f'the schema of "{filter}" contradicts message {offset} of "{topic}", which is stored: {why}. Nothing was '
            'changed; purge what does not fit, say more in the schema, or look at nothing that is stored: check="none"'
        )


def _messages(found: Selection) -> Iterator[tuple[str, int, bytes, bool]]:
    """Topic, offset, payload, and whether it is retained, of each message that was read."""
    batch = found.batch
    if batch is None:
        return
    body, first = batch.body, batch.first_offset
    topics, retain = body.topics, body.retain
    for place in range(batch.count) if found.places is None else found.places:
        yield topics[place], first + place, body.payload(place), bool(retain and retain[place])


def _ends(covered: Iterable[Root]) -> dict[str, int]:
    return {root.name: root.stream.durable for root in covered}


def _before(root: Root, after: int) -> int:
    """Where a look begins that goes no further back than this, nor than the log."""
    return max(after, root.stream.first_offset - 1, 0)


def _key(filter: str) -> bytes:
    return key_words(rows.SCHEMA, filter)


def _told(info: SchemaInfo | None) -> object:
    """What the audit tells of one."""
    return None if info is None else info.schema
