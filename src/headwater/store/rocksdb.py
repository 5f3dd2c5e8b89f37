"""RocksDB's files: opened to write, to read beside their owner, or to read with another log; scanned; copied.

Everything that is asked of RocksDB itself is here and in `store.rocks`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from headwater.errors import Closed, Damaged, DiskFull, HeadwaterError
from headwater.store import wal
from headwater.store.files import Files
from headwater.store.state import CHAIN

if TYPE_CHECKING:
    from rocksdict import Rdict as Rdict  # noqa: PLC0414  # others have it from here

LOG = ".log"
TRIES_MAX = 5
"""Times that a reader looks at a file to which its owner may be adding."""
ADVICE = (
    "headwater verify says what is damaged; headwater restore --state makes a state of the newest snapshot and of what "
    "is whole"
)


def _options() -> Any:
    from rocksdict import Options

    options = Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(2)
    # Log files are not recycled: a secondary that meets one which was recycled after a checkpoint never opens.
    return options


def open_rocks(path: str) -> Rdict:
    """Open it to write, made if there is none; whatever is not whole is refused."""
    from rocksdict import DBRecoveryMode, Rdict

    options = _options()
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    return Rdict(path, options)


def scan_rocks(db: Rdict, path: str, prefix: bytes, start: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Rows with a prefix. RocksDB's iterator ends at a bad block as if there were no more: so its end is looked at."""
    last = prefix if start is None else start
    probe = None
    try:
        for key, value in cast("Iterator[tuple[bytes, bytes]]", db.items(from_key=last)):
            if not key.startswith(prefix):
                return
            last = key
            if prefix or key != CHAIN:  # which is no row of anybody's
                yield key, value
        probe = db.iter()
        probe.seek(last)
        if probe.valid() and probe.key() == last:
            probe.next()
        probe.status()
    except Exception as error:
        raise unreadable(path, error) from error
    finally:
        del probe  # whoever keeps the error keeps this frame, and an iterator keeps RocksDB and its lock


def unreadable(path: str, error: Exception) -> Exception:
    """What to tell whoever wants a row that cannot be read."""
    from rocksdict import DbClosedError

    if isinstance(error, HeadwaterError):
        return error
    if isinstance(error, DbClosedError):
        return Closed(f'the state in "{path}" is closed, or could not be opened again after its disk failed')
    return Damaged(f'rows of the state in "{path}" cannot be read ({error}); {ADVICE}')


def log_names(files: Files, path: str) -> list[str]:
    """RocksDB's logs, oldest first."""
    return sorted(name for name in files.list(path) if name.endswith(LOG) and name[: -len(LOG)].isdigit())


def check_files(files: Files, path: str) -> None:
    """Refuse a state whose list of files is damaged: on some bad bytes in it RocksDB never comes back."""
    reason = ""
    for _ in range(TRIES_MAX):
        try:
            name = files.read(f"{path}/CURRENT").decode().strip()
            if name.startswith("MANIFEST-") and wal.is_torn_at_most(files.read(f"{path}/{name}")):
                return
            reason = f"{name[:40]!r} is damaged"
        except (OSError, ValueError) as error:  # perhaps its owner begins a new one at this moment
            reason = str(error)
    raise Damaged(f'the state in "{path}" does not open (its list of files: {reason}); {ADVICE}')


def check_room(path: str, error: Exception) -> None:
    """DiskFull (503) if a state did not open for want of room, by what RocksDB said."""
    if any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT)):
        raise DiskFull(f'"{path}" cannot be opened: its disk is full; make room there') from error


@contextmanager
def beside(files: Files, path: str, log: bytes = b"", *, keep_logs: bool = False) -> Iterator[Rdict]:
    """The tables, with another log than theirs or with theirs, to read; Damaged if they do not open. Nothing of the
    state changes, and nobody else may have it open."""
    from rocksdict import AccessType, Rdict

    check_files(files, path)
    look = path + ".look"
    files.remove_tree(look)
    files.make_folder(look)
    try:
        for name in files.list(path):
            if (keep_logs or not name.endswith(LOG)) and not name.startswith("LO"):  # LOG, LOCK
                files.link(f"{path}/{name}", f"{look}/{name}")
        names = log_names(files, path)
        if log and names:
            files.write(f"{look}/{names[-1]}", log)
        try:
            db = Rdict(look, _options(), access_type=AccessType.read_only())
        except Exception as error:
            raise Damaged(f'the state in "{path}" does not open ({error}); {ADVICE}') from error
        try:
            yield db
        finally:
            db.close()
    finally:
        files.remove_tree(look)


def open_secondary(path: str, private: str) -> Rdict:
    """Open it to read beside its owner: only a secondary reads what is in the owner's write-ahead log."""
    from rocksdict import AccessType, Rdict

    db = Rdict(path, _options(), access_type=AccessType.secondary(private))
    db.try_catch_up_with_primary()
    return db


def checkpoint(db: Rdict, path: str) -> None:
    """A copy of it in a new folder, as of now."""
    from rocksdict import Checkpoint

    db.flush()  # which lets other threads go on meanwhile, and what comes then does not
    Checkpoint(db).create_checkpoint(path)
