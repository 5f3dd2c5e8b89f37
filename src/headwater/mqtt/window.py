"""The window: messages that were sent with a number and are not acknowledged yet, by their numbers.

A number is in use until its message is done with, and belongs to it for as long as the session lasts: what is sent
again after a lost connection goes with the number that it had. Promises: never more messages than the client takes at
once have a number; a number means one message at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

NUMBER_MAX = 0xFFFF

Place = tuple[str, str, int]
"""Which message of which subscription: the subscription's id, a root, and an offset in it."""


class Sent(msgspec.Struct, gc=False):
    """A message on its way to the client."""

    place: Place
    subscriber: int
    lease: int
    is_received: bool = False
    """Of QoS 2: whether the client has it, and only its number is still in use."""


class Window:
    """What is on its way to one client."""

    __slots__ = ("_known", "_last", "_sent", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        """How many messages the client takes at once."""
        self._sent: dict[int, Sent] = {}
        self._known: dict[Place, int] = {}
        """Numbers of what was sent over an earlier connection, and not acknowledged there."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def room(self) -> int:
        """How many more messages may be sent."""
        return max(0, self.size - len(self._sent))

    def add(self, sent: Sent) -> tuple[int, bool]:
        """The number that a message goes with, and whether it went with it before."""
        known = self._known.pop(sent.place, 0) if self._known else 0
        if known:
            self._sent[known] = sent
            return known, True
        number = self._last
        while True:
            number = number % NUMBER_MAX + 1
            if number not in self._sent and not self._is_kept(number):
                break
        self._last = number
        self._sent[number] = sent
        return number, False

    def _is_kept(self, number: int) -> bool:
        return bool(self._known) and number in self._known.values()

    def take(self, number: int) -> Sent | None:
        """What a number stood for, which is free again."""
        return self._sent.pop(number, None)

    def get(self, number: int) -> Sent | None:
        """What a number stands for."""
        return self._sent.get(number)

    def suspend(self) -> None:
        """The connection is lost: what was sent comes again over the next one, with the numbers that it has."""
        self._known.update((sent.place, number) for number, sent in self._sent.items())
        self._sent.clear()

    def forget(self, subscriber: int, id: str) -> Iterable[Sent]:
        """A subscription has ended: its messages come no more. What was on its way."""
        gone = [number for number, sent in self._sent.items() if sent.subscriber == subscriber]
        for place in [place for place in self._known if place[0] == id]:
            del self._known[place]
        return [self._sent.pop(number) for number in gone]
