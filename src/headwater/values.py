"""Retained messages as a mapping: the last value of each topic, and what becomes of it.

    values = bus.retained("home/#")
    values["home/kitchen/temp"].payload
    for change in values.watch():
        print(change.topic, change.payload)      # no payload: it was cleared

A mapping is as of when it was asked for, and a watch of it goes on from there: no change is missed, and none comes that
it has already. What was watched is in the mapping by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from headwater import html
from headwater.clock import SECOND_US, Clock
from headwater.delivery.reader import Reader, check_take
from headwater.message import Envelope, Message
from headwater.topics.name import filter_covers_root

E = TypeVar("E", bound=Envelope)


class Values(Mapping[str, E], Generic[E]):
    """Retained messages by topic, as they were when they were asked for."""

    def __init__(self, filter: str, ends: Mapping[str, int], found: Iterable[E]) -> None:
        """`ends` are how far each root went before the messages were looked for."""
        self.filter = filter
        self._ends = {root: end for root, end in ends.items() if filter_covers_root(filter, root)}
        self._found = {message.topic: message for message in found}

    def __getitem__(self, topic: str) -> E:
        return self._found[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f'<retained messages of "{self.filter}" (topics: {len(self)})>'

    def _repr_html_(self) -> str:
        rows = ((one.topic, html.shortened(one.payload), one.offset, one.time.isoformat()) for one in self.values())
        return html.table(("topic", "payload", "offset", "time"), rows, len(self))

    def note(self, messages: Iterable[E]) -> list[E]:
        """Take in what was published since; those messages that changed something."""
        changes = [message for message in messages if message.retain and self._is_new(message)]
        for message in changes:
            if message.payload:
                self._found[message.topic] = message
            else:
                self._found.pop(message.topic, None)
        return changes

    def _is_new(self, message: E) -> bool:
        known = self._found.get(message.topic)
        return known is None or known.offset < message.offset


class Retained(Values[Message]):
    """Retained messages by topic, as they were when they were asked for."""

    def __init__(
        self,
        filter: str,
        ends: Mapping[str, int],
        found: Iterable[Message],
        follow: Callable[[str, Mapping[str, int]], Reader],
        clock: Clock,
    ) -> None:
        super().__init__(filter, ends, found)
        self._follow = follow
        self._clock = clock

    def watch(self) -> Watch:
        """What changes from then on: messages with what is retained now, without a payload where it was cleared. The
        mapping has a change when it is handed out. A value whose ttl is over, or that is purged, is no change.

        It is given all messages that the filter matches, and shows those that are retained."""
        return Watch(self, self._follow(self.filter, self._ends), self._clock)


class Watch(Reader):
    """Changes of retained messages, one after another; iterate it, or ask with `next` and `batch`."""

    def __init__(self, values: Retained, reading: Reader, clock: Clock) -> None:
        self.filter = values.filter
        self._values = values
        self._reading = reading
        self._clock = clock

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        check_take(max, timeout_s)
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            left_s = None if until_us is None else (until_us - self._clock.monotonic_us()) / SECOND_US
            found = self._reading.batch(max, left_s)
            changes = self._values.note(found)
            if changes or not found:
                return changes

    def __iter__(self) -> Iterator[Message]:
        while changes := self.batch():
            yield from changes

    def close(self) -> None:
        self._reading.close()
