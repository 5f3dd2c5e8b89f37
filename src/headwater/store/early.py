"""A message that live subscriptions have before it is on disk; a batch once somebody needs one."""

from __future__ import annotations

import msgspec

from headwater.store.batch import Batch, Header, checksum
from headwater.store.body import encode_body


class Early(msgspec.Struct, eq=False, gc=False):
    """One message without options, and where it will stand."""

    root: str
    topic: str
    payload: bytes
    offset: int
    time_us: int
    flags: int
    _batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The same as a batch, made for the first who asks."""
        if self._batch is None:
            data = encode_body((self.topic,), (self.payload,), self.time_us)
            header = Header(
                self.root, self.offset, 1, self.time_us, 0, None, 0, self.flags, 0, len(data), checksum(data)
            )
            self._batch = Batch(header, data)
        return self._batch
