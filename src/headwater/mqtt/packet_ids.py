"""Numbers of packets: which ones came together, to be answered, in their order, once they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headwater.errors import Failed, HeadwaterError, SteppedDown
from headwater.mqtt.kinds import Kind
from headwater.mqtt.receiving import Receiving


class PacketIds(msgspec.Struct, eq=False):
    """Packets that came one after another, and what answers them: PUBACK or PUBREC."""

    kind: Kind
    packet_ids: Sequence[int]
    receiving: Receiving | None = None
    """Of QoS 2: where the number is open."""
    left: int = 1
    """Batches of them whose outcome is not known yet; they are answered when there is none."""
    refused: dict[int, HeadwaterError] | None = None
    """Those that were not stored, by their place, and why."""
    ends_at: int = -1
    """The first of them that ends the connection: neither it nor what came after it is answered."""

    @property
    def are_unsure(self) -> bool:
        """Whether one of them may be stored, whatever is said of it this time."""
        return self.receiving is not None and any(map(self.receiving.is_unsure, self.packet_ids))

    def settle(self, places: Sequence[int] | None, error: HeadwaterError | None, is_end: bool = False) -> None:
        """A batch of them, or all if there are no places, was stored, or was not."""
        self.left -= 1
        if error is not None:
            if places is None:
                places = range(len(self.packet_ids))
            if self.refused is None:
                self.refused = {}
            self.refused.update(dict.fromkeys(places, error))
            if is_end and (self.ends_at < 0 or places[0] < self.ends_at):
                self.ends_at = places[0]
        if self.receiving is not None:
            for number in self.packet_ids:
                if error is None:
                    self.receiving.on_stored(number)
                elif isinstance(error, Failed | SteppedDown):
                    self.receiving.on_failed(number)
                else:
                    self.receiving.on_refused(number)


NOBODY = PacketIds(Kind.PUBACK, ())
"""Of QoS 0: nobody waits for an answer."""

Which = tuple[PacketIds, Sequence[int] | None]
"""Packets that a batch was made of: all that came together, or those at these places."""
