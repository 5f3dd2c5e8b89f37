"""The pump of a live subscription: whatever matches from now on.

Promises: what is shown early leaves in the turn that brought it, unless something is to be sent before it; for a client
that does not read, nothing piles up here: the subscription drops or ends as its policy says, and the client is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headwater.delivery.live import Live
from headwater.delivery.selection import Selection
from headwater.errors import Closed
from headwater.server.log import Log
from headwater.server.party import Party
from headwater.server.pump import Pump

log = Log("headwater.server")


class LivePump(Pump):
    """A live subscription: whatever matches from now on."""

    __slots__ = ("_dropped", "live")

    def __init__(self, session: Party, number: int, live: Live, credit: tuple[int, int]) -> None:
        super().__init__(session, number, "live", None, live.filter, credit)
        self.live = live
        self._dropped = 0
        live.add_waker(self.ring)
        live.hand = self._hand

    def _hand(self, selection: Selection) -> bool:
        """Send what is shown early, in the turn that brought it, if nothing is to be sent before it."""
        if self.is_rung or self._rest is not None or not self._may_send:
            return False
        batch = selection.batch
        assert batch is not None
        if batch.topic is None:  # else it is one message without options, and there is credit for one
            body = batch.body
            if body.expiries is not None:
                return False
            if self._credit_messages < selection.count or self._credit_bytes < len(body.data):
                self._send_some(selection)
                return True
        self._send(selection)
        return True

    def _pump(self) -> None:
        live = self.live
        while self._may_send:
            found = self._take_rest() or live.take()
            if found is None:
                if live.is_unread and not self._is_fetching:
                    self._fetch(live.read_on, self.session.sessions.readers)
                break
            self._send_some(found)
        else:
            self.session.hold_back(self)
        if live.dropped != self._dropped:
            fresh = live.dropped - self._dropped
            self._note_drops()
            connection = self.session.connection
            user = "-" if connection is None else connection.user or "-"
            told = {"session": self.session.name, "user": user, "filter": self.filter}
            log.at_will(logging.INFO, "slow-reader", **told, dropped=fresh, in_all=self._dropped)
            self.notice("dropped", count=self._dropped)
        if live.ended is not None:
            self.session.on_ended(self, Closed(live.ended))

    def _note_drops(self) -> None:
        dropped = self.live.dropped
        self.session.sessions.counts.dropped += dropped - self._dropped
        self._dropped = dropped

    @property
    def dropped(self) -> int:
        """Messages that were lost, as the client was too slow."""
        return self.live.dropped

    def leave(self) -> Callable[[], object] | None:
        self._note_drops()
        return self.live.close
