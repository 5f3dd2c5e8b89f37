from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence, run, start
from cli.test_serve import serving

EVIL = "\x1b[2J\x1b]0;title\x07 \u202egnp.exe \\ \n".encode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/kitchen/temp", b"21.5", retain=True)
        bus.publish("home/hall/temp", EVIL)
        bus.publish("home/hall/raw", b"\xff\x00")
    return tmp_path / "data"


def test_a_live_subscriber_beside_the_owner_gets_retained_messages_and_then_what_is_new(data: Path):
    with headwater.open(data) as bus, start("sub", "home/#", "--count", 3, "--json", data=data) as watching:
        assert watching.stdout is not None
        retained = json.loads(watching.stdout.readline())
        assert (retained["topic"], retained["payload"], retained["retained"]) == ("home/kitchen/temp", "21.5", True)
        bus.publish("home/study/temp", b"20", headers={"unit": "C"})
        first = json.loads(watching.stdout.readline())
        assert (first["topic"], first["offset"], first["headers"]) == ("home/study/temp", 4, [["unit", "C"]])
        bus.publish("office/other", b"not for us")
        bus.publish("home/new", b"\xff")
        second = json.loads(watching.stdout.readline())
        assert (second["topic"], second["payload_base64"], second["retained"]) == ("home/new", "/w==", False)
        assert watching.wait(60) == 0


def test_a_live_subscriber_sees_what_one_command_after_another_publishes(data: Path):
    with start("sub", "#", "--count", 3, data=data) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"home/kitchen/temp\t1\t21.5\n"
        for number in (1, 2):
            run("pub", f"jobs/{number}", "x", data=data)
            assert watching.stdout.readline() == b"jobs/%d\t%d\tx\n" % (number, number)
        assert watching.wait(60) == 0


def test_nothing_that_a_terminal_would_obey_is_printed(data: Path):
    result = run("sub", "home/hall/#", "--id", "s", "--start", "earliest", "--count", 2, data=data)
    assert result.stdout == (
        "home/hall/temp\t2\t\\x1b[2J\\x1b]0;title\\x07 \\u202egnp.exe \\\\ \\n\nhome/hall/raw\t3\t0xff00\n"
    )
    run("subs", "seek", "s", "earliest", data=data)
    shown = run("sub", "home/hall/#", "--id", "s", "--count", 2, "--hex", data=data)
    assert shown.stdout.splitlines()[1].endswith("\t0xff00")


def test_a_durable_subscription_goes_on_where_it_was(data: Path):
    first = objects("sub", "home/#", "--id", "s", "--start", "earliest", "--count", 2, data=data)
    rest = objects("sub", "home/#", "--id", "s", "--timeout-s", 0.2, data=data)
    assert [message["offset"] for message in first + rest] == [1, 2, 3]


def test_without_acks_it_only_looks(data: Path):
    for _ in range(2):
        seen = objects("sub", "home/#", "--id", "s", "--start", 2, "--no-ack", "--timeout-s", 0.2, data=data)
        assert [message["offset"] for message in seen] == [2, 3]


def line_of(pipe: IO[bytes]) -> bytes:
    """A line, and nothing of what is behind it."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(pipe.fileno(), 1)
    return line


@pytest.mark.parametrize("is_served", [False, True])
def test_a_reader_that_leaves_a_pipe_has_what_it_took_acked_and_no_more(data: Path, is_served: bool):
    with headwater.open(data) as bus:
        bus.publish_many([("jobs/x", b"%d" % number) for number in range(500)])
    with serving(data, "--no-http") if is_served else nullcontext() as server:
        assert server is None or server.port
        for first in (1, 4):  # nothing is left over, nor counted as failed
            with start("sub", "jobs/#", "--id", "h", "--start", "earliest", "--json", data=data) as watching:
                assert watching.stdout is not None
                taken = [json.loads(line_of(watching.stdout)) for _ in range(3)]
                assert [(one["offset"], one["attempt"]) for one in taken] == [(first + n, 1) for n in range(3)]
                watching.stdout.close()
                assert watching.wait(60) == 0
        rest = objects_here("sub", "jobs/#", "--id", "h", "--count", 1, data=data)
    assert [(one["offset"], one["attempt"]) for one in rest] == [(7, 1)]


def test_fewer_messages_than_asked_for_is_code_1(data: Path):
    result = run("sub", "home/#", "--id", "s", "--count", 1, "--timeout-s", 0.1, "--start", "latest", data=data)
    assert "home/kitchen/temp" in result.stdout, "the retained one comes first"
    result = run("sub", "home/#", "--id", "s", "--count", 1, "--timeout-s", 0.1, data=data, code=1)
    assert one_sentence(result.stderr)
    assert run("sub", "none/#", "--count", 1, "--timeout-s", 0.1, data=data, code=1).stdout == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ("home/*/x",),
        ("home/#", "--start", "earliest"),
        ("home/#", "--no-ack"),
        ("home/#", "--id", "s", "--start", "whenever"),
        ("home/#", "--id", "s", "--order", "random"),
        ("#", "--id", "s", "--start", "3"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("sub", *wrong, "--data", data, code=2).stderr)


@pytest.mark.parametrize("arguments", [("sub", "home/#", "--id", "s"), ("sub", "home/#")])
def test_ctrl_c_ends_it_quietly_and_lets_go_of_the_folder(data: Path, arguments: tuple[str, ...]):
    with start(*arguments, data=data) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=60)
        assert (waiting.returncode, errors) == (130, b"")
    headwater.open(data).close()
