"""Verify of the state: reads every row, and the log behind them, and says what is wrong or missing.

It only reads, and may run beside the owner of the folder, whose unfinished writes are not judged. Promises: every row
is readable, and is what its kind says, or is told; writes that were durable and are not there are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from headwater.errors import Failed
from headwater.store import chain
from headwater.store import state as rows
from headwater.store.chain import GROUPS, ChainLink
from headwater.store.files import Files
from headwater.store.rocks import RocksReader
from headwater.store.rocksdb import beside, scan_rocks
from headwater.store.state_marks import KnownWrites, Marks
from headwater.store.state_recovery import Loss, Seen, look_at_logs, lost_tail

TRIES_MAX = 5
"""Looks beside an owner that removes a file meanwhile."""
TOLD_MAX = 10
"""Rows that are told one by one; the rest is a number."""

Decode = Callable[[bytes, bytes], object]
"""Reads the key and the value of a row; whatever it raises, the row is not what it should be."""


class StateReport(msgspec.Struct):
    """What was found in the state."""

    rows: int = 0
    last_write: int = 0
    losses: list[str] = []
    """What was lost before, and is known."""
    troubles: list[str] = []


def verify_state(
    files: Files, path: str, decoders: Mapping[bytes, Decode], *, must_exist: bool, is_owned: bool
) -> StateReport:
    """Walk the state; `is_owned` if nobody else can have it open meanwhile."""
    report = StateReport()
    marks = Marks(files, path, write=False)
    try:
        known = marks.read()  # before the rest, so that a running owner has written by then what it calls durable
    finally:
        marks.close()
    if known.is_damaged:
        report.troubles.append(
            "state.synced is damaged: what was durable is not known from it; the next opening mends it"
        )
    if not files.exists(f"{path}/CURRENT"):
        if known.synced or must_exist:
            report.troubles.append("the state is missing, or its file CURRENT is")
        return report
    seen = Seen([], [], b"")
    try:
        seen = _look_at_writes(files, path, known, is_owned)
    except Failed as error:
        report.troubles.append(error.args[0])
    report.troubles += map(str, seen.losses)
    report.troubles += [f"write {number} of the state does not follow on the one before it" for number in seen.wrong]
    try:
        if is_owned:
            with beside(files, path, seen.log) as db:
                _read(lambda kind: scan_rocks(db, path, kind, None), decoders, known, report)
        else:
            _read_beside(path, decoders, known, report)
    except Failed as error:
        if error.args[0] not in report.troubles:
            report.troubles.append(error.args[0])
    return report


def _look_at_writes(files: Files, path: str, known: KnownWrites, is_owned: bool) -> Seen:
    for _ in range(TRIES_MAX):
        try:
            return look_at_logs(files, path, known, is_owned=is_owned)
        except FileNotFoundError:
            continue  # its owner made a table of a log
    return Seen([], [], b"")


def _read_beside(path: str, decoders: Mapping[bytes, Decode], known: KnownWrites, report: StateReport) -> None:
    try:
        state = RocksReader(path)
    except Failed:
        if report.troubles:
            return  # its log is bad, as was told
        raise
    try:
        for _ in range(TRIES_MAX):  # a log that its owner has just made a table of is missed until the next look
            if link_in(state).number >= known.synced:
                break
            state.refresh()
        _read(state.scan, decoders, known, report)
    finally:
        state.close()


def link_in(state: RocksReader) -> ChainLink:
    """The link of the last write that can be seen."""
    try:
        value = state.get(rows.CHAIN)
    except Failed:
        return ChainLink()  # told by whoever reads all of it
    return (chain.unpack(value) if value is not None else None) or ChainLink()


def _read(
    scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
    decoders: Mapping[bytes, Decode],
    known: KnownWrites,
    report: StateReport,
) -> None:
    link = ChainLink()
    bad: list[str] = []
    for kind in (bytes((byte,)) for byte in range(256)):
        decode = decoders.get(kind)
        try:
            for key, value in scan(kind):
                if kind == rows.CHAIN:
                    link = chain.unpack(value) or link
                    continue
                report.rows += 1
                if kind == rows.LOSS:
                    report.losses.append(str(msgspec.msgpack.decode(value, type=Loss)))
                elif decode is None:
                    bad.append(f"row {key!r} is of no kind that is known")
                else:
                    reason = _why_not(decode, key, value)
                    if reason:
                        bad.append(f"row {key!r} is not what it should be ({reason})")
        except Failed as error:
            group = GROUPS[chain.OF_BITS[chain.BITS[kind[0]]][0]]
            bad.append(f'rows of kind "{kind.decode("latin-1")}" ({group}) cannot be read: {error.args[0]}')
    report.last_write = link.number
    report.troubles += bad[:TOLD_MAX]
    if len(bad) > TOLD_MAX:
        report.troubles.append(f"{len(bad) - TOLD_MAX} more rows of the state are bad")
    if link.number < known.synced and not report.troubles:
        report.troubles.append(str(lost_tail(link, known)))


def _why_not(decode: Decode, key: bytes, value: bytes) -> str:
    try:
        decode(key, value)
    except Exception as error:  # whatever a bad row makes of it
        return str(error) or type(error).__name__
    return ""
