"""A message that live subscriptions have before it is on disk; a batch once somebody needs one."""

from __future__ import annotations

import msgspec

from headwater.store.batch import QUIET, Batch, Header, checksum
from headwater.store.body import encode_body


class Early(msgspec.Struct, eq=False, gc=False):
    """One message without options that nobody waits for, and where it will stand."""

    root: str
    topic: str
    payload: bytes
    time_us: int
    offset: int = 0
    _body: bytes = b""
    _crc: int = 0
    _batch: Batch | None = None

    @property
    def body(self) -> tuple[bytes, int]:
        """Its body, made for the first who asks unless its publisher has, and the body's checksum."""
        if not self._body:
            self._body = encode_body((self.topic,), (self.payload,), self.time_us)
            self._crc = checksum(self._body)
        return self._body, self._crc

    @property
    def batch(self) -> Batch:
        """The same as a batch, made for the first who asks."""
        if self._batch is None:
            data, crc = self.body
            self._batch = Batch(
                Header(self.root, self.offset, 1, self.time_us, 0, None, 0, QUIET, 0, len(data), crc), data
            )
        return self._batch
