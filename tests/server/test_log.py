"""The log: one line an event, which no peer can forge, flood, or make tell a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from headwater import ManualClock
from headwater.events import Events
from headwater.server.log import EVENTS_MAX, LINES_PER_SECOND_MAX, VALUE_CHARS_MAX, Log, configure


class Out:
    """What was logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def out() -> Iterator[Out]:
    loggers = [logging.getLogger(name) for name in ("headwater", "asyncio")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    raises = logging.raiseExceptions
    found = Out()
    configure(stream=found.stream, level="debug")
    yield found
    logging.raiseExceptions = raises
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def as_json(out: Out) -> Out:
    configure(as_json=True, stream=out.stream, level="debug")
    return out


def test_an_event_is_a_line_of_time_level_event_and_fields(out: Out):
    Log("headwater.server.x").info("listening", host="127.0.0.1", port=7411, tls=True, user=None, took_s=0.5)
    (line,) = out.lines
    time, rest = line.split(" ", 1)
    assert rest == "INFO listening host=127.0.0.1 port=7411 tls=true user=- took_s=0.5"
    assert len(time) == len("2026-01-31T12:00:00.000Z")
    assert time.endswith("Z")


def test_with_json_an_event_is_an_object(as_json: Out):
    Log().warning("slow", seconds=1.5, level="mine", peer="a b", data=b"\x00\xff", gone=None)
    (found,) = as_json.objects
    del found["time"]
    assert found == {
        "level": "warning", "event": "slow", "seconds": 1.5, "level_": "mine", "peer": "a b", "data": "00ff",
        "gone": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    ["two words", "a=b", "", 'quo"te', "line\nINFO forged", "\x1b[31m", "\x9b31m", "\u202eabc", "\u2028", "\udcff"],
)
def test_no_value_can_forge_a_line_or_move_a_cursor(out: Out, value: str):
    Log().info("met", name=value, last=1)
    (line,) = out.lines
    assert line.isprintable()
    assert line.endswith(" last=1")
    assert json.loads(line.split("name=", 1)[1].removesuffix(" last=1")) == value


def test_long_values_are_cut(out: Out):
    Log().info("met", name="x" * 100_000, data=b"x" * 100_000)
    assert len(out.lines[0]) < 2 * VALUE_CHARS_MAX + 200


@pytest.mark.parametrize("as_object", [False, True])
def test_no_secret_is_logged(out: Out, as_object: bool):
    configure(as_json=as_object, stream=out.stream, level="debug")
    log = Log()
    log.info("a", secret="hunter2", password="hunter2", client_proof=b"hunter2", Token="hunter2")
    log.info("b", url="headwater://me:hunter2@host:7411", text="at headwaters://me:hunter@hunter2@host/ now")
    log.info("c", request={"user": "me", "password": "hunter2"})
    log.info("d", url="headwater://me:" + "hunter2" * VALUE_CHARS_MAX + "@host")
    try:
        raise ValueError("headwater://me:hunter2@host")
    except ValueError:
        log.error("e")
    logging.getLogger("headwater").warning("at %s", "headwater://me:hunter2@host")
    assert len(out.lines) == 6
    assert "hunter2" not in out.stream.getvalue().split("raise ValueError", maxsplit=1)[0]
    assert "hunter2@" not in out.stream.getvalue()
    assert "me:***@host" in out.stream.getvalue()


def test_an_error_has_its_traceback_on_the_same_line(out: Out):
    try:
        raise RuntimeError("oh no")
    except RuntimeError:
        Log().error("failed", what="it")
    (line,) = out.lines
    assert ' ERROR failed what=it error="oh no" traceback="Traceback' in line
    Log().error("failed")
    assert out.lines[1].endswith(" ERROR failed")


def test_what_the_bus_and_others_log_is_an_event_too(as_json: Out):
    Events(ManualClock(), 10).add("damage", "messages 1 to 5 are lost")
    logging.getLogger("headwater.other").info("%d things", 5)
    logging.getLogger("asyncio").error("a task failed")
    found = [{name: value for name, value in one.items() if name != "time"} for one in as_json.objects]
    assert found == [
        {"level": "warning", "event": "damage", "text": "messages 1 to 5 are lost"},
        {"level": "info", "event": "log", "logger": "headwater.other", "text": "5 things"},
        {"level": "error", "event": "log", "logger": "asyncio", "text": "a task failed"},
    ]


def test_events_below_the_level_are_left_out(out: Out):
    configure(stream=out.stream, level="warning")
    log = Log()
    log.info("no")
    log.at_will(logging.INFO, "no")
    log.warning("yes")
    assert [line.split()[2] for line in out.lines] == ["yes"]


def test_a_log_that_cannot_be_written_harms_nobody():
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    before = logging.getLogger("headwater").handlers
    try:
        configure(stream=Broken())
        Log().info("lost")
    finally:
        logging.getLogger("headwater").handlers = before
        logging.getLogger("headwater").propagate = True
        logging.raiseExceptions = True


class TestAtWill:
    def test_a_peer_causes_a_few_lines_a_second_and_the_rest_is_counted(self, as_json: Out):
        clock = ManualClock()
        log = Log(clock=clock)
        for _ in range(1000):
            log.at_will(logging.WARNING, "login-failed", user="x")
        assert len(as_json.lines) == LINES_PER_SECOND_MAX
        clock.advance(1)
        log.at_will(logging.WARNING, "login-failed", user="x")
        assert len(as_json.lines) == LINES_PER_SECOND_MAX + 2
        summary = as_json.objects[-2]
        assert (summary["event"], summary["of"]) == ("suppressed", "login-failed")
        assert summary["count"] == 1000 - LINES_PER_SECOND_MAX

    def test_one_event_does_not_silence_another(self, as_json: Out):
        log = Log(clock=ManualClock())
        for _ in range(100):
            log.at_will(logging.WARNING, "malformed-frame")
        log.at_will(logging.WARNING, "login-failed")
        assert as_json.objects[-1]["event"] == "login-failed"

    def test_flush_tells_the_count_once_and_lets_nothing_more_through(self, as_json: Out):
        log = Log(clock=ManualClock())
        for _ in range(LINES_PER_SECOND_MAX + 5):
            log.at_will(logging.WARNING, "login-failed")
        log.flush()
        log.flush()
        log.at_will(logging.WARNING, "login-failed")
        counts = [found["count"] for found in as_json.objects if found["event"] == "suppressed"]
        assert counts == [5]
        assert len(as_json.lines) == LINES_PER_SECOND_MAX + 1

    def test_on_an_event_loop_the_count_comes_by_itself(self, as_json: Out):
        async def flood() -> None:
            log = Log(clock=ManualClock())
            loop = asyncio.get_running_loop()
            told = asyncio.Event()
            handler = logging.Handler()
            handler.emit = lambda record: told.set() if record.msg == "suppressed" else None  # type: ignore[method-assign]
            logging.getLogger("headwater").addHandler(handler)
            for _ in range(100):
                log.at_will(logging.WARNING, "login-failed")
            await asyncio.wait_for(told.wait(), 30)
            assert loop.is_running()

        asyncio.run(flood())
        assert as_json.objects[-1]["count"] == 100 - LINES_PER_SECOND_MAX

    def test_what_is_remembered_is_bounded(self, as_json: Out):
        log = Log(clock=ManualClock())
        for number in range(EVENTS_MAX + 100):
            log.at_will(logging.WARNING, f"event-{number}")
        assert len(as_json.lines) == EVENTS_MAX + LINES_PER_SECOND_MAX
