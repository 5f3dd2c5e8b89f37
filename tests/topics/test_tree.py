"""The tree of filters, against a set of (filter, subscriber) pairs and `matches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headwater.config import Config
from headwater.topics.branch import Branch
from headwater.topics.name import matches, root_of
from headwater.topics.tree import SUBSCRIBERS_PER_REMEMBERED_TOPIC, TOPICS_FORGOTTEN_AT_ONCE, Tree, Trees

# Few topics, and filters made of them, so that filters share their beginnings and matches are asked for again.
TOPIC_LIST = ["a", "a/a", "a/b", "a/a/b", "a/a/b/a", "a/a/b/a/b", "a/b/b/a", "a//b", "/a", "b/a/b", "b", "$s/a", "a/$s"]
TOPICS = st.sampled_from(TOPIC_LIST)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = [draw(st.sampled_from([level, level, "+"])) for level in draw(TOPICS).split("/")]
    if draw(st.booleans()):
        levels[draw(st.integers(0, len(levels))) :] = ["#"]
    return "/".join(levels)


FILTERS = filters()
SUBSCRIBERS = st.integers(0, 4)
CONFIGS = st.builds(
    Config, match_cache_topics=st.sampled_from([0, 1, 2, 1000]), match_cache_changes=st.sampled_from([0, 1, 2, 64])
)


class TreesAgainstBruteForce(RuleBasedStateMachine):
    """One tree that holds every filter, and trees by root, both do what a plain set of pairs does."""

    @initialize(config=CONFIGS)
    def start(self, config: Config) -> None:
        self.config = config
        self.tree: Tree[int] = Tree(config)
        self.trees: Trees[int] = Trees(config)
        self.pairs: set[tuple[str, int]] = set()

    @rule(filter=FILTERS, subscriber=SUBSCRIBERS)
    def add(self, filter: str, subscriber: int) -> None:
        is_new = (filter, subscriber) not in self.pairs
        self.pairs.add((filter, subscriber))
        assert self.tree.add(filter, subscriber) is self.trees.add(filter, subscriber) is is_new

    @rule(filter=FILTERS, subscriber=SUBSCRIBERS)
    def remove(self, filter: str, subscriber: int) -> None:
        was_there = (filter, subscriber) in self.pairs
        self.pairs.discard((filter, subscriber))
        assert self.tree.remove(filter, subscriber) is self.trees.remove(filter, subscriber) is was_there

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.pairs:
            self.remove(*data.draw(st.sampled_from(sorted(self.pairs))))

    @rule(subscriber=SUBSCRIBERS)
    def remove_all(self, subscriber: int) -> None:
        filters = {pair for pair in self.pairs if pair[1] == subscriber}
        self.pairs -= filters
        removed = [self.tree.remove(filter, subscriber) for filter in self.tree.filters_of(subscriber)]
        assert len(removed) == self.trees.remove_all(subscriber) == len(filters)

    @rule(topics=st.lists(TOPICS, min_size=1, max_size=6) | st.just(TOPIC_LIST))
    def match(self, topics: list[str]) -> None:
        for topic in topics:
            expected = Counter({subscriber for wanted, subscriber in self.pairs if matches(wanted, topic)})
            assert Counter(self.tree.match(topic)) == expected
            assert Counter(self.trees.match(topic)) == expected

    @invariant()
    def every_pair_is_counted_and_listed(self) -> None:
        assert len(self.tree) == len(self.trees) == len(self.pairs)
        assert self.tree.is_empty is self.trees.is_empty is (not self.pairs)
        for subscriber in range(5):
            filters = sorted(wanted for wanted, other in self.pairs if other == subscriber)
            assert sorted(self.tree.filters_of(subscriber)) == sorted(self.trees.filters_of(subscriber)) == filters
            assert (subscriber in self.tree) is bool(filters)

    @invariant()
    def nothing_is_kept_that_is_not_needed(self) -> None:
        roots = {root_of(wanted) for wanted, _ in self.pairs} - {"+", "#"}
        assert self.trees._trees.keys() == roots
        assert_compressed(self.tree._wild, is_top=True)
        for tree in (self.tree, self.trees._anywhere, *self.trees._trees.values()):
            assert len(tree._matches) <= max(1, self.config.match_cache_topics)
            assert tree._stamps.keys() <= tree._matches.keys()
            placed = [topic for key in tree._near for topic in tree._near.of(key)]
            assert sorted(placed) == sorted(list(tree._matches)[: tree._placed])
            assert_compressed(tree._changes._branch, is_top=True)
            assert len(tree._changes._latest) <= self.config.match_cache_changes


def assert_compressed(branch: Branch, *, is_top: bool) -> None:
    assert is_top or len(branch.children) > 1
    for child in branch.children.values():
        if isinstance(child, Branch):
            assert_compressed(child, is_top=False)


TreesAgainstBruteForce.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTreesAgainstBruteForce = TreesAgainstBruteForce.TestCase


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were looked up, as opposed to remembered."""
    topics: list[str] = []
    find = Tree._find

    def noted(self: Tree[int], topic: str, levels: list[str]) -> list[int]:
        topics.append(topic)
        return find(self, topic, levels)

    monkeypatch.setattr(Tree, "_find", noted)
    return topics


