"""Free room on the disk: whether there is enough to take messages in, as far as is known.

Promises: what is left for acks and recovery (`disk_free_bytes_min`) is never given to messages by more than is written
between two looks.
"""

from __future__ import annotations

from headwater.config import Config
from headwater.errors import DiskFull
from headwater.store.log import Log

LOOK_AFTER_BYTES = 4 * 1024 * 1024
"""Free room is asked for again after this much was written."""


class FreeRoom:
    """What the disk has left."""

    def __init__(self, log: Log, config: Config) -> None:
        self._log = log
        self._min_bytes = config.disk_free_bytes_min
        self.since_bytes = LOOK_AFTER_BYTES
        """What was written since the last look."""
        self.is_left = True
        """Whether the disk has some, as far as is known."""

    def look(self) -> None:
        """Ask the disk."""
        self.is_left = self._log.free_bytes() >= self._min_bytes
        self.since_bytes = 0

    def refusal(self) -> DiskFull:
        """What is told to whom it does not let in."""
        return DiskFull(
            f"less than {self._min_bytes} bytes are free (disk_free_bytes_min), so it was not stored: free some room "
            "and publish again"
        )
