"""`headwater top`, in this process where that tells the same, and on a terminal of its own where it does not."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import headwater
from cli.command import ENVIRONMENT, command, one_sentence
from headwater.cli import top
from headwater.cli.app import app_for
from server.harness import Running

EVIL = "evil\x1b[2J\x1b[31m[bold]"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Running() as running:
        with headwater.connect(running.server.url) as bus:
            bus.publish_many([("home/a", b"x")] * 10)
            bus.publish_many([("hall/a", b"x")] * 3)
        running.bus.subscribe("home/#", id="behind", start="earliest").close()
        running.bus.subscribe("hall/#", id=EVIL, start="earliest").close()
        yield running.server.url


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def run(*arguments: str, code: int = 0) -> str:
    """What it prints."""
    result = CliRunner().invoke(app_for(()), ["top", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_once_it_shows_rates_subscriptions_and_roots(url: str):
    shown = run("--once", "--url", url)
    assert "messages/s" in shown
    assert "commit" in shown
    behind = next(line.split() for line in shown.splitlines() if line.startswith("behind"))
    assert behind == ["behind", "10", "0", "0", "0", "0"]
    home = next(line.split() for line in shown.splitlines() if line.startswith("home"))
    assert home[:4] == ["home", "0", "1", "11"]


def test_names_are_shown_as_inert_text(url: str):
    shown = run("--once", "--url", url)
    assert "\x1b" not in shown
    assert "evil\\x1b[2J\\x1b[31m[bold]" in shown


def test_as_json_it_has_every_figure(url: str):
    found = json.loads(run("--once", "--json", "--url", url))
    assert found["url"] == url
    assert found["counters"]["messages_in"] == 13
    assert found["rates"]["messages_in"] == 0
    assert found["gauges"]["lag"] == 13
    assert {one["id"]: one["lag"] for one in found["subscriptions"]} == {"behind": 10, EVIL: 3}
    assert {one["root"] for one in found["roots"]} == {"home", "hall"}
    assert set(found["commit_s"]) == {"p50", "p99"}


def test_a_secret_in_the_url_is_not_shown():
    with Running(auth="scram") as running:
        running.client("root", admin=True)
        secret = running.bus.clients.rotate("root").secret
        url = running.server.url.replace("://", f"://root:{secret}@")
        for extra in ((), ("--json",)):
            assert secret not in run("--once", "--url", url, *extra)
        running.client("ann")
        ann = running.bus.clients.rotate("ann").secret
        refused = run("--once", "--url", running.server.url.replace("://", f"://ann:{ann}@"), code=2)
        assert one_sentence(refused)
        assert "admin" in refused


@pytest.mark.parametrize("end", ["q", "ctrl-c"])
def test_on_a_terminal_it_goes_on_until_q_or_ctrl_c_and_leaves_the_terminal_as_it_was(url: str, end: str):
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        command("top", "--url", url, "--every", "0.75"),
        stdin=theirs,
        stdout=theirs,
        env={**ENVIRONMENT, "TERM": "xterm"},
        start_new_session=True,
        # Where the tests themselves run in the background, Ctrl-C is ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done there)
    )
    try:
        text = read_until(ours, b"behind", b"behind")
        assert b"\x1b[?1049h" in text  # a screen of its own
        if end == "q":
            os.write(ours, b"xq")
        else:
            process.send_signal(signal.SIGINT)
        read_until(ours, b"\x1b[?1049l")
        assert process.wait(60) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


def read_until(descriptor: int, *wanted: bytes) -> bytes:
    """Read from a terminal until these were shown, one after another."""
    text, end, start = b"", time.monotonic() + 60, 0
    for word in wanted:
        while (at := text.find(word, start)) < 0:
            assert time.monotonic() < end, text
            if select.select([descriptor], [], [], 0.2)[0]:
                text += os.read(descriptor, 65536)
        start = at + len(word)
    return text


def test_lines_of_json_come_until_it_is_ended(url: str, monkeypatch: pytest.MonkeyPatch):
    waits = iter((0.01, 0.6, None))

    def wait(_: float) -> bool:
        seconds = next(waits)
        if seconds is None:
            raise KeyboardInterrupt
        time.sleep(seconds)
        return False

    monkeypatch.setattr(top, "_wait", wait)
    looks = [json.loads(line) for line in run("--json", "--url", url).splitlines()]
    assert len(looks) == 2
    assert looks[0]["time"] < looks[1]["time"]
