"""The topics of a large batch, by level: the same are found as by a look at each, and without one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.dictionary import ASKED_MIN, Dictionary, dictionary_of
from headwater.topics.name import compile_filter, matches

LEVEL = st.sampled_from(["a", "b", "c", "", "$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


@given(st.lists(TOPIC, min_size=1, unique=True).map(tuple), st.lists(FILTER, min_size=ASKED_MIN * 3))
def test_a_filter_finds_what_it_matches(topics: tuple[str, ...], filters: list[str]) -> None:
    dictionary = Dictionary(topics)
    for wanted in filters:
        expected = [number for number, topic in enumerate(topics) if matches(wanted, topic)]
        assert list(dictionary.find(wanted, compile_filter(wanted))) == expected


def test_the_same_topics_are_indexed_once() -> None:
    topics = tuple(f"a/{number}" for number in range(100))
    assert dictionary_of(topics) is dictionary_of(topics)
    assert dictionary_of((*topics,)) is not dictionary_of(topics)
