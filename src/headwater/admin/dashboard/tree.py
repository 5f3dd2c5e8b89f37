"""The tree of topics, of which only the levels that somebody opened are loaded, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from nicegui.element import Element

from headwater.admin.api.growth import Growth
from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.errors import NotFound
from headwater.wire.administration import Level

PAGE = 200
"""Levels that are loaded at once."""
REFRESHED_MAX = 1_000
"""Levels of a branch whose figures are kept up to date."""
LAST_CHAR = "\U0010ffff"


class Branch(msgspec.Struct):
    """The levels right below a topic, as far as they are loaded."""

    levels: list[Level]
    is_whole: bool
    prefix: str = ""
    """Only names that begin with it."""
    is_one: bool = False
    """Only the one that is called so."""


class Tree:
    """What is loaded and open of the tree."""

    def __init__(self, admin: Admin, growth: Growth) -> None:
        self._admin = admin
        self._growth = growth
        self._branches: dict[str, Branch] = {}
        self._open: set[str] = set()

    def level(self, path: str) -> Level | None:
        """A level that is loaded."""
        branch = self._branches.get(path.rpartition("/")[0])
        return next((level for level in branch.levels if level.path == path), None) if branch else None

    async def open(self, path: str) -> None:
        """Load what is right below."""
        self._open.add(path)
        if path not in self._branches:
            self._branches[path] = await self._load(path, "", PAGE)

    def close(self, path: str) -> None:
        """Show nothing below it, and forget what is further below."""
        self._open.discard(path)
        below = f"{path}/"
        for parent in [parent for parent in self._branches if parent == path or parent.startswith(below)]:
            del self._branches[parent]
            self._open.discard(parent)

    async def more(self, path: str) -> None:
        """Load the next page of a branch."""
        branch = self._branches[path]
        found = await self._load(path, branch.prefix, PAGE, branch.levels[-1].name)
        branch.levels += found.levels
        branch.is_whole = found.is_whole

    async def reveal(self, path: str) -> None:
        """Open everything above a level, so that it is seen; of a filter, up to its first wildcard."""
        await self.open("")
        at = path.find("/")
        while at >= 0 and not set("+#") & set(path[:at]):
            await self.open(path[:at])
            at = path.find("/", at + 1)

    async def search(self, text: str) -> None:
        """Show what begins with a text: the levels before its last slash are opened."""
        parent, _, prefix = text.rpartition("/")
        self._branches.clear()
        self._open.clear()
        upper = ""
        while upper != parent:
            name = parent[len(upper) :].lstrip("/").partition("/")[0]
            self._branches[upper] = await self._load_one(upper, name)
            upper = f"{upper}/{name}" if upper else name
            self._open.add(upper)
        self._branches[parent] = await self._load(parent, prefix, PAGE)

    async def refresh(self) -> None:
        """Ask for the figures of what is loaded, and for levels that are new."""
        for parent, branch in list(self._branches.items()):
            if branch.is_one:
                self._branches[parent] = await self._load_one(parent, branch.prefix)
                continue
            wanted = max(PAGE if branch.is_whole else 1, min(len(branch.levels), REFRESHED_MAX))
            found = await self._load(parent, branch.prefix, wanted)
            if len(found.levels) >= len(branch.levels) or found.is_whole:
                branch.levels, branch.is_whole = found.levels, found.is_whole
            else:
                branch.levels[: len(found.levels)] = found.levels

    async def _load_one(self, parent: str, name: str) -> Branch:
        found = await self._load(parent, name, 1)
        return Branch([level for level in found.levels if level.name == name], True, name, is_one=True)

    async def _load(self, parent: str, prefix: str, limit: int, after: str | None = None) -> Branch:
        start = before(prefix) if after is None else after
        try:
            found: list[Level] = await self._admin.levels(parent, after=start, limit=limit + 1)
        except NotFound:
            found = []
        matching = [level for level in found if level.name.startswith(prefix)]
        is_whole = len(matching) < len(found) or len(found) <= limit
        return Branch(matching[:limit], is_whole, prefix)

    def rows(self, selected: str) -> list[dict[str, Any]]:
        """What is seen, from top to bottom."""
        rows: list[dict[str, Any]] = []
        self._add_rows(rows, "", 0, selected)
        return rows

    def _add_rows(self, rows: list[dict[str, Any]], parent: str, depth: int, selected: str) -> None:
        branch = self._branches.get(parent)
        if branch is None:
            return
        for level in branch.levels:
            rows.append(self._row(level, depth, selected))
            if level.path in self._open:
                self._add_rows(rows, level.path, depth + 1, selected)
        if not branch.is_whole:
            rows.append({"more": True, "path": parent, "key": f"more:{parent}", "depth": depth})

    def _row(self, level: Level, depth: int, selected: str) -> dict[str, Any]:
        return {
            "key": f"level:{level.path}",
            "path": level.path,
            "name": shown.plain(level.name) or "(no name)",
            "depth": depth,
            "open": level.path in self._open,
            "leaf": level.topics <= int(level.is_topic),
            "retained": level.retained,
            "selected": level.path == selected,
            "messages": shown.brief(level.messages),
            "rate": _rate(self._growth.rate(level.path, level.messages)),
        }


def _rate(value: float | None) -> str:
    return "" if value is None or value < 0.05 else f"{shown.brief(value)}/s"


def before(prefix: str) -> str | None:
    """A name that stands right before all that begin with a prefix."""
    if not prefix:
        return None
    code = ord(prefix[-1]) - 1
    return f"{prefix[:-1]}{chr(0xD7FF if 0xD800 <= code <= 0xDFFF else code)}{LAST_CHAR}"


class TreeView(Element, component="static/tree.js"):
    """The tree as it is seen: figures that change are sent alone."""

    def __init__(self, on: Callable[[str, str], Any]) -> None:
        """`on`: told what is done ("toggle", "select", "more"), and to which path."""
        super().__init__()
        self._rows: list[dict[str, Any]] = []
        self._props["rows"] = []
        for verb in ("toggle", "select", "more"):
            self.on(verb, lambda event, verb=verb: on(verb, str(event.args)))

    def show(self, rows: list[dict[str, Any]]) -> None:
        before, self._rows = self._rows, rows
        if [_shape(row) for row in before] != [_shape(row) for row in rows]:
            self._props["rows"] = rows
            self.update()
            return
        changed = {
            str(at): {"messages": row["messages"], "rate": row["rate"]}
            for at, (row, old) in enumerate(zip(rows, before, strict=True))
            if row != old
        }
        if changed:
            self.run_method("patch", changed)


def _shape(row: dict[str, Any]) -> tuple[Any, ...]:
    """What of a row does not change by itself."""
    return tuple(row.get(name) for name in ("key", "depth", "open", "leaf", "retained", "selected"))
