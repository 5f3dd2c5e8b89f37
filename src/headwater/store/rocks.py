"""The state in RocksDB, with a check of our own over its writes.

Promises, besides those of `State`: what was committed is there when it is opened again, or the loss is told
(`losses`); a file that is missing or bad is told, never taken for a fresh start; after a failed write or sync nothing
more is taken until `mend` has opened the files anew, and what was reported as failed is not in them then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from headwater import threads
from headwater.clock import Clock, SystemClock
from headwater.errors import Damaged, Failed, Unwritable
from headwater.store import chain
from headwater.store import state as rows
from headwater.store.chain import OF_BITS, ChainLink
from headwater.store.files import DiskFiles, Files
from headwater.store.linked_state import Linked
from headwater.store.permissions import check_writable, is_writable
from headwater.store.rocksdb import (
    ADVICE,
    check_files,
    check_room,
    checkpoint,
    open_rocks,
    open_secondary,
    scan_rocks,
    unreadable,
)
from headwater.store.state import Rows
from headwater.store.state_marks import KnownWrites, Marks
from headwater.store.state_recovery import ALL_GROUPS, Loss, is_continuous, loss_rows, lost_tail, mend_logs

if TYPE_CHECKING:
    from headwater.store.rocksdb import Rdict

log = logging.getLogger("headwater")

PROBE_BYTES = 1 << 20
"""What has to fit on the disk before files are opened anew that it had no room for."""
SCANS_END_S = 1.0
"""How long a scan that is under way is waited for; its files cannot be opened anew before."""


class RocksState:
    """The state in RocksDB, of the process that owns the folder."""

    def __init__(
        self, path: str, *, must_exist: bool = False, files: Files | None = None, clock: Clock | None = None
    ) -> None:
        """`must_exist`: there was one, so that a missing one is damage."""
        from rocksdict import DbClosedError, WriteBatch, WriteOptions

        self._WriteBatch = WriteBatch
        self._DbClosedError = DbClosedError
        self._write_options = WriteOptions()
        self.path = path
        self._files = files or DiskFiles()
        self.on_failed: Callable[[], None] | None = None
        """Called when a write failed, from any thread; it may neither wait nor use the state."""
        self._clock = clock or SystemClock()
        self._order = threads.RLock()
        """Held while a write gets its number and goes to RocksDB, so that each is a record of its own in the log."""
        self._syncing = threads.RLock()
        """Held while the log is synced; taken before `_order`."""
        self._counting = threads.Condition()
        self._scans = 0
        self._is_mending = False
        self._is_damaged = False
        self.failed: str | None = None
        """Why nothing is written at the moment."""
        self._lazy: Rows = {}
        """What was written since the last sync without waiting for one."""
        self._unmarked = 0
        """Groups that were written to since the last sync."""
        self.met: list[Loss] = []
        """What was found to be lost when it was opened."""
        self.torn = 0
        """Writes at the end of the log that were cut off, as nobody had been told of them."""
        self._marks = Marks(self._files, path)
        try:
            self._db, known = self._open(must_exist)
            self._take_up(known)
        except BaseException:
            self._marks.close()
            raise

    # Opening

    def _open(self, must_exist: bool) -> tuple[Rdict, KnownWrites]:
        known = self._marks.read()
        if known.synced or must_exist:
            if not self._files.exists(f"{self.path}/CURRENT"):
                raise Damaged(f'the state in "{self.path}" is missing, or its file CURRENT is; {ADVICE}')
            check_files(self._files, self.path)
            if not is_continuous(self._files, self.path, known):
                self._mend_logs(known)
        try:
            return open_rocks(self.path), known
        except Exception as error:
            check_writable(self.path)
            check_room(self.path, error)
            if not self._mend_logs(known):
                raise Failed(f'the state in "{self.path}" does not open ({error}); {ADVICE}') from error
        try:
            return open_rocks(self.path), known
        except Exception as error:
            check_room(self.path, error)
            raise Damaged(f'the state in "{self.path}" does not open ({error}); {ADVICE}') from error

    def _mend_logs(self, known: KnownWrites, cut_after: int | None = None) -> bool:
        mended = mend_logs(self._files, self.path, known, cut_after)
        if mended is not None and cut_after is None:
            self.torn += mended.torn
            self.met += mended.losses
        return mended is not None

    def _take_up(self, known: KnownWrites) -> None:
        """Go on where the chain ends; what was durable and is not there is noted."""
        link = self._link()
        self._number = self._synced = max(link.number, known.synced)
        self._digest = link.digest
        self._last = list(map(max, link.last(), known.last))
        if link.number < known.synced:
            self.met.append(lost_tail(link, known))
            self.commit(loss_rows(self.met))
        # RocksDB has made tables of its logs by now.
        self._marks.note_in_tables(self._number)
        self._marks.note(self._synced, ALL_GROUPS, self._last)
        self.losses = [msgspec.msgpack.decode(value, type=Loss) for _, value in self.scan(rows.LOSS)]
        """Every loss that is known."""

    def _link(self) -> ChainLink:
        value = self.get(rows.CHAIN)
        return (chain.unpack(value) if value is not None else None) or ChainLink()

    @property
    def number(self) -> int:
        """The last write's."""
        return self._number

    def count_from(self, number: int) -> None:
        """Number the next write after this one, as of a state that this one takes the place of."""
        with self._order:
            self._number = max(self._number, number)

    # Reading

    def get(self, key: bytes) -> bytes | None:
        db = self._db
        try:
            value: bytes | None = db.get(key)
            return value
        except self._DbClosedError as error:
            with self._order:
                if self._db is not db:  # it was opened anew meanwhile
                    return self.get(key)
            raise unreadable(self.path, error) from error
        except Exception as error:
            raise unreadable(self.path, error) from error

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        if self._is_mending:
            with self._order:
                pass
        with self._counting:
            self._scans += 1
        try:
            yield from scan_rocks(self._db, self.path, prefix, start)
        finally:
            with self._counting:
                self._scans -= 1
                self._counting.notify_all()

    # Writing

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._order:
            self._put(rows)
            self._lazy.update(rows)

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._order:
            number = self._put(rows)
        self._sync_upto(number)

    def sync(self) -> None:
        self._sync_upto(self._number)

    def _put(self, changed: Mapping[bytes, bytes | None]) -> int:
        """One write, with its link as the first row."""
        self._check()
        groups = chain.groups_of(changed)
        number, last = self._number + 1, self._last
        digest = chain.digest_of(self._digest, changed)
        batch = self._WriteBatch(raw_mode=True)
        batch.put(rows.CHAIN, chain.pack(number, self._synced, self._clock.now_us(), digest, groups, *last))
        for key, value in changed.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise self._fail(error) from error
        self._number, self._digest = number, digest
        self._unmarked |= groups
        for group in OF_BITS[groups]:
            last[group] = number
        return number

    def _sync_upto(self, number: int) -> None:
        with self._syncing:
            if self._synced >= number:
                return  # with another's
            with self._order:
                self._check()
                upto, groups = self._number, self._unmarked
                last = tuple(self._last)
                self._unmarked = 0
                lazy, self._lazy = self._lazy, {}
            try:
                # Not WriteOptions.sync: that call keeps the interpreter's lock while the disk works, this one does not.
                self._db.flush_wal(True)
            except Exception as error:
                with self._order:
                    self._lazy = {**lazy, **self._lazy}
                raise self._fail(error) from error
            self._synced = upto
            self._marks.note(upto, groups, last)

    def _check(self) -> None:
        if self.failed is not None:
            raise Unwritable(f"it is not on disk: {self.failed}; it is tried again by itself")

    def _fail(self, error: Exception) -> Failed:
        # After a failed sync nobody can tell what is on disk; a later one that works would prove nothing.
        if self.failed is None:
            self.failed = f"the state store failed ({error})"
            if "Corruption" in str(error):  # bad bytes of a table: to open it again would not mend them
                self._is_damaged = True
                self.failed += f"; end the bus: {ADVICE}"
            if self.on_failed is not None:
                self.on_failed()
        return Failed(f"it is not on disk: {self.failed}; it is tried again by itself")

    # After a failure

    def mend(self) -> bool:
        """Open the files anew after a failure: all that was durable is there, what failed is not, and what nobody
        waited for is written again. False, and nothing has changed, while that cannot be."""
        with self._syncing, self._order:
            if self.failed is None:
                return True
            if self._is_damaged or not self._has_room() or not self._scans_end():
                return False
            try:
                self._reopen()
            except Exception as error:
                self.failed = f"the state store failed, and does not open again ({error})"
                return False
            finally:
                self._is_mending = False
            return True

    def _has_room(self) -> bool:
        probe = self.path + ".probe"
        try:
            file = self._files.open(probe, create=True)
            try:
                file.pwritev([bytes(PROBE_BYTES)], 0)
                file.datasync()
            finally:
                file.close()
        except OSError:
            return False
        finally:
            self._files.remove(probe)
        return True

    def _scans_end(self) -> bool:
        """New scans wait from here on; those under way hold RocksDB's files."""
        self._is_mending = True
        with self._counting:
            if not self._counting.wait_for(lambda: not self._scans, SCANS_END_S):
                self._is_mending = False
                return False
        return True

    def _reopen(self) -> None:
        try:
            self._db.cancel_all_background(True)  # else it makes a table of what it has, also of what failed
            self._db.close()
        except Exception:  # noqa: S110  # it says once more why it failed, or is closed; it lets go all the same
            pass
        known = KnownWrites(self._synced, tuple(self._last))
        self._mend_logs(known, cut_after=self._synced)
        db = open_rocks(self.path)
        value = db.get(rows.CHAIN)
        link = (chain.unpack(value) if value is not None else None) or ChainLink()
        if link.number < self._synced:
            db.close()
            raise Damaged(f"writes {link.number + 1} to {self._synced} are gone from it")
        self._db = db
        self._number, self._digest, self._last = link.number, link.digest, list(link.last())
        self._unmarked = ALL_GROUPS
        self.failed = None
        lazy, self._lazy = self._lazy, {}
        if lazy:
            self.write(lazy)
        self._synced = min(self._synced, link.number)
        self._sync_upto(self._number)
        self._marks.note_in_tables(link.number)

    # Others

    def scrub(self, prefix: bytes) -> None:
        """Keep nothing of what rows with a prefix were before; in any thread but one that others wait for."""
        try:
            self._db.flush()
            self._db.compact_range(prefix, prefix[:-1] + bytes([prefix[-1] + 1]))
        except Exception as error:
            raise Failed(f'old rows of the state in "{self.path}" could not be removed ({error})') from error

    def snapshot(self, path: str) -> None:
        try:
            checkpoint(self._db, path)
        except Exception as error:
            raise Failed(f'no snapshot of the state could be made in "{path}" ({error})') from error

    def close(self) -> None:
        try:
            if self.failed is None:
                self.sync()
        except Failed:
            pass  # nobody waits for it
        try:
            self._db.close()
        except Exception as error:  # it could make no table of its log, in which all that counts is
            log.warning("the state was closed as a kill would leave it: %s", str(error))
        finally:
            self._marks.close()


