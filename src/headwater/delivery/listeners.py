"""Listeners: who is subscribed to what, and who is to be told of a batch.

`on_durable` and everything that changes the tree of filters run in the committing role, so that a subscriber joins
between two groups: no gap, no repeat. Where very many are to be told, `fan_outs` does that in slices, and in the same
order. `show` alone runs in a publisher's thread: it tells live subscriptions of a batch that nobody waits for while an
earlier group may still be on its way to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Flag, auto
from functools import partial
from typing import Any

from headwater import threads
from headwater.config import Config
from headwater.delivery.fan_out import ALL, TURN_MAX, Audience, FanOut, FanOuts, Listener
from headwater.log.publish import Publish
from headwater.log.root import Root
from headwater.memo import Memo
from headwater.store.batch import Batch
from headwater.topics.name import root_of
from headwater.topics.patterns import Patterns
from headwater.topics.tree import Trees

NAMES_AT_ONCE = 256
"""Topics of a batch whose listeners are looked up at once; those of more, some at a time."""
NAMES_MATCHED_MAX = 64
"""Dictionaries of topics whose listeners are remembered, as the same devices tend to report together."""


class Hearing(Flag):
    """Who hears of a topic."""

    NOBODY = 0
    LIVE = auto()
    """Somebody who is given what is shown before it is on disk."""
    STORED = auto()
    """Somebody who is not."""


EVERYBODY = Hearing.LIVE | Hearing.STORED


class Listeners:
    """All who listen: live subscriptions, readings that follow, and durable subscriptions that somebody takes from."""

    def __init__(self, config: Config, run: Callable[[Callable[[], None]], Any]) -> None:
        """`run` does something in the committing role."""
        self._run = run
        self._trees: Trees[Listener] = Trees(config)
        self.is_any = False
        """Whether there are any in the trees."""
        self._tree_lock = threads.Lock()
        """Held for a look at the trees, or a change of them, and nothing else."""
        self._matched: Memo[tuple[str, ...], Audience] = Memo(NAMES_MATCHED_MAX)
        self._sought: list[Audience] = []
        """Those that are being looked up."""
        self.fan_outs = FanOuts(self._look_up)
        self.patterns = Patterns(config)
        """Of filters of durable subscriptions, whether or not somebody takes from them, and of those who listen."""
        self._owners: dict[Listener, tuple[str, str]] = {}
        """Those who listen for a client: whom, and to what. Durable subscriptions count whether or not they do."""

    def on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> Callable[[Publish], None] | None:
        """Messages are on disk: tell those whose filters match. What is not over yet of that, if anything, has what
        this answers finish clients' publishes."""
        late: dict[str, FanOut] = {}
        names: tuple[str, ...] | None = None
        left = TURN_MAX
        for batches in appended.values():
            for batch in batches:
                found = batch.body.names
                if found is not names:  # those of one publisher tend to have the same topics
                    names, audience = found, self._audience(found)
                left, fan_out = self.fan_outs.tell(batch, audience, left)
                if fan_out is not None:
                    late[batch.root] = fan_out
        return partial(self._finish_after, late) if late else None

    def _finish_after(self, late: Mapping[str, FanOut], item: Publish) -> None:
        """Have a publish answered once all were told of it."""

        def finish() -> None:
            if item.is_waiting:
                item.finish()

        self.fan_outs.when_over([late[part.root] for part in item.parts if part.root in late], finish)

    def may_show(self, root: str) -> bool:
        """Whether what a root brings may be shown at once: else it comes after what is still being delivered."""
        return root not in self.fan_outs.by_root

    def show(self, batch: Batch) -> None:
        """Tell live subscriptions of messages that nobody waits for and that are not on disk yet; from any thread."""
        if batch.topic is None:
            audience = self._audience(batch.body.names)
        else:
            with self._tree_lock:
                audience = Audience(self._trees.match(batch.topic))
        self.fan_outs.tell(batch, audience, TURN_MAX)

    def hears_alone(self, topic: str) -> bool:
        """Whether somebody listens to a topic whose filter names its root."""
        with self._tree_lock:
            return self._trees.has(root_of(topic)) and bool(self._trees.match(topic))

    @property
    def may_show_here(self) -> bool:
        """Whether whoever publishes may show it in a thread of its own: not where a server's loop serves live
        subscriptions."""
        return not self.fan_outs.is_served

    def hearing(self, topic: str) -> Hearing:
        """Who would be told of a message now."""
        found = Hearing.NOBODY
        for listener in self._audience((topic,)).whole:
            found |= Hearing.LIVE if listener.takes_early else Hearing.STORED
            if found == EVERYBODY:
                break
        return found

    def _audience(self, names: tuple[str, ...]) -> Audience:
        """Who is to hear of a batch with these topics, and of which of them."""
        with self._tree_lock:
            if len(names) == 1:
                return Audience(self._trees.match(names[0]))
            known = self._matched.known.get(names)
            if known is None:
                known = self._matched.keep(names, Audience.of(names))
                if len(names) <= NAMES_AT_ONCE:
                    known.look_up(self._trees.match, NAMES_AT_ONCE)
                else:
                    self._sought.append(known)
            return known

    def _look_up(self, audience: Audience, limit: int) -> None:
        """Go on with finding those who are to hear of a batch with many topics."""
        with self._tree_lock:
            if not audience.is_known:
                audience.look_up(self._trees.match, limit)
                if audience.is_known:
                    self._sought.remove(audience)

    def _before_change(self) -> None:
        """Who is subscribed to what changes now: what was published before is for those who were."""
        for audience in self._sought:
            audience.look_up(self._trees.match, ALL)
        self._sought.clear()
        self._matched.forget()

    def listen(self, filter: str, listener: Listener, owner: str = "") -> None:
        """Tell a listener from now on; its filter counts in its owner's share."""

        def listen() -> None:
            if owner:
                self.patterns.check(owner, filter)
                self.patterns.add(owner, filter)
                self._owners[listener] = owner, filter
            self.add(filter, listener)

        self._run(listen)

    def leave(self, listener: Listener) -> None:
        """Tell it no more. A fan-out to very many that is under way may still tell it once; it pays no heed to that."""

        def leave() -> None:
            if (owned := self._owners.pop(listener, None)) is not None:
                self.patterns.remove(*owned)
            self.remove(listener)

        self._run(leave)

    def add(self, filter: str, listener: Listener) -> None:
        """The same, in the committing role, of one that counts in nobody's share."""
        with self._tree_lock:
            self._before_change()
            self._trees.add(filter, listener)
            self.is_any = True

    def remove(self, listener: Listener) -> None:
        """The opposite."""
        with self._tree_lock:
            self._before_change()
            self._trees.remove_all(listener)
            self.is_any = not self._trees.is_empty

    @property
    def count(self) -> int:
        """How many pairs of a filter and a listener there are."""
        return len(self._trees)
