"""Receiving: the numbers of a client's messages of QoS 2 that it has sent and not released yet.

The message itself carries its number. It is a batch of its own, of the producer "mqtt/" and the session's id, with
the sequence

    ├──────────────────────┼────────────────────┤
    │ counter (48 bits)    │ number (16 bits)   │
    └──────────────────────┴────────────────────┘

so that the sequences that its root remembers, and finds again after a crash, tell which numbers were stored. A row
says up to where that counts, and which older ones are open; it is written with each release. Promises: a message that
comes again before it is released is acknowledged and not stored again, though the server was killed meanwhile; a
number is free before its PUBCOMP leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from headwater.log.root import Root
from headwater.mqtt.reasons import MqttError, Reason
from headwater.mqtt.window import NUMBER_MAX
from headwater.store import state as rows

if TYPE_CHECKING:
    from headwater.mqtt.session import MqttSession

NUMBER_BITS = 16


class Open(msgspec.Struct, array_like=True, gc=False):
    """A message that is not released."""

    sequence: int
    root: str
    is_stored: bool = False
    is_released: bool = False
    """Whether the client is done with it, though that is not on disk yet."""
    is_unsure: bool = False
    """Whether nobody knows if it is stored, so that it may be there when the server starts again."""


class ReceivedRow(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of them."""

    upto: int
    """The last sequence that was given; a later one that a root knows is open."""
    open: tuple[Open, ...]
    """Those up to there."""


class Receiving:
    """The open numbers of one session."""

    __slots__ = ("_counter", "_open", "_session", "_under_way")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._counter = 0
        self._open: dict[int, Open] = {}
        self._under_way: Counter[int] = Counter()
        """How often each is on its way to be stored: again, after a lost connection, before the first is answered."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def producer(self) -> str:
        """Who stores them."""
        return f"mqtt/{self._session.row.id}"

    def take(self, number: int, root: str) -> int | None:
        """The sequence to store a message under; None if it is stored."""
        known = self._open.get(number)
        if known is not None and known.is_stored:
            return None
        if known is not None:
            self._under_way[number] += 1
            return known.sequence
        if len(self._open) >= self._session.sessions.serving.mqtt_receive_max:
            raise MqttError("more messages are under way than the server takes", Reason.RECEIVE_MAXIMUM_EXCEEDED)
        self._counter += 1
        sequence = self._counter << NUMBER_BITS | number
        self._open[number] = Open(sequence, root)
        self._under_way[number] = 1
        return sequence

    def on_stored(self, number: int) -> None:
        """A message is on disk."""
        self._under_way.pop(number, None)
        known = self._open.get(number)
        if known is not None:
            known.is_stored = True

    def on_failed(self, number: int) -> None:
        """Nobody knows whether a message is stored: the disk failed, or another node leads."""
        self._under_way.pop(number, None)
        known = self._open.get(number)
        if known is not None:
            known.is_unsure = True

    def is_unsure(self, number: int) -> bool:
        """Whether nobody knows if a message of this number is stored, whatever becomes of it when it comes again."""
        known = self._open.get(number)
        return known is not None and known.is_unsure

    def on_refused(self, number: int) -> None:
        """A message was not stored: its number is free, unless it is on its way still, from when it came before."""
        known = self._open.get(number)
        self._under_way[number] -= 1
        if self._under_way[number] > 0 or known is None:
            return
        del self._under_way[number]
        if not known.is_stored and not known.is_unsure:
            del self._open[number]

    def release(self, numbers: Sequence[int], then: Callable[[list[bool]], None]) -> None:
        """The client is done with these: `then` hears, once that is on disk, which of them were open."""
        known = [self._open.get(number) for number in numbers]
        freed = set()
        for one in known:
            if one is not None and one.is_stored:
                one.is_released = True
                freed.add(one.sequence)

        def stored(_: object, error: BaseException | None) -> None:
            if error is not None:
                return  # nothing can be noted any more; the client hears nothing, and asks again
            for number in numbers:
                one = self._open.get(number)
                if one is not None and one.sequence in freed:
                    del self._open[number]
            then([one is not None and one.sequence in freed for one in known])

        row = self._row() if freed else None
        key = rows.RECEIVED + self._session.row.id.encode()
        self._session.sessions.write({} if row is None else {key: rows.pack(row)}, stored)

    def _row(self) -> ReceivedRow:
        still = tuple(one for one in self._open.values() if not one.is_released)
        return ReceivedRow(self._counter << NUMBER_BITS | NUMBER_MAX, still)

    def recover(self, row: ReceivedRow | None, roots: Sequence[Root]) -> None:
        """Find out what was open; in the committing role."""
        upto = row.upto if row is not None else -1
        there = {one.sequence: one for one in (row.open if row is not None else ())}
        last, found = max(upto, 0), [one for one in there.values() if one.is_stored]
        for root in roots:
            for sequence in root.producers.sequences(self.producer):
                last = max(last, sequence)
                if sequence > upto or (sequence in there and not there[sequence].is_stored):
                    found.append(Open(sequence, root.name, is_stored=True))
        self._counter = last >> NUMBER_BITS
        self._open = {one.sequence & NUMBER_MAX: one for one in sorted(found, key=lambda one: one.sequence)}
