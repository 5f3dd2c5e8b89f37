"""Recovery of the state: tells what was torn from what was acknowledged and went bad, before RocksDB opens its files.

Promises, as for streams: writes that nobody was told of are cut off; of those that were acknowledged and are bad or
missing, the numbers, the kinds of rows and the time are told, the bad bytes go to `quarantine/`, and every whole write
behind them stays. What RocksDB cannot open for another reason is left as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headwater.clock import to_datetime
from headwater.errors import Damaged
from headwater.store import chain, wal
from headwater.store import state as rows
from headwater.store.chain import GROUPS, ChainLink
from headwater.store.files import Files, parent
from headwater.store.rocksdb import ADVICE, beside, log_names
from headwater.store.state_marks import KnownWrites

ALL_GROUPS = (1 << len(GROUPS)) - 1


class Loss(msgspec.Struct, frozen=True):
    """Writes to the state that were acknowledged and are gone."""

    first: int
    last: int
    since_us: int
    """When the last write before them was made; 0 if that is not known."""
    until_us: int
    """When the first write after them was made; 0 if there is none."""
    groups: int
    """Bits of the kinds of rows that they had."""
    reason: str
    is_confirmed: bool = False
    """Whether an administrator has seen to clients and rules since."""

    @property
    def closes_access(self) -> bool:
        """Whether rules, clients or tokens may be among what is lost, and nobody has said that they are right."""
        return not self.is_confirmed and bool(self.groups >> chain.ACCESS & 1)

    def __str__(self) -> str:
        since = f" since {to_datetime(self.since_us):%Y-%m-%d %H:%M:%S} UTC" if self.since_us else ""
        until = f" until {to_datetime(self.until_us):%Y-%m-%d %H:%M:%S} UTC" if self.until_us else ""
        return (
            f"writes {self.first} to {self.last} of the state{since}{until} are lost ({self.reason}): "
            f"{chain.told(self.groups) or 'no rows that are known'}"
        )


class Tables(NamedTuple):
    """What stands in RocksDB's tables alone."""

    link: ChainLink
    sequence: int


class Mended(NamedTuple):
    """What was done to the logs."""

    losses: list[Loss]
    torn: int
    """Whole writes that were cut off, as nobody had been told of them."""


class _Write(NamedTuple):
    link: ChainLink
    payload: bytes


def link_of(payload: bytes) -> ChainLink | None:
    """The link of a write, which is its first row."""
    start = wal.WRITE.size
    if payload[start : start + 4] != bytes((wal.PUT, 1)) + rows.CHAIN + bytes((chain.LINK_BYTES,)):
        return None
    return chain.unpack(payload[start + 4 : start + 4 + chain.LINK_BYTES])


def is_continuous(files: Files, path: str, known: KnownWrites) -> bool:
    """Whether the logs follow on the tables, and one another, as far as can be told without opening the tables."""
    names = log_names(files, path)
    if len(names) > 1:
        return False  # seldom: a log and its successor while a table is being made of it; so look closely
    for name in names:
        first = _first_link(files, f"{path}/{name}")
        if first is not None and first.number > known.in_tables + 1:
            return False
    return True


def _first_link(files: Files, path: str) -> ChainLink | None:
    file = files.open(path, write=False)
    try:
        start = file.pread(wal.BLOCK_BYTES, 0)
    finally:
        file.close()
    for record in wal.records(start):
        return link_of(record.payload)
    return None


def tables(files: Files, path: str) -> Tables:
    """What the tables hold, without the logs; Damaged if they do not open."""
    with beside(files, path) as db:
        try:
            value: bytes | None = db.get(rows.CHAIN)
            sequence = int(db.latest_sequence_number())
        except Exception as error:
            raise Damaged(f'the state in "{path}" cannot be read ({error}); {ADVICE}') from error
    return Tables((chain.unpack(value) if value is not None else None) or ChainLink(), sequence)


def mend_logs(files: Files, path: str, known: KnownWrites, cut_after: int | None = None) -> Mended | None:
    """Cut off what was torn, set apart what went bad, and leave logs that RocksDB reads to their ends. None, and
    nothing has changed, if they are in order. With `cut_after`, whatever was written after that write is cut off."""
    names = log_names(files, path)
    base = tables(files, path)
    logs = {name: files.read(f"{path}/{name}") for name in names}
    found, is_whole = _writes(logs, base.link.number)
    evidence = max(known.synced, base.link.number, *(write.link.synced for write in found.values()), 0)
    if cut_after is not None:
        evidence = max(cut_after, base.link.number)
        found = {number: write for number, write in found.items() if number <= evidence}
    kept, losses = _judge(found, base.link, known._replace(synced=evidence))
    torn = sum(number > base.link.number for number in found) - len(kept)
    if is_whole and not losses and not torn and cut_after is None:
        return None
    if losses:
        _set_apart(files, path, logs)
    payloads = [write.payload for write in kept]
    if losses:
        payloads.append(_note_of(losses, kept, base, known))
    if names:
        # All of it into the last log, in one step; only then are those before it emptied.
        files.write(f"{path}/{names[-1]}", wal.encode(payloads))
        for name in names[:-1]:
            files.write(f"{path}/{name}", b"")
    return Mended(losses, torn)


