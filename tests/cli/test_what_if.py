"""`headwater what-if`, beside the process that owns the folder and at a server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import headwater
from cli.command import ENVIRONMENT, command
from client.served import Served

HOUSE = """
import asyncio, headwater, headwater.aio

bus = headwater.open("data")
bus.schedule("jobs/x", b"", cron="* * * * *")        # what a module does at its start
bus.publish("started/x", b"")

@bus.handler("home/#", id="s")
def regulate(message):
    float(message.payload)
    bus.publish("heater/x", b"on")

def better(message):
    if message.payload == b"2":
        raise ValueError("two")
    bus.publish("heater/x", b"on")

async def soon(message):
    async with headwater.aio.connect("headwater://127.0.0.1:1") as away:
        ...

async def awaited(message):
    await asyncio.sleep(0)
    await message.ack()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "house.py").write_text(HOUSE)
    with headwater.open(tmp_path / "data") as bus:
        sub = bus.subscribe("home/#", id="s")
        bus.publish_many([("home/x", payload) for payload in (b"1", b"2", b"bad", b"4")])
        for message in sub.batch(10, 10):
            if message.payload == b"bad":
                message.reject("no number")
            else:
                bus.publish("heater/x", b"on")
                message.ack()
        sub.close()
    return tmp_path


def what_if(folder: Path, *arguments: str, code: int) -> tuple[str, str]:
    done = subprocess.run(
        command("what-if", *arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def known(bus: headwater.Bus) -> tuple[Any, ...]:
    (info,) = bus.subscriptions()
    letters = [(one.offset, one.errors) for one in bus.dead_letters("s")]
    return info.floors, info.lag, letters, [one.topic for one in bus.topics()], bus.schedules(), bus.ends()["heater"]


def test_beside_the_owner_it_shows_what_would_be_different_and_changes_nothing(folder: Path):
    with headwater.open(folder / "data") as owner:
        before = known(owner)
        said, _ = what_if(folder, "house:better", "--id", "s", "--html", "report.html", code=1)
        assert known(owner) == before
    assert "newly fail                   1" in said or "newly fail" in said
    assert "ValueError: two" in said
    assert "dead → acked" in said
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_for_machines_it_is_an_object_each_and_the_whole_at_the_end(folder: Path):
    said, _ = what_if(folder, "house:better", "--id", "s", "--json", "--data", "data", code=1)
    *trials, whole = map(json.loads, said.splitlines())
    assert [(one["offset"], one["changes"]) for one in trials] == [(2, ["fails"]), (3, ["succeeds"])]
    assert (trials[1]["before"]["error"], trials[1]["after"]["published"]) == (
        "no number",
        [{"verb": "publish", "topic": "heater/x", "payload": "on"}],
    )
    assert (whole["messages"], whole["counts"]["fails"], whole["against"]) == (4, 1, None)
    said, _ = what_if(
        folder, "house:better", "--id", "s", "--json", "--against", "house:regulate", "--after", "2", code=0
    )
    *trials, whole = map(json.loads, said.splitlines())
    assert [(one["offset"], one["changes"]) for one in trials] == [(3, ["succeeds"])]
    assert whole["against"] == "house.regulate"


def test_at_a_server_and_with_a_coroutine_function(folder: Path):
    with Served(folder / "served") as served:
        served.bus.publish("home/x", b"1")
        served.bus.subscribe("home/#", id="s", start="earliest").close()
        for code in ("house:better", "house:awaited"):
            said, _ = what_if(folder, code, "--id", "s", "--json", "--url", served.url, code=0)
            assert json.loads(said.splitlines()[-1])["ends"] == {"waiting → acked": 1}
        assert [one.topic for one in served.bus.topics()] == ["home/x"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("house", "--id", "s"), "module:function"),
        (("house:nothing", "--id", "s"), 'no "nothing"'),
        (("nowhere:better", "--id", "s"), "no module"),
        (("house:better", "--id", "nobody"), "no subscription"),
        (("house:bus", "--id", "s"), "a handler is a function"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: Path, arguments: tuple[str, ...], says: str):
    said, error = what_if(folder, *arguments, code=2)
    assert says in error
    assert "Traceback" not in said + error
