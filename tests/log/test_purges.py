"""What was purged: the same as filters looked at one by one, asked once per topic, and no more than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater.config import Config
from headwater.delivery.cursor import Matcher, places_in
from headwater.errors import QuotaExceeded
from headwater.log.purges import Purge, Purges
from headwater.store.batch import Batch, Header
from headwater.store.body import encode_body
from headwater.topics.name import matches

LEVELS = st.sampled_from(["a", "b", "c"])
TOPICS = st.lists(LEVELS, max_size=3).map(lambda levels: "/".join(["home", *levels]))
FILTERS = st.builds(
    lambda levels, ending: "/".join(["home", *levels, *ending]),
    st.lists(st.sampled_from(["a", "b", "c", "+"]), max_size=3),
    st.sampled_from([[], ["#"]]),
)


def purged(filters: list[tuple[str, int]], purges_max: int = 1000) -> Purges:
    """These purges, one after another; each counts the messages that came since the one before."""
    found, upto = Purges(), 0
    for filter, more in filters:
        upto += more
        found = found.joined(filter, upto, purges_max)
    return found


@given(st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=8), st.lists(TOPICS, min_size=1))
def test_a_topic_is_purged_as_far_as_the_last_purge_that_matches_it(
    filters: list[tuple[str, int]], topics: list[str]
) -> None:
    upto, expected = 0, dict.fromkeys(topics, 0)
    for filter, more in filters:
        upto += more
        expected.update({topic: upto for topic in topics if matches(filter, topic)})
    found = purged(filters)
    assert found.uptos(topics) == [expected[topic] for topic in topics]
    assert found.uptos(topics) == [expected[topic] for topic in topics]
    assert len(found) <= len({filter for filter, _ in filters})
    assert len({purge.place for purge in found}) == len(found)


@given(
    st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=4),
    st.lists(TOPICS, min_size=1),
    FILTERS,
    st.integers(1, 9),
)
def test_what_is_left_of_a_batch_is_what_no_purge_hides(
    filters: list[tuple[str, int]], topics: list[str], wanted: str, position: int
) -> None:
    purges, first = purged(filters), 3
    body = encode_body(topics, [b"x"] * len(topics), 0)
    batch = Batch.of(Header("home", first, len(topics), 0, 0, None, 0, 0, 64, len(body), 0), body)
    assert list(places_in(batch, Matcher(wanted), position, purges, 0)) == [
        place
        for place, topic in enumerate(topics)
        if first + place >= position and matches(wanted, topic) and first + place > purges.upto(topic)
    ]


def test_a_topic_is_looked_up_once_however_many_batches_and_purges_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    find, found = Purges._find, []

    def noted(self: Purges, topic: str) -> int:
        found.append(topic)
        return find(self, topic)

    with headwater.open(":memory:") as bus:
        for _ in range(5):
            bus.publish_many([(f"home/{number}", b"x") for number in range(20)])
        for number in range(10, 40):
            bus.purge(f"home/{number}/#")
        monkeypatch.setattr(Purges, "_find", noted)
        assert len(list(bus.replay("home/#"))) == 50
        assert sorted(found) == sorted(f"home/{number}" for number in range(20))


def test_what_is_remembered_of_topics_is_bounded() -> None:
    purges = Purges([Purge("home/+/old", 7, 1)], topics_max=2)
    topics = [f"home/{number}/{age}" for number in range(9) for age in ("old", "new")]
    assert purges.uptos(topics) == [7, 0] * 9
    assert len(purges.memo.known) <= 2


def test_one_purge_too_many_is_refused_and_changes_nothing() -> None:
    with headwater.open(":memory:", config=Config(purges_max=2)) as bus:
        bus.publish_many([(f"{root}/{name}", b"x") for root in ("hall", "home") for name in "abc"])
        bus.publish("home/a", b"kept", retain=True)
        bus.purge("home/b")
        bus.purge("home/c")
        with pytest.raises(QuotaExceeded, match="purges_max is 2; nothing was purged: purge a wider filter"):
            bus.purge("+/a")
        assert [info.topic for info in bus.topics()] == ["hall/a", "hall/b", "hall/c", "home/a"]
        assert len(list(bus.replay("#"))) == 5
        assert bus.purge("home/+") == 1
        assert bus.purge("hall/a") == 1
        assert [(message.topic, message.offset) for message in bus.replay("#")] == [("hall/b", 2), ("hall/c", 3)]


def test_a_purge_that_hides_nothing_more_is_not_remembered_and_a_wider_one_is() -> None:
    narrow = purged([("home/+", 9)])
    assert narrow.joined("home/a", 9, 1) is narrow
    assert narrow.joined("home/+", 9, 1) is narrow
    assert narrow.joined("home/#", 9, 1).upto("home/a/b") == 9
    assert narrow.joined("home/a", 10, 2).upto("home/a") == 10