def test_a_subscriber_with_several_matching_filters_is_found_once() -> None:
    trees: Trees[str] = Trees(Config())
    for wanted in ("home/kitchen/temp", "home/+/temp", "home/#", "+/kitchen/#", "#"):
        assert trees.add(wanted, "thermostat")
    assert trees.match("home/kitchen/temp") == ("thermostat",)
    assert trees.remove_all("thermostat") == 5
    assert trees.match("home/kitchen/temp") == ()


def test_a_subscriber_may_be_any_hashable_value() -> None:
    trees: Trees[Hashable] = Trees(Config())
    odd: list[Hashable] = [None, (), ("a", "b"), frozenset(), "home/#", 0, "", False]  # of which 0 and False are equal
    for subscriber in odd:
        trees.add("home/#", subscriber)
        trees.add("home/a", subscriber)
    assert trees.match("home/a") == (None, (), ("a", "b"), frozenset(), "home/#", 0, "")
    assert [trees.remove_all(subscriber) for subscriber in odd] == [2] * 7 + [0]
    assert trees.is_empty


def test_a_tree_of_a_root_is_dropped_with_its_last_filter() -> None:
    trees: Trees[int] = Trees(Config())
    trees.add("home/a", 1)
    trees.add("home/#", 2)
    trees.add("#", 2)
    assert trees.match("home/a") == (2, 1)
    trees.remove("home/a", 1)
    assert list(trees._trees) == ["home"]
    trees.remove_all(2)
    assert trees._trees == {}
    assert trees.is_empty
    assert trees.match("home/a") == ()


def test_wildcards_in_the_first_level_reach_roots_that_come_later() -> None:
    trees: Trees[int] = Trees(Config())
    trees.add("+/a", 1)
    trees.add("#", 2)
    assert set(trees.match("new/a")) == {1, 2}
    trees.add("new/a", 3)
    assert set(trees.match("new/a")) == {1, 2, 3}
    trees.remove("#", 2)
    assert set(trees.match("new/a")) == {1, 3}
    assert trees.match("$SYS/a") == ()


def test_a_match_is_looked_up_once(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config())
    tree.add("home/+", 1)
    assert [tree.match("home/a") for _ in range(3)] == [(1,)] * 3
    assert look_ups == ["home/a"]


def test_a_change_without_wildcards_forgets_only_its_own_topic(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config())
    for change in (tree.add, tree.remove):
        tree.match("home/a")
        tree.match("home/b")
        look_ups.clear()
        change("home/a", 1)
        tree.match("home/a")
        tree.match("home/b")
        assert look_ups == ["home/a"]


@pytest.mark.parametrize("wildcard", ["home/a/+", "home/a/#", "home/+/x", "+/a/x", "+/+/x"])
def test_a_wildcard_change_forgets_only_the_topics_that_it_matches(wildcard: str, look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config())
    for change in (tree.add, tree.remove):
        tree.match("home/a/x")
        tree.match("home/b/y")
        look_ups.clear()
        change(wildcard, 1)
        for _ in range(2):
            tree.match("home/a/x")
            tree.match("home/b/y")
        assert look_ups == ["home/a/x"]


