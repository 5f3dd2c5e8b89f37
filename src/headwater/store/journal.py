"""The shared journal: batches of groups that touch several roots, made durable by one sync.

    │ batch of root a │ batch of root b │ … │ batch of root a │ …zeros or older batches… │

Nothing but batches, back to back; each says which root and offset it is. Writing starts again at the first byte once
every segment that the journal covers is synced. So what follows the newest batch may be older ones, which the streams
have already.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import Failed, TooManyFiles
from headwater.store.batch import Header, Seed
from headwater.store.files import File, Files, parent
from headwater.store.segment import whole_batches


class Journal:
    """A file that is written round and round."""

    def __init__(self, files: Files, path: str, bytes_max: int, seed: Seed) -> None:
        self._files = files
        self.path = path
        self._bytes_max = bytes_max
        self._seed = seed
        self._file: File | None = None
        self.end = 0

    def is_full(self, length: int) -> bool:
        """Whether the next group has to start at the first byte again."""
        return self.end > 0 and self.end + length > self._bytes_max

    def write(self, buffers: Sequence[bytes], length: int) -> None:
        """Append a group, without a sync. If it raises, `cut` has to follow."""
        self._open().pwritev(buffers, self.end)
        self.end += length

    def cut(self) -> None:
        """Take back, durably, what a write that failed may have left: it must not be found by the next process."""
        if self._file is not None:
            self._file.truncate(self.end)
            self._file.datasync()

    def sync(self) -> None:
        """Make what was written durable."""
        self._open().datasync()

    def write_anew(self) -> None:
        """Bring what an earlier process wrote, if it did, into a new file."""
        if self._files.exists(self.path):
            self._files.write(self.path, self._files.read(self.path))

    def restart(self) -> None:
        """Write from the first byte again; the segments must be synced by now."""
        self.end = 0

    def clear(self) -> None:
        """Empty the file; the segments must be synced by now."""
        self.end = 0
        if self._files.exists(self.path):
            file = self._open()
            file.truncate(0)
            file.datasync()

    def batches(self) -> dict[str, dict[int, tuple[Header, bytes]]]:
        """Whole batches in the file, by root and first offset; of two with the same offset, the one appended later."""
        found: dict[str, dict[int, tuple[Header, bytes]]] = {}
        if not self._files.exists(self.path):
            return found
        for _, header, stored in whole_batches(self._seed, self._open(), 0, None):
            known = found.setdefault(header.root, {}).get(header.first_offset)
            if known is None or known[0].time_us <= header.time_us:
                found[header.root][header.first_offset] = (header, stored)
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        if self._file is None:
            file = self._files.open(self.path, create=True)
            try:
                # Also of a file that is there: whoever made it may have been killed before its name was durable.
                self._files.sync_folder(parent(self.path))
            except TooManyFiles:
                file.close()
                raise
            except OSError as error:
                raise Failed(f"a sync of the folder of {self.path} failed ({error})") from error
            self._file = file
        return self._file
