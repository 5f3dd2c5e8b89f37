"""The data folder: its format version, its seed, its owner, and what stands in it.

A folder of a newer format is refused before anything in it is touched; one of an older format is upgraded step by step.

The seed is drawn when the folder is made and never changes: no header can be read without it. So one that is damaged or
missing is refused as well, lest everything that is stored be taken for damage.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

import msgspec

from headwater.errors import Conflict, DiskFull, Malformed, NewerFormat, NotFound
from headwater.store.batch import Seed, checksum, seed_of
from headwater.store.files import Files
from headwater.store.keys import KEY
from headwater.store.manifest import MANIFEST, list_found
from headwater.store.permissions import refusal
from headwater.store.seed import secret_with, seed_within

FORMAT = 3
UPGRADES: dict[int, Callable[[Files, str], None]] = {1: list_found, 2: lambda _files, _folder: None}
"""From format n to n + 1; each leaves a whole folder behind, or can be repeated. What changes with 3 is done by the
server, which gives the subscriptions of each session rows of their own (`server.session_row`)."""
READABLE = 2
"""The oldest format that those who only read take as it is."""

COPY_BYTES = 1 << 20
SEED_BYTES = 8
PLACE = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d{2,5}")
"""A host and a port."""
LOCK = "owner.lock"
VERSION = "VERSION"
STATE = "state"
STREAMS = "streams"
WATERMARKS = "watermarks"


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the VERSION file."""

    format: int
    seed: str = ""
    """Secret bytes, in hex; as a newer format may do without them, they are looked at once the format is known."""
    seed_crc: int = 0
    """Their CRC32C, so that a flipped bit shows."""
    cluster: str = ""
    """The bus whose cluster it is a node's folder of; empty if it is an ordinary one. Such a folder is opened by the
    rules of `cluster/`, and by no others."""


def check_path(files: Files, path: str) -> None:
    """Malformed for what is the address of a server, and no folder."""
    scheme, is_url, _ = path.partition("://")
    if is_url and scheme.isprintable() and "/" not in scheme:
        raise Malformed(
            f'what begins with "{scheme}://" is the address of a server, and no folder; did you mean connect? '
            "headwater.connect takes it, and so does headwater.aio.connect"
        )
    if PLACE.fullmatch(path) and not files.exists(path):
        raise Malformed(
            f'"{path}" is no folder yet, and is written as the place of a server is; did you mean connect? '
            f'headwater.connect takes "headwater://{path}"; for a new folder of that name write "./{path}"'
        )


def unusable(path: str, error: OSError) -> Exception:
    """What to tell whoever cannot open a folder; the error itself where nothing better is known."""
    match error.errno:
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return refusal(path, error)
        case errno.ENOTDIR:
            return Malformed(f'"{path}" is a file, or leads through one; name a folder')
        case errno.ENOENT:
            return NotFound(f'"{path}" can neither be found nor made; name a folder elsewhere')
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull(f'"{path}" cannot be opened: {error.strerror}; make room there')
    return error


def inspect(files: Files, folder: str) -> Version | None:
    """Refuse a folder that is not ours, or of a newer format, before anything in it is touched; None if it is new."""
    version = _version(files, folder)
    if version is not None:
        return version
    strangers = [name for name in files.list(folder) if name not in (LOCK, VERSION + ".tmp")]
    if strangers:
        raise Malformed(
            f'"{folder}" holds other things ({", ".join(strangers[:3])}) and no Headwater data; '
            "use an empty folder or a new one"
        )
    return None


def prepare(files: Files, folder: str, *, in_cluster: bool = False) -> Seed:
    """Bring a folder that this process owns to the present format; answers its seed."""
    version = inspect(files, folder)
    if in_cluster != bool(version is not None and version.cluster):
        raise _not_ordinary(folder, version.cluster) if version and version.cluster else _not_in_cluster(folder)
    if version is None:
        version = _write(files, folder, _with_secret(files.secret(SEED_BYTES)))
    else:
        # Whoever wrote it may have been killed before its name was durable, and all that is stored will need it.
        files.sync_folder(folder)
    for step in range(version.format, FORMAT):
        UPGRADES[step](files, folder)
        version = _write(files, folder, msgspec.structs.replace(version, format=step + 1))
    return _seed(version)


def check(files: Files, folder: str, *, is_older_fine: bool = False) -> Seed:
    """That there is a folder to read, of a format that differs in nothing that is read, or of any older one; answers
    its seed."""
    version = _version(files, folder)
    if version is None:
        raise NotFound(f'"{folder}" is no Headwater folder; a bus makes it with headwater.open("{folder}")')
    if version.format < READABLE and not is_older_fine:
        raise Malformed(
            f'"{folder}" has format {version.format}; open it once for writing to bring it to format {FORMAT}'
        )
    return _seed(version)


