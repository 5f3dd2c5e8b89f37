"""A publish call on its way."""

from __future__ import annotations

from headwater.log.publish import parts_by_root


def test_parts_by_root_keeps_the_order_of_the_call() -> None:
    topics = ["b/1", "a/1", "b/2", "c", "a/2"]
    roots = {topic: topic.partition("/")[0] for topic in topics}
    assert parts_by_root(topics, roots) == {"b": [0, 2], "a": [1, 4], "c": [3]}
    assert list(parts_by_root(topics, roots)) == ["b", "a", "c"]
