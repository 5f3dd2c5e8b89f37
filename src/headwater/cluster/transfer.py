"""The transfer: a node that is new, or too far behind, takes a copy of another node's folder.

It is fetched into a folder of its own within the node's, file by file and piece by piece, and takes the old one's place
when all of it is there and right. What was fetched stays, whatever is cut off: the next attempt goes on in the middle
of the file where it was, also with another node as source, as segments are equal on all nodes.
Promises: each piece is checked by its checksum, and each file by its digest, before anything is replaced; no more than
`WINDOW` pieces are in memory; there is room for all of it, or `DiskFull` comes first; after a crash the folder is the
old one or the new one, as soon as `finish` was called.
"""

from __future__ import annotations

import errno
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import google_crc32c
import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.cluster.copies import (
    COPIED,
    COPY,
    CRC,
    DIGEST,
    PIECE,
    PIECE_BYTES,
    Asked,
    Offer,
    digest_of,
)
from headwater.cluster.copies import FOLDER as COPIES
from headwater.cluster.engine import Engine
from headwater.cluster.record import Position
from headwater.cluster.snapshot import SnapshotFile
from headwater.config import Config
from headwater.errors import DiskFull, Failed, HeadwaterError, Malformed, Unavailable
from headwater.server.log import Log
from headwater.store import folder as folders
from headwater.store import keys, marks
from headwater.store.files import DiskFiles, File, Files, parent
from headwater.store.manifest import MANIFEST

FOLDER = "incoming"
STATUS = "COPY"
WINDOW = 4
"""Pieces that are asked for at once."""
OFFER_S = 120.0
"""How long a node may take to link its folder; it makes a checkpoint for it."""
PIECE_S = 5.0
DIGEST_S = 120.0
TRIES = 5
"""How often a piece is asked for, and"""
FILE_TRIES = 3
"""how often a file is fetched, before another source is taken."""
PAUSE_S = 0.5
NAME = re.compile(
    rf"{folders.VERSION}|{MANIFEST}|{re.escape(keys.KEY)}|{folders.STATE}/[\w.-]+|{folders.STREAMS}/\d+-[^/\0]*/\d+\.log"
    rf"|{marks.ARCHIVED}/[\w-]+",
    re.ASCII,
)
"""What a copy may have; what another node says is nowhere else written."""

log = Log("headwater.cluster.transfer")


class Status(msgspec.Struct, frozen=True, array_like=True):
    """What is being fetched, and from where."""

    source: str
    offer: Offer
    is_whole: bool = False
    """Whether all of it is here, so that it takes the old folder's place."""


class _CopyGone(Exception):
    """The source has this copy no more."""


def is_begun(path: str, files: Files | None = None) -> bool:
    """Whether a folder waits for the rest of a copy."""
    return (files or DiskFiles()).exists(f"{path}/{FOLDER}")