def is_listed(files: Files, folder: str) -> bool:
    """Whether a folder is of a format that has a manifest, as far as it says."""
    try:
        return msgspec.json.decode(files.read(f"{folder}/{VERSION}"), type=Version).format > 1
    except (OSError, msgspec.DecodeError, ValueError):
        return True


def cluster_of(files: Files, folder: str) -> str:
    """The bus whose cluster a folder is a node's of; empty of an ordinary one, or a new one."""
    version = _version(files, folder)
    return "" if version is None else version.cluster


def set_cluster(files: Files, folder: str, bus: str) -> None:
    """Have a folder be a node's of a cluster from now on, or an ordinary one, durably."""
    version = _version(files, folder)
    assert version is not None
    _write(files, folder, msgspec.structs.replace(version, cluster=bus))


def _not_ordinary(folder: str, bus: str) -> Conflict:
    return Conflict(
        f'"{folder}" is the folder of a node of cluster "{bus}": serve it with --cluster, or make it an ordinary '
        f"folder, for good, with: headwater cluster leave --data {folder}"
    )


def _not_in_cluster(folder: str) -> Conflict:
    return Conflict(
        f'"{folder}" is no folder of a node: name an empty one, or make it the first of a cluster with: '
        f"headwater cluster adopt --data {folder}"
    )


def _version(files: Files, folder: str) -> Version | None:
    """What VERSION says, if there is one; refused if it cannot be the one that this folder was made with."""
    path = f"{folder}/{VERSION}"
    if not files.exists(path):
        if files.list(f"{folder}/{STREAMS}"):
            raise _unreadable(files, folder, "is missing")
        return None
    try:
        version = msgspec.json.decode(files.read(path), type=Version)
        if version.format < 1:
            raise ValueError(f"formats count from 1, this is {version.format}")
        if version.format > FORMAT:
            raise NewerFormat(
                f'"{folder}" has format {version.format}, and this Headwater knows up to {FORMAT}; '
                "upgrade it to open this folder"
            )
        seed = _seed(version)
    except (msgspec.DecodeError, ValueError) as error:
        raise _unreadable(files, folder, f"is damaged ({error})") from error
    if seed_within(files, folder, seed) not in (seed, None):
        raise _unreadable(
            files, folder, "is another folder's: its seed is not the one that the streams were sealed with"
        )
    return version


def _unreadable(files: Files, folder: str, what: str) -> Malformed:
    advice = "copy it from a backup of this folder, which has the same"
    seed = seed_within(files, folder)
    if seed is not None:
        advice += f", or write {msgspec.json.encode(_with_secret(secret_with(seed))).decode()}"
    elif not files.list(f"{folder}/{STREAMS}"):
        advice = "nothing is stored here yet: remove it, or copy it from a backup of this folder"
    return Malformed(f'"{folder}/{VERSION}" {what}; {advice}')


def _seed(version: Version) -> Seed:
    """The seed; ValueError if it is not as it was written."""
    if not version.seed:
        raise ValueError("it has no seed")
    secret = bytes.fromhex(version.seed)
    if len(secret) != SEED_BYTES or checksum(secret) != version.seed_crc:
        raise ValueError("the checksum of its seed is wrong")
    return seed_of(secret)


def _with_secret(secret: bytes) -> Version:
    return Version(FORMAT, secret.hex(), checksum(secret))


def _write(files: Files, folder: str, version: Version) -> Version:
    files.write(f"{folder}/{VERSION}", msgspec.json.encode(version) + b"\n")
    return version


def copy(files: Files, source: str, target: str, *, link: bool = False) -> None:
    """The streams and the version of a folder, in another; with `link`, without copying what never changes again.

    Without `link` the state is copied too, file by file, and the key, if there is one: of a backup, which nobody has
    open.
    """
    files.make_folder(target)
    files.make_folder(f"{target}/{STREAMS}")
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
        copy_key(files, source, target)
    if files.exists(f"{source}/{MANIFEST}"):
        files.write(f"{target}/{MANIFEST}", files.read(f"{source}/{MANIFEST}"))
    files.write(f"{target}/{VERSION}", files.read(f"{source}/{VERSION}"))
    if cluster_of(files, target):
        set_cluster(files, target, "")  # a copy is on its own


def copy_key(files: Files, source: str, target: str) -> None:
    """The key of a folder, if it has one."""
    if files.exists(f"{source}/{KEY}"):
        files.write(f"{target}/{KEY}", files.read(f"{source}/{KEY}"))


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
