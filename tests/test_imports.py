"""Imports go down the rooms of docs/contribute/architecture.md, or stay in a room: never up, and never across.

The list there is the rule, and this reads it. An import that only types need counts too: a room that names another's
types knows of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src" / "headwater"
PUBLIC = "__init__"
"""The public surface: whoever stands above the buses may use it as a user does."""


class Import(NamedTuple):
    """One module that another imports."""

    module: str
    imported: str
    line: int


def order(text: str) -> dict[str, int]:
    """How deep each room lies, by the list in the architecture's page: rooms of one line lie beside each other."""
    found = re.search(r"^## Which way imports go$.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, 'docs/contribute/architecture.md has no list under "Which way imports go"'
    lines = [line.split("  ")[0].split() for line in found[1].splitlines() if line.strip()]
    return {room.rstrip("/").removesuffix(".py"): depth for depth, rooms in enumerate(lines) for room in rooms}


def room_of(module: str, rooms: dict[str, int]) -> str:
    """The innermost room of the list that a module is in."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (room := "/".join(parts[:length])) in rooms:
            return room
    raise AssertionError(f"{module} is in no room; add it to the list in docs/contribute/architecture.md")


def modules() -> dict[str, Path]:
    """Every module of the package, by its name within it."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


def imports_of(module: str, tree: ast.Module, known: set[str]) -> Iterator[Import]:
    """What a module imports of the package, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in named:
            if name == "headwater":
                yield Import(module, PUBLIC, node.lineno)
            elif name.startswith("headwater."):
                inner = name.removeprefix("headwater.")
                while inner and inner not in known:
                    inner = inner.rpartition(".")[0]
                yield Import(module, inner or PUBLIC, node.lineno)


def wrong(found: Import, rooms: dict[str, int]) -> str | None:
    """What is wrong with an import, if something is."""
    here, there = room_of(found.module, rooms), room_of(found.imported, rooms)
    if here == there or rooms[there] > rooms[here]:
        return None
    way = "across" if rooms[there] == rooms[here] else "up"
    return f"{found.module}:{found.line} imports {found.imported}: {way}, from {here} to {there}"


def test_no_import_goes_up_or_across() -> None:
    rooms = order((REPO / "docs" / "contribute" / "architecture.md").read_text())
    known = modules()
    found = [
        trouble
        for module, path in known.items()
        for one in imports_of(module, ast.parse(path.read_text()), set(known))
        if (trouble := wrong(one, rooms)) is not None
    ]
    assert not found, "\n".join(found)


def test_every_room_of_the_list_is_there() -> None:
    rooms = order((REPO / "docs" / "contribute" / "architecture.md").read_text())
    assert not [room for room in rooms if not (SOURCE / room).is_dir() and not (SOURCE / f"{room}.py").is_file()]


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("store.batch", "from headwater.log.root import Root", "up, from store to log"),
        ("mqtt.session", "def f():\n    from headwater.native import session", "across, from mqtt to native"),
        ("log.root", "import headwater", "up, from log to __init__"),
        ("delivery.live", "from headwater.store import batch", None),
        ("store.batch", "from headwater.store.body import Body", None),
    ],
)
def test_an_import_against_the_arrows_is_named(module: str, text: str, says: str | None) -> None:
    rooms = order((REPO / "docs" / "contribute" / "architecture.md").read_text())
    known = set(modules())
    troubles = [wrong(one, rooms) for one in imports_of(module, ast.parse(text), known)]
    assert troubles == [None] if says is None else says in str(troubles)
