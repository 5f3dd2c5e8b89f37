"""The key of a folder: secrets that have to be read again, as those that webhooks are signed with, are sealed with it.

    channels.key      64 hex digits: 32 bytes, drawn when the first secret is stored
    a sealed secret   "sealed:" and what `seal` makes of it, in Base64; it opens in its own row alone

What the rows of the state say, and so what a backup has of them, is of no use without the key, which a backup leaves
out unless asked. A secret whose key is not there is told as such (`SecretMissing`), and stays as it is stored.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from headwater import seal
from headwater.errors import Damaged, HeadwaterError, SecretMissing
from headwater.store import state as rows
from headwater.store.files import Files
from headwater.store.state import Rows, State

KEY = "channels.key"
SEALED = "sealed:"
SECRET = "secret"  # noqa: S105  # the name of a field


class Key:
    """The key of one folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{KEY}"

    def seal(self, secret: str, row: bytes) -> str:
        """A secret as it is stored in a row; the key is drawn if there is none."""
        sealed = seal.seal(self._read() or self._draw(), secret.encode(), row.hex())
        return SEALED + base64.b64encode(sealed).decode()

    def draw(self) -> None:
        """Draw the key, unless there is one."""
        if self._read() is None:
            self._draw()

    def open(self, stored: str, row: bytes) -> str:
        """A secret of what is stored in a row; SecretMissing (409) if it cannot be opened."""
        if not is_sealed(stored):
            return stored
        try:
            key = self._read()
            if key is None:
                raise SecretMissing(f'"{self._path}" is missing')
            sealed = base64.b64decode(stored.removeprefix(SEALED), validate=True)
            return seal.unseal(key, sealed, row.hex()).decode()
        except SecretMissing:
            raise
        except (HeadwaterError, binascii.Error, UnicodeDecodeError) as error:
            why = error.args[0] if isinstance(error, HeadwaterError) else "what is stored of it is damaged"
            raise SecretMissing(f"{why}") from None

    def _read(self) -> bytes | None:
        try:
            text = self._files.read(self._path)
        except FileNotFoundError:
            return None
        try:
            key = bytes.fromhex(text.decode("ascii"))
        except (UnicodeDecodeError, ValueError):
            key = b""
        if len(key) != seal.KEY_BYTES:
            raise Damaged(f'"{self._path}" is damaged; copy it from a backup that has it, or remove it for a new one')
        return key

    def _draw(self) -> bytes:
        key = self._files.secret(seal.KEY_BYTES)
        self._files.write(self._path, key.hex().encode() + b"\n")
        return key


def is_sealed(stored: str) -> bool:
    """Whether a secret is stored so that only the key opens it."""
    return stored.startswith(SEALED)


def has_plain(state: State) -> bool:
    """Whether some secret is stored as it is."""
    return any(_plain(_row(value)) for _, value in state.scan(rows.CHANNEL))


def sealed_instead(state: State, key: Key) -> Rows:
    """Rows with secrets that were stored as they are, as they are to be."""
    changed: Rows = {}
    for place, value in state.scan(rows.CHANNEL):
        row = _row(value)
        secret = _plain(row)
        if secret:
            changed[place] = msgspec.msgpack.encode({**row, SECRET: key.seal(secret, place)})
    return changed


def missing(state: State, key: Key) -> list[str]:
    """The ids of the channels that need their secret again."""
    found: list[str] = []
    for place, value in state.scan(rows.CHANNEL):
        row = _row(value)
        try:
            key.open(str(row.get(SECRET, "")), place)
        except SecretMissing:
            found.append(str(row.get("id", "")))
    return found


def _plain(row: dict[str, Any]) -> str:
    """The secret of a row that stores it as it is; empty of any other."""
    secret = row.get(SECRET)
    return secret if isinstance(secret, str) and not is_sealed(secret) else ""


def _row(value: bytes) -> dict[str, Any]:
    """A row as it is; whoever it is of finds what is wrong with it."""
    try:
        row = msgspec.msgpack.decode(value)
    except msgspec.DecodeError:
        return {}
    return row if isinstance(row, dict) else {}
