"""Streams of new roots: their folders, their lines in the manifest and their first segments.

Promises: a stream that is shown takes messages with no more syncs than any other; its line is durable before a message
of it can be; one that could not be made takes no other's number, and the others of its making do not notice.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence

from headwater.errors import DiskFull, Failed, HeadwaterError, TooManyFiles
from headwater.store.file_pool import FilePool
from headwater.store.files import Files
from headwater.store.manifest import Listed, Manifest
from headwater.store.stream import DiskStream

FULL = {errno.ENOSPC, errno.EDQUOT}


class NewStreams:
    """Streams on their way, while others are written to."""

    def __init__(
        self,
        files: Files,
        pool: FilePool,
        manifest: Manifest,
        streams: Sequence[DiskStream],
        mark: Callable[[DiskStream], None],
        take: Callable[[DiskStream], None],
    ) -> None:
        """`mark` shows readers beside the owner where a stream ends; `take` gets each that is made, or can never be."""
        self._files = files
        self._pool = pool
        self._manifest = manifest
        self._streams = streams
        self._mark = mark
        self._take = take
        self._made: list[DiskStream] = []
        self._failures: dict[str, HeadwaterError] = {}

    def write(self) -> None:
        """Make them, durably; by any thread."""
        self._pool.borrow()
        for stream in self._streams:
            self._try(stream, self._make_folder)
        there = [stream for stream in self._streams if stream.root not in self._failures]
        try:
            self._manifest.add_new([Listed(stream.number, stream.root, stream.end + 1) for stream in there])
        except (OSError, TooManyFiles) as error:
            self._failures.update({stream.root: refusal(error) for stream in there})
        self._made = there
        for stream in there:
            if stream.root not in self._failures:
                self._try(stream, self._start)

    def show(self) -> Mapping[str, HeadwaterError]:
        """Let them be appended to; by the thread that commits. Answers the roots of those that could not be made."""
        self._pool.take_back()
        for stream in self._streams:
            if stream in self._made or stream.failed is not None:
                self._take(stream)
        if any(isinstance(error, TooManyFiles) for error in self._failures.values()):
            self._pool.make_room()  # for the next try
        return self._failures

    def _try(self, stream: DiskStream, make: Callable[[DiskStream], None]) -> None:
        try:
            make(stream)
        except (OSError, HeadwaterError) as error:
            self._failures[stream.root] = refusal(error)

    def _make_folder(self, stream: DiskStream) -> None:
        try:
            self._pool.with_room(lambda: self._files.make_folder(stream.folder))
            # Its cell takes its room now: a group that was synced must not fail for lack of it.
            self._mark(stream)
        except OSError as error:
            if error.errno in FULL:
                self._files.remove_tree(stream.folder)
            else:  # its name may be lost in a crash, and no later sync can tell
                stream.fail(f"{stream.folder} could not be made durable ({error})")
            raise

    def _start(self, stream: DiskStream) -> None:
        try:
            stream.start_segment(stream.end + 1)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # The first message tries again, and is told.


def refusal(error: OSError | HeadwaterError) -> HeadwaterError:
    """What to tell whoever publishes."""
    if isinstance(error, HeadwaterError):
        return error
    if error.errno == errno.ENOMEM:
        raise error  # no disk is to blame: who commits sees to it
    if error.errno in FULL:
        return DiskFull("the disk is full; nothing was stored: free some room and publish again")
    return Failed(f"the disk refused the write ({error}); nothing was stored")
