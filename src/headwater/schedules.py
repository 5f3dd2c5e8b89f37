"""Schedules: messages that are published again and again, when a cron line says so.

Promises:

- Each time that is due brings one message, over crashes too: a schedule is an idempotent producer of its own, whose
  sequence is the time; its row moves on once the message is on disk, and what was stored already is not stored again.
- Of the times that passed while the bus was closed, or could not publish, one is caught up: the first of them.
- The client of a schedule needs the right to publish it when it is due; a time at which it has none is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from headwater import threads
from headwater.audit import Audit
from headwater.book import Book
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.cron import Cron
from headwater.delivery.timers import Timers
from headwater.errors import (
    Conflict,
    HeadwaterError,
    Malformed,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    SchemaMismatch,
    TooLarge,
)
from headwater.events import Events
from headwater.log.checks import Checks, GivenHeaders
from headwater.log.group_commit import GroupCommit
from headwater.log.publish import Part, Publish
from headwater.message import ScheduleInfo
from headwater.payload import Payload
from headwater.store import state as rows
from headwater.store.state import State, key_words, pack
from headwater.topics.name import is_utf8

PRODUCER = "$schedule"
"""How the producers of schedules begin, whose messages are stored once for each time."""
RELEASED_MAX = 1000
"""Schedules that are seen to in one go; the rest follows at once."""
LOOK_US_MAX = 60 * SECOND_US
"""How long nothing is looked at: the wall clock may be corrected meanwhile."""
AGAIN_US = 5 * SECOND_US
"""How long a message that could not be published waits before the next try."""


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Whose a schedule is, and what it takes to change it."""

    client: str = ""
    by: str = ""
    """Who has to have the right to publish it when it is due; empty if nobody is asked."""
    share: str = ""
    """In whose share it counts."""
    is_admin: bool = True
    """Whether schedules of others may be changed."""


NOBODY = Owner()
"""Who owns the folder."""


