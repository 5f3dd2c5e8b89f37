"""How many files the server may open: what it does to the limits of a process of its own, and how it gets by."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import headwater

PATIENCE_S = 120
FIT = """
import json, resource, sys
from headwater.server.descriptors import fit
from headwater.settings import load
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:3])))
loaded = fit(load({}, {"HEADWATER_CLUSTER": sys.argv[3]}))
soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
serving = loaded.serving
print(json.dumps([soft, loaded.config.open_files_max, serving.connections_max, serving.http_connections_max]))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "cluster", "found", "warns"),
    [
        (1024, 20_000, "", [14_608, 4096, 10_000, 1000], False),
        (16_000, 20_000, "", [16_000, 4096, 10_000, 1000], False),
        (1024, 4096, "", [4096, 1024, 2560, 1000], True),
        (256, 1024, "", [1024, 256, 512, 1000], True),
        (64, 64, "", [64, 16, 32, 1000], True),
        # A node that follows has three for each client.
        (1024, 20_000, "nats://h:1", [20_000, 4096, 4663, 466], True),
        (64, 64, "nats://h:1", [64, 16, 9, 1], True),
    ],
)
def test_the_soft_limit_is_raised_and_settings_are_cut_to_the_hard_one(
    soft: int, hard: int, cluster: str, found: list[int], warns: bool, tmp_path: Path
) -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < hard:
        pytest.skip(f"the system allows {allowed} open files")
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(soft), str(hard), cluster],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        check=True,
    )
    assert json.loads(done.stdout) == found
    assert ("open-files-limited" in done.stderr) == warns


def test_a_server_that_may_open_few_files_serves_more_roots_than_that(tmp_path: Path) -> None:
    serve = f"ulimit -n 160; exec {sys.executable} -m headwater serve --data data --port 0 --no-mqtt --no-http"
    with subprocess.Popen(
        ["/bin/sh", "-c", serve], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"headwater://\S+", process.stdout.readline())
            assert url
            with headwater.connect(url[0]) as bus:
                for number in range(3):
                    for start in range(0, 180, 90):
                        bus.publish_many([(f"r{root}/x", b"%d" % number) for root in range(start, start + 90)])
                assert [message.payload for message in bus.replay("r179/#")] == [b"0", b"1", b"2"]
                assert all(topic.messages == 3 for topic in bus.topics("+/x"))
            process.terminate()
            _, told = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "open-files-limited" in told
    assert "connections_max=80" in told
    assert "trouble" not in told