class RocksReader:
    """The state in RocksDB, read beside the process that owns it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files = DiskFiles()
        check_files(self._files, path)
        self._private = self._files.make_private_folder("headwater-reader-")
        self._linked: Linked | None = None
        """Where the folder takes no writes."""
        try:
            if not is_writable(path):
                self._linked = Linked(self._files, path, self._private)
            self._db = open_secondary(self._linked.path if self._linked else path, self._private)
        except Exception as error:
            self._remove_private()
            raise Failed(f'the state in "{path}" does not open ({error}); {ADVICE}') from error

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
            return value
        except Exception as error:
            raise unreadable(self.path, error) from error

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return scan_rocks(self._db, self.path, prefix, start)

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        raise self._refusal()

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        raise self._refusal()

    def sync(self) -> None:
        raise self._refusal()

    @property
    def failed(self) -> str | None:
        return None

    def mend(self) -> bool:
        return True

    def snapshot(self, path: str) -> None:
        raise self._refusal()

    def _refusal(self) -> Failed:
        return Failed(f'the state in "{self.path}" was opened to read only')

    def refresh(self) -> None:
        """See what the owner wrote meanwhile."""
        if self._linked is not None:
            self._linked.refresh()
        self._db.try_catch_up_with_primary()

    def close(self) -> None:
        self._db.close()
        self._remove_private()

    def _remove_private(self) -> None:
        self._files.remove_tree(self._private)
