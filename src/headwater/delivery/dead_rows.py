"""Dead rows: the copies of messages that one subscription has given up on, and whether there is room for more.

Promises: a message dies only if its client has room for its letter, or for none more than were redriven; no more than
`dead_letters_max` are kept, of which the oldest go; what is counted is what the rows say. No locks: whoever serves the
subscription holds its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.config import Config
from headwater.counts import Counts
from headwater.delivery.dead_shares import DeadShares
from headwater.delivery.lane import Changes, LaneId
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.rows import DeadRow, RowCommit, SubscriptionRow
from headwater.events import Tell
from headwater.message import Message
from headwater.store import state as rows
from headwater.store.state import Rows, State

UNBOUNDED = 1 << 62
"""Room where nothing is about to die."""

Messages = Mapping[tuple[LaneId, int], Message]


class DeadRows:
    """Those of one subscription."""

    def __init__(
        self,
        row: SubscriptionRow,
        state: State,
        commit: RowCommit,
        config: Config,
        counts: Counts,
        shares: DeadShares,
        letterbox: Letterbox,
        on_event: Tell,
    ) -> None:
        self._id = row.options.id
        self._number = row.number
        self._owner = row.owner
        self._state = state
        self._commit = commit
        self._config = config
        self._counts = counts
        self._shares = shares
        self._letterbox = letterbox
        self._on_event = on_event
        self._is_full = False
        """Whether its client has as many dead letters as it may, which was told."""
        self.count = 0
        """How many there are."""
        self.count_anew()

    def count_anew(self, but_not: int | None = None) -> None:
        """Count the rows, without those of a stream that is gone."""
        sizes = [
            len(value)
            for key, value in self._state.scan(rows.key_u32(rows.DEAD, self._number))
            if rows.pair_in(key)[1] != but_not
        ]
        self._shares.load(self._number, self._owner, len(sizes), sum(sizes))
        self.count = len(sizes)

    def leave(self, stream: int) -> None:
        """The root of a stream was removed, and its letters are gone with it."""
        self._shares.drop_redriven(self._number)
        self.count_anew(but_not=stream)

    def room(self, known: Messages) -> int:
        """How many of these messages may die: a copy of a letter that was redriven has its place."""
        if not known:
            self._is_full = False
            return UNBOUNDED
        own = min(sum(lane[1] for lane, _ in known), self._shares.redriven(self._number))
        room = max(own, self._shares.room(self._owner, (len(message.payload) for message in known.values())))
        is_full = room < len(known)
        if is_full and not self._is_full:
            self._on_event(
                "dead-full",
                f'client "{self._owner}", who made subscription "{self._id}", has as many dead letters as '
                "dead_letters_per_client_max or dead_letter_bytes_per_client_max allow: what fails is tried again, and "
                "dies once some were redriven or dropped",
            )
        self._is_full = is_full
        return room

    def rows_of(self, changes: Changes, known: Messages, now_us: int) -> Rows:
        """Copies of the messages that the subscription gives up on."""
        changed: Rows = {}
        for lane, offset, failure in changes.dead:
            m = known.get((lane, offset))
            if m is None:
                continue
            tried = (failure.attempts, failure.errors, now_us, failure.by)
            row = DeadRow(m.topic, m.payload, m.time_us, m.key, m.header_pairs, *tried)
            value = changed[rows.key_message(rows.DEAD, self._number, lane[0], offset)] = rows.pack(row)
            changed.update(self._letterbox.rows_of(self._id, self._number, self._owner, offset, row))
            self._change(1, len(value))
            self._counts.dead += 1
            tries = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
            self._on_event(
                "dead",
                f'subscription "{self._id}" gave up on message {offset} of "{m.topic}" after {tries}',
                subscription=self._id,
                topic=m.topic,
                offset=offset,
                attempts=failure.attempts,
                deliveries=failure.vanished,
                consumer=failure.by or "-",
                reason=failure.errors[-1] if failure.errors else "-",
            )
        if self.count > self._config.dead_letters_max:
            self._drop_oldest(changed)
        return changed

    def _drop_oldest(self, changed: Rows) -> None:
        self._commit.flush()
        for key, value in self._state.scan(rows.key_u32(rows.DEAD, self._number)):
            if self.count <= self._config.dead_letters_max:
                return
            if key not in changed:
                changed[key] = None
                self._change(-1, -len(value))
                self._on_event(
                    "dead-dropped", f'subscription "{self._id}" has too many dead letters; the oldest is gone'
                )

    def _change(self, letters: int, size: int) -> None:
        self.count += letters
        self._shares.change(self._number, letters, size)

    def wake(self) -> None:
        """Letters were enqueued: they are published soon, where somebody wants that."""
        self._letterbox.wake()

    def drop(self, letters: int, size: int) -> None:
        """Nobody wants so many of them any more."""
        self._change(-letters, -size)

    def redrive(self, letters: int, size: int) -> None:
        """So many are handed out again, and keep their places until they are done."""
        self.count -= letters
        self._shares.redrive(self._number, letters, size)

    def done(self, copies: int) -> None:
        """So many copies are done, those that were redriven among them."""
        self._shares.done(self._number, copies)
