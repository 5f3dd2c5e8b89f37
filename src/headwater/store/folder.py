"""The data folder: its format version, its owner, and what stands in it.

A folder of a newer format is refused before anything in it is touched; one of an older format is upgraded step by step.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.errors import Malformed, NewerFormat, NotFound
from headwater.store.files import Files

FORMAT = 1
UPGRADES: dict[int, Callable[[Files, str], None]] = {}
"""From format n to n + 1; each leaves a whole folder behind, or can be repeated."""

COPY_BYTES = 1 << 20
LOCK = "owner.lock"
VERSION = "VERSION"
STATE = "state"
WATERMARKS = "watermarks"


class Version(msgspec.Struct, frozen=True):
    """The content of the VERSION file."""

    format: int


def inspect(files: Files, folder: str) -> None:
    """Refuse a folder that is not ours, or of a newer format, before anything in it is touched."""
    known = _version(files, folder)
    if known is not None:
        _refuse_newer(folder, known)
        return
    strangers = [name for name in files.list(folder) if name not in (LOCK, VERSION + ".tmp")]
    if strangers:
        raise Malformed(
            f'"{folder}" holds other things ({", ".join(strangers[:3])}) and no Headwater data; '
            "use an empty folder or a new one"
        )


def prepare(files: Files, folder: str) -> None:
    """Bring a folder that this process owns to the present format."""
    inspect(files, folder)
    known = _version(files, folder) or _write(files, folder, FORMAT)
    for step in range(known, FORMAT):
        UPGRADES[step](files, folder)
        _write(files, folder, step + 1)


def check(files: Files, folder: str) -> None:
    """That there is a folder of the present format to read."""
    known = _version(files, folder)
    if known is None:
        raise NotFound(f'"{folder}" is no Headwater folder; a bus makes it with headwater.open("{folder}")')
    _refuse_newer(folder, known)
    if known < FORMAT:
        raise Malformed(f'"{folder}" has format {known}; open it once for writing to bring it to format {FORMAT}')


def _refuse_newer(folder: str, known: int) -> None:
    if known > FORMAT:
        raise NewerFormat(
            f'"{folder}" has format {known}, and this Headwater knows up to {FORMAT}; upgrade it to open this folder'
        )


def _version(files: Files, folder: str) -> int | None:
    path = f"{folder}/{VERSION}"
    if not files.exists(path):
        return None
    try:
        known = msgspec.json.decode(files.read(path), type=Version).format
        if known < 1:
            raise msgspec.DecodeError(f"formats count from 1, this is {known}")
        return known
    except msgspec.DecodeError as error:
        raise Malformed(
            f'"{path}" is damaged ({error}); restore it from a backup, or write {{"format": {FORMAT}}}'
        ) from error


def _write(files: Files, folder: str, format: int) -> int:
    files.write(f"{folder}/{VERSION}", msgspec.json.encode(Version(format)) + b"\n")
    return format


def copy(files: Files, source: str, target: str, *, link: bool = False) -> None:
    """The streams and the version of a folder, in another; with `link`, without copying what never changes again.

    Without `link` the state is copied too, file by file: a backup's, which nobody has open.
    """
    files.make_folder(target)
    for stream in files.list(f"{source}/streams"):
        files.make_folder(f"{target}/streams/{stream}")
        names = files.list(f"{source}/streams/{stream}")
        active = max((name for name in names if name.endswith(".log")), default="")
        for name in names:
            changes = name.partition(".")[0] == active.partition(".")[0]
            _copy_file(
                files, f"{source}/streams/{stream}/{name}", f"{target}/streams/{stream}/{name}", link and not changes
            )
        files.sync_folder(f"{target}/streams/{stream}")
    if not link:
        files.make_folder(f"{target}/{STATE}")
        for name in files.list(f"{source}/{STATE}"):
            if name != "LOCK":
                _copy_file(files, f"{source}/{STATE}/{name}", f"{target}/{STATE}/{name}", link)
        files.sync_folder(f"{target}/{STATE}")
        if files.exists(f"{source}/{WATERMARKS}"):
            _copy_file(files, f"{source}/{WATERMARKS}", f"{target}/{WATERMARKS}", link)
    files.write(f"{target}/{VERSION}", files.read(f"{source}/{VERSION}"))


def _copy_file(files: Files, source: str, target: str, link: bool) -> None:
    if link:
        files.link(source, target)
        return
    read, write = files.open(source, write=False), files.open(target, create=True)
    try:
        position, size = 0, read.size()
        while position < size:
            piece = read.pread(COPY_BYTES, position)
            write.pwritev([piece], position)
            position += len(piece)
        write.datasync()
    finally:
        read.close()
        write.close()
