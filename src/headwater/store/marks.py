"""How far lakes have archived each root: marks that other processes leave in the folder for its owner.

An archive reads the folder beside its owner and cannot write to the owner's state. So it leaves a small file,
`archived/LAKE`, a JSON object of the archived offset per root and, in a second line, its CRC32C, written whole; the
owner's retention looks at it and waits as it waits for a durable subscription. An archive that reads from a server has
the owner leave it. Removing the file lets retention go on without that lake; one that is damaged holds everything back.
"""

from __future__ import annotations

import re

import msgspec

from headwater.errors import Malformed, QuotaExceeded
from headwater.store.batch import checksum
from headwater.store.files import Files

ARCHIVED = "archived"
LAKES_MAX = 64
"""One more: QuotaExceeded (429). Retention reads the marks of all of them whenever it has something to delete."""
LAKE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The id of a lake, which is the name of a file."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


def check(files: Files, folder: str, lake: str) -> None:
    """Malformed (422) or QuotaExceeded (429) if no mark of this lake can be left."""
    if not LAKE.fullmatch(lake):
        raise Malformed(f"{lake[:64]!r} is no id of a lake; use up to 64 letters, digits, _ and -")
    others = [one for one in files.list(f"{folder}/{ARCHIVED}") if one != lake and LAKE.fullmatch(one)]
    if len(others) >= LAKES_MAX:
        raise QuotaExceeded(
            f'{len(others)} lakes have a mark in "{folder}/{ARCHIVED}", and more may not; delete those of lakes that '
            "are given up"
        )


def leave(files: Files, folder: str, lake: str, archived: dict[str, int]) -> None:
    """Say how far a lake has each root; durable on return."""
    check(files, folder, lake)
    put(files, folder, lake, archived)


def put(files: Files, folder: str, lake: str, archived: dict[str, int]) -> None:
    """The same, of a mark that was checked."""
    files.make_folder(f"{folder}/{ARCHIVED}")
    content = msgspec.json.encode(archived)
    files.write(f"{folder}/{ARCHIVED}/{lake}", b"%b\n%08x\n" % (content, checksum(content)))


def found(files: Files, folder: str) -> dict[str, dict[str, int] | None]:
    """The marks of all lakes; None in place of one that cannot be read."""
    marks: dict[str, dict[str, int] | None] = {}
    for lake in files.list(f"{folder}/{ARCHIVED}"):
        if not LAKE.fullmatch(lake):
            continue
        try:
            marks[lake] = _parse(files.read(f"{folder}/{ARCHIVED}/{lake}"))
        except FileNotFoundError:
            continue
    return marks


def _parse(data: bytes) -> dict[str, int] | None:
    content, _, rest = data.partition(b"\n")
    if rest not in (b"", b"%08x\n" % checksum(content)):  # those of an earlier version have one line
        return None
    try:
        return _decode(content)
    except (msgspec.DecodeError, ValueError):
        return None


def troubles(files: Files, folder: str) -> list[str]:
    """What is wrong with the marks, in sentences."""
    told = [
        f"{ARCHIVED}/{lake} is damaged: retention waits as if that lake had nothing, until its archive runs again"
        for lake, mark in found(files, folder).items()
        if mark is None
    ]
    strangers = [name for name in files.list(f"{folder}/{ARCHIVED}") if not LAKE.fullmatch(name)]
    return told + [f"{ARCHIVED}/{name} is no mark of a lake" for name in strangers if not name.endswith(".tmp")]


def unarchived_from(files: Files, folder: str, root: str, end: int) -> int:
    """The first offset of a root that some lake still has to archive; `end` if there is none."""
    return min((1 + (mark or {}).get(root, 0) for mark in found(files, folder).values()), default=end)
