"""What happened to the messages of a subscription, put together from all places that record it. Values alone, no I/O.

- Its rows and dead letters have those that failed and are not done. What is below the floor and not dead was acked.
- Where the life of its messages is told (`states="stream"`), that has the rest: how often each was tried, how long its
  consumer had it, what went wrong before it was acked, and that it was given up on though its letter is gone.

Rows are on disk before anybody hears of them, and what is told comes a moment later, and not at all where a process is
killed: where both differ rows are right, but they forget a letter that is dropped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from headwater.delivery.life import LOST, OPENED, REDRIVEN, LifeEntry
from headwater.delivery.options import Options
from headwater.message import DeadLetter, StateInfo, SubscriptionInfo
from headwater.topics.name import root_of
from headwater.work.comparison import TEXT_CHARS_MAX, End, Outcome

ATTEMPTS_MAX = 10
"""How often a message is tried of a subscription that has no limit."""
FAILED = frozenset(("nacked", "timed_out", "vanished", "held", "dead"))
"""Events that end an attempt, and are no ack."""
MICROSECOND = timedelta(microseconds=1)


class Past:
    """What happened to the messages of a subscription."""

    def __init__(self, info: SubscriptionInfo, options: Mapping[str, Any], told_on: str, *, is_told: bool) -> None:
        given = {name: value for name, value in options.items() if name in Options.__struct_fields__}
        self.options = Options(id=info.id, filter=info.filter, **{**given, "order": info.order})
        self.told_on = told_on if is_told or self.options.states == "stream" else None
        """The topic on which the life of its messages is told; None if it is not."""
        self.lost = 0
        """Entries that are known to be missing there."""
        self._floors = info.floors
        self._known: dict[tuple[str, int], Outcome] = {}
        self._stories: dict[tuple[str, int], Story] = {}
        self._asked: dict[str, list[int]] = {}
        """By root, the offsets of messages of which the story is wanted, in order."""

    @property
    def attempts_max(self) -> int:
        """How often a message is tried."""
        return min(self.options.max_attempts or ATTEMPTS_MAX, ATTEMPTS_MAX)

    def add_states(self, states: Iterable[StateInfo]) -> None:
        """What is known of messages above the floor."""
        for one in states:
            end: End = "acked" if one.state == "acked" else "dead" if one.state == "dead" else "waiting"
            if one.attempts and end == "waiting":
                end = "retry"
            attempts = one.attempts if end in ("retry", "dead") else None
            self._known[one.root, one.offset] = Outcome(end, attempts, _cut(one.error))

    def add_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Messages that were given up on."""
        for one in letters:
            error = _cut(one.errors[-1]) if one.errors else None
            self._known[root_of(one.topic), one.offset] = Outcome("dead", one.attempts, error)

    # As it was told

    def ask(self, root: str, offset: int) -> None:
        """What became of this message is going to be asked for: nothing is kept of others."""
        asked = self._asked.setdefault(root, [])
        if asked and offset < asked[-1]:
            insort(asked, offset)
        else:
            asked.append(offset)

    def tell(self, entry: LifeEntry) -> None:
        """One entry more, in their order."""
        if entry.event == LOST:
            self.lost += entry.count
        elif entry.event == OPENED and not entry.ranges:
            for story in self._stories.values():
                story.reopen()
        elif entry.root is not None:
            for offset in self._asked_in(entry):
                self._stories.setdefault((entry.root, offset), Story()).tell(entry)

    def _asked_in(self, entry: LifeEntry) -> Iterator[int]:
        asked = self._asked.get(entry.root or "", [])
        for first, last in entry.ranges:
            yield from asked[bisect_left(asked, first) : bisect_right(asked, last)]

    # What became of it

    def of(self, root: str, offset: int) -> Outcome:
        """What became of a message."""
        known = self._known.get((root, offset))
        story = self._stories.get((root, offset))
        if known is None:
            known = Outcome("acked" if offset <= self._floors.get(root, 0) else "waiting")
            if story is not None and (known.end == "waiting" or story.event in ("dead", REDRIVEN)):
                known = Outcome(story.end)
        return known if story is None else story.beside(known)


class Story:
    """What was told of one message, up to now."""

    __slots__ = ("attempts", "error", "event", "state", "taken", "took_us")

    def __init__(self) -> None:
        self.event = ""
        """The last of them,"""
        self.state = "pending"
        """and the state since."""
        self.attempts = 0
        """How many of them have ended."""
        self.error: str | None = None
        self.taken: datetime | None = None
        """When it was handed out, if it is in flight."""
        self.took_us: int | None = None

    def tell(self, entry: LifeEntry) -> None:
        """One entry more about it."""
        if entry.event == "taken":
            self.taken = entry.time
        elif entry.event in FAILED or entry.event == "acked":
            if self.taken is not None and self.took_us is None:
                self.took_us = max(0, (entry.time - self.taken) // MICROSECOND)
            self.attempts += 1
            self.error = entry.error or self.error
        if entry.event != "taken":
            self.taken = None
        self.event, self.state = entry.event, entry.state or self.state

    def reopen(self) -> None:
        """Its subscription is served again: what was in flight is pending."""
        if self.state == "in_flight":
            self.state, self.taken = "pending", None

    @property
    def end(self) -> End:
        """How far it came."""
        if self.state == "acked":
            return "acked"
        if self.state == "dead":
            return "dead"
        return "retry" if self.attempts else "waiting"

    def beside(self, known: Outcome) -> Outcome:
        """The same as what is known of it, with what was told."""
        is_whole = known.end == self.end  # else its last entries are missing
        attempts = self.attempts if is_whole and known.attempts is None else known.attempts
        error = known.error if known.error is not None else _cut(self.error)
        return Outcome(known.end, attempts, error, self.took_us)


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:TEXT_CHARS_MAX]
