"""Lists of filters: what they match, and by which filter a server is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

import headwater
from client.served import Served
from headwater.errors import Malformed
from headwater.spark.options import read_options
from headwater.spark.topics import topics_of
from headwater.topics.name import compile_filter, matches, root_of
from spark.rows import replayed, rows

LEVELS = some.sampled_from(["a", "b", "c", "$x"])
TOPIC = some.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTER = some.builds(
    lambda levels, tail: "/".join(levels + tail),
    some.lists(some.one_of(LEVELS, some.just("+")), min_size=1, max_size=3),
    some.sampled_from([[], ["#"]]),
)


@given(filters=some.lists(FILTER, min_size=1, max_size=4), topic=TOPIC)
def test_what_one_of_the_filters_matches_is_wanted_and_asked_for(filters: list[str], topic: str):
    topics = topics_of(",".join(filters))
    wanted = any(matches(one, topic) for one in filters)
    assert topics.test()(topic) == wanted
    if wanted:
        assert topics.covers_root(root_of(topic))
        assert compile_filter(topics.of_root(root_of(topic)))(topic)
        assert any(compile_filter(one)(topic) for one in topics.asked)
    assert topics_of(topics.option) == topics


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("home/+/temp", ["home/+/temp"]),
        ("home/a/temp, home/b/temp", ["home/+/temp"]),
        ("home/a/#, home/a/b/c", ["home/a/#"]),
        ("home/a/x, home/a/b/c, office/#", ["home/a/#", "office/#"]),
        ("#, $sys/audit", ["$sys/audit", "#"]),
        ('["home/a,b/#"]', ["home/a,b/#"]),
    ],
)
def test_each_root_is_asked_for_by_one_filter(text: str, asked: list[str]):
    assert topics_of(text).asked == asked


@pytest.mark.parametrize(
    "text", ["home/#,", '["home/#", 3]', "[]", "[home/#]", "home/*,office/#", ",".join(map(str, range(1001)))]
)
def test_what_is_no_list_of_filters_is_refused(text: str):
    with pytest.raises(Malformed, match='option "topics"'):
        topics_of(text)


def test_a_subscription_stands_for_one_filter():
    with pytest.raises(Malformed, match="one filter"):
        read_options({"data": "x", "topics": "home/#,office/#", "subscription": "daily"})


def test_topics_of_a_list_are_read_from_a_folder_and_from_a_server(tmp_path):
    wanted = "home/hall/+, home/attic/temp, office/#"
    with Served(tmp_path / "data") as server:
        with headwater.connect(server.url) as bus:
            names = ["home/hall/temp", "home/attic/temp", "home/attic/door", "office/hall/temp", "shop/temp"]
            bus.publish_many([(name, b"%d" % n) for n in range(3) for name in names])
        found = [row[1] for row in rows(tmp_path / "data", topics=wanted)]
        assert sorted(found) == sorted(names[:2] * 3 + ["office/hall/temp"] * 3)
        assert rows(server.url, topics=wanted) == rows(tmp_path / "data", topics=wanted)
        assert len(replayed(tmp_path / "data")) == 15
