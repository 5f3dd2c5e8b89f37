"""Pipelines that a server runs: one Spark for all, begun again when they fail, and after the process was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import headwater
from headwater import admin
from headwater.errors import Malformed
from headwater.serving.pipelines import check_pipelines, words_of
from headwater.wire.administration import Job
from spark.served import Server, wait_until

pytestmark = pytest.mark.xdist_group("spark")

SLOW_S = 240.0
COPY = """
def pipeline(run):
    run.write(run.stream("home/#").selectExpr("concat('copy/', topic) as topic", "payload"), "copy")
"""
BROKEN = """
def pipeline(run):
    raise ValueError("nothing works")
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "write what comes after `headwater pipeline`"),
        ("sql", "beginning with archive, rollup or run"),
        ("archive '", "No closing quotation"),
    ],
)
def test_what_is_no_pipeline_is_refused_before_the_server_starts(command: str, said: str):
    with pytest.raises(Malformed, match=said) as caught:
        check_pipelines({"nightly": command})
    assert "pipelines.nightly" in str(caught.value)


def test_a_command_is_read_as_a_shell_reads_it():
    assert words_of("mine", "run 'my file.py' --set limit=30") == ["run", "my file.py", "--set", "limit=30"]


def test_pipelines_are_run_begun_again_and_told_of(tmp_path: Path):
    for name, text in (("copy", COPY), ("broken", BROKEN)):
        (tmp_path / f"{name}.py").write_text(text)
    settings = [
        f"lake={tmp_path}/lake",
        "pipelines.archive=archive --every 1s",
        f"pipelines.copy=run {tmp_path}/copy.py --checkpoints {tmp_path}/places",
        f"pipelines.broken=run {tmp_path}/broken.py",
        "pipelines_restart_s_max=2",
    ]
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/a", b"%d" % n) for n in range(10)])
    with Server(tmp_path / "data", settings=settings) as server, admin.connect(server.url) as asked:

        def jobs() -> dict[str, Job]:
            return {job.name: job for job in asked.jobs()}

        def have_worked() -> bool:
            found = jobs()
            return found["archive"].rows >= 10 and found["copy"].rows == 10 and found["broken"].restarts > 1

        wait_until(have_worked, "pipelines that have worked", SLOW_S)
        found = jobs()
        assert list(found) == ["archive", "copy", "broken"]
        assert (found["copy"].state, found["copy"].error, found["copy"].lag) == ("running", "", 0)
        assert "broken.py:3: ValueError: nothing works" in found["broken"].error
        assert [one.archived for one in asked.pipelines() if one.root == "home"] == [10]
        assert server.count("copy/#") == 10

        os.kill(process_of(server), signal.SIGKILL)
        wait_until(lambda: jobs()["copy"].state == "waiting", "word of the end")
        with headwater.connect(server.url) as client:
            client.publish("home/a", b"more")
        wait_until(lambda: server.count("copy/#") == 11, "a copy of what came since", SLOW_S)
        assert jobs()["copy"].state == "running"
        ended = process_of(server)
    wait_until(lambda: not Path(f"/proc/{ended}").exists(), "the end of the process, as the server was killed")


def process_of(server: Server) -> int:
    """The process that runs the pipelines of a server."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"headwater.cli.pipeline.supervised" not in path.read_bytes():
                continue
            parent = (path.parent / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended meanwhile
        if int(parent) == server.process.pid:
            return int(path.parent.name)
    raise AssertionError("there is none")
