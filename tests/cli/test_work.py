"""`headwater work`: handlers as a process, its log and its figures."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater
from cli.command import ENVIRONMENT, command, one_sentence

HOUSE = """
import os, headwater

bus = headwater.open("data")

@bus.handler("home/+/temp", id="thermostat", start="earliest", workers=2, retry_delay_s=300, retry_delay_s_max=300)
def regulate(message):
    os.write(1, b"VERSION " + message.payload + b"\\n")
    if message.payload == b"bad":
        raise headwater.Reject("no number")
    if message.payload == b"late":
        raise ValueError("a sensor\\nthat is late")

def made():
    return bus

number = 7
"""
SOON = """
import os, headwater.aio

bus = headwater.aio.open("data")

@bus.handler("home/+/temp", id="thermostat", start="earliest")
async def regulate(message):
    os.write(1, b"one " + message.payload + b"\\n")
"""


@contextmanager
def work(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("work", *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done there)
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while wanted not in lines:
        line = process.stdout.readline()
        assert line, lines
        lines.append(line.strip())
    return lines


def house(folder: Path, text: str, *payloads: bytes) -> None:
    (folder / "house.py").write_text(text)
    with headwater.open(folder / "data") as bus:
        bus.publish_many([("home/hall/temp", payload) for payload in payloads])


def test_a_process_works_logs_a_line_a_failure_and_shows_figures(tmp_path: Path) -> None:
    house(tmp_path, HOUSE.replace("VERSION", "one"), b"1", b"bad", b"2", b"late")
    with work(tmp_path, "house:bus", "--workers", "3") as process:
        read_until(process, "one late")
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=60)
    assert process.returncode == 0
    first, second = log.strip().splitlines()
    assert (
        'WARNING handler house.regulate rejected message 2 of "home/hall/temp" for "thermostat", attempt 1: ' in first
    )
    assert second.endswith("attempt 1: ValueError: a sensor that is late")
    titles, row, total = output.strip().splitlines()
    assert titles.split()[:3] == ["handler", "subscription", "done"]
    assert row.split()[:6] == ["house.regulate", "thermostat", "2", "1", "1", "0"]
    assert total.startswith("2 done and 2 failed in ")


@pytest.mark.parametrize(("text", "bus"), [(HOUSE.replace("VERSION", "one"), "house:made"), (SOON, "house:bus")])
def test_a_function_that_gives_a_bus_and_a_bus_for_asyncio_work_too(tmp_path: Path, text: str, bus: str) -> None:
    house(tmp_path, text, b"1")
    with work(tmp_path, bus, "--json") as process:
        read_until(process, "one 1")
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=60)
    assert (process.returncode, log) == (0, "")
    assert '"handler":"house.regulate","subscription":"thermostat","done":1,' in output


@pytest.mark.parametrize(
    ("bus", "says"),
    [
        ("house", "names no bus"),
        ("house:", "names no bus"),
        ("cottage:bus", 'no module "cottage"'),
        ("house:garden", 'has no "garden"'),
        ("house:number", "is int, and no bus"),
        ("house:regulate", "a function that takes something, as a handler does"),
    ],
)
def test_what_is_no_bus_is_one_sentence(tmp_path: Path, bus: str, says: str) -> None:
    house(tmp_path, HOUSE)
    with work(tmp_path, bus) as process:
        output, log = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert one_sentence(log)
    assert says in log


def test_with_reload_a_change_begins_anew_and_what_is_wrong_waits_to_be_mended(tmp_path: Path) -> None:
    source = tmp_path / "house.py"
    house(tmp_path, HOUSE.replace("VERSION", "one"), b"1")

    def change(text: str, seconds: int) -> None:
        source.write_text(text)
        os.utime(source, (seconds, seconds))

    with work(tmp_path, "house:bus", "--reload") as process:
        read_until(process, "one 1")
        change(HOUSE.replace("VERSION", "two").replace('"thermostat"', '"other"'), 1_000_000_000)
        read_until(process, "two 1")
        change("this is no Python", 1_100_000_000)
        assert process.stderr is not None
        while "SyntaxError" not in process.stderr.readline():
            pass
        change(HOUSE.replace("VERSION", "three").replace('"thermostat"', '"third"'), 1_200_000_000)
        read_until(process, "three 1")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.strip().splitlines()[-1].startswith("1 done")


def test_with_reload_too_the_second_signal_does_not_wait_for_a_handler(tmp_path: Path) -> None:
    sleeps = "    import time; time.sleep(3600)\n\ndef made"
    house(tmp_path, HOUSE.replace("VERSION", "one").replace("def made", sleeps), b"1")
    with work(tmp_path, "house:bus", "--reload") as process:
        read_until(process, "one 1")
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_with_reload_the_workers_end_with_their_terminal(tmp_path: Path) -> None:
    house(tmp_path, HOUSE.replace("VERSION", "one"), b"1")
    with work(tmp_path, "house:bus", "--reload") as process:
        read_until(process, "one 1")
        process.send_signal(signal.SIGHUP)
        process.wait(30)
    with headwater.open(tmp_path / "data") as bus:  # which nobody has any more
        assert [one.lag for one in bus.subscriptions()] == [0]
