"""`headwater pub`: publish a message, lines, a file, or load."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headwater import Malformed, Outgoing, Receipt
from headwater.bus import Bus
from headwater.cli.options import At, moment
from headwater.cli.output import counted, emit, iso, progress, safe, say
from headwater.units import size

CHUNK_MESSAGES = 1000
"""Messages published with one call."""
CHUNK_BYTES = 8 << 20
"""Or fewer, when they are large."""
LINES_AHEAD = CHUNK_MESSAGES
SIZE_DEFAULT = 400


class Note(msgspec.Struct, frozen=True):
    """What every message of one command has besides its payload, as `bus.publish_soon` takes it."""

    topic: str
    retain: bool
    key: bytes | None
    headers: tuple[tuple[str, str], ...]
    ttl_s: float | None
    deliver_at: datetime | None
    producer: str | None
    sequence: int | None


def pub(
    at: At,
    topic: Annotated[str, typer.Argument(help="Where to: home/kitchen/temp")],
    payload: Annotated[str | None, typer.Argument(help="What: text.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="A message for each line that comes in.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", exists=True, dir_okay=False, help="A file as one message.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With --file: a message for each of its lines.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="So many messages, for load.")] = None,
    bytes_: Annotated[
        int | None,
        typer.Option("--size", min=0, help=f"With --count: bytes of each, at random ({SIZE_DEFAULT} if not said)."),
    ] = None,
    retain: Annotated[bool, typer.Option("--retain", help="Keep it for new subscribers; empty clears it.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Messages with one key stay in order.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be given more than once.")
    ] = None,
    ttl_s: Annotated[float | None, typer.Option("--ttl-s", help="Seconds after which nobody gets it.")] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help="Not before: 2026-01-31T12:00, or 90s, 5m, 2h.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option("--producer", help="With --sequence: a repeat is stored once.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=0, help="Of the (first) message of this producer.")
    ] = None,
) -> None:
    """Publish to a topic. It ends when everything is on disk.

    With --json: one message prints its receipt (topic, offset, time, duplicate); many print one summary (topic,
    messages, bytes, first_offset, last_offset, seconds).
    """
    given = [payload is not None and count is None, stdin, file is not None, count is not None]
    if sum(given) != 1:
        raise Malformed("say what to publish in one way: a payload, --stdin, --file or --count")
    if lines and file is None:
        raise Malformed("--lines is about --file; for lines from another command use --stdin")
    if bytes_ is not None and (count is None or payload is not None):
        raise Malformed("--size is about --count without a payload")
    due = moment(deliver_at) if deliver_at is not None else None
    pairs = tuple(pair_of(text) for text in header or ())
    note = Note(topic, retain, key.encode() if key is not None else None, pairs, ttl_s, due, producer, sequence)
    with at.own(make=True) as bus:
        if count is not None:
            _publish_all(bus, note, _load(count, payload, SIZE_DEFAULT if bytes_ is None else bytes_), count, at.json)
        elif stdin:
            _publish_all(bus, note, _chunks_of_stdin(), None, at.json)
        elif file is not None and lines:
            _publish_all(bus, note, _chunks_of_file(file), None, at.json)
        else:
            one = file.read_bytes() if file is not None else (payload or "").encode(errors="surrogateescape")
            _show(_publish_soon(bus, note, one, 0).result(), due, at.json)


def pair_of(text: str) -> tuple[str, str]:
    """A header as it was given: name=value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Malformed(f'--header "{text}" has no value; write --header name=value')
    return name, value


def _publish_soon(bus: Bus, note: Note, payload: bytes, place: int) -> Future[Receipt]:
    sequence = None if note.sequence is None else note.sequence + place
    return bus.publish_soon(payload=payload, **{**msgspec.structs.asdict(note), "sequence": sequence})


