"""Readers of the folder beside its owner: each keeps its own place, and a durable subscription stands there for it.

What readers left in the folder is taken in before retention deletes anything, so that it waits for them as for any
other subscription; and when somebody asks for subscriptions, so that their lag is that of now. Promise: what cannot be
taken in holds retention back, but for its hard limits, and an event says so, once.
"""

from __future__ import annotations

from headwater.delivery.durables import Durables
from headwater.errors import Conflict, HeadwaterError, Malformed, QuotaExceeded
from headwater.events import Events
from headwater.log.roots import Roots
from headwater.store import readers
from headwater.store.files import Files
from headwater.store.readers import Reader


class Readers:
    """The readers of one bus's folder."""

    def __init__(self, files: Files, folder: str, roots: Roots, durables: Durables, events: Events) -> None:
        self._files = files
        self._folder = folder
        self._roots = roots
        self._durables = durables
        self._events = events
        self._told: set[str] = set()
        """What events were about that is still so."""

    def look(self) -> None:
        """Take in what readers left, for somebody who asks for subscriptions; from any thread."""
        try:
            if readers.are_there(self._files, self._folder):
                self._roots.commit.run(self.take)
        except (OSError, HeadwaterError) as error:
            self._tell("trouble", [str(error)])

    def take(self) -> bool:
        """Take in what readers left; whether all of it could be. In the committing role."""
        try:
            damaged = readers.take(self._files, self._folder, self._keep)
        except OSError as error:
            self._tell("trouble", [f"{error}; let this process write in {readers.READERS}/, or delete what is there"])
            return False
        self._tell("damage", [f'"{path}" is damaged; run its reader again, or delete the file' for path in damaged])
        return not damaged

    def _tell(self, kind: str, texts: list[str]) -> None:
        """An event for each, once for as long as it is so."""
        for text in texts:
            if text not in self._told:
                self._events.add(kind, f"retention waits, as nobody knows where a reader is: {text}")
        self._told = set(texts)

    def waiting(self) -> list[Reader]:
        """Those that were not taken in yet."""
        return readers.found(self._files, self._folder)

    def _keep(self, reader: Reader) -> None:
        try:
            self._durables.keep(reader)
        except (Malformed, Conflict, QuotaExceeded) as error:
            self._events.trouble(f'the place of reader "{reader.id}" is not kept, and retention may pass it: {error}')
