from __future__ import annotations

import asyncio
from typing import Any

from headwater.admin.dashboard.finder import LOOKED_MAX, find
from headwater.message import TopicInfo
from headwater.wire import requests as wire


class Broker:
    """Answers as a broker with these topics does."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.asked = 0

    async def ask(self, request: wire.Topics) -> list[TopicInfo]:
        self.asked += 1
        left = sorted(topic for topic in self.topics if topic > request.after)
        return [TopicInfo(topic, 1, 1, False) for topic in left[: request.limit]]


def found(text: str, *topics: str) -> tuple[list[str], bool]:
    broker: Any = Broker(*topics)
    return asyncio.run(find(broker, text))


def test_a_text_is_found_at_any_level_whatever_its_case() -> None:
    topics = ("home/Kitchen/temp", "home/hall", "kitchen/light", "a/b/c/kitchenette")
    assert found("kitchen", *topics) == (["a/b/c/kitchenette", "home/Kitchen/temp"], True)
    assert found("chen/t", *topics) == (["home/Kitchen/temp"], True)
    assert found("cellar", *topics) == ([], True)


def test_only_so_many_topics_are_looked_at_and_shown() -> None:
    many = [f"a/{number:06}" for number in range(LOOKED_MAX + 1500)]
    last = f"/{LOOKED_MAX + 1499:06}"
    assert found(last, *many) == ([], False)
    some, is_all = found("/0000", *many)
    assert (len(some), is_all) == (30, False)