def _show(receipt: Receipt, at: datetime | None, json: bool) -> None:
    if json:
        found = msgspec.structs.asdict(receipt)
        del found["time_us"]
        emit({**found, "time": iso(receipt.time)})
        return
    where = f"due {iso(at)}" if at is not None else f"offset {receipt.offset}"
    say((safe(receipt.topic), "cyan"), f"  {where}", ("  (stored before)" if receipt.duplicate else "", "yellow"))


# Where messages come from, in chunks


def _load(count: int, payload: str | None, length: int) -> Iterator[list[bytes]]:
    if payload is not None:
        chunk = [payload.encode(errors="surrogateescape")] * CHUNK_MESSAGES
    else:
        chunk = [os.urandom(length) for _ in range(max(1, min(CHUNK_MESSAGES, count, CHUNK_BYTES // max(1, length))))]
    left = count
    while left > 0:
        yield chunk[:left]
        left -= len(chunk)


def _chunks_of_file(file: Path) -> Iterator[list[bytes]]:
    with file.open("rb") as lines:
        chunk: list[bytes] = []
        length = 0
        for line in lines:
            chunk.append(line.rstrip(b"\r\n"))
            length += len(line)
            if len(chunk) == CHUNK_MESSAGES or length >= CHUNK_BYTES:
                yield chunk
                chunk, length = [], 0
        if chunk:
            yield chunk


def _chunks_of_stdin() -> Iterator[list[bytes]]:
    """Lines that are there, as soon as they are there: a slow writer's are not held back."""
    lines: queue.Queue[bytes | None] = queue.Queue(LINES_AHEAD)

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line.rstrip(b"\r\n"))
        lines.put(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    ended = False
    while not ended:
        line = lines.get()
        chunk: list[bytes] = []
        length = 0
        while line is not None:
            chunk.append(line)
            length += len(line)
            if len(chunk) == CHUNK_MESSAGES or length >= CHUNK_BYTES or lines.empty():
                break
            line = lines.get()
        ended = line is None
        if chunk:
            yield chunk


# Publishing many


def _publish_all(bus: Bus, note: Note, chunks: Iterator[list[bytes]], total: int | None, json: bool) -> None:
    messages = length = first = last = 0
    start = time.perf_counter()
    with progress("publishing", total) as advance:
        for chunk in chunks:
            low, high = _publish_chunk(bus, note, chunk, messages)
            first = first or low
            last = high
            messages += len(chunk)
            length += sum(map(len, chunk))
            advance(len(chunk))
    seconds = time.perf_counter() - start
    if json:
        emit(
            {
                "topic": note.topic,
                "messages": messages,
                "bytes": length,
                "first_offset": first,
                "last_offset": last,
                "seconds": round(seconds, 6),
            }
        )
        return
    rate = f", {messages / seconds:,.0f}/s" if messages > 1 and seconds > 0 else ""
    where = f", offsets {first} to {last}" if last else ""
    say(
        (safe(note.topic), "cyan"),
        f"  {counted(messages, 'message')}, {size(length)} in {seconds:.2f} s{rate}{where}",
    )


def _publish_chunk(bus: Bus, note: Note, chunk: list[bytes], done: int) -> tuple[int, int]:
    """The first and the last offset given."""
    if note.producer is not None or note.sequence is not None or note.deliver_at is not None:
        # Each line has a sequence of its own, so that how they were gathered does not matter when they are sent again.
        soon = [_publish_soon(bus, note, payload, done + place) for place, payload in enumerate(chunk)]
        receipts = [future.result() for future in soon]
        return receipts[0].offset, receipts[-1].offset
    if note.retain or note.key is not None or note.headers or note.ttl_s is not None:
        rich = [Outgoing(note.topic, payload, note.retain, note.key, note.headers, note.ttl_s) for payload in chunk]
        stored = bus.publish_many(rich)
    else:
        stored = bus.publish_many([(note.topic, payload) for payload in chunk])
    return stored[0].offset, stored[-1].offset
