"""Every block of README.md and docs/ does what its page says, as it stands there."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main

from cluster.conftest import runs_nats
from docs.pages import ELSEWHERE, READ, REPO, RUN, Block, blocks, pages
from docs.reader import CLUSTER, PIPELINE, SHARES, Reader
from docs.screen import Screen
from headwater.cli import pipeline
from headwater.cli.app import app_for

NOT_RUN_MAX = 12
"""How many blocks no test runs, at most. Fewer is better."""

SLOW_S = 900
"""For a page on which commands start a Spark each."""

TYPED = "headwater|curl|pip|podman|docker|helm|kubectl|systemctl|mosquitto_\\w+|python\\d?|make"
LOOKS_RUN = re.compile(rf"\$ |(?:sudo )?(?:{TYPED}) [a-z-]|import |bus\b")

PAGES = {page: blocks(page) for page in pages()}


def marks(found: list[Block]) -> list[pytest.MarkDecorator]:
    """Pages with Spark go where its session is, those with a cluster where one is started at a time."""
    if any("spark.read" in block.text or PIPELINE in block.text for block in found):
        return [pytest.mark.xdist_group("spark"), pytest.mark.timeout(SLOW_S)]
    return [pytest.mark.xdist_group("nats")] if any(CLUSTER in block.text for block in found) else []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(REPO)), marks=marks(found))
        for page, found in PAGES.items()
        if any(block.language in RUN | READ and not block.not_run for block in found)
    ],
)
def test_what_a_page_says_is_so(page: Path, tmp_path: Path, monkeypatch, request):
    if any("spark.read" in block.text or SHARES.match(block.text) for block in PAGES[page]):
        monkeypatch.setattr(pipeline, "SHARED", request.getfixturevalue("spark"))
    if any(CLUSTER in block.text for block in PAGES[page]):
        runs_nats()
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ), contextlib.closing(Reader(tmp_path, PAGES[page])) as reader:
        for block in PAGES[page]:
            if not block.not_run:
                reader.run(block)


def test_every_block_says_what_it_is():
    for found in PAGES.values():
        for block in found:
            assert block.language in RUN | READ | ELSEWHERE or block.title or block.not_run, (
                f"{block.place}: say what the block is, behind its backquotes (tests/docs/pages.py has the words)"
            )
            looks_run = LOOKS_RUN.match(block.text) and block.language in {"", "text"} and not block.title
            assert not looks_run or block.not_run, f"{block.place}: these are commands; call them so"


def test_what_is_not_run_says_why_and_is_little(record_property):
    left_out = [f"{block.place}: {block.not_run}" for found in PAGES.values() for block in found if block.not_run]
    record_property("not run", left_out)
    assert len(left_out) <= NOT_RUN_MAX, "\n".join(left_out)


@pytest.mark.parametrize(
    ("page", "shown", "is_right"),
    [
        ("a 1", "a 1\n", True),
        ("a 1", "a 2\n", False),
        ("a …", "a 2\n", True),
        ("a\n…\nc", "a\nb\nb\nc\n", True),
        ("a\n…\nc", "a\nb\n", False),
        ("at 2026-01-31T12:00:00Z it", "at 2027-10-01T02:03:04.567Z it", True),
        ("at 2026-01-31T12:00:00Z it", "at noon it", False),
        ("a", "a\nb", False),
    ],
)
def test_output_is_compared(page, shown, is_right):
    screen = Screen()
    screen.write(shown)
    assert screen.says(page) is is_right


def test_the_extras_that_pages_name_are_there():
    extras = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in [*PAGES, REPO / "CHANGELOG.md"]:
        for named in re.findall(r"(?:headwater|'\.)\[([a-z, ]+)\]", page.read_text(encoding="utf-8")):
            assert set(re.split(", *", named)) <= set(extras), f"{page.relative_to(REPO)}: [{named}]"


INLINE = re.compile(r"(?<!`)`headwater ([a-z][^`\n]*)`(?!`)")
SAID = {"is", "version"}
"""Begins what a server says, and no command."""


def test_the_commands_and_flags_that_pages_name_are_there():
    commands = typer.main.get_command(app_for([]))
    for page in [*PAGES, REPO / "CHANGELOG.md"]:
        for text in INLINE.findall(page.read_text(encoding="utf-8")):
            for one in re.split(r"; headwater ", text):
                words = one.split()
                found: Any = commands
                while words and words[0] in getattr(found, "commands", ()):
                    found = found.commands[words.pop(0)]
                place = f"{page.relative_to(REPO)}: headwater {one}"
                assert found is not commands or words[0] in SAID, place
                if found is commands or hasattr(found, "commands"):
                    continue
                flags = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
                named = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
                assert named <= flags | {"--help"}, place