class ScheduleRow(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is stored."""

    info: ScheduleInfo
    made_us: int
    """When it was made, with this cron line: one made anew is another producer."""
    by: str = ""
    share: str = ""

    @property
    def producer(self) -> str:
        """What its messages are published as."""
        return f"{PRODUCER}/{self.made_us}/{self.info.id}"

    def on(self, next_us: int) -> ScheduleRow:
        """The same after its message was published."""
        info = msgspec.structs.replace(self.info, last_us=self.info.next_us, next_us=next_us)
        return msgspec.structs.replace(self, info=info)


class KnownSchedule(msgspec.Struct, frozen=True):
    """What is remembered of a schedule."""

    next_us: int
    client: str
    by: str
    share: str

    def is_of(self, owner: Owner) -> bool:
        """Whether this is its client, and not another that has its name by now; or whoever looks after all."""
        made, asks = (by.partition("/")[2] for by in (self.by, owner.by))
        is_another = bool(made and asks and made != asks)
        return owner.is_admin or (self.client == owner.client and not is_another)


_decode = msgspec.msgpack.Decoder(ScheduleRow).decode


class Schedules:
    """The schedules of one bus; from any thread but the one that commits."""

    def __init__(
        self,
        state: State,
        commit: GroupCommit[Publish],
        checks: Checks,
        timers: Timers,
        config: Config,
        clock: Clock,
        events: Events,
        audit: Audit,
        check_release: Callable[[str, Part], bool],
        *,
        read_only: bool,
    ) -> None:
        self._state = state
        self._book = Book(state, read_only=read_only, audit=audit)
        self._commit = commit
        self._checks = checks
        self._timers = timers
        self._config = config
        self._clock = clock
        self._events = events
        self._check_release = check_release
        self._lock = threads.Lock()
        """Held over a release, so that nothing comes of a schedule that is gone."""
        self._known: dict[str, KnownSchedule] = {}
        self._again: dict[str, int] = {}
        """Of those whose message could not be published, when that is tried again, on the clock that never jumps."""
        self.reload()

    def start(self) -> None:
        """Publish what is due, from now on."""
        self._arm()

    def reload(self) -> None:
        """See what another process wrote meanwhile."""
        known: dict[str, KnownSchedule] = {}
        for key, value in self._state.scan(rows.SCHEDULE):
            try:
                known[key[1:].decode()] = _known(_decode(value))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._events.trouble(f"the row of schedule {key[1:]!r} is damaged ({error}); make it again")
        self._known = known

    # Changing

    def add(
        self,
        topic: str,
        payload: Payload,
        *,
        cron: str,
        id: str | None = None,
        zone: str = "UTC",
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        owner: Owner = NOBODY,
    ) -> ScheduleInfo:
        """A schedule, or another one in place of what this id had. The same again changes nothing, and what differs in
        nothing but its message keeps its time."""
        (part,) = self._checks.one(topic, payload, retain, key, headers, ttl_s).parts
        given = part.headers[0] if part.headers else ()
        self._check_size(len(part.payloads[0]) + len(key or b"") + sum(len(n) + len(v) for n, v in given))
        line, now_us = Cron(cron, zone), self._clock.now_us()
        made = ScheduleInfo(
            id=self._check_id(topic if id is None else id),
            topic=topic,
            payload=part.payloads[0],
            cron=line.line,
            zone=zone,
            next_us=line.next_us(now_us),
            retain=retain,
            key=part.keys[0] if part.keys else None,
            headers=given,
            ttl_s=ttl_s,
            client=owner.client,
        )
        with self._lock:
            return self._put(made, now_us, owner)

    def _put(self, made: ScheduleInfo, now_us: int, owner: Owner) -> ScheduleInfo:
        there = self._row(made.id)
        row = ScheduleRow(made, now_us, owner.by, owner.share)
        if there is not None:
            self._check_owner(there, owner)
            if (there.info.cron, there.info.zone) == (made.cron, made.zone):
                kept = msgspec.structs.replace(made, next_us=there.info.next_us, last_us=there.info.last_us)
                row = msgspec.structs.replace(row, info=kept, made_us=there.made_us)
            if row == there:
                return there.info
        self._check_room(made.id, owner)
        self._book.write({_key(made.id): pack(row)})
        self._known[made.id] = _known(row)
        self._again.pop(made.id, None)
        self._arm()
        self._book.note("scheduled", made.id, None if there is None else _told(there.info), _told(row.info))
        return row.info

    def remove(self, id: str, owner: Owner = NOBODY) -> None:
        """Publish it no more; NotFound (404) if there is none."""
        with self._lock:
            there = self._row(id)
            if there is None or not _known(there).is_of(owner):
                raise NotFound(f'there is no schedule "{id}" of yours; bus.schedules() lists those that there are')
            self._book.write({_key(id): None})
            self._known.pop(id, None)
            self._again.pop(id, None)
            self._book.note("unscheduled", id, _told(there.info))

    def _row(self, id: str) -> ScheduleRow | None:
        value = self._state.get(_key(id)) if id in self._known else None
        return None if value is None else _decode(value)

    # Checks

    def _check_id(self, id: object) -> str:
        longest = self._config.topic_bytes_max
        if not isinstance(id, str) or not is_utf8(id) or "\0" in id or not 1 <= len(id.encode()) <= longest:
            raise Malformed(f"id is {str(id)[:40]!r}; use a str of 1 to {longest} bytes, or none for the topic's name")
        return id

    def _check_size(self, size: int) -> None:
        if size > self._config.schedule_bytes_max:
            raise TooLarge(
                f"{size} bytes are over schedule_bytes_max ({self._config.schedule_bytes_max}); store what is large "
                "elsewhere and publish its address"
            )

    def _check_owner(self, there: ScheduleRow, owner: Owner) -> None:
        if not _known(there).is_of(owner):
            raise Conflict(f'there is another schedule "{there.info.id}" already; choose another id')

    def _check_room(self, id: str, owner: Owner) -> None:
        others = [known for name, known in self._known.items() if name != id]
        if len(others) >= self._config.schedules_max:
            raise QuotaExceeded(
                f"there are {len(others)} schedules, and schedules_max is {self._config.schedules_max}; remove "
                "some, or raise the setting"
            )
        own = sum(known.share == owner.share for known in others) if owner.share else 0
        if own >= self._config.schedules_per_client_max:
            raise QuotaExceeded(
                f'client "{owner.share}" has {own} schedules, and schedules_per_client_max is '
                f"{self._config.schedules_per_client_max}; remove some, or raise the setting"
            )

    # Looking

    def all(self, *, after: str | None = None, limit: int | None = None) -> list[ScheduleInfo]:
        """Every schedule, by id; with a limit a page of them, after an id."""
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")
        found: list[ScheduleInfo] = []
        for one in self.each(after):
            found.append(one)
            if len(found) == limit:
                break
        return found

    def each(self, after: str | None = None, owner: Owner = NOBODY) -> Iterable[ScheduleInfo]:
        """Those of an owner one after another, as somebody takes them."""
        if self._book.is_read_only:
            self.reload()
        known = dict(self._known)
        for name in sorted(name for name, one in known.items() if one.is_of(owner)):
            if (after is None or name > after) and (row := self._row(name)) is not None:
                yield row.info

    # What is due

    def _arm(self, wait_us: int = 0) -> None:
        """Ring when the first is due; one that failed keeps nobody else's waiting."""
        now_us, apart_us = self._clock.monotonic_us(), self._clock.monotonic_us() - self._clock.now_us()
        known = tuple(self._known.items())
        due_us = min((self._again.get(name) or one.next_us + apart_us for name, one in known), default=None)
        if due_us is not None:
            due_us = max(min(due_us, now_us + LOOK_US_MAX), now_us + wait_us)
        self._timers.set("schedules", due_us, self._release)

    def _release(self) -> None:
        wait_us = AGAIN_US
        with self._lock:
            try:
                if self._state.failed is None:  # else that it was published could not be noted
                    self._release_due()
                    wait_us = 0
            finally:
                self._arm(wait_us)

    def _release_due(self) -> None:
        """Publish some of what is due, and note when it is due next."""
        now_us, moment_us = self._clock.now_us(), self._clock.monotonic_us()
        due = sorted(
            (self._again.get(name, 0), one.next_us, name)
            for name, one in self._known.items()
            if one.next_us <= now_us and self._again.get(name, 0) <= moment_us
        )[:RELEASED_MAX]
        under_way: list[tuple[ScheduleRow, Publish | None]] = []
        for _, _, name in due:
            if (row := self._row(name)) is not None:
                with suppress(_Later):
                    under_way.append((row, self._submitted(row)))
        moved = [one for row, item in under_way if (one := self._moved(row, item, now_us)) is not None]
        self._again.update((name, moment_us + AGAIN_US) for _, _, name in due)
        for row in moved:
            self._again.pop(row.info.id, None)
        self._book.write({_key(row.info.id): pack(row) for row in moved})
        self._known.update((row.info.id, _known(row)) for row in moved)

    def _submitted(self, row: ScheduleRow) -> Publish | None:
        """Its message on its way; None if its client may not publish it any more, or it fits no schema any more."""
        try:
            item = self._checks.scheduled(row.info, row.producer, row.share)
            if row.by and not self._check_release(row.by, item.parts[0]):
                raise _Later
        except (NotAllowed, SchemaMismatch, TooLarge) as error:
            self._events.trouble(f'schedule "{row.info.id}" is passed over this time: {error}')
            return None
        self._commit.submit(item)
        return item

    def _moved(self, row: ScheduleRow, item: Publish | None, now_us: int) -> ScheduleRow | None:
        """The row once its message is on disk; None if it is to be tried again."""
        from_us = now_us
        try:
            if item is not None:
                item.wait()
                if item.runs[0][3]:
                    from_us = row.info.next_us  # it was there: what was missed is what came after it
            return row.on(Cron(row.info.cron, row.info.zone).next_us(from_us))
        except Conflict:  # it was stored so long ago that nobody knows more
            return row.on(Cron(row.info.cron, row.info.zone).next_us(row.info.next_us))
        except HeadwaterError as error:
            if row.info.id not in self._again:  # told once, however often it is tried
                self._events.trouble(f'schedule "{row.info.id}" could not be published: {error}')
            return None


class _Later(Exception):
    """It cannot be told yet whether it may be published."""


def _known(row: ScheduleRow) -> KnownSchedule:
    return KnownSchedule(row.info.next_us, row.info.client, row.by, row.share)


def _key(id: str) -> bytes:
    return key_words(rows.SCHEDULE, id)


def _told(info: ScheduleInfo) -> dict[str, object]:
    """What the audit tells of one; its message is nobody else's business."""
    return {"topic": info.topic, "cron": info.cron, "zone": info.zone}
