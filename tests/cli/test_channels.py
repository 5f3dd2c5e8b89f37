"""In this process, as a process for each command would take most of the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
from client.served import Served
from headwater.cli.app import app_for


def run(*words: object, data: Path | None = None, stdin: str = "", code: int = 0, **environment: str) -> str:
    """What a command prints, to both."""
    given = environment if data is None else {"HEADWATER_DATA": str(data), **environment}
    result = CliRunner().invoke(app_for(()), ["channels", *map(str, words)], stdin, given)
    assert result.exit_code == code, result.output
    return result.output


def objects(*words: object, **others: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json", **others).splitlines()]


def refusal(*words: object, **others: Any) -> str:
    (sentence,) = run(*words, code=2, **others).splitlines()
    return sentence


@pytest.fixture
def data(tmp_path: Path) -> Path:
    headwater.open(tmp_path / "data").close()
    return tmp_path / "data"


def test_channels_of_a_folder_are_added_changed_and_removed(data: Path):
    shown = run("add", "hook", "home/#", "127.0.0.1:9000", "--kind", "http", "--id", "a", data=data)
    secret = shown.partition("secret: ")[2].split()[0]
    assert secret.startswith("whsec_")
    assert secret not in run("show", "a", data=data)
    (changed,) = objects("change", "a", "--to", "localhost:9001", "--path", "/in", "--new-secret", data=data)
    assert changed["secret"] not in ("", secret)
    run("pause", "a", data=data)
    (found,) = objects("list", data=data)
    assert (found["destination_host"], found["destination_port"], found["path"]) == ("localhost", 9001, "/in")
    assert found["state"] == "paused"
    assert "secret" not in found
    with headwater.open(data) as bus:
        bus.publish("home/x", b"1")
    assert "messages to deliver: 1" in refusal("remove", "a", data=data)
    run("remove", "a", "--force", data=data)
    assert objects("list", data=data) == []


def test_a_channel_is_named_by_its_name_if_no_other_is_called_so(data: Path):
    for place in ("a", "b"):
        run("add", "kitchen", "home/#", "127.0.0.1:9000", "--id", place, data=data)
    run("add", "a", "home/#", "127.0.0.1:9000", "--id", "c", data=data)
    run("add", "hall", "home/#", "127.0.0.1:9000", "--id", "d", data=data)
    run("pause", "hall", data=data)
    run("pause", "a", data=data)  # an id goes before a name
    states = {one["id"]: one["state"] for one in objects("list", data=data)}
    assert {id for id, state in states.items() if state == "paused"} == {"a", "d"}
    assert "2 channels are called" in refusal("remove", "kitchen", data=data)
    assert "say --force" not in refusal("remove", "nobody", data=data)


def test_a_table_is_exported_checked_and_imported_all_or_nothing(data: Path, tmp_path: Path):
    table = tmp_path / "channels.csv"
    table.write_text("id,name,destination_host,destination_port\n1,one,127.0.0.1,9001\n2,two,10.0.0.1,9002\n")
    said = refusal("import", table, "--filter", "home/#", data=data)
    assert "line 3: channels may not push to" in said
    assert objects("list", data=data) == []
    table.write_text("id,name,destination_host,destination_port\n1,=one,127.0.0.1,9001\n2,two,127.0.0.1,9002\n")
    run("import", table, "--filter", "home/#", "--check", data=data)
    assert objects("list", data=data) == []
    assert len(objects("import", table, "--filter", "home/#", data=data)) == 2
    exported = run("export", data=data)
    assert "1,'=one,home/#,tcp,127.0.0.1,9001,/,1000\n" in exported
    said = refusal("import", "-", data=data, stdin=exported)
    assert "line 2: there is a channel" in said


def test_a_folders_channels_may_push_where_the_servers_settings_say(data: Path):
    listed: dict[str, Any] = {"HEADWATER_CHANNEL_HOSTS": "10.0.0.0/8"}
    run("add", "n", "home/#", "10.0.0.1:9000", data=data, **listed)
    assert "channel_hosts" in refusal("add", "n", "home/#", "127.0.0.1:9000", data=data, **listed)


def test_channels_of_a_server_are_looked_after_and_tried_out(tmp_path: Path):
    with Served(tmp_path / "data") as served, headwater.receive(0) as receiver:
        url = ("--url", served.url)
        run("add", "n", "home/#", f"127.0.0.1:{receiver.port}", "--id", "a", *url)
        assert "greeted" in run("test", "a", *url)
        receiver.close()
        (trial,) = objects("test", "a", *url, code=1)
        assert not trial["ok"]
        assert "failing" in run("list", *url)
        run("remove", "a", *url)


@pytest.mark.parametrize(
    "words",
    [
        ("add", "n", "home/#", "nowhere"),
        ("add", "n", "home/#", "127.0.0.1:99999999"),
        ("add", "n", "home/#", "127.0.0.1:9000", "--kind", "udp"),
        ("add", "n", "home/#", "127.0.0.1:9000", "--start", "never"),
        ("show", "nobody"),
        ("test", "nobody"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(data: Path, words: tuple[str, ...]):
    assert refusal(*words, data=data)
