"""The pump of history, and with `follow` of what comes after it.

Promises: what is on disk is read in a thread, a slice at a time; one turn of the loop looks at so many batches and no
more, and then others have theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.delivery.cursor import Budget
from headwater.delivery.replay import Reading
from headwater.errors import Gap, HeadwaterError
from headwater.server.party import Party
from headwater.server.pump import Pump


class ReadingPump(Pump):
    """History, and with `follow` what comes after it."""

    __slots__ = ("reading",)

    def __init__(self, session: Party, number: int, kind: str, reading: Reading, credit: tuple[int, int]) -> None:
        super().__init__(session, number, kind, None, reading.filter, credit)
        self.reading = reading
        reading.add_waker(self.ring)

    def _pump(self) -> None:
        budget, has_sent = Budget(), False
        while self._may_send and not self._is_fetching:
            try:
                found = self._take_rest()
                if found is None and not self.reading.look(budget):
                    if has_sent and budget.is_spent:
                        self.ring()  # others have their turn
                    else:
                        sessions = self.session.sessions
                        threads = sessions.executor if self.reading.is_in_history else sessions.readers
                        self._fetch(self.reading.fetch, threads)
                    return
                found = found or self.reading.take()
            except Gap as gap:
                self.notice("gap", gap)
                continue
            if found is None:
                if self.kind == "replay":
                    self.notice("over")
                    self.session.on_over(self)
                return
            self._send_some(found)
            has_sent = True
        self.session.hold_back(self)

    def _on_unread(self, error: Exception) -> None:
        if isinstance(error, HeadwaterError):
            self.session.on_ended(self, error)
        else:
            self.session.on_failure(self, error)

    def leave(self) -> Callable[[], object] | None:
        return self.reading.close
