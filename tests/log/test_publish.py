"""A publish call on its way."""

from __future__ import annotations

import pytest

from headwater.log.publish import Part, parts_by_root


def test_parts_by_root_keeps_the_order_of_the_call() -> None:
    topics = ["b/1", "a/1", "b/2", "c", "a/2"]
    roots = {topic: topic.partition("/")[0] for topic in topics}
    assert parts_by_root(topics, roots) == {"b": [0, 2], "a": [1, 4], "c": [3]}
    assert list(parts_by_root(topics, roots)) == ["b", "a", "c"]


@pytest.mark.parametrize("make", [Part.decode, lambda part: part.encode(1)], ids=["decoded", "encoded"])
def test_messages_that_a_body_has_are_not_in_memory_twice(make) -> None:
    part = Part("home", ["home/a", "home/b"], [b"1", b"2"], range(2))
    make(part)
    assert not part.payloads
    part.decode()
    assert part.columns is not None
    assert [part.columns.payload(place) for place in range(2)] == [b"1", b"2"]


def test_what_several_messages_retain_is_known_after_they_were_encoded() -> None:
    part = Part("home", ["home/a", "home/b"], [b"1", b"22"], range(2), retain=[False, True])
    part.encode(1)
    encoded = part.retains()
    part.retained = None
    part.decode()
    assert part.retains() == encoded == {"home/b": 2}


def test_one_message_keeps_its_payload_beside_the_body() -> None:
    part = Part("home", ["home/a"], [b"1"], range(1), keys=[b"k"])
    part.decode()
    assert part.payloads == [b"1"]
