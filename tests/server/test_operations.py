"""The table of operations: each has a right that is asked for, a verb that takes its fields, and a client that asks."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from headwater.errors import NotAllowed, NotFound
from headwater.store.batch import checksum
from headwater.wire import requests
from headwater.wire.operations import OPERATIONS, Operation, Right
from server.harness import Running
from wire.smallest import BODY, smallest

SOURCE = Path(headwater.__file__).parent
ROWS = tuple(OPERATIONS.values())
OF_SESSION = {row for row in ROWS if row.verb.startswith("session.")}
REFUSED = (Right.PUBLISH, Right.SUBSCRIBE, Right.LOOK_AFTER, Right.REDRIVE, Right.ADMIN)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running(auth="scram") as running:
        running.client("root", allow=("subscribe #",), admin=True).client("eve")
        running.bus.publish("a", b"1")
        running.bus.subscribe("a", id="x").close()
        yield running


def form(row: Operation) -> Any:
    """Something that could be done, if it were allowed."""
    given = {**smallest(row.request), **({"root": "a", "crc": checksum(BODY)} if row.request is requests.Stage else {})}
    return msgspec.convert(given, row.request, strict=False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.request.__name__)
def test_who_has_no_right_is_refused_or_sees_nothing(running: Running, row: Operation) -> None:
    if row.right is Right.SESSION:
        return  # whoever is connected has a session, and of others nobody knows
    eve = running.peer("eve")
    if row.right in REFUSED:
        with pytest.raises(NotAllowed):
            eve.ask(form(row))
    elif row.right is Right.SEEN:
        assert not [one for one in eve.ask(form(row)) if getattr(one, "user", "") != "eve"]
    else:
        with suppress(NotFound):
            assert not eve.ask(form(row))
    eve.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.request.__name__)
def test_its_verb_is_there_and_takes_what_the_request_says(running: Running, row: Operation) -> None:
    owner, _, name = row.verb.rpartition(".")
    told = running.server.sessions.answers._told
    if owner in told:
        asked = inspect.signature(getattr(told[owner], name)).parameters["request"].annotation
        assert asked.rpartition(".")[2] == row.request.__name__
    elif row not in OF_SESSION:
        verb = running.server.sessions.answers.verb(row.verb)
        inspect.signature(verb).bind(**dict.fromkeys(row.fields))


def test_a_right_of_administrators_says_what_it_is_for_and_no_other_does() -> None:
    assert [row for row in ROWS if bool(row.what) != (row.right is Right.ADMIN)] == []


def test_those_whose_verbs_are_told_who_asks_have_no_verb_that_nobody_asks_for(running: Running) -> None:
    told = running.server.sessions.answers._told
    used = {row.verb for row in ROWS}
    for owner, one in told.items():
        for name, method in inspect.getmembers(one, inspect.ismethod):
            if not name.startswith("_") and "request" in inspect.signature(method).parameters:
                assert f"{owner}.{name}" in used or name in ("work_for", "as_asked"), f"{owner}.{name}"


def test_every_operation_is_asked_by_some_client() -> None:
    asked = {
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
        for path in (*(SOURCE / "client").glob("*.py"), SOURCE / "admin" / "client.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") != "isinstance"
        for one in (node.func, *node.args)  # made here, or handed to what makes it
    }
    assert [row.request.__name__ for row in ROWS if row.request.__name__ not in asked] == []
