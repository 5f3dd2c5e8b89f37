"""Checkpoints: the state is brought up to what the streams have, and memory reflects, from time to time.

Promises: all roots' rows are written in one atomic write, together with the offsets up to which they are right; what
recovery would have to apply again stays bounded; a checkpoint that fails loses nothing, as the streams have everything
and memory knows what to write; nothing is called applied once memory is half way (`half_way`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headwater.config import Config
from headwater.errors import Failed, Unwritable
from headwater.log.root import Root
from headwater.store import state as rows
from headwater.store.log import Checkpoint, Log
from headwater.store.state import Rows, State


class Checkpoints:
    """What memory knows and the state does not yet; made by the thread that commits."""

    def __init__(
        self, roots: Mapping[str, Root], log: Log, state: State, config: Config, on_trouble: Callable[[str], None]
    ) -> None:
        self._roots = roots
        self._log = log
        self._state = state
        self._config = config
        self._on_trouble = on_trouble
        self._since_bytes = 0
        self._since_batches = 0
        self._since_topics = 0
        self.is_due = False
        """Whether recovery would have enough to look at."""
        self.is_held = False
        """Whether whoever commits sees to them itself, once it is done."""
        self.version = 0
        """Odd while one moves what memory knows into the state; whoever looks at both looks again then."""
        self.owed: Rows = {}
        """Rows that memory reflects and the state could not take."""
        self.half_way: str | None = None
        """Why nothing may be called applied any more."""

    def grow(self, bytes: int, batches: int, topics: int) -> None:
        """So much was appended."""
        config = self._config
        self._since_bytes += bytes
        self._since_batches += batches
        self._since_topics += topics
        self.is_due = (
            self._since_bytes >= config.checkpoint_bytes
            or self._since_batches >= config.checkpoint_batches
            or self._since_topics >= config.checkpoint_topics
        )

    def _begin_anew(self) -> None:
        self._since_bytes = self._since_batches = self._since_topics = 0
        self.is_due = False

    def make(self) -> None:
        """Let the state reflect every stream, all in one atomic write."""
        if self.half_way is not None:
            return
        self._pay()
        changed: Rows = {}
        marks: list[tuple[Root, Checkpoint]] = []
        for root in self._roots.values():
            if root.is_dirty:
                mark = self._log.checkpoint(root.stream)
                changed.update(root.rows(mark))
                marks.append((root, mark))
        self.version += 1
        try:
            if changed:
                self._state.commit(changed)
            for root, mark in marks:
                root.checkpointed(mark)
        except MemoryError:
            raise
        except Exception as error:
            # The streams have everything, and memory knows what to write: so nothing is lost till the next one.
            if any(self._state.get(key) == row for key, row in changed.items() if key[:1] == rows.STREAM):
                self.owed.update(changed)  # it is seen as if it were there, until the state is opened again
                for root, mark in marks:
                    root.checkpointed(mark)
            raise _failed(error) from error
        finally:
            self.version += 1
        self._begin_anew()

    def make_in_time(self) -> None:
        """What recovery would have to look at stays bounded. The messages are safe whether or not this works."""
        try:
            self.make()
        except Failed as error:
            self._begin_anew()
            self._on_trouble(str(error))

    def make_all(self) -> None:
        """As `make`, also for roots whose files alone have changed."""
        for root in self._roots.values():
            root.is_dirty = True
        self.make()

    def write(self, changed: Rows) -> None:
        """Write rows at once; if the state fails, with the next one. Recovery knows them without that, too."""
        try:
            self._state.write(changed)
        except (Failed, Unwritable):
            self.owed.update(changed)

    def _pay(self) -> None:
        """Write what the state could not take before, since what comes next builds on it."""
        if self.owed:
            try:
                self._state.commit(self.owed)
            except Exception as error:
                raise _failed(error) from error
            self.owed = {}


def _failed(error: Exception) -> Failed:
    return Failed(f"no checkpoint could be made, the state store failed ({error}); messages are safe")
