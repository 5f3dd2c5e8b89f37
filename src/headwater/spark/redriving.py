"""Redriving dead letters that were mended in a DataFrame, once: tasks mend, the driver redrives.

    task     rows of the table dead_letters ── Mend(subscription, write, part) ──┐
    task     …                                                                   ├── subscriptions and parts ── driver
    driver   RedriveMended(subscription, write, parts of the tasks that count): in order, in one atomic write each

Promises: a row that is no dead letter (any more) fails its task, and then nothing is redriven; a subscription's letters
are handed to it all at once, in the order of their offsets, and to no other; what was redriven is not redriven again by
the same write, however often Spark runs it. As in `sink`, a part's name is drawn anew by each attempt of a task, and a
write is what the user calls it (`writeId`, `writeEpoch`), or this one alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.delivery.mending import mended_twice
from headwater.errors import Failed, HeadwaterError, Malformed
from headwater.message import DeadLetter, Headers
from headwater.spark.sink import WriteOptions, connected
from headwater.spark.source import COLUMNS
from headwater.topics.name import root_of

TABLE = COLUMNS["dead_letters"]
NAMING = ("subscription", "topic", "offset", "dead_at")
"""Columns that say which letter a row is."""
CONTENTS = ("payload", "key", "headers")
"""Columns that may be mended."""
MAY_BE_TEXT = ("payload", "key")
MAY_BE_NULL = ("key", "headers")
LETTERS_BYTES_MAX = 4 * 1024 * 1024
LETTERS_MAX = 10_000
"""Letters of a task that wait to be sent together."""


def check_letters(schema: StructType) -> None:
    """That rows of this schema are mended dead letters."""
    seen = Counter(schema.fieldNames())
    for column in schema.fields:
        kind, wanted = column.dataType.simpleString(), TABLE.get(column.name)
        if wanted is None:
            near = get_close_matches(column.name.lower(), TABLE, 1, 0.6)
            hint = f'rename it to "{near[0]}"' if near and near[0] not in seen else "drop it"
            raise Malformed(f'a dead letter has no column "{column.name}"; {hint}: there are {", ".join(TABLE)}')
        kinds = (wanted, "string") if column.name in MAY_BE_TEXT else (wanted,)
        if kind not in kinds:
            raise Malformed(
                f'column "{column.name}" is {kind}; cast it to {" or ".join(kinds)}, as table dead_letters has'
            )
        if seen[column.name] > 1:
            raise Malformed(f'there are {seen[column.name]} columns "{column.name}"; drop all but one')
    for name in (*NAMING, *CONTENTS):
        if name not in seen:
            raise Malformed(f'there is no column "{name}"; keep it as table dead_letters has it')


@dataclass(frozen=True)
class Mended(WriterCommitMessage):
    """What a task mended; sent to the driver."""

    part: str
    subscriptions: tuple[str, ...]


class RedriveWriter(DataSourceArrowWriter):
    """One redrive of mended letters: made once, and pickled to its tasks and to the driver's commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write = f"write:{options.write_id or uuid4().hex}:{options.write_epoch}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        part = uuid4().hex[:16]
        subscriptions: set[str] = set()
        with connected(self._options, self._options.reconnect_s) as bus:
            for name, letters in groups(iterator):
                bus.mend(name, self._write, letters, part=part)
                subscriptions.add(name)
        return Mended(part, tuple(sorted(subscriptions)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [one for one in messages if isinstance(one, Mended)]
        if len(done) != len(messages):
            raise Failed(f"{len(messages) - len(done)} tasks did not say what they mended; write again")
        parts = [one.part for one in done if one.subscriptions]
        with connected(self._options, self._options.reconnect_s) as bus:
            for name in _subscriptions(done):
                bus.redrive_mended(name, self._write, parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            with connected(self._options, 0) as bus:
                for name in _subscriptions(one for one in messages if isinstance(one, Mended)):
                    bus.drop_mended(name, self._write)
        except HeadwaterError:
            return  # it is dropped after stage_age_s


def _subscriptions(done: Iterable[Mended]) -> list[str]:
    return sorted({name for one in done for name in one.subscriptions})


def groups(batches: Iterable[Any]) -> Iterator[tuple[str, list[DeadLetter]]]:
    """Letters of one subscription each, no more at once than is good to hold."""
    held: dict[str, list[DeadLetter]] = {}
    seen: set[tuple[str, str, int]] = set()
    size = count = 0
    for batch in batches:
        for letter in _letters(batch):
            place = (letter.subscription, root_of(letter.topic), letter.offset)
            if place in seen:
                raise mended_twice(letter.topic, letter.offset)
            seen.add(place)
            held.setdefault(letter.subscription, []).append(letter)
            size += len(letter.payload)
            count += 1
            if size >= LETTERS_BYTES_MAX or count >= LETTERS_MAX:
                yield from held.items()
                held, size, count = {}, 0, 0
    yield from held.items()


def _letters(batch: Any) -> Iterator[DeadLetter]:
    import pyarrow as pa

    columns = {name: batch.column(name) for name in (*NAMING, *CONTENTS)}
    for name, column in columns.items():
        if name not in MAY_BE_NULL and column.null_count:
            raise Malformed(f'a row has no {name}; column "{name}" may not be null, filter such rows out')
    # As microseconds, which a datetime would round where a session's time zone jumps.
    columns["dead_at"] = columns["dead_at"].cast(pa.int64())
    rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    for subscription, topic, offset, dead_at_us, payload, key, headers in rows:
        yield DeadLetter(
            subscription,
            topic,
            offset,
            _bytes(payload),
            0,
            None if key is None else _bytes(key),
            _pairs(headers),
            0,
            (),
            dead_at_us,
        )


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _pairs(headers: list[tuple[str, str | None]] | None) -> Headers:
    for name, value in headers or ():
        if value is None:
            raise Malformed(f'header "{name}" of a row is null; leave it out, or give it an empty string')
    return tuple((name, value) for name, value in headers or () if value is not None)
