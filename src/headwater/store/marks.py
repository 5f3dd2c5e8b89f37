"""How far lakes have archived each root: marks that other processes leave in the folder for its owner.

An archive reads the folder beside its owner and cannot write to the owner's state. So it leaves a small file,
`archived/LAKE`, a JSON object of the archived offset per root, written whole; the owner's retention looks at it and
waits as it waits for a durable subscription. Removing the file lets retention go on without that lake.
"""

from __future__ import annotations

import msgspec

from headwater.store.files import Files

ARCHIVED = "archived"

_decode = msgspec.json.Decoder(dict[str, int]).decode


def leave(files: Files, folder: str, lake: str, archived: dict[str, int]) -> None:
    """Say how far a lake has each root; durable on return."""
    files.make_folder(f"{folder}/{ARCHIVED}")
    files.write(f"{folder}/{ARCHIVED}/{lake}", msgspec.json.encode(archived) + b"\n")


def found(files: Files, folder: str) -> dict[str, dict[str, int] | None]:
    """The marks of all lakes; None in place of one that cannot be read."""
    marks: dict[str, dict[str, int] | None] = {}
    for lake in files.list(f"{folder}/{ARCHIVED}"):
        if lake.endswith(".tmp"):
            continue
        try:
            marks[lake] = _decode(files.read(f"{folder}/{ARCHIVED}/{lake}"))
        except FileNotFoundError:
            continue
        except msgspec.DecodeError:
            marks[lake] = None
    return marks


def unarchived_from(files: Files, folder: str, root: str, end: int) -> int:
    """The first offset of a root that some lake still has to archive; `end` if there is none."""
    return min((1 + (mark or {}).get(root, 0) for mark in found(files, folder).values()), default=end)
