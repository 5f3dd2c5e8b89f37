"""Where the server is that owns a folder: left in the folder, beside its lock, for commands of the same user.

Promises: nobody else's word is taken for it; what a killed server left sends nobody astray.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headwater.store.files import DiskFiles, Files
from headwater.store.folder import LOCK

ADDRESS = "owner.json"
SOCKET = "owner.sock"
"""By which a server that owns the folder takes its user for its administrator: whoever may read and write the folder
may do all that one may."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A server that owns a folder."""

    pid: int
    url: str = ""
    """Where clients find it,"""
    http: str = ""
    """the API and the dashboard,"""
    mqtt: tuple[str, ...] = ()
    """and MQTT clients."""
    ca: str = ""
    """What its certificate is checked against: a PEM file, if the authority is its own."""


def leave(files: Files, folder: str, owner: Owner) -> None:
    """Say where it is."""
    files.write(f"{folder}/{ADDRESS}", msgspec.json.encode(owner) + b"\n")


def withdraw(files: Files, folder: str) -> None:
    """Say nothing more."""
    files.remove(f"{folder}/{ADDRESS}")


def owner_of(files: DiskFiles, folder: str) -> Owner | None:
    """The server that has the lock of a folder; None if whoever has it is no server, or the folder is another's."""
    try:
        if not files.is_of_this_user(folder):
            return None
        owner = msgspec.json.decode(files.read(f"{folder}/{ADDRESS}"), type=Owner)
        # Another process has the folder by now, if the server was killed.
        has_lock = files.read(f"{folder}/{LOCK}").strip() == b"%d" % owner.pid
    except (OSError, msgspec.DecodeError):
        return None
    return owner if has_lock else None


def socket_of(folder: str) -> str:
    """The path of the socket, which is whole: a server may be in another place."""
    return str(Path(folder).absolute() / SOCKET)
