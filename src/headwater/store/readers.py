"""Where readers of a folder are: places that other processes leave in it for its owner.

A reader that keeps its own place, as a Spark query does in its checkpoint, reads the folder beside its owner and cannot
write to the owner's state. So it leaves a small file in `readers/`, written whole: which subscription is to stand
where. The owner takes it in before retention deletes anything, and removes it: from then on it is a subscription like
others. A later file of the same reader replaces one that was not taken in yet.

    readers/NAME          CRC32C of the rest in hex, a space, a JSON object, a line feed; NAME is made of the id
    readers/NAME.taken    the same while its owner takes it in; after a crash it is taken in again
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec

from headwater.errors import QuotaExceeded
from headwater.store.batch import checksum
from headwater.store.files import Files

READERS = "readers"
TAKEN = ".taken"
READERS_MAX = 1024
"""Readers that may wait for an owner to take them in; one more: QuotaExceeded (429)."""


class Reader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reader is."""

    id: str
    """Of its subscription."""
    filter: str
    places: dict[str, int]
    """The next offset to read of each root."""
    expire_after_s: float
    """Not told for so long, the subscription is given up."""
    is_stated: bool = False
    """Whether a subscription that is there already is to have this `expire_after_s`, too."""


def leave(files: Files, folder: str, reader: Reader) -> None:
    """Say where a reader is; durable on return."""
    where, name = f"{folder}/{READERS}", _name(reader.id)
    others = {one.removesuffix(TAKEN) for one in _names(files, folder)} - {name}
    if len(others) >= READERS_MAX:
        raise QuotaExceeded(
            f'{len(others)} readers wait in "{where}" for the owner of the folder, and more may not; open the folder '
            "to have them taken in, or delete those that are given up"
        )
    text = msgspec.json.encode(reader)
    files.make_folder(where)
    files.write(f"{where}/{name}", b"%08x %s\n" % (checksum(text), text))


def found(files: Files, folder: str) -> list[Reader]:
    """Readers that were not taken in yet, as far as they can be read."""
    newest = {one.removesuffix(TAKEN): one for one in sorted(_names(files, folder), reverse=True)}
    known = (_read(files, f"{folder}/{READERS}/{name}") for name in newest.values())
    return [reader for reader in known if reader is not None]


def waiting(files: Files, folder: str, id: str) -> Reader | None:
    """One of them."""
    path = f"{folder}/{READERS}/{_name(id)}"
    return _read(files, path) or _read(files, path + TAKEN)


def are_there(files: Files, folder: str) -> bool:
    """Whether there is anything to take in."""
    return bool(_names(files, folder))


def take(files: Files, folder: str, keep: Callable[[Reader], None]) -> list[str]:
    """Take in what readers left, by its owner; answers the files that cannot be read, which stay."""
    where, damaged, done = f"{folder}/{READERS}", [], 0
    for name in sorted({one.removesuffix(TAKEN) for one in _names(files, folder)}):
        taken = f"{where}/{name}{TAKEN}"
        try:
            files.rename(f"{where}/{name}", taken)  # out of the way of what the reader leaves next
        except FileNotFoundError:
            pass  # taken before a crash
        reader = _read(files, taken)
        if reader is None:
            damaged.append(taken)
            continue
        keep(reader)
        files.remove(taken)
        done += 1
    if done:
        files.sync_folder(where)
    return damaged


def _names(files: Files, folder: str) -> list[str]:
    return [name for name in files.list(f"{folder}/{READERS}") if not name.endswith(".tmp")]


def _name(id: str) -> str:
    return sha256(id.encode()).hexdigest()[:32]


def _read(files: Files, path: str) -> Reader | None:
    try:
        crc, _, text = files.read(path).removesuffix(b"\n").partition(b" ")
        reader = msgspec.json.decode(text, type=Reader)
        return reader if int(crc, 16) == checksum(text) else None
    except (FileNotFoundError, ValueError, msgspec.DecodeError):
        return None
