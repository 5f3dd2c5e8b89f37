"""Which purges of the log were carried out in a lake: the others hold for whoever plans to read it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from headwater.log.purges import Purge

DIGEST_CHARS = 32


def carried(purges: Sequence[Purge], archived: int) -> str:
    """What a table notes when all of these are carried out in what is archived by then: up to which offset, and which
    they are; and how far it was archived, where they reach beyond that. What an archive had read before somebody purged
    it, and commits afterwards, is not erased then."""
    if not purges:
        return ""
    digest = sha256()
    for row in sorted(purge.row() for purge in purges):
        digest.update(len(row).to_bytes(4, "big") + row)
    upto = max(purge.upto for purge in purges)
    noted = f"{upto}:{digest.hexdigest()[:DIGEST_CHARS]}"
    return noted if archived >= upto else f"{noted}:{archived}"


def carried_upto(purges: Sequence[Purge], noted: str) -> int:
    """Up to which offset all of these are known to be carried out; 0 if others are."""
    if not purges or not noted:
        return 0
    upto, digest, *archived = noted.split(":")
    return int(archived[0] if archived else upto) if carried(purges, int(upto)) == f"{upto}:{digest}" else 0


def left_of(purges: tuple[Purge, ...], noted: str) -> tuple[Purge, ...]:
    """The purges that are not known to be carried out. A later one reaches at least as far as those before it."""
    if done := carried_upto(purges, noted):
        return tuple(purge for purge in purges if purge.upto > done)
    upto, _, *archived = noted.split(":") if noted else ("0", "")
    since = min(int(upto), int(archived[0]) + 1) if archived else int(upto)
    return tuple(purge for purge in purges if purge.upto >= since)
