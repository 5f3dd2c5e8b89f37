"""`headwater pipeline run`: a function of the user, its queries, and what is said when they fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner, Result

import headwater
from headwater.cli.app import app_for
from headwater.cli.following import pause
from headwater.cli.pipeline import run as command
from headwater.errors import Disconnected, Malformed
from headwater.spark.pipelines.run import Run, lag_of
from headwater.spark.pipelines.troubles import trouble_of
from spark.served import Server, wait_until

SLOW_S = 300
"""On a busy machine each query takes long to start."""
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(SLOW_S)]
Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("run") / "data") as made:
        yield made


@pytest.fixture
def invoke(spark, monkeypatch, tmp_path: Path) -> Invoke:
    """The command, with the session of these tests and waits that take no time."""

    @contextmanager
    def running(*_):
        yield spark

    monkeypatch.setattr(command, "running", running)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app_for(()), ["pipeline", "run", *map(str, words)])


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(dedent(text))
    return path


class Interrupt:
    """A pause in which the user presses Ctrl-C, some time after what they wait for is there."""

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self._is_there = is_there
        self._left = 8

    def __call__(self, seconds: float) -> None:
        pause(seconds)
        self._left -= self._is_there()
        if not self._left:
            raise KeyboardInterrupt


COPY = """
    def pipeline(run):
        numbers = run.stream("run/in", maxMessagesPerTrigger=40).selectExpr("'copy/out' as topic", "payload")
        run.write(numbers, "copy")
