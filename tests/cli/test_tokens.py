from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here, one_sentence, run
from client.served import Served


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.clients.add("ann")
    return tmp_path / "data"


def test_a_token_is_added_shown_once_listed_and_removed(data: Path):
    shown = run("tokens", "add", "ann", "--role", "operator", data=data).stdout
    token = shown.partition("token: ")[2].split()[0]
    assert "once" in shown
    assert f"Authorization: Bearer {token}" in shown
    with headwater.open(data) as bus:  # listing works beside the owner
        assert bus.tokens.check(token).role == "operator"
        (info,) = objects_here("tokens", "list", "--data", data)
    assert (info["client"], info["role"], set(info)) == ("ann", "operator", {"id", "client", "role", "created"})
    listed = here("tokens", "list", "--data", data).stdout
    assert token not in listed
    assert "ann" in listed
    assert objects_here("tokens", "remove", info["id"], "--data", data) == [{"id": info["id"], "done": "removed"}]
    assert objects_here("tokens", "list", "--data", data) == []


def test_the_same_at_a_server(data: Path):
    with Served(data) as served:
        at = ("--url", served.url)
        (made,) = objects_here("tokens", "add", "ann", "--role", "admin", *at)
        assert served.bus.tokens.check(made["token"]).id == made["id"]
        assert [info["id"] for info in objects_here("tokens", "list", *at)] == [made["id"]]
        here("tokens", "remove", made["id"], *at)
        assert served.bus.tokens.list() == []
        assert one_sentence(here("tokens", "add", "ann", "--role", "root", *at, code=2).stderr)


@pytest.mark.parametrize(
    "wrong",
    [
        ("add", "nobody", "--role", "reader"),
        ("add", "ann", "--role", "root"),
        ("add", "a/b", "--role", "reader"),
        ("remove", "none"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("tokens", *wrong, "--data", data, code=2).stderr)
