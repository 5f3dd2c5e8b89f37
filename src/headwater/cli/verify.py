"""`headwater verify`: walk every byte of a folder, and say what is wrong with it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

import headwater
from headwater import Failed, NotFound, Owned
from headwater.cli.options import At
from headwater.cli.output import Columns, console, counted, emit, named, progress, safe, say, table
from headwater.cli.state_rows import DECODERS
from headwater.log.root import RootRow
from headwater.store import state as rows
from headwater.store.files import DiskFiles, Files
from headwater.store.folder import LOCK, STATE, STREAMS, VERSION
from headwater.store.log import Hole
from headwater.store.rocks import RocksReader, RocksState
from headwater.store.state_verify import StateReport, verify_state
from headwater.store.verify import KnownStream, Report, StreamReport, segment_bytes
from headwater.store.verify import quarantine as set_apart
from headwater.store.verify import verify as walk
from headwater.units import size


def verify(
    at: At,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Copy bad bytes into quarantine/ and record them as gaps.")
    ] = False,
) -> None:
    """Walk every byte: checksums, roots, offsets, indexes, the journal, the version, every row of the state and its
    log. Code 1 if anything is damaged.

    It works beside the process that owns the folder; --quarantine needs the folder for itself, and first opens it as a
    bus does, so that a torn end is cut.

    With --json: an object for each root (root, segments, batches, messages, bytes, first_offset, last_offset,
    torn_bytes, damages, notes, indexes), then one for the folder (folder, is_whole, quarantined, journal_batches,
    journal_pending, troubles, state: rows, last_write and losses that are known).
    """
    data = at.folder("verify walks the files of a folder")
    files = DiskFiles()
    if not files.exists(f"{data}/{VERSION}") and not files.exists(f"{data}/streams"):
        raise NotFound(f'"{data}" is no Headwater folder; name one with --data')
    if quarantine:
        headwater.open(data).close()
        lock = files.lock(f"{data}/owner.lock")
        try:
            report = _walk(files, data)
            _set_apart(files, data, report)
            state = _verify_state(files, data, is_owned=True)
        finally:
            lock.release()
    else:
        report = _walk(files, data)
        state = _verify_state_here(files, data)
    report.troubles += state.troubles
    if at.json:
        _emit(report, state, data, quarantine)
    else:
        _show(report, state, data, quarantine)
    if not report.is_whole:
        raise typer.Exit(1)


def _verify_state_here(files: Files, data: str) -> StateReport:
    """As its owner where there is none, beside it where there is one. The folder is not held meanwhile: who opens it is
    not turned away, and what was judged too strictly then is judged again."""
    if not _has_owner(files, data):
        state = _verify_state(files, data, is_owned=True)
        if not state.troubles or not _has_owner(files, data):
            return state
    return _verify_state(files, data, is_owned=False)


def _has_owner(files: Files, data: str) -> bool:
    try:
        files.lock(f"{data}/{LOCK}").release()
    except (Owned, OSError):
        return True
    return False


def _verify_state(files: Files, data: str, *, is_owned: bool) -> StateReport:
    must_exist = bool(files.list(f"{data}/{STREAMS}"))
    return verify_state(files, f"{data}/{STATE}", DECODERS, must_exist=must_exist, is_owned=is_owned)


def _walk(files: Files, data: str) -> Report:
    """Walk the folder, with what the state knows about it, if it can be read."""
    durable: dict[int, int] = {}
    holes: dict[int, list[Hole]] = {}
    try:
        state = RocksReader(f"{data}/{STATE}")
        try:
            for key, value in state.scan(rows.STREAM):
                row = msgspec.msgpack.decode(value, type=RootRow)
                durable[int.from_bytes(key[1:5], "big")] = row.checkpoint.applied
            for key, value in state.scan(rows.GAP):
                last, reason = msgspec.msgpack.decode(value, type=tuple[int, str])
                holes.setdefault(int.from_bytes(key[1:5], "big"), []).append(Hole(rows.offset_in(key), last, reason))
        finally:
            state.close()
    except (Failed, msgspec.DecodeError):
        pass  # which is told by whoever walks the state
    with progress("verifying", segment_bytes(files, data), "bytes") as advance:
        return walk(files, data, lambda number: KnownStream(durable.get(number, 0), holes.get(number, ())), advance)


def _set_apart(files: Files, data: str, report: Report) -> None:
    changed = set_apart(files, data, report)
    if changed:
        state = RocksState(f"{data}/{STATE}")
        try:
            state.commit(changed)
        finally:
            state.close()


def _emit(report: Report, state: StateReport, data: str, quarantine: bool) -> None:
    for stream in report.streams:
        emit(msgspec.structs.asdict(stream))
    found: dict[str, Any] = msgspec.structs.asdict(report)
    del found["streams"]
    kept = {"rows": state.rows, "last_write": state.last_write, "losses": state.losses}
    emit({"folder": data, "is_whole": report.is_whole, "quarantined": quarantine, **found, "state": kept})


def _show(report: Report, state: StateReport, data: str, quarantine: bool) -> None:
    if report.streams:
        console().print(table(report.streams, COLUMNS))
    for stream in report.streams:
        _show_findings(stream, quarantine)
    if report.journal_batches:
        say(f"journal: {report.journal_batches:,} batches")
    say(f"state: {counted(state.rows, 'row')}, {counted(state.last_write, 'write')}")
    for loss in state.losses:
        say((safe(loss), "yellow"), " (known)")
    for trouble in report.troubles:
        say((safe(trouble), "red"))
    total = sum(stream.messages for stream in report.streams)
    if report.is_whole:
        say(
            ("whole", "bold green"),
            f": {counted(total, 'message')} in {counted(len(report.streams), 'root')} of {safe(data)}",
        )
    else:
        bad = sum(not damage.is_known for stream in report.streams for damage in stream.damages)
        bad += len(report.troubles)
        say(("damaged", "bold red"), f": {counted(bad, 'finding')} in {safe(data)}")


def _verdict(stream: StreamReport) -> Text:
    bad = sum(not damage.is_known for damage in stream.damages)
    known = len(stream.damages) - bad
    if bad:
        return Text(f"{bad} damaged", style="red")
    if known:
        return Text(counted(known, "known gap"), style="yellow")
    return Text("whole", style="green")


def _offsets(stream: StreamReport) -> str:
    return f"{stream.first_offset}–{stream.last_offset}" if stream.last_offset >= stream.first_offset else "none"


COLUMNS: Columns[StreamReport] = {
    "root": lambda stream: named(stream.root or "(empty)"),
    ">segments": lambda stream: f"{stream.segments:,}",
    ">batches": lambda stream: f"{stream.batches:,}",
    ">messages": lambda stream: f"{stream.messages:,}",
    ">bytes": lambda stream: size(stream.bytes),
    ">offsets": _offsets,
    "": _verdict,
}


def _show_findings(stream: StreamReport, quarantine: bool) -> None:
    for damage in stream.damages:
        gone = f", messages {damage.first} to {damage.last} are gone" if damage.first else ""
        after = " (known)" if damage.is_known else " (quarantined)" if quarantine else ""
        say(
            (safe(damage.file), "yellow" if damage.is_known else "red"),
            f"  bytes {damage.start} to {damage.end}{gone}: {safe(damage.reason)}{after}",
        )
    if stream.torn_bytes:
        say(
            (safe(stream.root), "cyan"),
            f"  {stream.torn_bytes:,} bytes at the end were never acknowledged, or are being written",
        )
    for note in stream.notes:
        say((safe(stream.root), "cyan"), f"  {safe(note)}")
