"""The blocks of README.md and of the pages in docs/, as their readers see them.

What kind a block is stands behind its three backquotes:

| | |
|---|---|
| `python`, `sh` | is run, in the folder of its page, after the blocks above it |
| `python title="app.py"` (any language) | is written to that file, for the blocks below it |
| `output` | is what the block above it shows: `…` stands for anything, and a time for any time |
| `toml`, `json` | are settings of the server, and JSON |
| `vector` | frames of the protocol: tests/wire/test_vectors.py |
| `text`, `csv`, nothing | are no commands: drawings, tables, what a log has |

Between comments of HTML, unseen by readers: `<!-- run python` and `<!-- run sh` with what prepares the next block, and
`<!-- not run: why -->` above a block that no test can run. The site shows the reason above the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

REPO = Path(__file__).resolve().parents[2]
RUN = {"python", "sh"}
READ = {"toml", "json"}
ELSEWHERE = {"vector", "text", "csv", "output", ""}
TITLE = re.compile(r'title="([^"]+)"')
UNSEEN = re.compile(r"<!-- run (?P<language>python|sh)\n(?P<text>.*?)-->", re.DOTALL)
LEFT_OUT = re.compile(r"<!-- not run: (?P<why>.+?) -->")


class Block(NamedTuple):
    """Something to run, to write or to read, and what it is to show."""

    page: Path
    line: int
    language: str
    text: str
    title: str = ""
    output: str | None = None
    not_run: str = ""

    @property
    def place(self) -> str:
        """Where an editor finds it."""
        return f"{self.page.relative_to(REPO)}:{self.line}"


def pages() -> list[Path]:
    """All that a reader may open."""
    return [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """What stands on a page, in its order."""
    found: list[Block] = []
    for block in _blocks(page):
        if block.language == "output":
            assert found, f"{block.place}: the output of what?"
            found[-1] = found[-1]._replace(output=block.text)
        else:
            found.append(block)
    return found


def _blocks(page: Path) -> Iterator[Block]:
    why = ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            if (unseen := UNSEEN.search(token.content)) is not None:
                yield Block(page, line, unseen["language"], unseen["text"])
            elif (left_out := LEFT_OUT.search(token.content)) is not None:
                why = left_out["why"]
        elif token.type in {"fence", "code_block"}:
            language, _, rest = token.info.strip().partition(" ")
            title = TITLE.search(rest)
            yield Block(page, line, language, token.content, title[1] if title else "", not_run=why)
            why = ""
