"""Kill -9 of driver, Python workers and broker in the middle of a stream: it misses and repeats nothing, though
retention deletes whatever the query's subscription has passed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater
from spark.beside import Owner
from spark.served import Server, wait_until, workers
from spark.test_sink import written

pytestmark = pytest.mark.xdist_group("spark")

READER = str(Path(__file__).with_name("reader.py"))
SECRET = "hush-hush-hush"
SLOW_S = 300
FORGETFUL = ("segment_bytes=64KiB", "retention.bytes=64KiB", "retention_interval_s=1s")


class Reader:
    """A query in a process of its own, with its JVM and workers."""

    def __init__(self, server: Server, folder: Path, *now: str) -> None:
        self._folder = folder
        (folder / "events").mkdir(exist_ok=True)
        places = [str(folder / name) for name in ("checkpoint", "target", "events")]
        with (folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, READER, server.url, *places, *now],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def wait_for_a_batch(self) -> None:
        """Until one more is done, or the query has ended."""
        before = self._batches()
        wait_until(lambda: self._batches() > before or self.process.poll() is not None, "a micro-batch", 120)

    def _batches(self) -> int:
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    def kill(self) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def rows(folder: Path) -> list[dict[str, Any]]:
    """What the query committed, in the order of its micro-batches and partitions."""
    log = folder / "target" / "_spark_metadata"
    paths: list[str] = []
    for file in sorted(log.glob("[0-9]*"), key=lambda path: (int(path.stem.partition(".")[0]), path.suffix == "")):
        named = [json.loads(line)["path"] for line in file.read_text().splitlines()[1:]]
        # A compacted log repeats those before it, in their order.
        paths = named if file.suffix == ".compact" else paths + named
    columns = ["root", "offset", "payload"]
    return [row for path in paths for row in pq.read_table(path.removeprefix("file://"), columns=columns).to_pylist()]


def check(folder: Path, acked: dict[str, int]) -> None:
    found = rows(folder)
    assert acked
    for root, number in acked.items():
        mine = [row for row in found if row["root"] == root]
        assert [row["offset"] for row in mine] == list(range(1, len(mine) + 1)), "in order, each once"
        assert [int(row["payload"].rstrip(b".")) for row in mine] == list(range(1, len(mine) + 1))
        assert len(mine) >= number


def kill_and_check(folder: Path, chance: random.Random, rounds: int) -> None:
    """Kill one after another, while a publisher goes on; then compare with what it was acknowledged."""
    with Server(folder / "data", "spark", SECRET, FORGETFUL) as server:
        with headwater.connect(server.url) as bus:
            bus.show_progress("#", "job", {})  # a place is kept before the first run, for what comes meanwhile
        with Owner(server.url) as owner:
            for _ in range(rounds):
                reader = Reader(server, folder)
                try:
                    for harm in (*chance.sample([_kill_workers, _kill_broker], 2), _kill_driver):
                        reader.wait_for_a_batch()
                        time.sleep(chance.uniform(0, 0.5))
                        harm(server, reader)
                finally:
                    reader.kill()
        last = Reader(server, folder, "now")
        assert last.process.wait(200) == 0, (folder / "output").read_text()[-5000:]
        check(folder, owner.acked)
        with headwater.connect(server.url) as bus:
            wait_until(lambda: all(one.first > 1 for one in bus.extents("+/#")), "retention behind the query")
            assert [(info.id, info.lag) for info in bus.subscriptions()] == [("job", 0)]
    assert b"SparkListenerSQLExecutionStart" in written(folder)
    assert SECRET.encode() not in written(folder)


def _kill_workers(_: Server, reader: Reader) -> None:
    for worker in workers(reader.process.pid):
        os.kill(worker, signal.SIGKILL)


def _kill_broker(server: Server, _: Reader) -> None:
    server.kill()
    server.start()


def _kill_driver(_: Server, reader: Reader) -> None:
    reader.kill()


@pytest.mark.timeout(SLOW_S)
def test_a_stream_whose_driver_workers_and_broker_are_killed_misses_and_repeats_nothing(tmp_path: Path) -> None:
    kill_and_check(tmp_path, random.Random(1), rounds=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_a_stream_that_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    kill_and_check(tmp_path, random.Random(seed), rounds=5)