"""


def test_it_goes_on_where_it_was_and_runs_until_it_is_interrupted(spark, invoke, server, tmp_path, monkeypatch):
    file = written(tmp_path, COPY)
    with headwater.connect(server.url) as bus:
        bus.publish_many([("run/in", b"%d" % n) for n in range(100)])
        done = invoke(file, "--once", "--url", server.url, "--json")
        shown = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(one["query"], one["batch"], one["rows"]) for one in shown if one["rows"]] == [
            ("copy", 0, 40),
            ("copy", 1, 40),
            ("copy", 2, 20),
        ]
        assert all(one["rows_per_s"] > 0 for one in shown if one["rows"])
        assert shown[0]["lag"] >= 60
        bus.publish("run/in", b"100")
        interrupt = Interrupt(lambda: len(list(bus.replay("copy/out"))) > 100)
        monkeypatch.setattr(command, "pause", interrupt)
        done = invoke(file, "--url", server.url)
        assert (done.exit_code, spark.streams.active) == (130, [])
        assert "copy  batch 3  1 rows" in done.stdout
        assert [message.payload for message in bus.replay("copy/out")] == [b"%d" % n for n in range(101)]
    assert (tmp_path / "headwater-checkpoints" / "mine" / "copy" / "offsets").is_dir()


def test_a_failure_that_may_pass_starts_it_again_and_another_names_the_line(invoke, server, tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(command, "pause", lambda seconds: waits.append(seconds) if seconds >= 1 else None)
    file = written(
        tmp_path,
        """
        import os
        from pathlib import Path
        import headwater
        from pyspark.sql.functions import udf

        def note(frame, batch):
            tries = Path("tries")
            count = len(tries.read_text()) if tries.exists() else 0
            tries.write_text("x" * (count + 1))
            if count == 0:
                headwater.connect("headwater://127.0.0.1:9")
            if count == 1:
                frame.select(udf(lambda _: os.kill(os.getpid(), 9))("payload")).collect()
            raise KeyError("nothing " + "here")

        def pipeline(run):
            run.write(run.stream("again/in"), "again", each=note)
        """,
    )
    with headwater.connect(server.url) as bus:
        bus.publish("again/in", b"1")
    done = invoke(file, "--once", "--url", server.url)
    assert done.exit_code == 2
    assert done.output.count("trying again in") == 2
    assert "Disconnected(503)" in done.output
    assert "mine.py:15: KeyError: 'nothing here'" in done.output
    assert "Traceback" not in done.output
    assert waits == [1.0, 2.0]


def test_what_is_wrong_in_a_file_is_said_with_its_line_before_spark_starts(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(command, "running", None)
    headwater.open(tmp_path / "data").close()
    for text, says in (
        ("def pipeline(run):\n    1 +\n", "mine.py:2: SyntaxError"),
        ("x = 1\nimport nowhere_at_all\n", "mine.py:2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def other(run): ...\n", "no function pipeline"),
    ):
        file = tmp_path / "mine.py"
        file.write_text(text)
        done = CliRunner().invoke(app_for(()), ["pipeline", "run", str(file), "--data", str(tmp_path / "data")])
        assert (done.exit_code, says in done.output) == (2, True), done.output
    for words, says in (
        (["none.py"], 'there is no file "none.py"'),
        ([str(file), "--set", "x"], "write --set NAME=VALUE"),
    ):
        done = CliRunner().invoke(app_for(()), ["pipeline", "run", *words, "--data", str(tmp_path / "data")])
        assert (done.exit_code, says in done.output) == (2, True), done.output


def test_what_spark_says_of_the_users_code_is_one_sentence_with_its_line(invoke, tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("a/b", b"x")
    for body, says in (
        ('run.stream("a/b").select("nothing")', "mine.py:3: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ('run.setting("limit")', 'mine.py:3: Malformed(422): this pipeline needs a setting "limit"'),
        ('run.write(run.stream("a/b"), "x")', "run it with --url"),
        ('run.write(run.read("a/b"), "x")', "takes a stream"),
        ('run.write(run.stream("a/b"), "a/b")', "is no name for a query"),
        ("1 / 0", "mine.py:3: ZeroDivisionError: division by zero"),
    ):
        done = invoke(written(tmp_path, f"\ndef pipeline(run):\n    {body}\n"), "--once", "--data", tmp_path / "data")
        assert (done.exit_code, says in done.output) == (2, True), done.output
        assert len(done.output.splitlines()) == 1, done.output


def test_a_users_function_that_fails_in_a_task_is_named_with_its_line(invoke, tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("a/b", b"x")
    file = written(
        tmp_path,
        """
        from pyspark.sql.functions import udf

        @udf("int")
        def number(payload):
            return int(payload)

        def pipeline(run):
            run.write(run.stream("a/b").select(number("payload")), "x", format="noop")
        """,
    )
    done = invoke(file, "--once", "--data", tmp_path / "data")
    assert "mine.py:6: ValueError: invalid literal for int() with base 10" in done.output
    assert len(done.output.splitlines()) == 1


def test_errors_of_ours_in_what_spark_says_tell_whether_they_may_pass():
    spark_says = "[STREAM_FAILED] Query terminated: headwater.errors.{}({}): it was so\n\tat org.apache.spark.X"
    away = trouble_of(RuntimeError(spark_says.format("Disconnected: Disconnected", 503)), "f.py")
    assert (away.sentence, away.is_passing) == ("Disconnected(503): it was so", True)
    lost = trouble_of(RuntimeError(spark_says.format("Gap: Gap", 410)), "f.py")
    assert (lost.sentence, lost.is_passing) == ("Gap(410): it was so", False)
    assert trouble_of(Disconnected("away"), "f.py").is_passing


def test_the_lag_is_what_waits_in_all_roots():
    ours = {"endOffset": '{"a": 5}', "latestOffset": '{"a": 8, "b": 3}'}
    assert lag_of([ours]) == 5
    assert lag_of([ours, ours]) == 10
    assert lag_of([{"endOffset": "17", "latestOffset": None}]) is None
    assert lag_of([{"endOffset": None, "latestOffset": '{"a": 1}'}]) is None


def test_two_queries_of_one_name_are_refused(spark, tmp_path):
    headwater.open(tmp_path / "data").close()
    run = Run(spark, {"data": str(tmp_path / "data")}, str(tmp_path / "places"), once=True)
    run.write(run.stream("a/#"), "x", format="noop")
    with pytest.raises(Malformed, match="two queries"):
        run.write(run.stream("a/#"), "x", format="noop")
    run.stop()


@pytest.mark.soak
def test_it_runs_until_it_is_told_to_stop_and_outlives_the_server(server, tmp_path):
    file = written(tmp_path, COPY.replace("run/", "live/").replace("copy/", "lived/"))
    words = ["run", str(file), "--url", server.url, "--master", "local[1]", "--checkpoints", str(tmp_path / "places")]
    process = subprocess.Popen([sys.executable, "-m", "headwater", "pipeline", *words], cwd=tmp_path)
    try:
        with headwater.connect(server.url) as bus:
            bus.publish("live/in", b"before")
        wait_until(lambda: server.payloads("lived/out") == [b"before"], "the first", SLOW_S)
        server.kill()
        server.start()
        with headwater.connect(server.url) as bus:
            bus.publish("live/in", b"after")
        wait_until(lambda: server.payloads("lived/out") == [b"before", b"after"], "the second", SLOW_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
