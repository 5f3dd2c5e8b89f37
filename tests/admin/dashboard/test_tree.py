from __future__ import annotations

import asyncio
from typing import Any

from headwater.admin.api.growth import Growth
from headwater.admin.dashboard.tree import PAGE, Tree
from headwater.clock import ManualClock
from headwater.errors import NotFound
from headwater.wire.administration import Level


class Levels:
    """Answers as a broker with these topics does, and counts what it is asked for."""

    def __init__(self, *topics: str) -> None:
        self.topics = list(topics)
        self.asked: list[tuple[str, str | None, int]] = []

    async def levels(self, parent: str = "", *, after: str | None = None, limit: int = 1000) -> list[Level]:
        self.asked.append((parent, after, limit))
        inside = [
            topic[len(parent) :].lstrip("/") for topic in self.topics if not parent or topic.startswith(f"{parent}/")
        ]
        if parent and not inside:
            raise NotFound(parent)
        names = sorted({topic.partition("/")[0] for topic in inside})
        return [self._level(parent, name) for name in names if after is None or name > after][:limit]

    def _level(self, parent: str, name: str) -> Level:
        path = f"{parent}/{name}" if parent else name
        below = [topic for topic in self.topics if topic == path or topic.startswith(f"{path}/")]
        return Level(name=name, path=path, topics=len(set(below)), messages=len(below), is_topic=path in below)


def tree_of(*topics: str) -> tuple[Tree, Levels, ManualClock]:
    clock = ManualClock()
    levels = Levels(*topics)
    admin: Any = levels
    return Tree(admin, Growth(clock)), levels, clock


def seen(tree: Tree) -> list[str]:
    return ["  " * row["depth"] + ("…" if row.get("more") else row["name"]) for row in tree.rows("")]


def test_only_what_is_opened_is_loaded() -> None:
    tree, levels, _ = tree_of("home/kitchen/temp", "home/hall/temp", "work/desk")
    asyncio.run(tree.open(""))
    assert seen(tree) == ["home", "work"]
    asyncio.run(tree.open("home"))
    assert seen(tree) == ["home", "  hall", "  kitchen", "work"]
    assert [parent for parent, *_ in levels.asked] == ["", "home"]
    tree.close("home")
    assert seen(tree) == ["home", "work"]


def test_what_is_above_the_first_wildcard_of_a_filter_is_opened() -> None:
    tree, levels, _ = tree_of("home/kitchen/temp", "home/hall/temp", "work/desk")
    asyncio.run(tree.reveal("home/+/temp"))
    assert seen(tree) == ["home", "  hall", "  kitchen", "work"]
    asyncio.run(tree.reveal("+/desk"))
    assert [parent for parent, *_ in levels.asked] == ["", "home"]


def test_a_large_level_comes_a_page_at_a_time() -> None:
    tree, levels, _ = tree_of(*(f"many/{number:04}" for number in range(2 * PAGE + 1)))
    asyncio.run(tree.reveal("many/0000"))
    assert len(seen(tree)) == 1 + PAGE + 1
    asyncio.run(tree.more("many"))
    asyncio.run(tree.more("many"))
    assert len(seen(tree)) == 1 + 2 * PAGE + 1
    assert seen(tree)[-1] == f"  {2 * PAGE:04}"
    assert max(limit for *_, limit in levels.asked) == PAGE + 1


def test_a_search_shows_what_begins_with_it() -> None:
    tree, _, _ = tree_of("home/kitchen/temp", "home/kiosk", "home/hall", "homer/x", "work/y")
    asyncio.run(tree.search("home"))
    assert seen(tree) == ["home", "homer"]
    asyncio.run(tree.search("home/ki"))
    assert seen(tree) == ["home", "  kiosk", "  kitchen"]
    asyncio.run(tree.search("home/kitchen/"))
    assert seen(tree) == ["home", "  kitchen", "    temp"]
    asyncio.run(tree.search("nowhere/x"))
    assert seen(tree) == []
    asyncio.run(tree.search(""))
    assert seen(tree) == ["home", "homer", "work"]


def test_rates_come_from_what_was_counted_before_and_new_levels_appear() -> None:
    tree, levels, clock = tree_of("home/a")
    asyncio.run(tree.open(""))
    assert tree.rows("")[0]["rate"] == ""
    levels.topics += ["home/a"] * 20 + ["work/b"]
    clock.advance(2)
    asyncio.run(tree.refresh())
    assert [(row["name"], row["rate"]) for row in tree.rows("")] == [("home", "10/s"), ("work", "")]
