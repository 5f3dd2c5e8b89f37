"""What errors advise at the command line: commands, and no calls."""

from __future__ import annotations

import ast
import errno
import os
import re
from pathlib import Path

import pytest

import headwater
from cli.command import here
from headwater import errors
from headwater.cli.advice import at_the_command_line, of_the_system

SOURCE = Path(headwater.__file__).parent
CODE = re.compile(
    r"\b(bus|headwater|message|reading)\.[a-z_]+\(|\bbus\.[a-z_]+|\bNone\b|\b[a-z_]+=(True|False|None|[\"'{\[])|`with "
)
TO_PROGRAMS = ("arrow/", "cli/work.py", "client/", "delivery/mending.py", "payload.py", "seal.py", "spark/", "work/")
"""What a command does not ask for, or where Python is what is wanted."""


def advised() -> list[tuple[str, str]]:
    """Every sentence that an error of ours is made with, and where."""
    kinds = {name for name in vars(errors) if name[0].isupper()}
    return [
        (path.relative_to(SOURCE).as_posix(), sentence_of(node.args[0]))
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args
    ]


def sentence_of(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return sentence_of(node.left) + sentence_of(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(sentence_of, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "X"


def test_every_error_that_a_command_can_meet_advises_no_code() -> None:
    found = advised()
    assert sum(bool(CODE.search(sentence)) for _, sentence in found) > 10
    left = [one for one in found if not one[0].startswith(TO_PROGRAMS) and CODE.search(at_the_command_line(one[1]))]
    assert left == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/x", b"1"), ("work/y", b"2")])
        bus.subscribe("home/x", id="s").close()
        bus.subscribe("work/y", id="w", start="earliest").close()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sub work/# --id s", "headwater subs delete s first"),
        ("subs delete none", "headwater subs lists those that are"),
        ("dead redrive none --all", "headwater subs lists those that are"),
        ("remove-root none --yes", "headwater topics shows what there is"),
        ("replay # --after 1", "--after ROOT=OFFSET"),
        ("pub home/x 1 --ttl-s -1", "--ttl-s is -1.0; use more than 0, or leave it out"),
        ("sub home/x --id t --start earlyest", "write earliest, latest, an offset"),
        ("tokens add ann --role boss", '"boss" is no role; use one of reader, operator, admin'),
        ("pub home/x 1 --sequence 1", "--sequence needs --producer NAME"),
        ("tokens add ann", "say what the token may do: --role reader, operator or admin"),
        ("remove-root work --yes", "have them ack, or say --force"),
        ("subs create s work/#", 'its filter is "home/x", not "work/#"; choose another id'),
        (
            "subs create s home/x --order key --max-attempts 3",
            'order is "strict", not "key", its max_attempts is 5, not 3',
        ),
    ],
)
def test_an_error_advises_a_command(command: str, says: str, data: Path):
    refused = here(*command.split(), data=data, code=2)
    assert says in refused.stderr
    assert "bus." not in refused.stderr


def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path):
    for given in (tmp_path, tmp_path / "none"):
        refused = here("restore", given, "--data", tmp_path / "new", code=2)
        assert "is no backup; name a folder that headwater backup made" in refused.stderr


@pytest.mark.parametrize(
    ("number", "name", "says"),
    [
        (errno.EROFS, "x.toml.tmp", '"x.toml": its disk is mounted to be read only'),
        (errno.ENOSPC, "x", '"x": its disk is full; make room there'),
        (errno.ENOSPC, None, "what is shown cannot be written: No space left"),
        (errno.EACCES, "x", "do it as the user whose it is"),
        (errno.EIO, "x", '"x": Input/output error'),
    ],
)
def test_an_error_of_the_machine_says_what_to_do(number: int, name: str | None, says: str):
    assert says in of_the_system(OSError(number, os.strerror(number), name))


def test_a_folder_that_is_in_use_is_not_to_be_opened_in_python(data: Path):
    with headwater.open(data):
        refused = here("pub", "home/x", "1", data=data, code=2)
    assert "is owned by this process; close it there" in refused.stderr
    assert "read_only" not in refused.stderr


def test_one_of_something_is_not_several(data: Path):
    assert "1 topic in 1 root, 1 message" in here("topics", "home/#", data=data).stdout
    assert "1 topic purged" in here("purge", "home/x", "--yes", data=data).stdout
    assert "whole: 3 messages in 3 roots" in here("verify", data=data).stdout  # the audit's, too
