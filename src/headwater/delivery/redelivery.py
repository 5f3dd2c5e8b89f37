"""Redelivery: what was handed out before, or is a copy, goes out again before anything fresh does.

Promises: messages of a lane go out in the order in which the state machine offers them; what so many consumers were
gone with that no other is to get it becomes a dead letter on the way; however much is waiting, a turn of a loop hands
out some of it. No locks: whoever serves the subscription holds its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from headwater.counts import Counts
from headwater.delivery.bookkeeping import Books
from headwater.delivery.gaps import Gaps
from headwater.delivery.lane import LaneId, Lease, Moment
from headwater.delivery.selection import NO_LIMIT, Selection
from headwater.delivery.supply import Supply
from headwater.delivery.timeouts import OnRetry, Timeouts
from headwater.message import Message

AGAIN_AT_ONCE = 16
"""Messages that are read again, one by one, before it is looked how many bytes they have."""
GIVEN_UP_AT_ONCE = 64
"""Messages that no other consumer is to get, which are seen to before others have their turn."""
AGAIN_IN_TURN = 64
"""Those that one turn of a loop hands out again; the next turn goes on with the rest."""
KEPT_AT_ONCE = 100
"""The same where they are in memory."""


class Redelivery:
    """That of one subscription."""

    __slots__ = ("_books", "_counts", "_gaps", "_machine", "_on_retry", "_supply", "_timeouts", "given_up")

    def __init__(
        self, books: Books, supply: Supply, gaps: Gaps, timeouts: Timeouts, counts: Counts, on_retry: OnRetry
    ) -> None:
        self._books = books
        self._machine = books.machine
        self._supply = supply
        self._gaps = gaps
        self._timeouts = timeouts
        self._counts = counts
        self._on_retry = on_retry
        self.given_up = 0
        """Messages so far that no other consumer was to get."""

    def take(
        self, consumer: object, limit: int, in_turns: bool, now: Moment, found: list[Selection], bytes_max: int
    ) -> tuple[bool, int, int]:
        """Hand out what is to go again, some at once; `in_turns`, others have theirs before the rest of it. Answers
        whether there may be more of it, how many more may be taken, and the bytes of these."""
        ledger = self._machine.ledger
        if not (ledger.held or ledger.retrying):
            return False, limit, 0
        at_once = limit
        if in_turns:
            at_once = min(limit, KEPT_AT_ONCE if self._supply.kept else AGAIN_IN_TURN)
        is_more, left, size = True, limit, 0
        for _ in range(GIVEN_UP_AT_ONCE):  # until something is found, or much was given up on
            if not is_more or found or self._gaps.untold is not None:
                break
            again = self._machine.redeliverable(consumer, at_once, now)
            if not again:
                return False, limit, 0
            is_more, left, size = self._hand_out(consumer, again, limit, now, found, bytes_max)
            is_more = is_more or len(again) == at_once < limit
        return is_more, left, size

    def _hand_out(
        self,
        consumer: object,
        again: list[tuple[LaneId, int]],
        limit: int,
        now: Moment,
        found: list[Selection],
        bytes_max: int,
    ) -> tuple[bool, int, int]:
        """Hand out these; whether some were given up on, so that more may go now, and the rest of what `take` says."""
        is_more = False
        step = len(again) if bytes_max == NO_LIMIT else KEPT_AT_ONCE if self._supply.kept else AGAIN_AT_ONCE
        size = 0
        for lane, run in _runs(again, step):
            if size >= bytes_max:
                break
            there = self._supply.fetch(lane, run, now)
            for offsets in _ascending(run):
                lease = self._machine.hand_out_again(consumer, lane, offsets, now)
                if lease.deadline_us:
                    self._timeouts.deadlines.add(lease)
                if spent := [offset for offset in offsets if self._machine.is_spent(lane, offset) and offset in there]:
                    is_more = True  # behind what is given up there may be something that may go now
                    self._give_up(lease, spent, there, now)
                    offsets = [offset for offset in offsets if offset not in spent]
                messages = [
                    msgspec.structs.replace(there[offset], attempt=self._machine.attempt(lane, offset))
                    for offset in offsets
                    if offset in there
                ]
                if messages:
                    found.append(Selection(self._supply.name(lane[0]), None, len(messages), None, messages, lease))
                    self._count(lease, messages)
                    limit -= len(messages)
                    size += sum(len(message.payload) for message in messages)
                if gone := [offset for offset in offsets if offset not in there]:
                    self._books.store(self._machine.ack(lease, gone))
                    self._books.commit.kick()
        return is_more, limit, size

    def _count(self, lease: Lease, messages: Sequence[Message]) -> None:
        retried = [message.offset for message in messages if message.attempt > 1]
        if retried:
            self._counts.retries += len(retried)
            self._on_retry("redelivered", self._books.id, self._supply.name(lease.lane[0]), retried, lease.who)

    def _give_up(self, lease: Lease, spent: list[int], there: dict[int, Message], now: Moment) -> None:
        """Messages that no other consumer is to get are dead letters."""
        self.given_up += len(spent)
        for offset in spent:
            known = {(lease.lane, offset): there.pop(offset)}
            self._machine.dead_room = self._books.dead.room(known)
            self._books.store(self._machine.give_up(lease, offset, now), known)
        self._books.commit.kick()


def _runs(places: Sequence[tuple[LaneId, int]], step: int) -> Iterator[tuple[LaneId, list[int]]]:
    """Offsets of one lane that follow each other, at most so many at once."""
    for lane, run in groupby(places, key=lambda place: place[0]):
        offsets = [offset for _, offset in run]
        for at in range(0, len(offsets), step):
            yield lane, offsets[at : at + step]


def _ascending(offsets: list[int]) -> Iterator[list[int]]:
    """The same in the same order, cut where it goes back. Each has a lease of its own: clients say what they mean by
    ranges of what came in one frame, and with offsets that go on across frames no other of the lease lies within."""
    start = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] < offsets[at - 1]:
            yield offsets[start:at]
            start = at
