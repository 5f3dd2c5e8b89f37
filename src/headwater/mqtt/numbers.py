"""Numbers of packets: which ones a batch came in, to be answered once it is stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headwater.errors import Failed
from headwater.mqtt.kinds import Kind
from headwater.mqtt.receiving import Receiving


class Numbers(msgspec.Struct, frozen=True):
    """Which packets a batch came in, and what answers them: PUBACK or PUBREC."""

    kind: Kind
    packet_ids: Sequence[int]
    receiving: Receiving | None = None
    """Of QoS 2: where the number is open."""

    def settle(self, error: BaseException | None) -> None:
        """They were stored, or were not. After a failure of the disk nobody knows: then they stay as they are."""
        if self.receiving is not None:
            for number in self.packet_ids:
                if error is None:
                    self.receiving.on_stored(number)
                elif not isinstance(error, Failed):
                    self.receiving.on_refused(number)


NOBODY = Numbers(Kind.PUBACK, ())
