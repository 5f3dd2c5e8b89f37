"""Files of the repository that pages link to, in deploy/ and examples/, go with the site; or are shown in a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPO = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?:\.\./)+(?P<path>(?:deploy|examples)/[\w./-]+)\)")

SOURCE = re.compile(r"<!-- source: (?P<path>examples/[\w./-]+) -->")


def on_files(files: Files, config: Any) -> Files:
    """Add those that some page links to."""
    pages = (file.content_string for file in files.documentation_pages())
    for path in sorted({link["path"] for page in pages for link in LINK.finditer(page)}):
        files.append(File.generated(config, path, abs_src_path=str(REPO / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """In the repository they lie beside docs/, on the site below its root."""
    markdown = SOURCE.sub(lambda source: f"```python\n{(REPO / source['path']).read_text().rstrip()}\n```", markdown)
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda link: f"]({up}{link['path']})", markdown)
