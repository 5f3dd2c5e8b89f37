"""Slices of batches: bodies of the messages that a subscriber wants, made once for all that want the same."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.memo import Memo
from headwater.store.batch import Batch, checksum

SLICES_MAX = 64
BYTES_MAX = 16 * 1024 * 1024
"""Of slices and the batches that they are of; beyond it, remembering starts anew."""


class Slices:
    """Bodies of some messages of a batch, remembered while many subscribers want the same ones."""

    def __init__(self) -> None:
        self._made: Memo[tuple[int, tuple[int, ...]], tuple[Batch, bytes, int]] = Memo(SLICES_MAX, BYTES_MAX)

    def get(self, batch: Batch, places: Sequence[int]) -> tuple[bytes, int]:
        """The body and its checksum."""
        key = (id(batch), tuple(places))
        known = self._made.known.get(key)
        if known is None or known[0] is not batch:
            body = batch.body.slice(places)
            known = self._made.keep(key, (batch, body, checksum(body)), len(batch.data) + len(body))
        return known[1], known[2]
