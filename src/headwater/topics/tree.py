"""Who subscribed to a topic: a radix tree of filters per root, its matches remembered per topic.

What holds at any time:

- A filter without wildcards is found by one look-up, as the topic that it spells; the branches hold the others.
- What mostly is one (the subscribers of a filter, the filters of a subscriber) is kept bare until there is a second,
  so that a million devices with a filter each fit into memory.
- A remembered match is right if it is as new as the last change that was noted, or if no change since then matches its
  topic. A change that concerns few topics is not noted: their matches are forgotten at once.

Nothing here locks: whoever owns the trees changes them and asks them under a lock of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import chain, islice
from typing import Generic, TypeVar, final

from headwater.config import Config
from headwater.topics.branch import Branch
from headwater.topics.name import is_wild, matches, root_of, root_of_filter

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
S = TypeVar("S", bound=Hashable)

SUBSCRIBERS_PER_REMEMBERED_TOPIC = 16
"""On average, in a full cache of matches; where topics have more subscribers than that, fewer are remembered."""

TOPICS_FORGOTTEN_AT_ONCE = 100
"""A wildcard change that may concern more remembered topics is noted instead, for each to be checked when asked for."""


@final
class Several(dict[V, None]):
    """Two or more values, in the order in which they came. A type of its own, since a value may be of any other."""

    __slots__ = ()


class Multimap(dict[K, V | Several[V]], Generic[K, V]):
    """A dict with any number of values per key: a single one is kept bare."""

    __slots__ = ()

    def put(self, key: K, value: V) -> bool:
        """Add a value to those of a key; False if it is there already."""
        if key not in self:
            self[key] = value
            return True
        there = self[key]
        if isinstance(there, Several):
            if value in there:
                return False
            there[value] = None
        elif there == value:
            return False
        else:
            self[key] = Several({there: None, value: None})
        return True

    def take(self, key: K, value: V) -> bool:
        """Remove a value from those of a key, and the key with its last; False if it is not there."""
        if value not in self.of(key):
            return False
        there = self[key]
        if not isinstance(there, Several):
            del self[key]
            return True
        del there[value]
        if len(there) == 1:
            (self[key],) = there
        return True

    def of(self, key: K) -> Several[V] | tuple[V, ...]:
        """All values of a key."""
        if key not in self:
            return ()
        there = self[key]
        return there if isinstance(there, Several) else (there,)


class Changes:
    """The wildcard filters that changed last, by which an older match may still be known to be right."""

    __slots__ = ("_branch", "_forgotten", "_kept_max", "_latest", "count")

    def __init__(self, kept_max: int) -> None:
        self.count = 0
        self._kept_max = kept_max
        self._latest: dict[str, int] = {}  # by filter: the number of its last change; the oldest first
        self._branch = Branch([])  # the same filters, to find those that match a topic
        self._forgotten = 0  # changes up to this one are not all known any more

    def note(self, filter: str) -> None:
        """A filter gained or lost a subscriber."""
        self.count += 1
        if self._latest.pop(filter, None) is None:
            self._branch.insert(filter)
        self._latest[filter] = self.count
        if len(self._latest) > self._kept_max:
            oldest = next(iter(self._latest))
            self._forgotten = max(self._forgotten, self._latest.pop(oldest))
            self._branch.remove(oldest)

    def note_those_of(self, others: Changes, since: int) -> None:
        """Note what changed elsewhere after the first `since` changes there."""
        if since < others._forgotten:
            self.count += 1
            self._forgotten = self.count
        for changed, number in others._latest.items():
            if number > since:
                self.note(changed)

    def may_concern(self, levels: list[str], since: int) -> bool:
        """Whether a filter that matches a topic changed after the first `since` changes, as far as is known."""
        return since < self._forgotten or any(self._latest[each] > since for each in self._branch.find(levels))


class Tree(Generic[S]):
    """The filters of one root and their subscribers.

    With `anywhere`, a tree of filters that begin with a wildcard, its matches count as this tree's own.
    """

    def __init__(self, config: Config, anywhere: Tree[S] | None = None) -> None:
        self._subscribers: Multimap[str, S] = Multimap()
        self._filters: Multimap[S, str] = Multimap()
        self._wild = Branch([])
        self._size = 0
        self._anywhere = anywhere
        self._changes: Changes = Changes(config.match_cache_changes)
        self._changes_anywhere = Changes(0) if anywhere is None else anywhere._changes
        self._count_anywhere = self._changes_anywhere.count
        # The remembered matches, and how many changes each reflects; apart, to spare the garbage collector an object.
        # One that has no stamp is as old as the first: a match is a single write while nothing changes.
        self._matches: dict[str, tuple[S, ...]] = {}
        self._stamps: dict[str, int] = {}
        self._stamp_first = 0
        self._near: Multimap[str, str] = Multimap()  # their topics by neighbourhood,
        self._placed = 0  # as far as these many, the first ones; the others when it is next asked for
        self._references = 0
        self._topics_max = config.match_cache_topics
        self._references_max = config.match_cache_topics * SUBSCRIBERS_PER_REMEMBERED_TOPIC

    def __len__(self) -> int:
        """How many pairs of a filter and a subscriber there are."""
        return self._size

    def __contains__(self, subscriber: S) -> bool:
        """Whether a subscriber has any filter here."""
        return subscriber in self._filters

    @property
    def is_empty(self) -> bool:
        """Whether nobody subscribed to anything."""
        return not self._size

    def filters_of(self, subscriber: S) -> tuple[str, ...]:
        """What a subscriber subscribed to."""
        return tuple(self._filters.of(subscriber))

    def add(self, filter: str, subscriber: S) -> bool:
        """Subscribe; False if that subscriber has that filter already."""
        is_new = filter not in self._subscribers
        if not self._subscribers.put(filter, subscriber):
            return False
        self._filters.put(subscriber, filter)
        self._size += 1
        if is_new and is_wild(filter):
            self._wild.insert(filter)
        self._changed(filter)
        return True

    def remove(self, filter: str, subscriber: S) -> bool:
        """Unsubscribe; False if that subscriber does not have that filter."""
        if not self._subscribers.take(filter, subscriber):
            return False
        self._filters.take(subscriber, filter)
        self._size -= 1
        if filter not in self._subscribers and is_wild(filter):
            self._wild.remove(filter)
        self._changed(filter)
        return True

    def match(self, topic: str) -> tuple[S, ...]:
        """The subscribers of a topic, each once."""
        if self._count_anywhere != self._changes_anywhere.count:
            self._changes.note_those_of(self._changes_anywhere, self._count_anywhere)
            self._count_anywhere = self._changes_anywhere.count
        if self._stamps.get(topic) == self._changes.count:
            return self._matches[topic]
        match = self._matches.get(topic)
        return self._match_anew(topic, topic.split("/")) if match is None else self._match_again(topic, match)

    def _match_again(self, topic: str, match: tuple[S, ...]) -> tuple[S, ...]:
        """A match that is remembered, or another if a change since then matches its topic; from now on with a stamp."""
        stamp = self._stamps.get(topic, self._stamp_first)
        if stamp != self._changes.count:
            levels = topic.split("/")
            if self._changes.may_concern(levels, stamp):
                return self._match_anew(topic, levels)
        self._stamps[topic] = self._changes.count
        return match

    def _match_anew(self, topic: str, levels: list[str]) -> tuple[S, ...]:
        """Look a match up and keep it; the subscribers of one that it replaces still count, as they are few."""
        found = self._find(topic, levels)
        match = tuple(found) if len(set(found)) == len(found) else tuple(dict.fromkeys(found))
        self._references += len(match)
        if len(self._matches) >= self._topics_max or self._references > self._references_max:
            self._make_room(topic, len(match))
        count = self._changes.count
        if not self._matches:
            self._stamp_first = count
        elif count != self._stamp_first:
            self._stamps[topic] = count
        self._matches[topic] = match
        return match

    def _find(self, topic: str, levels: list[str]) -> list[S]:
        """The subscribers of a topic, once for each filter of theirs that matches it."""
        subscribers = self._subscribers
        filters = self._wild.find(levels)
        if topic in subscribers:
            filters.append(topic)
        found: list[S] = []
        for each in filters:
            there = subscribers[each]
            if isinstance(there, Several):
                found.extend(there)
            else:
                found.append(there)
        if self._anywhere is not None and self._anywhere._size:
            found.extend(self._anywhere._find(topic, levels))
        return found

    def _make_room(self, topic: str, references: int) -> None:
        """Forget all matches, unless it is only one of them that will be replaced."""
        if topic in self._matches and self._references <= self._references_max:
            return
        for remembered in (self._matches, self._stamps, self._near):
            remembered.clear()
        self._placed = 0
        self._references = references

    def _changed(self, filter: str) -> None:
        """Make sure that no match is taken for right that a change of a filter made wrong."""
        if not self._matches and self._anywhere is not None:
            return  # what begins with a wildcard concerns matches of other trees
        if not is_wild(filter):
            self._forget(filter)
            return
        near = self._remembered_near(filter)
        if near is None or len(near) > TOPICS_FORGOTTEN_AT_ONCE:
            self._changes.note(filter)
            return
        for topic in [topic for topic in near if matches(filter, topic)]:
            self._forget(topic)

    def _remembered_near(self, filter: str) -> Collection[str] | None:
        """The remembered topics among which those are that a filter matches; None if they may be anywhere."""
        neighbourhood = _neighbourhood(filter)
        if is_wild(neighbourhood):
            return None
        if self._placed < len(self._matches):
            for topic in islice(reversed(self._matches), len(self._matches) - self._placed):
                self._near.put(_neighbourhood(topic), topic)
            self._placed = len(self._matches)
        return self._near.of(neighbourhood)

    def _forget(self, topic: str) -> None:
        if self._matches.pop(topic, None) is not None:
            self._stamps.pop(topic, None)
            if self._near.take(_neighbourhood(topic), topic):
                self._placed -= 1


def _neighbourhood(name: str) -> str:
    """The first two levels: of a device, usually, or of a room."""
    return "/".join(name.split("/", 2)[:2])


class Trees(Generic[S]):
    """The filters of all roots: a tree for each, and one for those that begin with a wildcard, `#` among them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._anywhere: Tree[S] = Tree(config)
        self._trees: dict[str, Tree[S]] = {}
        self._trees_of: Multimap[S, Tree[S]] = Multimap()

    def __len__(self) -> int:
        """How many pairs of a filter and a subscriber there are."""
        return len(self._anywhere) + sum(map(len, self._trees.values()))

    @property
    def is_empty(self) -> bool:
        """Whether nobody subscribed to anything."""
        return not self._trees_of

    def filters_of(self, subscriber: S) -> tuple[str, ...]:
        """What a subscriber subscribed to."""
        return tuple(chain.from_iterable(tree.filters_of(subscriber) for tree in self._trees_of.of(subscriber)))

    def add(self, filter: str, subscriber: S) -> bool:
        """Subscribe; False if that subscriber has that filter already."""
        tree = self._tree_for(filter)
        if tree is None:
            tree = self._trees[root_of(filter)] = Tree(self._config, self._anywhere)
        self._trees_of.put(subscriber, tree)
        return tree.add(filter, subscriber)

    def remove(self, filter: str, subscriber: S) -> bool:
        """Unsubscribe; False if that subscriber does not have that filter."""
        tree = self._tree_for(filter)
        if tree is None or not tree.remove(filter, subscriber):
            return False
        if subscriber not in tree:
            self._trees_of.take(subscriber, tree)
        if tree.is_empty and tree is not self._anywhere:
            del self._trees[root_of(filter)]
        return True

    def remove_all(self, subscriber: S) -> int:
        """Unsubscribe from everything; how many filters that were."""
        filters = self.filters_of(subscriber)
        for each in filters:
            self.remove(each, subscriber)
        return len(filters)

    def match(self, topic: str) -> tuple[S, ...]:
        """The subscribers of a topic, each once."""
        return self._trees.get(topic.partition("/")[0], self._anywhere).match(topic)

    def has(self, root: str) -> bool:
        """Whether there is a filter of this root alone."""
        return root in self._trees

    def _tree_for(self, filter: str) -> Tree[S] | None:
        root = root_of_filter(filter)
        return self._anywhere if root is None else self._trees.get(root)
