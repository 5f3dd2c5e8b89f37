"""The process of the pipelines: what it says of each is known, and that it ended; here without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from headwater.config import Serving
from headwater.serving import pipelines
from headwater.serving.pipelines import Pipelines, Told
from headwater.wire.administration import Job
from server.harness import Running

WORKS = """
import json, os, sys
told = json.loads(sys.stdin.readline())
open(sys.argv[1], "a").write(json.dumps(told) + "\\n")
job = {"name": "copy", "command": "run copy.py", "state": "running", "since_us": 1, "rows": 7}
print(json.dumps(job), flush=True)
print(json.dumps({**job, "name": "stranger"}), flush=True)
if os.path.getsize(sys.argv[1]) < 2 * len(json.dumps(told)):
    raise SystemExit(3)
sys.stdin.read()
"""
"""Is told, says something, and ends the first time; the second time it stays for as long as the server."""


def test_what_the_process_says_is_known_and_that_it_ended_and_was_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"
    monkeypatch.setattr(pipelines, "COMMAND", (sys.executable, "-c", WORKS, str(heard)))
    monkeypatch.setattr(pipelines, "RESTART_S", 0.01)
    serving = Serving(pipelines={"copy": "run copy.py", "nightly": "archive"}, pipelines_restart_s_max=0.02)
    with Running(str(tmp_path / "data")) as running:
        ours = Pipelines(running.server, serving)

        def of(name: str) -> Job:
            return next(job for job in running.server.broker.overview.jobs() if job.name == name)

        running.call(ours.start)
        running.until(lambda: of("nightly").restarts == 1, "its first end")
        running.until(lambda: (of("copy").state, of("copy").rows, of("copy").error) == ("running", 7, ""))
        running.run(ours.stop())
        assert [job.name for job in ours.jobs()] == ["copy", "nightly"], "who is no pipeline of ours is not listed"
        assert "ended (3)" in of("nightly").error
        assert of("nightly").state == "waiting"
    told = [msgspec.json.decode(line, type=Told) for line in heard.read_bytes().splitlines()]
    assert len(told) == 2
    assert told[0] == told[1]
    assert (told[0].pipelines, told[0].folder) == (dict(serving.pipelines), str(tmp_path / "data"))
