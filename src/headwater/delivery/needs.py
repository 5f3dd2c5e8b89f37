"""What some of many subscriptions want of a root, above the floor of each: found with one look at the log for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.cursor import SLICE_BATCHES, SLICE_BYTES, UNREAD, Budget, Cursor, Matcher
from headwater.log.root import Root
from headwater.memo import Memo
from headwater.store.batch import Batch
from headwater.store.body import Body
from headwater.store.log import Hole
from headwater.topics.tree import Trees

NOTHING = 1 << 63
"""A floor above every message."""
TOPICS_MAX = 100_000
"""Topics of which it is remembered how far they are needed."""
CHECK_EVERY = 64
"""Subscriptions that are looked at in one go; then others have their turn."""


class Needs(Matcher):
    """What some of many subscriptions want: by topic, the lowest of their floors."""

    __slots__ = ("_floors", "_highest", "_known", "_trees")

    def __init__(
        self,
        config: Config,
        filters: Iterable[tuple[str, str]],
        floors: dict[str, int],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Of ids and filters; `check` is called again and again, and may raise."""
        super().__init__("#")
        self._floors = floors
        self._highest = max(floors.values())
        self._trees: Trees[str] = Trees(config)
        self._known: Memo[str, int] = Memo(TOPICS_MAX)
        for number, (name, wanted) in enumerate(filters):
            if not number % CHECK_EVERY:
                check()
            self._trees.add(wanted, name)

    @property
    def lowest(self) -> int:
        """The lowest of all floors."""
        return min(self._floors.values())

    @property
    def highest(self) -> int:
        """The highest of them."""
        return self._highest

    def match(self, topic: str) -> Sequence[str]:
        """Those who want messages of a topic."""
        return self._trees.match(topic)

    def floor(self, topic: str) -> int:
        """Messages of a topic above this are wanted by somebody."""
        known = self._known.known.get(topic)
        if known is not None:
            return known
        return self._known.keep(topic, min(map(self._floors.__getitem__, self._trees.match(topic)), default=NOTHING))

    def who(self, topic: str, offset: int) -> list[str]:
        """Those who want a message."""
        return [name for name in self._trees.match(topic) if self._floors[name] < offset]

    def select(self, body: Body) -> Sequence[int] | None:
        floor = self.floor
        chosen = [number for number, name in enumerate(body.names) if floor(name) < NOTHING]
        return None if len(chosen) == len(body.names) else body.places_of(chosen)


def first_needed(
    root: Root,
    needs: Needs,
    last: int,
    is_done: Callable[[str, int], bool],
    config: Config,
    clock: Clock,
    check: Callable[[], None],
) -> int:
    """The first message above the lowest floor that somebody wants who is not done with it, or a gap of which somebody
    has yet to hear; one past `last` if there is none. `check` is called again and again, and may raise."""
    cursor, now_us = Cursor(root, needs, needs.lowest + 1, config), clock.now_us()
    while True:
        check()
        found = cursor.look(now_us, last, Budget())
        if found is UNREAD:
            cursor.read_on(now_us, last, Budget(SLICE_BATCHES, SLICE_BYTES))
        elif found is None:
            return last + 1
        elif isinstance(found, Hole):
            return min(found.first, last + 1)
        elif (offset := _first_in(*found, needs, last, is_done)) is not None:
            return offset


def _first_in(
    batch: Batch, places: Sequence[int], needs: Needs, last: int, is_done: Callable[[str, int], bool]
) -> int | None:
    first = batch.first_offset
    for place, topic in zip(places, batch.body.topics_at(places), strict=True):
        offset = first + place
        if needs.floor(topic) < offset <= last and not all(is_done(name, offset) for name in needs.who(topic, offset)):
            return offset
    return None


def count_above(root: Root, needs: Needs, config: Config, clock: Clock, last: int, found: Counter[str]) -> bool:
    """Add up how many messages each of these subscriptions wants of a root, above its floor and up to an offset; one
    look at the log for all. Answers whether it stays like that: none of them expires."""
    is_lasting = True
    cursor, now_us = Cursor(root, needs, needs.lowest + 1, config), clock.now_us()
    while (read := cursor.next(now_us, last)) is not None:
        if isinstance(read, Hole):
            continue
        batch, places = read
        is_lasting = is_lasting and batch.body.expiries is None
        topics = batch.body.topics_at(places)
        if batch.first_offset > needs.highest:
            for topic, count in Counter(topics).items():
                found.update(dict.fromkeys(needs.match(topic), count))
        else:
            for place, topic in zip(places, topics, strict=True):
                found.update(needs.who(topic, batch.first_offset + place))
    return is_lasting
