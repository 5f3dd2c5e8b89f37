"""What tests do with the blocks of a page, and readers need not see; but why one is not run, they may know."""

from __future__ import annotations

import re
from typing import Any

UNSEEN = re.compile(r"<!-- run (?:python|sh)\n.*?-->\n*", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (?P<why>.+?) -->\n(?P<fence> *```\w+)")
OUTPUT = re.compile(r"^( *)```output$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave out what prepares a block, and say above one that no test runs, why."""
    markdown = UNSEEN.sub("", markdown)
    markdown = NOT_RUN.sub(r'\g<fence> title="not run by the tests: \g<why>"', markdown)
    return OUTPUT.sub(r"\1```{ .text .output }", markdown)
