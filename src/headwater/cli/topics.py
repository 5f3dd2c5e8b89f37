"""`headwater topics`: the topics as a tree, with counts, last offsets, retained marks and rates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from headwater import Bus, TopicInfo
from headwater.cli.following import pause
from headwater.cli.options import DATA, Data, Json, look
from headwater.cli.output import console, emit, safe

INTERVAL_S = 1.0
RETAINED = "●"


class Sample:
    """The topics at a moment."""

    def __init__(self, topics: Sequence[TopicInfo]) -> None:
        self.topics = topics
        self.at_s = time.perf_counter()

    def rates_since(self, before: Sample | None) -> dict[str, float]:
        """Messages per second of each topic."""
        if before is None:
            return {}
        elapsed_s = max(self.at_s - before.at_s, 1e-9)
        known = {info.topic: info.messages for info in before.topics}
        return {info.topic: max(0, info.messages - known.get(info.topic, 0)) / elapsed_s for info in self.topics}


class Level:
    """A level of the tree: what is published to it, and what lies below."""

    __slots__ = ("below", "info", "messages", "rate", "topics")

    def __init__(self) -> None:
        self.info: TopicInfo | None = None
        self.below: dict[str, Level] = {}
        self.messages = 0
        self.topics = 0
        self.rate = 0.0


def levels_of(topics: Sequence[TopicInfo], rates: Mapping[str, float]) -> Level:
    """The topics as a tree, with sums at each level."""
    top = Level()
    for info in topics:
        level = top
        rate = rates.get(info.topic, 0.0)
        for name in ("", *info.topic.split("/")):
            level = top if level is top and name == "" and level.topics >= 0 and level is top else level
            break
        path = [top]
        for name in info.topic.split("/"):
            path.append(path[-1].below.setdefault(name, Level()))
        path[-1].info = info
        for level in path:
            level.messages += info.messages
            level.topics += 1
            level.rate += rate
    return top
