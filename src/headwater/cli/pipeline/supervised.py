"""`python -m headwater.cli.pipeline.supervised`: the pipelines of a server, in threads of one process with one Spark.

It is told which on its input, says on its output how each is, a line for each change, and ends with its input. What
fails is begun again, after a delay that grows; what ended by itself is done. Each pipeline keeps its place where the
command that it is does, so that nothing is lost when the process is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from headwater import threads
from headwater.cli import pipeline
from headwater.cli.following import pause
from headwater.clock import SECOND_US, SystemClock
from headwater.errors import HeadwaterError
from headwater.serving.child import STEADY_S
from headwater.serving.pipelines import RESTART_S, Told, words_of
from headwater.stdout import Stdout
from headwater.wire.administration import Job

RUNNING, WAITING, DONE = "running", "waiting", "done"
OF_SERVER = "run"
"""The command that writes topics, and so goes through the server; others read the folder beside it."""
ERROR_CHARS_MAX = 1000
TELL_US = SECOND_US


class Output:
    """What pipelines print, each in a thread of its own: objects of what they have done."""

    def __init__(self) -> None:
        self.buffer = self
        self._own = threading.local()

    def hear(self, supervised: Supervised) -> None:
        """Have what this thread prints go to this one."""
        self._own.supervised = supervised

    def write(self, data: Any) -> int:
        supervised = getattr(self._own, "supervised", None)
        if supervised is not None and isinstance(data, bytes):
            supervised.note(msgspec.json.decode(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


class Supervised:
    """A pipeline."""

    def __init__(self, name: str, told: Told, say: Any) -> None:
        self._told = told
        self._say = say
        self._clock = SystemClock()
        self._job = Job(name=name, command=told.pipelines[name], state=RUNNING, since_us=self._clock.now_us())
        self._said_us = 0
        self._lags: dict[str, int] = {}

    def run(self, app: Any, output: Output) -> None:
        """Until it is done."""
        output.hear(self)
        delay_s = RESTART_S
        while True:
            begun_us = self._clock.monotonic_us()
            self._become(RUNNING)
            error = self._run_once(app)
            if error is None:
                self._become(DONE, error="")
                return
            check_spark()
            if self._clock.monotonic_us() - begun_us > STEADY_S * SECOND_US:
                delay_s = RESTART_S
            self._become(WAITING, error=error[:ERROR_CHARS_MAX], restarts=self._job.restarts + 1)
            pause(delay_s)
            delay_s = min(2 * delay_s, self._told.restart_s_max)

    def _run_once(self, app: Any) -> str | None:
        """What it failed with."""
        try:
            app.main(args=self._words(), prog_name="headwater pipeline", standalone_mode=False)
        except HeadwaterError as error:
            return str(error)
        except BaseException as error:  # whatever it is, the others go on
            said = getattr(error, "message", None) or str(error)
            return f"{type(error).__name__}: {said}"
        return None

    def _words(self) -> list[str]:
        words = words_of(self._job.name, self._job.command)
        said = {word.partition("=")[0] for word in words}
        if said.isdisjoint(("--data", "--url")):
            words += ["--url", self._told.url] if words[0] == OF_SERVER else ["--data", self._told.folder]
        if self._told.lake and "--lake" not in said:
            words += ["--lake", self._told.lake]
        return words if "--json" in said else [*words, "--json"]

    def note(self, done: Mapping[str, Any]) -> None:
        """An object that it printed: rows that it worked on, and how many wait, of each of its queries."""
        if isinstance(done.get("lag"), int):
            self._lags[str(done.get("query", ""))] = done["lag"]
        rows = done.get("rows")
        self._job = msgspec.structs.replace(
            self._job,
            rows=self._job.rows + (rows if isinstance(rows, int) else 0),
            lag=sum(self._lags.values()) if self._lags else None,
            worked_us=self._clock.now_us(),
        )
        if self._clock.monotonic_us() - self._said_us >= TELL_US:
            self._tell()

    def _become(self, state: str, **others: Any) -> None:
        self._job = msgspec.structs.replace(self._job, state=state, since_us=self._clock.now_us(), **others)
        self._tell()

    def _tell(self) -> None:
        self._said_us = self._clock.monotonic_us()
        self._say(self._job)


def check_spark() -> None:
    """End the process if its Spark has ended: whoever started it begins both again."""
    spark = pipeline.SHARED
    try:
        is_there = spark is not None and not spark._jsc.sc().isStopped()
    except Exception:  # whatever py4j says of a process that is gone
        is_there = False
    if not is_there:
        os._exit(1)


def main() -> None:
    """Run what the input says until it ends."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=Told)
    out, lock = Stdout(), threads.Lock()

    def say(job: Job) -> None:
        with lock:
            out.write(msgspec.json.encode(job) + b"\n")
            out.flush()

    output = Output()
    sys.stdout = output  # as much of it as pipelines use
    threads.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    from headwater.cli.pipeline.commands import app
    from headwater.spark import session

    pipeline.SHARED = session("headwater pipelines")
    commands = typer.main.get_command(app)
    begun = [
        threads.Thread(target=Supervised(name, told, say).run, args=(commands, output), name=name, daemon=True)
        for name in told.pipelines
    ]
    for thread in begun:
        thread.start()
    for thread in begun:
        thread.join()
    while True:  # all are done, and what they did can be asked for as long as the server is there
        pause(STEADY_S)


def _end_with(source: Any) -> None:
    source.read()
    os._exit(0)


if __name__ == "__main__":
    main()
