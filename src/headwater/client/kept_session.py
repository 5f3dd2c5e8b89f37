"""The session that a client wants to go on with: one that it names, or one whose id a file keeps.

    headwater.connect(url, session="var/session")     # a file: made at the first connection, 0600
    headwater.connect(url, session="9f2c…")           # an id, as bus.session tells it

The file has nothing but the id. Whoever has both the file and the client's rights takes the session over.
"""

from __future__ import annotations

import os

from headwater.delivery.options import OnResume
from headwater.errors import HeadwaterError, Malformed, NotAllowed, NotFound
from headwater.store.files import DiskFiles, Files, parent

ID_CHARS_MAX = 256
SEPARATORS = tuple(sep for sep in (os.sep, os.altsep) if sep)


class KeptSession:
    """What a client was told about the session that it wants."""

    def __init__(
        self, given: str | os.PathLike[str] | None, on_resume: OnResume = "keep", files: Files | None = None
    ) -> None:
        if on_resume not in ("keep", "redrive"):
            raise Malformed(f'on_resume is {on_resume!r}; use "keep" or "redrive" (dead letters come first)')
        self.on_resume: OnResume = on_resume
        """What becomes of its dead letters, whenever a connection comes back to it."""
        self._files = files or DiskFiles()
        self.path = _path_of(given, self._files)
        self.id = self._read() if self.path else None if given is None else os.fspath(given)
        """The session to go on with; None: a new one."""
        self.is_kept = given is not None
        """Whether the session stays when the client leaves."""

    def _read(self) -> str | None:
        if not self._files.exists(self.path):
            return None
        try:
            text = self._files.read(self.path).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Malformed(f'"{self.path}" cannot be read as a file that keeps a session: {error}') from None
        if not text or len(text) > ID_CHARS_MAX or not text.isprintable() or " " in text:
            raise Malformed(f'"{self.path}" keeps no session\'s id; name another file, or delete it to begin anew')
        return text

    def refusal(self, error: HeadwaterError) -> HeadwaterError | None:
        """What its user is told where the server does not give it; None: it is to begin anew."""
        if self.path and isinstance(error, NotFound):
            return None
        if self.path:
            return NotAllowed(
                f'the session that "{self.path}" keeps belongs to another client; name another file for this one'
            )
        hint = f'; for a file of this name write "./{self.id}"'
        if isinstance(error, NotFound):
            return NotFound(f'there is no session "{self.id}", or no more{hint}')
        return NotAllowed(f'session "{self.id}" belongs to another client{hint}')

    def keep(self, id: str) -> None:
        """Note which session it is now; it is in the file when this returns."""
        self.id = id
        if self.path:
            try:
                self._files.make_folder(parent(self.path))
                self._files.write(self.path, f"{id}\n".encode())
            except OSError as error:
                raise Malformed(f'the session cannot be kept in "{self.path}": {error.strerror or error}') from None


def _path_of(given: str | os.PathLike[str] | None, files: Files) -> str:
    """The path of a file; empty for an id, or nothing."""
    if given is None:
        return ""
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    if type(given) is not str or not given:
        raise Malformed(f'session is {given!r}; give the id of a session, or the path of a file: "var/session"')
    return given if any(sep in given for sep in SEPARATORS) or files.exists(given) else ""
