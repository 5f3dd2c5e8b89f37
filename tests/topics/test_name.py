"""Topic names and filters, against the examples and rules of MQTT 5, section 4.7."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import Config
from headwater.errors import Malformed
from headwater.topics.name import (
    check_filter,
    check_topic,
    compile_filter,
    filter_covers,
    filter_covers_root,
    filters_overlap,
    is_wild,
    matches,
    root_of,
    root_of_filter,
)

CONFIG = Config()

LEVELS = st.sampled_from(["", "a", "b", "ab", "é", "$s", "*a"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)

MQTT_EXAMPLES = [
    # 4.7.1.2, the multi-level wildcard
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player10", False),
    ("sport/#", "sport", True),
    ("#", "sport", True),
    ("#", "sport/tennis/player1", True),
    ("#", "/", True),
    ("sport/tennis/#", "sport/tennis/player1", True),
    ("sport/tennis/#", "sport", False),
    # 4.7.1.3, the single-level wildcard
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player2", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "sport", True),
    ("+", "sport/tennis", False),
    ("+/tennis/#", "sport/tennis", True),
    ("+/tennis/#", "sport/tennis/player1", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport/tennis/player2", False),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    # 4.7.2, topics that begin with $
    ("#", "$SYS/monitor/Clients", False),
    ("#", "$SYS", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("+", "$SYS", False),
    ("+/#", "$SYS/monitor", False),
    ("$SYS/#", "$SYS/monitor/Clients", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("sport/#", "sport/$odds", True),
    ("sport/+", "sport/$odds", True),
    # 4.7.3, names are compared as they are
    ("ACCOUNTS", "Accounts", False),
    ("ACCOUNTS", "/ACCOUNTS", False),
    ("Accounts payable", "Accounts payable", True),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("a/b", "a//b", False),
    ("/#", "/", True),
    ("/#", "/a/b", True),
    ("/#", "a", False),
    ("+/#", "a", True),
    ("+/+/#", "a", False),
    ("a/+/#", "a", False),
    ("a/+/#", "a/", True),
    ("sport/tennis", "sport/tennis", True),
    ("sport/tennis", "sport/tennis/", False),
]


@pytest.mark.parametrize(("filter", "topic", "expected"), MQTT_EXAMPLES)
def test_filters_match_as_in_mqtt_5_section_4_7(filter: str, topic: str, expected: bool) -> None:
    assert check_filter(filter, CONFIG) == filter.partition("/")[0]
    assert check_topic(topic, CONFIG) == topic.partition("/")[0]
    assert matches(filter, topic) is expected
    assert compile_filter(filter)(topic) is expected


def test_levels_may_contain_line_ends_and_what_regular_expressions_treat_specially() -> None:
    for topic in ("a/b\nc/d", "a/.*/d", "a/\\/d", "a/(/d"):
        assert matches("a/+/d", topic)
        assert matches("a/#", topic)
        assert compile_filter("a/+/d")(topic)
        assert compile_filter("a/+/#")(topic)
    assert not compile_filter("a/./d")("a/x/d")


@given(FILTERS, TOPICS)
def test_a_compiled_filter_matches_what_the_filter_matches(filter: str, topic: str) -> None:
    assert compile_filter(filter)(topic) is matches(filter, topic)


@given(FILTERS, TOPICS)
def test_a_filter_that_is_not_wild_matches_only_the_topic_spelled_like_it(filter: str, topic: str) -> None:
    if not is_wild(filter):
        assert matches(filter, topic) is (filter == topic)
        assert matches(filter, filter)


@given(FILTERS, TOPICS)
def test_a_filter_covers_the_root_of_every_topic_that_it_matches(filter: str, topic: str) -> None:
    if matches(filter, topic):
        assert filter_covers_root(filter, root_of(topic))
        assert root_of_filter(filter) in {None, root_of(topic)}


@pytest.mark.parametrize("filter", ["a", "a/b", "a/+", "a/#", "+", "+/b", "#", "+/#", "$s", "$s/#", "/b", "/#", "/+"])
@pytest.mark.parametrize("root", ["", "a", "b", "$s"])
def test_a_filter_covers_a_root_only_if_it_matches_some_topic_of_it(filter: str, root: str) -> None:
    rests = ["/".join(levels) for count in (1, 2, 3) for levels in product(["", "a", "b"], repeat=count)]
    topics = [root, *(f"{root}/{rest}" for rest in rests)]
    assert filter_covers_root(filter, root) is any(matches(filter, topic) for topic in topics)


@pytest.mark.parametrize(
    ("name", "root"),
    [("home", "home"), ("home/kitchen", "home"), ("/a", ""), ("/", ""), ("$SYS/x", "$SYS"), ("a//", "a")],
)
def test_the_root_is_the_first_level_even_where_that_is_empty(name: str, root: str) -> None:
    assert check_topic(name, CONFIG) == check_filter(name, CONFIG) == root_of(name) == root_of_filter(name) == root


def test_a_filter_that_begins_with_a_wildcard_has_no_root() -> None:
    assert root_of_filter("+") is root_of_filter("#") is root_of_filter("+/a") is root_of_filter("+/#") is None


def test_wild_is_a_filter_with_a_plus_or_a_hash() -> None:
    assert all(map(is_wild, ["+", "#", "a/+", "a/#", "a/+/b", "+/a"]))
    assert not any(map(is_wild, ["a", "a/b", "/", "$SYS/a", "a/*b"]))


@pytest.mark.parametrize("check", [check_topic, check_filter])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty; give it at least one level"),
        (b"home/kitchen", "not bytes; decode bytes first"),
        (None, "not NoneType"),
        (7, "not int"),
        ("home/\0", r"\x00"),
        ("home/\0", "NUL character; leave it out"),
        ("home/\ud800x", "lone surrogate at character 5"),
        ("\udfff", "cannot be written as UTF-8"),
        ("a/" * 600, "1200 bytes; use at most 1024, or raise topic_bytes_max"),
        ("a/" + "é" * 512, "1026 bytes; use at most 1024"),
        ("/" * 32, "33 levels; use at most 32, or raise topic_levels_max"),
        ("r" * 65, "first level of"),
        ("é" * 33 + "/a", "66 bytes; use at most 64, or raise root_bytes_max"),
    ],
)
def test_a_name_that_cannot_be_right_is_refused_with_what_to_do(check: Any, name: Any, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        check(name, CONFIG)
    assert reason in str(caught.value)
    assert caught.value.code == 422
    str(caught.value).encode()  # an error can always be printed


@pytest.mark.parametrize(("topic"), ["+", "#", "a/+", "a/#", "a/b+", "a#/b"])
def test_a_topic_with_a_wildcard_is_refused(topic: str) -> None:
    with pytest.raises(Malformed, match="publish to one topic, without wildcards"):
        check_topic(topic, CONFIG)


@pytest.mark.parametrize(("topic"), ["$share", "$share/g/a"])
def test_a_topic_where_nobody_can_subscribe_is_refused(topic: str) -> None:
    with pytest.raises(Malformed, match="nobody can subscribe"):
        check_topic(topic, CONFIG)
    check_topic("$shared/g/a", CONFIG)


@pytest.mark.parametrize(
    ("filter", "reason"),
    [
        ("sport/tennis#", "# stands for whole levels"),
        ("sport/tennis/#/ranking", "# is the last level"),
        ("#/a", "# is the last level"),
        ("##", "# stands for whole levels"),
        ("sport+", r"\+ stands for a whole level"),
        ("sport/+x/a", r"\+ stands for a whole level"),
        ("++", r"\+ stands for a whole level"),
        ("+#", "stands for"),
        ("*", r"use \+ for any one level, or # at the end"),
        ("home/*/temp", r"use \+ for any one level"),
        ("home/*", "# at the end for the rest"),
        ("$share/workers/home/#", "give several consumers the same id"),
        ("$share", "give several consumers the same id"),
    ],
)
def test_a_malformed_filter_is_refused_with_what_to_do(filter: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        check_filter(filter, CONFIG)


def test_names_at_their_limits_are_accepted() -> None:
    assert check_topic("r" * 64, CONFIG) == "r" * 64
    assert check_topic("/" * 31, CONFIG) == ""
    assert check_filter("a/" + "é" * 511, CONFIG) == "a"
    assert check_topic("a/" * 2, Config(topic_levels_max=3, topic_bytes_max=4, root_bytes_max=1)) == "a"


def test_a_star_is_only_refused_where_it_could_be_meant_as_a_wildcard() -> None:
    assert check_topic("home/*", CONFIG) == "home"
    assert check_filter("home/a*b/+", CONFIG) == "home"


def test_a_long_name_is_cut_in_the_error() -> None:
    with pytest.raises(Malformed) as caught:
        check_topic("x" * 100_000, CONFIG)
    assert len(str(caught.value)) < 300


# One filter and another

SMALL = ("", "a", "$s")
BRUTE_LEVELS = (*SMALL, "z", "$z")  # z stands for every level that no filter names, $z for those with a $
BRUTE_TOPICS = [
    topic
    for count in range(1, 5)
    for topic in ("/".join(levels) for levels in product(BRUTE_LEVELS, repeat=count))
    if topic
]
SMALL_FILTERS = [
    filter
    for count in range(3)
    for levels in product((*SMALL, "+"), repeat=count)
    for end in ([], ["#"], ["a"], ["+"])
    if (filter := "/".join([*levels, *end]))
]
MATCHED = {filter: frozenset(topic for topic in BRUTE_TOPICS if matches(filter, topic)) for filter in SMALL_FILTERS}


def test_covering_and_overlapping_agree_with_trying_every_topic():
    wrong = [
        (a, b)
        for a, b in product(SMALL_FILTERS, repeat=2)
        if filter_covers(a, b) != (MATCHED[a] >= MATCHED[b]) or filters_overlap(a, b) != bool(MATCHED[a] & MATCHED[b])
    ]
    assert wrong == []
    assert len(SMALL_FILTERS) > 60
    assert all(MATCHED.values())


@given(FILTERS, FILTERS, FILTERS, TOPICS)
def test_covering_is_an_order_that_matching_agrees_with(a: str, b: str, c: str, topic: str):
    assert filter_covers(a, a)
    assert filters_overlap(a, a)
    assert filters_overlap(a, b) == filters_overlap(b, a)
    assert filter_covers(a, topic) == filters_overlap(a, topic) == matches(a, topic)
    if filter_covers(a, b):
        assert filters_overlap(a, b)
        assert not matches(b, topic) or matches(a, topic)
        assert not filter_covers(b, c) or filter_covers(a, c)
        assert not filters_overlap(b, c) or filters_overlap(a, c)
    if matches(a, topic) and matches(b, topic):
        assert filters_overlap(a, b)


DEEP_LEVELS = st.sampled_from(["", "a", "b", "$s", "+"])
DEEP_FILTERS = (
    st.tuples(st.lists(DEEP_LEVELS, max_size=3), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)
DEEP_TOPICS = [
    topic
    for count in range(1, 5)
    for topic in ("/".join(levels) for levels in product(("", "a", "b", "$s", "z", "$z"), repeat=count))
    if topic
]


@settings(max_examples=60, deadline=None)
@given(DEEP_FILTERS, DEEP_FILTERS)
def test_deeper_filters_agree_with_trying_every_topic_too(a: str, b: str):
    ours, theirs = compile_filter(a), compile_filter(b)
    both = [(ours(topic), theirs(topic)) for topic in DEEP_TOPICS]
    assert filter_covers(a, b) == all(one for one, other in both if other)
    assert filters_overlap(a, b) == any(one and other for one, other in both)


@pytest.mark.parametrize(
    ("outer", "inner", "covers", "overlap"),
    [
        ("home/#", "home", True, True),
        ("home/#", "home/#", True, True),
        ("home/#", "home/+/temp", True, True),
        ("home/+", "home/#", False, True),
        ("home/+/#", "home/#", False, True),
        ("+/#", "#", True, True),
        ("#", "+/#", True, True),
        ("#", "$SYS/#", False, False),
        ("+/a", "$SYS/a", False, False),
        ("$SYS/#", "$SYS/+/a", True, True),
        ("$SYS/#", "#", False, False),
        ("home/+/temp", "home/hall/+", False, True),
        ("home/+/temp", "home/hall/light", False, False),
        ("a/+", "a/$x", True, True),
        ("/#", "/+/#", True, True),
        ("/+/#", "/#", True, True),
        ("+", "/#", False, False),
        ("homes/#", "home/#", False, False),
    ],
)
def test_examples_of_covering_and_overlapping(outer: str, inner: str, covers: bool, overlap: bool):
    assert filter_covers(outer, inner) is covers
    assert filters_overlap(outer, inner) is filters_overlap(inner, outer) is overlap