def test_a_wildcard_change_reaches_every_topic_of_a_neighbourhood_with_many(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config())
    topics = [f"home/a/{number}/{number % 2}" for number in range(2 * TOPICS_FORGOTTEN_AT_ONCE)]
    for change, expected in ((tree.add, (1,)), (tree.remove, ())):
        for topic in topics:
            tree.match(topic)
        look_ups.clear()
        change("home/a/+/1", 1)
        assert [tree.match(topic) for topic in topics] == [(), expected] * TOPICS_FORGOTTEN_AT_ONCE
        assert look_ups == topics[1::2]


def test_a_match_older_than_the_changes_that_are_kept_is_looked_up_again(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config(match_cache_changes=3))
    tree.match("home/a")
    for number in range(3):
        tree.add(f"home/+/{number}", 1)
    tree.match("home/a")
    assert look_ups == ["home/a"]
    for number in range(4):
        tree.add(f"home/+/{number}", 2)
    tree.match("home/a")
    assert look_ups == ["home/a"] * 2


def test_more_wildcard_first_changes_than_are_kept_still_reach_every_root() -> None:
    trees: Trees[int] = Trees(Config(match_cache_changes=2))
    trees.add("home/a", 0)
    trees.add("home/+/x", 0)
    trees.add("home/+/y", 0)
    assert trees.match("home/a") == (0,)
    trees.add("+/a", 1)
    for number in range(5):
        trees.add(f"+/{number}/#", 2)
    assert trees.match("home/a") == (0, 1)


def test_a_wildcard_first_change_is_noted_once_by_each_root() -> None:
    trees: Trees[int] = Trees(Config())
    trees.add("home/a", 0)
    trees.add("#", 1)
    assert [trees.match("home/a") for _ in range(3)] == [(0, 1)] * 3
    assert trees._trees["home"]._changes.count == 1


def test_a_root_is_not_disturbed_by_the_changes_of_others(look_ups: list[str]) -> None:
    trees: Trees[int] = Trees(Config(match_cache_changes=1))
    trees.add("home/#", 1)
    trees.match("home/a")
    for other in range(10):
        trees.add(f"office/{other}/#", 2)
    trees.match("home/a")
    assert look_ups == ["home/a"]


def test_a_full_cache_starts_anew(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config(match_cache_topics=2))
    for topic in ("a", "b", "a", "c", "c", "a"):
        tree.match(topic)
    assert look_ups == ["a", "b", "c", "a"]


def test_a_match_that_changes_in_a_full_cache_leaves_the_others_there(look_ups: list[str]) -> None:
    tree: Tree[int] = Tree(Config(match_cache_topics=2))
    tree.match("a")
    tree.match("b/c")
    tree.add("b/#", 1)
    assert (tree.match("b/c"), tree.match("a")) == ((1,), ())
    tree.add("+/c", 2)
    assert (tree.match("b/c"), tree.match("a")) == ((1, 2), ())
    assert look_ups == ["a", "b/c", "b/c", "b/c"]


def test_the_cache_is_bounded_in_subscribers_as_well_as_in_topics() -> None:
    tree: Tree[int] = Tree(Config(match_cache_topics=10))
    for subscriber in range(50):
        tree.add("home/#", subscriber)
    for topic in range(10):
        assert len(tree.match(f"home/{topic}")) == 50
        assert sum(map(len, tree._matches.values())) <= 10 * SUBSCRIBERS_PER_REMEMBERED_TOPIC


def test_filters_that_lie_on_the_way_of_others_come_and_go_on_their_own() -> None:
    filters = ["a/b/+", "a/b/+/c/d/e", "a/b/+/c/d", "a/b/#", "a/#", "a/b/+/c/+", "+/b/x/c/d", "a/+", "#"]
    topics = ["a", "a/b", "a/b/x", "a/b/x/c/d", "a/b/x/c/d/e", "b/b/x/c/d"]
    tree: Tree[str] = Tree(Config())
    left = list(filters)
    for wanted in filters:
        tree.add(wanted, wanted)
    for wanted in filters:
        for topic in topics:
            assert set(tree.match(topic)) == {other for other in left if matches(other, topic)}
        left.remove(wanted)
        tree.remove(wanted, wanted)
    assert tree._wild.children == {}
