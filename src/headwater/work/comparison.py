"""What new code would do with recorded messages, beside what happened to them. Values alone, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from headwater.message import Envelope
from headwater.topics.name import root_of

End = Literal["acked", "retry", "dead", "waiting"]
"""How far a message came: done, failed and to be tried again, given up on, or not handled yet."""
Change = Literal["fails", "succeeds", "retries", "publishes", "longer"]
"""How that differs, in the order in which it matters."""

CHANGES: Mapping[Change, str] = {
    "fails": "newly fail",
    "succeeds": "newly succeed",
    "retries": "need another attempt",
    "publishes": "publish something else",
    "longer": "take longer",
}
LONGER_SHARE = 2.0
"""What takes so many times as long as with the other code,"""
LONGER_US_MIN = 1000
"""and at least so much more, takes longer."""
TEXT_CHARS_MAX = 1000
"""Of a payload or an error that is kept to be shown."""
LOOKED_AHEAD = 128
"""How far what was published is looked for, where it is not the next."""


class Published(msgspec.Struct, frozen=True):
    """A message that the code would publish."""

    topic: str
    payload: bytes
    """The beginning of it."""
    size: int
    key: bytes | None
    verb: str
    """publish, send, request or reply."""
    digest: bytes
    """Of all of it."""

    @property
    def name(self) -> tuple[str, bytes]:
        """What it is compared by."""
        return self.topic, self.digest


class Outcome(msgspec.Struct, frozen=True):
    """What became of a message."""

    end: End
    attempts: int | None = None
    """How often it was tried; None if that is not known."""
    error: str | None = None
    """Of the last attempt that failed."""
    took_us: int | None = None
    """What the first attempt took, or of what happened, how long its consumer had it; None if that is not known."""
    published: tuple[Published, ...] | None = None
    """By all attempts; None if that is not known."""


class Trial(msgspec.Struct, frozen=True):
    """A message, what became of it, and what the new code would have done."""

    topic: str
    offset: int
    time_us: int
    before: Outcome
    after: Outcome
    changes: tuple[Change, ...] = ()


class Recorded:
    """What is in the log of the topics that the code would publish to, topic by topic and in order."""

    def __init__(self) -> None:
        self._topics: dict[str, list[bytes]] = {}

    def expect(self, published: Iterable[Published]) -> None:
        """These are to be looked for."""
        for one in published:
            if is_compared(one):
                self._topics.setdefault(one.topic, [])

    @property
    def filters(self) -> list[str]:
        """Where they would be."""
        return [f"{root}/#" for root in sorted({root_of(topic) for topic in self._topics})]

    def add(self, message: Envelope) -> None:
        """A message that is there."""
        there = self._topics.get(message.topic)
        if there is not None:
            there.append(digest_of(message.payload))

    def missing(self, trials: Sequence[Trial]) -> set[int]:
        """The places of trials with something that is not there, of those that were done before: what they published
        then is in the log."""
        wanted: dict[str, list[tuple[int, bytes]]] = {}
        for place, trial in enumerate(trials):
            if trial.before.end == "acked":
                for one in filter(is_compared, trial.after.published or ()):
                    wanted.setdefault(one.topic, []).append((place, one.digest))
        return {
            places[at][0]
            for topic, places in wanted.items()
            for at in unmatched([digest for _, digest in places], self._topics.get(topic, []))
        }


def is_compared(published: Published) -> bool:
    """Whether it can be looked for: answers, and what else the broker keeps for itself, are of a moment."""
    return not published.topic.startswith("$")


def unmatched(wanted: Sequence[bytes], there: Sequence[bytes]) -> list[int]:
    """Places of what is wanted and not there, in this order: where both part, as little as can be is left out of the
    next of both."""
    found: list[int] = []
    at = place = 0
    while place < len(wanted):
        if at < len(there) and there[at] == wanted[place]:
            at, place = at + 1, place + 1
            continue
        next_wanted, next_there = wanted[place : place + LOOKED_AHEAD], there[at : at + LOOKED_AHEAD]
        is_end = place + LOOKED_AHEAD >= len(wanted) and at + LOOKED_AHEAD >= len(there)
        pairs = _common(next_wanted, next_there)
        if not is_end:  # what is far ahead is looked at again, with more behind it
            pairs = [pair for pair in pairs if max(pair) < LOOKED_AHEAD // 2] or pairs[:1]
        whole = len(next_wanted) if is_end or not pairs else pairs[-1][0] + 1
        matched = {one for one, _ in pairs}
        found += [place + one for one in range(whole) if one not in matched]
        place += whole
        at += pairs[-1][1] + 1 if pairs else 0
    return found


def _common(some: Sequence[bytes], others: Sequence[bytes]) -> list[tuple[int, int]]:
    """Places of the longest that both have in the same order."""
    lengths = [[0] * (len(others) + 1)]
    for one in reversed(some):
        below, row = lengths[-1], [0] * (len(others) + 1)
        for at in range(len(others) - 1, -1, -1):
            row[at] = below[at + 1] + 1 if one == others[at] else max(below[at], row[at + 1])
        lengths.append(row)
    lengths.reverse()
    pairs: list[tuple[int, int]] = []
    place = at = 0
    while place < len(some) and at < len(others):
        if some[place] == others[at]:
            pairs.append((place, at))
            place, at = place + 1, at + 1
        elif lengths[place + 1][at] > lengths[place][at + 1]:
            place += 1
        else:
            at += 1
    return pairs


class Comparison(msgspec.Struct, frozen=True):
    """What new code would do with the messages of a subscription, beside what happened, or what other code does."""

    subscription: str
    filter: str
    handler: str
    against: str | None
    """The other code; None if it is what happened that was compared with."""
    messages: int
    is_cut: bool
    """Whether there were more, which were left out."""
    counts: dict[Change, int]
    """How many messages change in which way; one may be in several."""
    ends: dict[str, int]
    """How many messages went from what to what: "acked → dead"."""
    trials: list[Trial]
    """Every message, in order."""
    notes: tuple[str, ...] = ()
    """What could not be compared, and what was missing."""

    @property
    def changed(self) -> list[Trial]:
        """Messages with which something else would happen."""
        return [trial for trial in self.trials if trial.changes]

    def of(self, change: Change) -> list[Trial]:
        """Those that change in a way."""
        return [trial for trial in self.trials if change in trial.changes]

    def took_us(self, share: float) -> int:
        """So long did the new code take for a message, at most, with this share of them."""
        found = sorted(trial.after.took_us or 0 for trial in self.trials)
        return found[min(len(found) - 1, int(share * len(found)))] if found else 0

    def html(self) -> str:
        """A page with a picture, that needs nothing from elsewhere."""
        from headwater.work.report import page

        return page(self)

    def __repr__(self) -> str:
        said = ", ".join(f"{count} {CHANGES[change]}" for change, count in self.counts.items() if count)
        return f'<what if {self.handler} had "{self.subscription}": {self.messages} messages, {said or "no change"}>'


def compared(trials: Sequence[Trial], recorded: Recorded | None, limit_us: int) -> list[Trial]:
    """The same, with how each differs; `recorded` is None where it is other code that was compared with. What takes
    longer than the limit is handed out again."""
    missing = set() if recorded is None else recorded.missing(trials)
    return [
        msgspec.structs.replace(trial, changes=_changes(trial, place in missing, limit_us))
        for place, trial in enumerate(trials)
    ]


def _changes(trial: Trial, is_missing: bool, limit_us: int) -> tuple[Change, ...]:
    before, after = trial.before, trial.after
    found: list[Change] = []
    if after.end == "dead" and before.end == "acked":
        found.append("fails")
    if after.end == "acked" and before.end in ("dead", "retry"):
        found.append("succeeds")
    if after.end == before.end == "acked" and (after.attempts or 1) > (before.attempts or 1):
        found.append("retries")
    if before.end == "acked" and (is_missing if before.published is None else _names(before) != _names(after)):
        found.append("publishes")
    if _is_longer(before.took_us, after.took_us or 0, limit_us):
        found.append("longer")
    return tuple(found)


def _names(outcome: Outcome) -> list[tuple[str, bytes]]:
    return [one.name for one in outcome.published or ()]


def _is_longer(before_us: int | None, after_us: int, limit_us: int) -> bool:
    if 0 < limit_us < after_us and (before_us is None or before_us <= limit_us):
        return True
    return before_us is not None and after_us > LONGER_SHARE * before_us and after_us - before_us >= LONGER_US_MIN


def digest_of(payload: bytes) -> bytes:
    """What a payload is compared by."""
    return blake2b(payload, digest_size=16).digest()


def published_of(verb: str, topic: str, payload: bytes, key: bytes | None = None) -> Published:
    """A message that would be published."""
    return Published(topic, payload[:TEXT_CHARS_MAX], len(payload), key, verb, digest_of(payload))
