"""Mended dead letters: other contents for messages that a subscription gave up on, handed to it again, once.

Whoever mends stores the new contents beside the letters first, in parts, under the name of a write; then one call
redrives those of the parts that count. Promises: a letter that is not there is an error before anything changes;
the letters of a write leave the dead and wait for their subscription in one atomic write, which also notes that it
was done, so that asking again changes nothing; a letter that was redriven, dropped, or has died again since it was read
is not taken for the one that was mended, as each is named by when it died; who mends for a client has it asked whether
it may, then and when the letters are redriven. What is never redriven is dropped after `stage_age_s`; that a write was
done is remembered as long.

    state: "M" subscription write 0 part 0 stream offset → contents, when the letter died, when they were stored
           "D" subscription write → how many letters were redriven, and when
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import uuid4

import msgspec

from headwater import threads
from headwater.audit import Audit
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.dead_letters import Allow, headers_of
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.rows import CopyRow, DeadRow, RowCommit
from headwater.delivery.subscriber import Subscriber
from headwater.errors import Malformed, NotFound, QuotaExceeded
from headwater.log.roots import Roots
from headwater.message import DeadLetter, Headers
from headwater.store import state as rows
from headwater.store.state import Rows, State
from headwater.topics.name import is_utf8, root_of

ATTEMPTS_MAX = 8
"""How often all letters of a subscription may be mended before they are redriven, as by tasks that are tried again."""
NAME_BYTES_MAX = 512
"""Of a write, and of a part."""

Contents = tuple[bytes, bytes | None, Headers]
"""Payload, key and headers, checked."""


Shares = dict[str, tuple[int, int]]
"""By client: how many letters, and how many bytes."""


class MendedRow(msgspec.Struct, frozen=True, array_like=True):
    """New contents of a dead letter."""

    payload: bytes
    key: bytes | None
    headers: Headers
    dead_at_us: int
    time_us: int
    share: str = ""
    """The client of a server whose share it counts in."""


class RedrivenRow(msgspec.Struct, frozen=True, array_like=True):
    """A write that was done."""

    count: int
    time_us: int


class Mending:
    """What was mended of the dead letters of every subscription, and not redriven yet."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roots: Roots,
        state: State,
        commit: RowCommit,
        config: Config,
        clock: Clock,
        check: Callable[[str, bytes, bytes | None, Headers], Contents],
        audit: Audit,
    ) -> None:
        self._dispatcher = dispatcher
        self._roots = roots
        self._state = state
        self._commit = commit
        self._config = config
        self._clock = clock
        self._check = check
        self._audit = audit
        self._waiting: dict[int, int] = {}
        """By subscription: how many wait, at most."""
        self._lock = threads.Lock()
        self._shares: Shares | None = None
        """By client of a server: letters that it has mended, and their bytes; counted when somebody mends, and again by
        upkeep, as some go with their subscription;"""
        self._since: Shares | None = None
        """what changed since that began."""

    def mend(
        self,
        id: str,
        write: str,
        letters: Sequence[DeadLetter],
        part: str = "",
        allow: Allow | None = None,
        share: str = "",
    ) -> None:
        """Store other contents for these letters; nothing if the write was done already."""
        _check_names(write, part)
        for letter in letters:
            check_letter(letter, id)
        contents = [self._check(letter.topic, letter.payload, letter.key, letter.header_pairs) for letter in letters]

        def work(subscriber: Subscriber) -> None:
            number = subscriber.number
            if self._done(number, write) is not None:
                return
            now_us = self._clock.now_us()
            changed: Rows = {}
            for letter, (payload, key, headers) in zip(letters, contents, strict=True):
                stream, dead = self._dead(number, id, letter.topic, letter.offset, letter.dead_at_us)
                if allow is not None:
                    allow(dead.topic, _fresh(headers, dead))
                row = MendedRow(payload, key, headers, letter.dead_at_us, now_us, share)
                place = _key(number, write, part, stream, letter.offset)
                if place in changed:
                    raise mended_twice(letter.topic, letter.offset)
                changed[place] = rows.pack(row)
            with self._lock:
                before = self._of_share(changed) if share else {}
                self._admit(number, id, changed)
                self._admit_share(share, before, changed)
            self._commit.write(changed)
            with self._lock:
                self._take_off(before)

        self._dispatcher.use(id, work)

    def redrive(self, id: str, write: str, parts: Sequence[str] = ("",), allow: Allow | None = None) -> int:
        """Redeliver the letters of these parts to their subscription, in order; answers how many, and the same when
        it is asked again. Other parts of the write are dropped."""
        if isinstance(parts, str):
            raise Malformed(f"parts is {parts!r}; use a list of names")
        _check_names(write, *parts)

        def work(subscriber: Subscriber) -> int:
            number = subscriber.number
            done = self._done(number, write)
            if done is not None:
                return done.count
            changed: Rows = {}
            copies: dict[int, dict[int, CopyRow]] = {}
            sizes: list[int] = []
            gone: dict[bytes, bytes] = {}
            for key, part, value in self._mended(number, write):
                row = msgspec.msgpack.decode(value, type=MendedRow)
                changed[key] = None
                gone[key] = value
                if part not in parts:
                    continue
                stream, offset = rows.place_in(key)
                dead, size = self._letter(number, id, stream, offset, row.dead_at_us)
                if allow is not None:
                    allow(dead.topic, _fresh(row.headers, dead))
                if offset in copies.setdefault(stream, {}):
                    raise mended_twice(dead.topic, offset)
                sizes.append(size)
                copies[stream][offset] = copy = _copy(id, offset, dead, row)
                changed[rows.key_message(rows.DEAD, number, stream, offset)] = None
                changed[rows.key_message(rows.COPY, number, stream, offset)] = rows.pack(copy)
            count = sum(map(len, copies.values()))
            changed[rows.key_name(rows.REDRIVEN, number, write)] = rows.pack(RedrivenRow(count, self._clock.now_us()))
            self._waiting.pop(number, None)
            subscriber.redrive(changed, copies, sizes)
            with self._lock:
                self._take_off(gone)
            return count

        count = self._dispatcher.use(id, work)
        if count:
            self._audit.note("dead-letters-mended", id, None, {"count": count})
        return count

    def drop(self, id: str, write: str) -> None:
        """Forget what was mended in a write and not redriven; the letters stay as they are."""
        _check_names(write)

        def work(subscriber: Subscriber) -> None:
            gone = {key: value for key, _, value in self._mended(subscriber.number, write)}
            self._waiting.pop(subscriber.number, None)
            self._commit.write(dict.fromkeys(gone))
            with self._lock:
                self._take_off(gone)

        self._dispatcher.use(id, work)

    def expire(self) -> None:
        """Drop what was mended too long ago and never redriven, and forget the writes that were done long ago."""
        before_us = self._clock.now_us() - round(self._config.stage_age_s * SECOND_US)
        gone: Rows = {}
        counted: Shares = {}
        with self._lock:
            self._since = {}
        for key, value in self._state.scan(rows.MENDED):
            row = msgspec.msgpack.decode(value, type=MendedRow)
            if row.time_us < before_us:
                gone[key] = None
            else:
                _count(counted, row.share, 1, len(value))
        for key, value in self._state.scan(rows.REDRIVEN):
            if msgspec.msgpack.decode(value, type=RedrivenRow).time_us < before_us:
                gone[key] = None
        self._waiting.clear()
        self._commit.write(gone)
        with self._lock:
            for share, change in self._since.items():
                _count(counted, share, *change)
            self._shares, self._since = counted, None

    def _admit(self, number: int, id: str, changed: Rows) -> None:
        """QuotaExceeded (429) if more letters would wait, mended, than a subscription may have."""
        limit = ATTEMPTS_MAX * self._config.dead_letters_max
        known, count = self._waiting.get(number), len(changed)
        if known is None or known + count > limit:  # what is stored again is no more than it was
            known = sum(1 for key, _ in self._state.scan(rows.key_u32(rows.MENDED, number)) if key not in changed)
        if known + count > limit:
            raise QuotaExceeded(
                f'{known} mended letters of subscription "{id}" wait to be redriven, {ATTEMPTS_MAX} times '
                "dead_letters_max; redrive or drop them first"
            )
        self._waiting[number] = known + count

    def _done(self, number: int, write: str) -> RedrivenRow | None:
        value = self._state.get(rows.key_name(rows.REDRIVEN, number, write))
        return None if value is None else msgspec.msgpack.decode(value, type=RedrivenRow)

    def _admit_share(self, share: str, before: dict[bytes, bytes], changed: Rows) -> None:
        """QuotaExceeded (429) if one client of a server would have mended more than its share."""
        if not share:
            return
        letters, size = self._counted().get(share, (0, 0))
        count, more = len(changed), sum(len(value or b"") for value in changed.values())
        replaced = [len(value) for value in before.values()]
        config = self._config
        if (
            letters + count - len(replaced) > config.mended_per_client_max
            or size + more - sum(replaced) > config.mended_bytes_per_client_max
        ):
            raise QuotaExceeded(
                f'{letters} letters of {size} bytes that client "{share}" has mended wait to be redriven, and '
                f"mended_per_client_max is {config.mended_per_client_max}, mended_bytes_per_client_max "
                f"{config.mended_bytes_per_client_max}; redrive or drop them first, or raise the settings"
            )
        self._note(share, count, more)

    def _counted(self) -> Shares:
        if self._shares is None:
            self._shares = {}
            for _, value in self._state.scan(rows.MENDED):
                _count(self._shares, msgspec.msgpack.decode(value, type=MendedRow).share, 1, len(value))
        return self._shares

    def _note(self, share: str, letters: int, size: int) -> None:
        for shares in (self._shares, self._since):
            if shares is not None:
                _count(shares, share, letters, size)

    def _of_share(self, changed: Rows) -> dict[bytes, bytes]:
        """What these rows are stored in place of."""
        found = ((key, self._state.get(key)) for key in changed)
        return {key: value for key, value in found if value is not None}

    def _take_off(self, gone: Mapping[bytes, bytes]) -> None:
        """These are not there any more."""
        for value in gone.values():
            self._note(msgspec.msgpack.decode(value, type=MendedRow).share, -1, -len(value))

    def _mended(self, number: int, write: str) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, part and row of all that a write has mended."""
        prefix = rows.key_name(rows.MENDED, number, write) + b"\0"
        for key, value in self._state.scan(prefix):
            part = key[len(prefix) :].partition(b"\0")[0].decode()
            yield key, part, value

    def _dead(self, number: int, id: str, topic: str, offset: int, dead_at_us: int) -> tuple[int, DeadRow]:
        """The stream of a letter, and the letter."""
        root = self._roots.get(root_of(topic))
        if root is None:
            raise _gone(id, topic, offset)
        stream = root.stream.number
        dead, _ = self._letter(number, id, stream, offset, dead_at_us)
        if dead.topic != topic:
            raise Malformed(f'dead letter {offset} is of topic "{dead.topic}", not "{topic}"; a topic cannot be mended')
        return stream, dead

    def _letter(self, number: int, id: str, stream: int, offset: int, dead_at_us: int) -> tuple[DeadRow, int]:
        """A letter, and how large it is."""
        value = self._state.get(rows.key_message(rows.DEAD, number, stream, offset))
        dead = None if value is None else msgspec.msgpack.decode(value, type=DeadRow)
        if value is None or dead is None or dead.dead_at_us != dead_at_us:
            raise _gone(id, None if dead is None else dead.topic, offset, has_died_again=dead is not None)
        return dead, len(value)


def _count(shares: Shares, share: str, letters: int, size: int) -> None:
    known, bytes_known = shares.get(share, (0, 0))
    shares[share] = known + letters, bytes_known + size
    if shares[share] == (0, 0):
        del shares[share]


def write_of(offsets: object, mended: object, write: str | None) -> str | None:
    """The name of a write that redrives mended letters, drawn if it has none; None where letters stay as they are."""
    if mended is None:
        if write is not None:
            raise Malformed("write names a redrive of mended letters; give mended=[…] too, or leave it out")
        return None
    if offsets is not None:
        raise Malformed("give offsets or mended letters, not both: each letter says which it is")
    return uuid4().hex if write is None else write


def _gone(id: str, topic: str | None, offset: int, *, has_died_again: bool = False) -> NotFound:
    of = "" if topic is None else f' of "{topic}"'
    why = "it has died again since it was read" if has_died_again else "it was redriven or dropped, or never was"
    return NotFound(f'subscription "{id}" has no such dead letter {offset}{of}: {why}; read them again, then mend')


def mended_twice(topic: str, offset: int) -> Malformed:
    """What to say of a letter that occurs twice."""
    return Malformed(f'dead letter {offset} of "{topic}" was mended twice in this write; give each letter once')


def _fresh(headers: Headers, dead: DeadRow) -> Headers:
    """Headers that a letter did not have."""
    return tuple(pair for pair in headers if pair not in dead.headers)


def _copy(id: str, offset: int, dead: DeadRow, row: MendedRow) -> CopyRow:
    headers = row.headers
    # Where headers were a map on their way, as in Spark, those that say the same are those that were there.
    if dict(headers) == dict(dead.headers) and len(dict(headers)) == len(headers):
        headers = dead.headers
    before = {"payload": dead.payload, "key": dead.key, "headers": dead.headers}
    after = {"payload": row.payload, "key": row.key, "headers": headers}
    changes = [name for name in before if after[name] != before[name]]
    pairs = headers_of(id, offset, dead, headers, ",".join(changes))
    return CopyRow(dead.topic, row.payload, dead.time_us, row.key, pairs, False)


def _key(number: int, write: str, part: str, stream: int, offset: int) -> bytes:
    return rows.key_name(rows.MENDED, number, f"{write}\0{part}\0") + rows.key_offset(b"", stream, offset)


def check_letter(letter: object, id: str) -> None:
    """That it is a letter of this subscription."""
    if not isinstance(letter, DeadLetter):
        raise Malformed(f"a mended letter is a DeadLetter, not {type(letter).__name__}; use letter.mend(payload=…)")
    if letter.subscription != id:
        raise Malformed(f'a dead letter of "{letter.subscription}" goes to no other subscription, so not to "{id}"')
    if type(letter.topic) is not str or type(letter.offset) is not int or not 0 < letter.offset < 1 << 63:
        raise Malformed(f"dead letter {letter.offset!r} of {letter.topic!r} cannot be one; offsets count from 1")


def _check_names(write: object, *parts: object) -> None:
    for what, name in (("write", write), *(("part", part) for part in parts)):
        if type(name) is not str or not is_utf8(name) or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
            raise Malformed(f"{what} is {name!r}; use a name of up to {NAME_BYTES_MAX} bytes")
    if not write:
        raise Malformed('write is ""; use a name that this write alone has')
