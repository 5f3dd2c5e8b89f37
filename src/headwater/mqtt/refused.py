"""What becomes known of MQTT messages that were not stored: lines in the log, and counts.

Promises: each is counted; a client, however often it comes back and sends the same again, causes no more than
`refusals_logged_per_minute_max` lines in a minute, and the next line says how many were left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from headwater.access.quota import TRACKED_MAX, Quota
from headwater.clock import Clock
from headwater.counts import Counts
from headwater.errors import QuotaExceeded
from headwater.server.log import Log

log = Log("headwater.mqtt")


class Refused:
    """All that were not stored."""

    def __init__(self, clock: Clock, counts: Counts, lines_per_minute_max: int) -> None:
        self._counts = counts
        self._lines = Quota(lines_per_minute_max, clock, what="lines")
        self._left_out: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Lines of a client that were not written; of those whose last was so longest ago, it is forgotten."""

    def closed(self, user: str, client: str, address: str, error: BaseException) -> None:
        """A connection was closed instead of an acknowledgement."""
        self._counts.refused += 1
        self._tell("publish-refused", user, client, error, address=address)

    def told(self, count: int) -> None:
        """A client was told of so many."""
        self._counts.refused += count

    def dropped(self, user: str, client: str, error: BaseException, count: int = 1) -> None:
        """So many are gone, and nobody was told."""
        self._counts.unstored += count
        self.noted(user, client, error)

    def will(self, user: str, client: str, error: BaseException) -> None:
        """A will cannot be published, and its client is gone."""
        self._counts.unstored += 1
        self._tell("will-refused", user, client, error)

    def noted(self, user: str, client: str, error: BaseException) -> None:
        """The same of some that are counted already."""
        self._tell("publish-dropped", user, client, error)

    def _tell(self, event: str, user: str, client: str, error: BaseException, **fields: object) -> None:
        who = user, client
        try:
            self._lines.take("/".join(who))
        except QuotaExceeded:
            self._left_out[who] = self._left_out.get(who, 0) + 1
            self._left_out.move_to_end(who)
            if len(self._left_out) > TRACKED_MAX:
                self._left_out.popitem(last=False)
            return
        left_out = self._left_out.pop(who, 0)
        if left_out:
            fields["left_out"] = left_out
        log.at_will(logging.WARNING, event, user=user, client=client, **fields, reason=str(error))
