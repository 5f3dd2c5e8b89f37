"""Dead letters: messages that a subscription gave up on, to be looked at, dropped or redriven.

Redriving delivers a copy to that subscription again, and to no other, with headers that say where it comes from. Moving
it is one atomic write, so that it is never in both places and never in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

import msgspec

from headwater.audit import Audit
from headwater.clock import SECOND_US
from headwater.delivery import rows as stored
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.letterbox import ATTEMPTS, ERROR, FROM, MENDED, NOTES, OFFSET, TOPIC
from headwater.delivery.rows import CopyRow, DeadRow, KeptRow
from headwater.delivery.subscriber import Subscriber
from headwater.errors import Conflict, Malformed, NotFound
from headwater.log.roots import Roots
from headwater.message import DeadLetter, Headers
from headwater.store import state as rows
from headwater.store.state import Rows, State
from headwater.topics.name import root_of
from headwater.wire.request import PAGE_BYTES, carried

Position = int | tuple[str, int]
"""An offset; or a root and an offset, for a subscription whose filter reaches over several roots."""

Allow = Callable[[str, Headers], None]
"""Raises why a letter of this topic may not be handed out again, with headers that it did not have before."""


class DeadLetters:
    """The dead letters of every subscription."""

    def __init__(self, dispatcher: Dispatcher, state: State, roots: Roots, audit: Audit) -> None:
        self._dispatcher = dispatcher
        self._state = state
        self._roots = roots
        self._audit = audit

    def all(self, id: str, after: tuple[str, int] | None = None, limit: int | None = None) -> list[DeadLetter]:
        """Those of a subscription, by root and offset; with a limit a page of them, which is shorter if it is large."""
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")
        number = self._number(id)
        start = None if after is None else self._key_after(number, *after)
        found: list[DeadLetter] = []
        size = 0
        for key, value in islice(self._state.scan(rows.key_u32(rows.DEAD, number), start), limit):
            row = msgspec.msgpack.decode(value, type=DeadRow)
            found.append(row.letter(id, rows.offset_in(key)))
            size += carried(row)
            if limit is not None and size >= PAGE_BYTES:
                break
        return found

    def _key_after(self, number: int, root: str, offset: int) -> bytes:
        known = self._roots.get(root)
        if known is None:
            raise Malformed(f'there is no root "{root}" after which dead letters could be')
        return rows.key_message(rows.DEAD, number, known.stream.number, min(offset, 2**63) + 1)

    def get(self, id: str, offset: Position) -> DeadLetter:
        """One of them."""
        found = [row.letter(id, at) for _, at, row, _ in self._rows(self._number(id), {offset})]
        if not found:
            raise NotFound(f'subscription "{id}" has no dead letter {offset}; headwater dead list {id} shows them')
        return found[0]

    def kept(self, id: str) -> KeptRow | None:
        """What is left of a subscription that went with its session, where that has left letters."""
        found = stored.kept_of(self._state, id) if self._dispatcher.row(id) is None else None
        return found[-1] if found else None

    def expire(self, now_us: int, age_s: float) -> None:
        """Drop letters whose session is gone for so long."""
        for row in list(stored.all_kept(self._state)):
            if now_us - row.ended_us >= age_s * SECOND_US:
                keys = [key for key, _ in self._state.scan(rows.key_u32(rows.DEAD, row.number))]
                self._dispatcher.drop_kept(row, dict.fromkeys([*keys, stored.kept_key(row)]), 0, 0)

    def redrive(self, id: str, offsets: Collection[Position] | None, allow: Allow | None = None) -> int:
        """Redeliver them to their subscription, in order; answers how many."""
        offsets = places_of(offsets)
        if self.kept(id) is not None:
            raise Conflict(
                f'subscription "{id}" went with its session, so nobody takes its letters again; publish what is still '
                f"wanted, and drop them: headwater dead drop {id}"
            )

        def work(subscriber: Subscriber) -> int:
            changed: Rows = {}
            copies: dict[int, dict[int, CopyRow]] = {}
            sizes: list[int] = []
            for stream, offset, row, size in self._rows(subscriber.number, offsets):
                if allow is not None:
                    allow(row.topic, ())
                headers = headers_of(id, offset, row, row.headers)
                copy = CopyRow(row.topic, row.payload, row.time_us, row.key, headers, False)
                changed[rows.key_message(rows.DEAD, subscriber.number, stream, offset)] = None
                changed[rows.key_message(rows.COPY, subscriber.number, stream, offset)] = rows.pack(copy)
                copies.setdefault(stream, {})[offset] = copy
                sizes.append(size)
            if sizes:
                subscriber.redrive(changed, copies, sizes)
            return len(sizes)

        return self._noted("redriven", id, self._dispatcher.use(id, work), offsets)

    def on_resume(self, id: str, filter: str, given: Mapping[str, object], *, is_asked: bool = False) -> None:
        """Somebody comes back to a subscription: redeliver its letters, before all else, if that is wished.

        `given` are the options that are stated as it is subscribed to. Not in the committing role: it is in the audit.
        """
        row, served = self._dispatcher.row(id), self._dispatcher.served(id)
        if row is None or row.options.filter != filter or (served is not None and served.consumers.count):
            return
        is_wished = is_asked or given.get("on_resume", row.options.on_resume) == "redrive"
        if is_wished and next(self._state.scan(rows.key_u32(rows.DEAD, row.number)), None) is not None:
            self.redrive(id, None)

    def drop(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget them; answers how many."""
        offsets = places_of(offsets)
        kept = self.kept(id)
        if kept is not None:
            return self._noted("dropped", id, self._drop_kept(kept, offsets), offsets)

        def work(subscriber: Subscriber) -> int:
            found = self._rows(subscriber.number, offsets)
            changed: Rows = {
                rows.key_message(rows.DEAD, subscriber.number, stream, offset): None for stream, offset, *_ in found
            }
            if changed:
                subscriber.drop_dead(changed, sum(size for *_, size in found))
            return len(changed)

        return self._noted("dropped", id, self._dispatcher.use(id, work), offsets)

    def _drop_kept(self, kept: KeptRow, offsets: Collection[Position] | None) -> int:
        found = self._rows(kept.number, offsets)
        changed: Rows = {rows.key_message(rows.DEAD, kept.number, stream, offset): None for stream, offset, *_ in found}
        if found:
            if all(key in changed for key, _ in self._state.scan(rows.key_u32(rows.DEAD, kept.number))):
                changed[stored.kept_key(kept)] = None
            self._dispatcher.drop_kept(kept, changed, len(found), sum(size for *_, size in found))
        return len(found)

    def _noted(self, what: str, id: str, count: int, offsets: Collection[Position] | None) -> int:
        if count:
            which = {} if offsets is None else {"offsets": list(offsets)}
            self._audit.note(f"dead-letters-{what}", id, None, {"count": count, **which})
        return count

    def _number(self, id: str) -> int:
        row = self._dispatcher.row(id) or self.kept(id)
        if row is None:
            raise NotFound(f'there is no subscription "{id}"; bus.subscriptions() lists those that are')
        return row.number

    def _rows(self, number: int, places: Collection[Position] | None) -> list[tuple[int, int, DeadRow, int]]:
        """Stream, offset, the letter, and how large it is."""
        found: list[tuple[int, int, DeadRow, int]] = []
        by_offset: dict[int, str] = {}
        for key, value in self._state.scan(rows.key_u32(rows.DEAD, number)):
            offset, row = rows.offset_in(key), msgspec.msgpack.decode(value, type=DeadRow)
            root = root_of(row.topic)
            if places is not None and (root, offset) not in places:
                if offset not in places:
                    continue
                if by_offset.setdefault(offset, root) != root:
                    raise Conflict(
                        f'{offset} is a dead letter of "{by_offset[offset]}" and of "{root}"; '
                        f'say which: ("{root}", {offset})'
                    )
            found.append((rows.pair_in(key)[1], offset, row, len(value)))
        return found


def places_of(offsets: object) -> tuple[Position, ...] | None:
    """Which letters are meant; Malformed (422) unless each of these may be one's place."""
    if offsets is None:
        return None
    if isinstance(offsets, str | bytes) or not isinstance(offsets, Iterable):
        raise Malformed(f'offsets is {offsets!r}; give a list: [12], or [("home", 12)] where there are several roots')
    places = tuple(offsets)
    for place in places:
        is_pair = isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str)
        offset = place[1] if is_pair else place
        if type(offset) is not int or not 0 <= offset < 1 << 64:
            raise Malformed(f'{place!r} is no place of a dead letter; give an offset, or ("home", 12)')
    return places


def headers_of(id: str, offset: int, row: DeadRow, headers: Headers, mended: str = "") -> Headers:
    """Headers of a letter that is redriven: its own, and where it comes from; `mended` says what was changed."""
    error = row.errors[-1] if row.errors else ""
    notes = [(FROM, id), (TOPIC, row.topic), (OFFSET, str(offset)), (ATTEMPTS, str(row.attempts)), (ERROR, error)]
    if mended:
        notes.append((MENDED, mended))
    return (*(pair for pair in headers if pair[0] not in NOTES), *notes)