class Transfer:
    """A copy on its way to one node's folder, which nobody has open."""

    def __init__(
        self,
        path: str,
        engine: Engine,
        bus: str,
        config: Config | None = None,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.source = ""
        """The node that it comes from."""
        self.bytes = 0
        """Of the whole copy."""
        self.bytes_fetched = 0
        """What has come by the wire."""
        self._path = path
        self._folder = f"{path}/{FOLDER}"
        self._engine = engine
        self._bus = bus
        self._config = config or Config()
        self._files = files or DiskFiles()
        self._clock = clock or SystemClock()
        self._stopping = threads.Condition()
        self._is_stopped = False

    def run(self, sources: Sequence[str], at_least: int) -> Position:
        """Take a copy from one of these nodes, of at least this sequence of the engine's stream; where it stands.

        Unavailable (503) if none of them can give one: what has come is kept for the next call. DiskFull (503) if
        there is no room, Owned (409) if somebody has the folder open.
        """
        self._files.make_folder(self._path)
        lock = self._files.lock(f"{self._path}/{folders.LOCK}")
        try:
            self._finish()
            return self._run(sources, at_least)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f'"{self._path}" is full before a copy of another node is whole; make room') from error
            raise Failed(f'a copy of another node cannot be stored in "{self._path}": {error}') from error
        finally:
            lock.release()

    def finish(self) -> None:
        """Have a copy that is whole take the old folder's place, if a crash has come in between; before anybody opens
        it."""
        if is_begun(self._path, self._files):
            lock = self._files.lock(f"{self._path}/{folders.LOCK}")
            try:
                self._finish()
            finally:
                lock.release()

    def stop(self) -> None:
        """Have `run` end soon, with Unavailable; by any thread."""
        with self._stopping:
            self._is_stopped = True
            self._stopping.notify_all()

    # Sources

    def _run(self, sources: Sequence[str], at_least: int) -> Position:
        troubles: list[str] = []
        for status in self._offers(sources, at_least, troubles):
            try:
                self._fetch(status)
            except (_CopyGone, HeadwaterError) as error:
                if isinstance(error, DiskFull):
                    raise
                self._check_stopped()
                why = str(error.args[0]) if error.args else "it has the copy no more"
                log.warning("copy-cut-off", node=status.source, reason=why)
                troubles.append(f"{status.source}: {why}")
                continue
            return self._take_over(status)
        raise Unavailable(f"no node gives a copy of its folder ({'; '.join(troubles) or 'there is none'})")

    def _offers(self, sources: Sequence[str], at_least: int, troubles: list[str]) -> Iterator[Status]:
        """The copy that was begun, if its source still has it, and then others."""
        begun = self._status()
        if begun is not None and begun.source in sources and begun.offer.snapshot.position.sequence >= at_least:
            yield begun
        for node in sources:
            try:
                offer = msgspec.msgpack.decode(self._engine.ask(node, COPY, b"", OFFER_S), type=Offer)
                self._check(offer)
            except msgspec.MsgspecError as error:
                troubles.append(f"{node}: what it offers cannot be read ({error})")
            except HeadwaterError as error:
                self._check_stopped()
                troubles.append(str(error.args[0]))
            else:
                if offer.snapshot.position.sequence < at_least:
                    troubles.append(f"{node} is too far behind, too")
                    self._thank(node, offer.copy)
                    continue
                yield self._begin(Status(node, offer))

    def _check(self, offer: Offer) -> None:
        for file in offer.snapshot.files:
            if not NAME.fullmatch(file.name) or file.name.endswith("/..") or file.bytes < 0:
                raise Malformed(f"it offers a file that no copy has: {file.name[:80]!r}")

    def _thank(self, node: str, copy: str) -> None:
        """Have a source remove a copy; it does so by itself, too."""
        try:
            self._engine.ask(node, COPIED, _packed(Asked(copy)), PIECE_S)
        except HeadwaterError as error:
            log.info("copy-not-removed", node=node, reason=error.args[0])

    # A copy on its way

    def _status(self) -> Status | None:
        try:
            return msgspec.msgpack.decode(self._files.read(f"{self._folder}/{STATUS}"), type=Status)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _note(self, status: Status) -> Status:
        self._files.write(f"{self._folder}/{STATUS}", msgspec.msgpack.encode(status))
        return status

    def _begin(self, status: Status) -> Status:
        """Keep of what is here only what may be of this copy, too: segments."""
        self._files.make_folder(self._folder)
        for name in self._files.list(self._folder):
            if name not in (folders.STREAMS, STATUS):
                self._remove(f"{self._folder}/{name}")
        wanted = {file.name for file in status.offer.snapshot.files}
        for stream in self._files.list(f"{self._folder}/{folders.STREAMS}"):
            for name in self._files.list(f"{self._folder}/{folders.STREAMS}/{stream}"):
                if f"{folders.STREAMS}/{stream}/{name}" not in wanted:
                    self._files.remove(f"{self._folder}/{folders.STREAMS}/{stream}/{name}")
        return self._note(status)

    def _fetch(self, status: Status) -> None:
        """Fetch what is not here of a copy."""
        wanted = status.offer.snapshot.files
        self.source, self.bytes = status.source, sum(file.bytes for file in wanted)
        self._take_own(wanted)
        self._check_room(wanted)
        log.info("copy-begun", node=status.source, bytes=self.bytes)
        with threads.ThreadPoolExecutor(WINDOW, "headwater-copy") as pool:
            for place, file in enumerate(wanted):
                self._fetch_file(status, place, file, pool)
        for folder in {parent(f"{self._folder}/{file.name}") for file in wanted}:
            self._files.sync_folder(folder)
        found = folders.cluster_of(self._files, self._folder)
        if found != self._bus:
            raise Malformed(f'what it gave is no folder of a node of "{self._bus}"')

    def _take_own(self, wanted: Sequence[SnapshotFile]) -> None:
        """Link what the old folder has of the same segments: whether they are the same, their digests say."""
        for file in wanted:
            old, new = f"{self._path}/{file.name}", f"{self._folder}/{file.name}"
            if not file.name.startswith(f"{folders.STREAMS}/"):
                continue
            if self._size(new) > file.bytes:
                self._files.remove(new)  # and not cut: it may be linked to a segment of the old folder
            if not self._files.exists(new) and self._size(old) == file.bytes:
                self._files.make_folder(parent(new))
                self._files.link(old, new)

    def _check_room(self, wanted: Sequence[SnapshotFile]) -> None:
        needed = sum(max(0, file.bytes - self._size(f"{self._folder}/{file.name}")) for file in wanted)
        free, kept = self._files.free_bytes(self._path), self._config.disk_free_bytes_min
        if free - needed < kept:
            raise DiskFull(
                f'a copy of another node takes {needed} bytes more, and "{self._path}" has {free} free, of which '
                f"disk_free_bytes_min keeps {kept}: make room, and it goes on"
            )

    def _size(self, path: str) -> int:
        try:
            file = self._files.open(path, write=False)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _fetch_file(self, status: Status, place: int, wanted: SnapshotFile, pool: threads.ThreadPoolExecutor) -> None:
        path = f"{self._folder}/{wanted.name}"
        self._files.make_folder(parent(path))
        for _ in range(FILE_TRIES):
            if self._size(path) != wanted.bytes or not self._files.exists(path):
                file = self._files.open(path, create=True)
                try:
                    self._fetch_pieces(status, place, wanted, file, pool)
                finally:
                    file.close()
            said = self._ask(status.source, DIGEST, Asked(status.offer.copy, place), DIGEST_S)
            if said == digest_of(self._files, path, wanted.bytes):
                return
            log.warning("copy-differs", node=status.source, file=wanted.name, advice="it is fetched anew")
            self._files.remove(path)
        raise Unavailable(f"{wanted.name} did not come as its digest says, {FILE_TRIES} times")

    def _fetch_pieces(
        self, status: Status, place: int, wanted: SnapshotFile, file: File, pool: threads.ThreadPoolExecutor
    ) -> None:
        """From where the file ends; several are asked for at once, and written in order."""
        at = asked = file.size()
        coming: deque[Future[bytes]] = deque()
        try:
            while at < wanted.bytes:
                while asked < wanted.bytes and len(coming) < WINDOW:
                    length = min(PIECE_BYTES, wanted.bytes - asked)
                    coming.append(pool.submit(self._piece, status, Asked(status.offer.copy, place, asked, length)))
                    asked += length
                piece = coming.popleft().result()
                file.pwritev([piece], at)
                at += len(piece)
                self.bytes_fetched += len(piece)
        finally:
            for future in coming:
                future.cancel()
        file.datasync()

    def _piece(self, status: Status, asked: Asked) -> bytes:
        """A piece that is whole."""
        why = ""
        for tried in range(TRIES):
            if tried:
                self._pause()
            self._check_stopped()
            try:
                said = self._ask(status.source, PIECE, asked, PIECE_S)
            except Unavailable as error:
                why = str(error.args[0])
                continue
            piece = said[CRC.size :]
            if len(piece) == asked.length and CRC.pack(google_crc32c.value(piece)) == said[: CRC.size]:
                return piece
            why = f"a piece of a file from node {status.source} did not come as it was sent"
            log.warning("copy-damaged", node=status.source, advice="the piece is asked for again")
        raise Unavailable(why)

    def _ask(self, node: str, verb: str, asked: Asked, timeout_s: float) -> bytes:
        said = self._engine.ask(node, verb, _packed(asked), timeout_s)
        if not said:
            raise _CopyGone
        return said

    def _pause(self) -> None:
        with self._stopping:
            if not self._is_stopped:
                self._clock.wait(self._stopping, round(PAUSE_S * SECOND_US))

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise Unavailable("the node is ending; the copy goes on when it starts again")

    # Taking the old folder's place

    def _take_over(self, status: Status) -> Position:
        self._note(msgspec.structs.replace(status, is_whole=True))
        self._finish()
        self._thank(status.source, status.offer.copy)
        position = status.offer.snapshot.position
        log.info("copied", node=status.source, record=position.number, bytes=self.bytes, fetched=self.bytes_fetched)
        return position

    def _finish(self) -> None:
        """Each step may be repeated: what is of the copy and not in its folder any more was moved before."""
        status = self._status()
        if status is not None and not status.is_whole:
            return
        if status is not None:
            # The version first: so nobody takes what is half moved for an ordinary folder.
            names = {file.name.partition("/")[0]: None for file in status.offer.snapshot.files}
            moved = [name for name in names if not self._files.exists(f"{self._folder}/{name}")]
            for name in self._files.list(self._path):
                if name not in (folders.LOCK, folders.VERSION, FOLDER, COPIES, *moved):
                    self._remove(f"{self._path}/{name}")
            for name in sorted(names, key=lambda name: name != folders.VERSION):
                if name not in moved:
                    self._files.rename(f"{self._folder}/{name}", f"{self._path}/{name}")
                    self._files.sync_folder(self._path)
            self._files.remove(f"{self._folder}/{STATUS}")
            self._files.sync_folder(self._folder)
        self._files.remove_tree(self._folder)

    def _remove(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except NotADirectoryError:
            self._files.remove(path)


def _packed(asked: Asked) -> bytes:
    return msgspec.msgpack.encode(asked)
