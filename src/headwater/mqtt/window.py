"""The window: messages that were sent with a number and are not done with yet, by their numbers.

A number is in use until its message is done with, and belongs to it for as long as the session lasts: what is sent
again after a lost connection goes with the number that it had. Promises: never more messages than the client takes at
once have a number; a number means one message at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headwater.message import Headers, Kept
from headwater.mqtt.kinds import Kind
from headwater.mqtt.reasons import violation

NUMBER_MAX = 0xFFFF

WindowKey = tuple[int, str, int]
"""Which message of which subscription: the subscription's number, a root, and an offset in it; below 0, the offset of a
retained message's copy."""


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A message that waits for one client alone."""

    topic: str
    payload: bytes
    key: bytes | None
    headers: Headers
    expires_us: int = 0
    retain: bool = False

    def message(self) -> Kept:
        """As it is sent."""
        return Kept(
            self.topic, 0, self.payload, 0, self.key, self.headers, expires_us=self.expires_us, retain=self.retain
        )


class Sent(msgspec.Struct, array_like=True):
    """A message on its way to the client; also as it is stored."""

    place: WindowKey
    qos: int = 1
    is_received: bool = False
    """Of QoS 2: whether the client has it, and only its number is still in use."""
    lease: int = 0
    is_stored: bool = True
    """Whether a row tells of it."""
    copy: Copy | None = None
    """Of QoS 2 and a shared subscription: the message itself, as the others who share it are not to get it."""
    others: tuple[int, ...] = ()
    """Other subscriptions of the session to which it is done with when it is to its own."""


class Window:
    """What is on its way to one client."""

    __slots__ = ("_known_numbers", "_last", "_sent", "behind", "moved", "size")

    def __init__(self) -> None:
        self.size = 0
        """How many messages the client takes at once."""
        self._sent: dict[int, Sent] = {}
        self.behind: dict[WindowKey, tuple[int, Sent]] = {}
        """What was sent over an earlier connection, was not acknowledged there, and has yet to come again,"""
        self._known_numbers: set[int] = set()
        """and its numbers."""
        self.moved: set[WindowKey] = set()
        """Messages of subscriptions that have ended since they were sent; to these others they are sent already."""
        self._last = 0

    @property
    def room(self) -> int:
        """How many more messages may be sent."""
        return max(0, self.size - len(self._sent))

    def add(
        self, subscription: int, root: str, offsets: Sequence[int], qos: int, lease: int, others: tuple[int, ...] = ()
    ) -> tuple[list[int], list[int]]:
        """The numbers that messages go with, and which of them, by their places, went with theirs before."""
        there, taken, last = self._sent, self._known_numbers, self._last
        numbers: list[int] = []
        again: list[int] = []
        for offset in offsets:
            place = (subscription, root, offset)
            if place in self.behind:
                number, sent = self._forget(place)
                sent.lease = lease
                if others:
                    sent.others = others
                again.append(len(numbers))
            else:
                last = last % NUMBER_MAX + 1
                while last in there or last in taken:
                    last = last % NUMBER_MAX + 1
                number, sent = last, Sent(place, qos, False, lease, False, None, others)
            there[number] = sent
            numbers.append(number)
        self._last = last
        return numbers, again

    def qos_of(self, place: WindowKey) -> int | None:
        """The QoS of what was sent over an earlier connection."""
        known = self.behind.get(place)
        return None if known is None else known[1].qos

    def take(self, numbers: Sequence[int]) -> list[tuple[int, Sent]]:
        """What numbers stood for, which are free again."""
        pop = self._sent.pop
        found = [(number, sent) for number in numbers if (sent := pop(number, None)) is not None]
        if self.moved:
            self.moved.difference_update(sent.place for _, sent in found)
        return found

    def get(self, number: int) -> Sent | None:
        """What a number stands for."""
        return self._sent.get(number)

    def check(self, kind: Kind, numbers: Sequence[int]) -> None:
        """Refuse what is not the next word about a message: QoS 1 has a PUBACK, QoS 2 a PUBREC and then a PUBCOMP."""
        known = self._sent.get
        there = [sent for sent in map(known, numbers) if sent is not None]
        match kind:
            case Kind.PUBACK:
                is_wrong = any(sent.qos != 1 for sent in there)
            case Kind.PUBREC:
                is_wrong = any(sent.qos != 2 for sent in there)
            case Kind.PUBCOMP:
                is_wrong = any(not sent.is_received for sent in there)
            case _:
                is_wrong = False
        if is_wrong:
            raise violation(f"a {kind.name} came for a message of which another answer is due")

    def released(self) -> list[int]:
        """Numbers of messages that the client has, and has not said the last word about."""
        return [number for number, sent in self._sent.items() if sent.is_received]

    def copies(self) -> dict[int, Sent]:
        """Messages that were sent over an earlier connection and wait for this client alone; they are on their way
        again."""
        found = {number: sent for number, sent in self.behind.values() if sent.copy is not None}
        for number, sent in found.items():
            self._forget(sent.place)
            self._sent[number] = sent
        return found

    def suspend(self, comes_again: Callable[[Sent], bool]) -> dict[int, Sent]:
        """The connection is lost: what was sent comes again over the next one, with the number that it has. What does
        not."""
        waiting = {number: sent for number, sent in self._sent.items() if not sent.is_received}
        gone = {}
        for number, sent in waiting.items():
            del self._sent[number]
            if comes_again(sent):
                self._know(number, sent)
            else:
                gone[number] = sent
        self.moved.clear()
        return gone

    def restore(self, number: int, sent: Sent) -> None:
        """A number was found in the store, or stays in use."""
        if sent.is_received:
            self._sent[number] = sent
        else:
            self._know(number, sent)

    def _know(self, number: int, sent: Sent) -> None:
        self.behind[sent.place] = (number, sent)
        self._known_numbers.add(number)

    def _forget(self, place: WindowKey) -> tuple[int, Sent]:
        number, sent = self.behind.pop(place)
        self._known_numbers.discard(number)
        return number, sent

    def forget(self, is_gone: Callable[[WindowKey], bool]) -> dict[int, Sent]:
        """What was to come again and does not, and its numbers."""
        return dict(map(self._forget, filter(is_gone, tuple(self.behind))))

    def move(self, subscription: int, heir: Callable[[Sent], int | None]) -> dict[int, Sent]:
        """A subscription has ended: what was sent of it is that of the others that brought it along, if there are any
        left. What was moved so."""
        moved = {}
        there = [*self.behind.values(), *self._sent.items()]
        for number, sent in there:
            _, root, offset = before = sent.place
            to = heir(sent) if before[0] == subscription and not sent.is_received else None
            if to is None:
                continue
            sent.place, sent.lease = (to, root, offset), 0
            sent.others = sent.others[sent.others.index(to) + 1 :]
            moved[number] = sent
            if before in self.behind:
                self._forget(before)
                self._know(number, sent)
            else:
                self.moved.add(sent.place)
        return moved

    def sent_of(self, subscription: int) -> set[tuple[str, int]]:
        """Messages of a subscription that are on their way over this connection: their roots and offsets."""
        return {sent.place[1:] for sent in self._sent.values() if sent.place[0] == subscription}

    def unstored(self) -> dict[int, Sent]:
        """What no row tells of yet."""
        there = [*self.behind.values(), *self._sent.items()]
        return {number: sent for number, sent in there if not sent.is_stored}