def writes_after(files: Files, path: str, base: ChainLink, known: KnownWrites) -> tuple[list[bytes], list[Loss]]:
    """Every whole write of the logs that follows on a base, in their order, and those between them that are missing."""
    logs = {name: files.read(f"{path}/{name}") for name in log_names(files, path)}
    found, _ = _writes(logs, base.number)
    evidence = max(known.synced, *(write.link.synced for write in found.values()), 0)
    kept, losses = _judge(found, base, known._replace(synced=evidence))
    return [write.payload for write in kept], losses


def _writes(logs: dict[str, bytes], base: int) -> tuple[dict[int, _Write], bool]:
    """Every whole write of the logs by its number, and whether there is nothing else in them."""
    found: dict[int, _Write] = {}
    is_whole = True
    for data in logs.values():
        for record in wal.records(data):
            is_whole &= record.is_next
            link = link_of(record.payload)
            if link is not None:
                found[link.number] = _Write(link, record.payload)
            elif record.payload:
                # Of a Headwater that did not number them, and so in order; each is as good as synced if one follows.
                number = max(found, default=base) + 1 + (not record.is_next)
                found[number] = _Write(
                    ChainLink(number, number - 1, before=(number - 1,) * len(GROUPS)), record.payload
                )
    return found, is_whole


def _judge(found: dict[int, _Write], base: ChainLink, known: KnownWrites) -> tuple[list[_Write], list[Loss]]:
    """The writes that stay, in their order, and those that were acknowledged and are not there."""
    kept: list[_Write] = []
    losses: list[Loss] = []
    before = base
    for number in sorted(number for number in found if number > base.number):
        write = found[number]
        if number > before.number + 1:
            if number > known.synced + 1:
                break  # nobody was told of this one, nor of all that are missing before it
            losses.append(_between(before, write.link))
        kept.append(write)
        before = write.link
    if before.number < known.synced:
        losses.append(lost_tail(before, known))
    return kept, losses


def _between(before: ChainLink, after: ChainLink) -> Loss:
    groups = sum(1 << group for group, last in enumerate(after.before) if last > before.number)
    return Loss(
        before.number + 1, after.number - 1, before.time_us, after.time_us, groups, "bad or missing bytes in its log"
    )


def lost_tail(before: ChainLink, known: KnownWrites, reason: str = "its log ends too early") -> Loss:
    """What was durable after the last write that is there."""
    groups = sum(1 << group for group, last in enumerate(known.last) if last > before.number)
    if max(known.last) < known.synced:
        groups = ALL_GROUPS  # what would tell is damaged: so it may have been anything
    return Loss(before.number + 1, known.synced, before.time_us, 0, groups, reason)


def loss_rows(losses: list[Loss]) -> dict[bytes, bytes | None]:
    """Rows that keep what is lost known."""
    return {rows.LOSS + loss.first.to_bytes(8, "big"): rows.pack(loss) for loss in losses}


def _note_of(losses: list[Loss], kept: list[_Write], base: Tables, known: KnownWrites) -> bytes:
    """A write that says what is lost: in the log itself, so that it is known from the same moment on."""
    last = kept[-1].link if kept else base.link
    sequence = base.sequence + 1
    if kept:
        first, count = wal.WRITE.unpack_from(kept[-1].payload)
        sequence = max(sequence, first + count)
    changed = loss_rows(losses)
    number = max(last.number, losses[-1].last) + 1
    link = ChainLink(number, known.synced, last.time_us, 0, 1 << chain.OTHERS, last.last())
    pairs = [(rows.CHAIN, link.pack()), *((key, value or b"") for key, value in changed.items())]
    return wal.WRITE.pack(sequence, len(pairs)) + b"".join(wal.put(key, value) for key, value in pairs)


class Seen(NamedTuple):
    """What stands in the logs, looked at without changing anything."""

    losses: list[Loss]
    wrong: list[int]
    """Writes that are whole, and whose digests do not fit those of the writes before them."""
    log: bytes
    """Of the writes that stay."""


def look_at_logs(files: Files, path: str, known: KnownWrites, *, is_owned: bool) -> Seen:
    """What recovery would find. Beside a running owner its tables are not looked into, and what it has not called
    durable is not judged."""
    logs = {name: files.read(f"{path}/{name}") for name in log_names(files, path)}
    if is_owned:
        base = tables(files, path).link
    else:
        first = min(_writes(logs, 0)[0], default=known.synced + 1)
        base = ChainLink(max(known.in_tables, first - 1))
    found, _ = _writes(logs, base.number)
    evidence = max(known.synced, base.number, *(write.link.synced for write in found.values()), 0)
    kept, losses = _judge(found, base, known._replace(synced=evidence))
    wrong = [number for number, write in found.items() if not _fits(write, found.get(number - 1))]
    return Seen(losses, wrong, wal.encode(write.payload for write in kept))


def _fits(write: _Write, before: _Write | None) -> bool:
    pairs = wal.rows_in(write.payload)
    if before is None or not write.link.digest or not before.link.digest:
        return pairs is not None
    return pairs is not None and write.link.digest == chain.digest_of(before.link.digest, dict(pairs[1:]))


def _set_apart(files: Files, path: str, logs: dict[str, bytes]) -> None:
    quarantine = f"{parent(path)}/quarantine"
    files.make_folder(quarantine)
    taken = set(files.list(quarantine))
    for name, data in logs.items():
        copy, again = f"state-{name}", 0
        while copy in taken:
            again += 1
            copy = f"state-{again}-{name}"
        files.write(f"{quarantine}/{copy}", data)
