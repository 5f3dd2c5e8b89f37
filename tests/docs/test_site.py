"""The site is built without a warning (a link to nowhere is one), and is read without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?(?P<src>[^"' >]+)""")
STYLED = re.compile(r"""<link\b[^>]*?\brel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*>""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPO,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_built_and_its_links_lead_somewhere(site: Path):
    for page in sorted((REPO / "docs").rglob("*.md")):
        assert (site / page.relative_to(REPO / "docs")).with_suffix(".html").is_file(), page


def test_no_page_loads_anything_from_elsewhere(site: Path):
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = [found["src"] for found in LOADED.finditer(html)] + STYLED.findall(html)
        assert [one for one in loaded if "//" in one.replace("data:image/svg+xml", "")] == [], page


def test_the_links_of_the_readme_and_the_changelog_lead_somewhere():
    for name in ("README.md", "CHANGELOG.md"):
        for path, heading in re.findall(r"\]\(((?!https?:)[^)#]+)(?:#([\w-]+))?\)", (REPO / name).read_text()):
            assert (REPO / path).exists(), f"{name} links to {path}"
            if heading:
                assert heading in anchors(REPO / path), f"{name} links to {path}#{heading}"


def test_the_tests_that_guarantees_name_are_there():
    named = re.findall(r"`(test_\w+)`", (REPO / "docs" / "guarantees" / "index.md").read_text(encoding="utf-8"))
    folders = re.findall(
        r"tests/[\w/]+(?:\.py)?", (REPO / "docs" / "guarantees" / "index.md").read_text(encoding="utf-8")
    )
    there = "\n".join(path.read_text(encoding="utf-8") for path in (REPO / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in there] == []
    assert [path for path in folders if not (REPO / path).exists()] == []


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links, and what it names itself."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    named = re.findall(r'<a id="([^"]+)"></a>', text)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}.union(named)
