"""Readers of the folder beside its owner: each keeps its own place, and a durable subscription stands there for it.

What readers left in the folder is taken in before retention deletes anything, so that it waits for them as for any
other subscription; and when somebody asks for subscriptions, so that their lag is that of now. Promise: what cannot be
read holds retention back, but for its hard limits, and an event says so, once.
"""

from __future__ import annotations

from headwater.delivery.durables import Durables
from headwater.errors import Conflict, HeadwaterError, Malformed, QuotaExceeded
from headwater.events import Events
from headwater.store import readers
from headwater.store.files import Files
from headwater.store.readers import Reader
from headwater.topics.roots import Roots


class Readers:
    """The readers of one bus's folder."""

    def __init__(self, files: Files, folder: str, roots: Roots, durables: Durables, events: Events) -> None:
        self._files = files
        self._folder = folder
        self._roots = roots
        self._durables = durables
        self._events = events
        self._told: set[str] = set()
        """Damaged files that an event was about."""

    def look(self) -> None:
        """Take in what readers left, for somebody who asks for subscriptions; from any thread."""
        try:
            if readers.are_there(self._files, self._folder):
                self._roots.commit.run(self.take)
        except (OSError, HeadwaterError) as error:
            self._events.trouble(f"what readers of the folder left could not be taken in: {error}")

    def take(self) -> bool:
        """Take in what readers left; whether all of it could be read. In the committing role."""
        damaged = readers.take(self._files, self._folder, self._keep)
        for path in damaged:
            if path not in self._told:
                self._told.add(path)
                self._events.add(
                    "damage",
                    f'"{path}" cannot be read, so nobody knows where its reader is: retention waits for it; it goes on '
                    "when the reader runs again, or once that file is deleted",
                )
        self._told.intersection_update(damaged)
        return not damaged

    def waiting(self) -> list[Reader]:
        """Those that were not taken in yet."""
        return readers.found(self._files, self._folder)

    def _keep(self, reader: Reader) -> None:
        try:
            self._durables.keep(reader)
        except (Malformed, Conflict, QuotaExceeded) as error:
            self._events.trouble(f'the place of reader "{reader.id}" is not kept, and retention may pass it: {error}')
