"""Which purges of the log were carried out in a lake: the others hold for whoever plans to read it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from headwater.log.purges import Purge

DIGEST_CHARS = 32


def carried(purges: Sequence[Purge]) -> str:
    """What a table notes when all of these are carried out: up to which offset, and which they are."""
    if not purges:
        return ""
    digest = sha256()
    for row in sorted(purge.row() for purge in purges):
        digest.update(len(row).to_bytes(4, "big") + row)
    return f"{max(purge.upto for purge in purges)}:{digest.hexdigest()[:DIGEST_CHARS]}"


def left_of(purges: tuple[Purge, ...], noted: str) -> tuple[Purge, ...]:
    """The purges that are not known to be carried out. A later one reaches at least as far as those before it."""
    if not purges or noted == carried(purges):
        return ()
    upto = int(noted.partition(":")[0] or 0)
    return tuple(purge for purge in purges if purge.upto >= upto)
