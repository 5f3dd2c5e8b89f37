"""Where a command works: on a folder or at a server, by flags or by the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
import headwater.bus
from cli.command import one_sentence, run
from headwater.cli.app import app_for
from headwater.cli.options import At, place, without_secret

URL = "headwater://me:hunter2@127.0.0.1:1"


class TestPlace:
    @pytest.fixture(autouse=True)
    def nothing_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HEADWATER_DATA", raising=False)
        monkeypatch.delenv("HEADWATER_URL", raising=False)

    def test_it_is_a_folder_unless_something_else_is_said(self):
        assert place(None, None) == At("headwater-data", None)
        assert place("d", None) == At("d", None)
        assert place(None, URL).url == URL

    def test_flags_win_over_the_environment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HEADWATER_URL", URL)
        assert place(None, None).url == URL
        assert place("d", None) == At("d", None)
        monkeypatch.delenv("HEADWATER_URL")
        monkeypatch.setenv("HEADWATER_DATA", "d")
        assert place(None, None) == At("d", None)
        assert place(None, URL).url == URL

    def test_a_folder_and_a_server_at_once_are_refused(self, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(headwater.Malformed, match="--data"):
            place("d", URL)
        monkeypatch.setenv("HEADWATER_URL", URL)
        monkeypatch.setenv("HEADWATER_DATA", "d")
        with pytest.raises(headwater.Malformed, match="HEADWATER_DATA and HEADWATER_URL"):
            place(None, None)

    def test_a_url_is_shown_without_its_secret(self):
        assert without_secret(URL) == "headwater://me:***@127.0.0.1:1"
        assert without_secret("headwater://a:b@c@h") == "headwater://a:***@h"
        assert without_secret("headwater://h:7411") == "headwater://h:7411"


EVERY_COMMAND = [
    ["pub", "home/a", "x"],
    ["sub", "#", "--count", "1"],
    ["replay", "#"],
    ["topics"],
    ["subs"],
    ["subs", "list"],
    ["subs", "show", "s"],
    ["subs", "delete", "s"],
    ["subs", "pause", "s"],
    ["subs", "resume", "s"],
    ["subs", "seek", "s", "earliest"],
    ["dead", "list"],
    ["dead", "show", "s", "1"],
    ["dead", "redrive", "s", "--all"],
    ["dead", "drop", "s", "--all"],
    ["purge", "home/#", "--yes"],
    ["backup", "copy"],
    ["restore", "copy"],
    ["verify"],
]


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=" ".join)
def test_every_command_takes_a_folder_or_a_url_but_not_both(words: list[str]):
    done = CliRunner().invoke(app_for(()), [*words, "--data", "d", "--url", URL])
    assert done.exit_code == 2
    assert one_sentence(done.stderr)
    assert "give one of them" in done.stderr


def test_both_at_once_end_a_command_with_a_sentence_and_code_2(tmp_path: Path):
    assert one_sentence(run("topics", "--data", tmp_path, "--url", URL, code=2).stderr)


@pytest.mark.parametrize("words", [["restore", "copy"], ["verify"]], ids=" ".join)
def test_commands_that_need_the_files_say_so(words: list[str]):
    done = CliRunner().invoke(app_for(()), [*words, "--url", URL])
    assert done.exit_code == 2
    assert "--data FOLDER" in done.stderr
    assert "hunter2" not in done.stderr


class Lent:
    """Hands out one bus again and again, as a server does; what a command closes stays open."""

    def __init__(self, bus: headwater.bus.Bus) -> None:
        self._bus = bus

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def refresh(self) -> None:
        raise AssertionError("a server needs no second look")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class TestServed:
    @pytest.fixture
    def bus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[headwater.bus.Bus]:
        monkeypatch.delenv("HEADWATER_DATA", raising=False)
        asked = []

        def connect(url: str) -> Any:
            asked.append(url)
            return Lent(bus)

        monkeypatch.setattr(headwater, "connect", connect, raising=False)
        with headwater.open(tmp_path / "data") as bus:
            bus.publish("home/a", b"1", retain=True)
            yield bus
        assert set(asked) == {URL}

    def objects(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        done = CliRunner().invoke(app_for(()), [*words, "--url", URL, "--json"])
        assert done.exit_code == code, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_messages_go_out_and_come_in(self, bus: headwater.bus.Bus):
        assert self.objects("pub", "home/b", "2")[0]["offset"] == 2
        assert [found["payload"] for found in self.objects("replay", "#")] == ["1", "2"]
        assert [found["payload"] for found in self.objects("replay", "#", "--follow", "--count", "2")] == ["1", "2"]
        assert [found["payload"] for found in self.objects("sub", "#", "--count", "1")] == ["1"]
        assert self.objects("sub", "none/#", "--count", "1", "--timeout-s", "0", code=1) == []

    def test_a_durable_subscription_is_consumed_and_looked_after(self, bus: headwater.bus.Bus):
        words = ("sub", "#", "--id", "s", "--start", "earliest", "--count", "1")
        assert [found["payload"] for found in self.objects(*words, "--no-ack")] == ["1"]
        (info,) = self.objects("subs", "list")
        assert {"in_flight", "consumers"} <= set(info)
        assert [found["payload"] for found in self.objects(*words)] == ["1"]
        assert self.objects("dead", "list") == []

    def test_topics_are_looked_at_and_purged(self, bus: headwater.bus.Bus):
        assert [found["topic"] for found in self.objects("topics")] == ["home/a"]
        assert self.objects("topics", "--interval", "0.05")[0]["rate"] == 0
        assert self.objects("purge", "home/#", "--yes") == [{"filter": "home/#", "topics": 1}]

    def test_a_backup_is_made_where_the_server_is_and_the_secret_is_not_shown(
        self, bus: headwater.bus.Bus, tmp_path: Path
    ):
        (done,) = self.objects("backup", str(tmp_path / "copy"))
        assert done["from"] == "headwater://me:***@127.0.0.1:1"
        assert (tmp_path / "copy").is_dir()
