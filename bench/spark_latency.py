"""How soon Spark sees a message: `python bench/spark_latency.py [--seconds 30] [--every 0.05]`.

One message after another is published to a server; a query over it, triggered as fast as possible, meets each in
`foreachBatch`. The time from the publish until then: from the server's folder, and from the server. What is published
before the query has found its stride is not counted. Then the same query waits, with nothing published: how much of a
core that takes, of the driver, Spark, its Python workers and the server together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headwater
from headwater.spark import session

WARM_S = 15.0


class Publisher(threading.Thread):
    """Publishes the time, so often."""

    def __init__(self, url: str, every_s: float) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._every_s = every_s
        self.is_over = threading.Event()

    def run(self) -> None:
        with headwater.connect(self._url) as bus:
            while not self.is_over.wait(self._every_s):
                bus.publish("clock/tick", struct.pack("<d", time.time()))


def latencies(spark: SparkSession, url: str, source: dict[str, str], seconds: float, every_s: float) -> list[float]:
    taken: list[float] = []
    batches = 0
    counts_from = time.time() + WARM_S

    def see(frame: DataFrame, _: int) -> None:
        nonlocal batches
        rows = frame.collect()
        now = time.time()
        batches += 1
        sent = [struct.unpack("<d", row.payload)[0] for row in rows]
        taken.extend(now - at for at in sent if at >= counts_from)

    publisher = Publisher(url, every_s)
    publisher.start()
    options = {**source, "topics": "clock/#", "startingOffsets": "latest"}
    query = spark.readStream.format("headwater").options(**options).load().select("payload").writeStream
    running = query.foreachBatch(see).start()
    time.sleep(WARM_S + seconds)
    publisher.is_over.set()
    publisher.join()
    running.processAllAvailable()  # stopped in the middle of a batch, Spark complains at length
    running.stop()
    return sorted(taken)


def idle_cores(spark: SparkSession, source: dict[str, str], seconds: float) -> float:
    options = {**source, "topics": "clock/#", "startingOffsets": "latest"}
    query = spark.readStream.format("headwater").options(**options).load().writeStream.format("noop").start()
    time.sleep(WARM_S)
    before = processor_s(os.getpid())
    time.sleep(seconds)
    used_s = processor_s(os.getpid()) - before
    query.stop()
    return used_s / seconds


def processor_s(pid: int) -> float:
    """What a process and its children have computed."""
    ticks, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    ours, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - ours
        ours |= more
    return sum(ticks[one] for one in ours) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=0.05)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        serve = [
            sys.executable,
            "-m",
            "headwater",
            "serve",
            "--data",
            f"{folder}/data",
            "--port",
            "0",
            "--no-http",
            "--no-mqtt",
        ]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        spark = session("bench", master="local[2]")
        try:
            with headwater.connect(url) as bus:
                bus.publish("clock/tick", struct.pack("<d", 0.0))
            for name, source in {"folder": {"data": f"{folder}/data"}, "server": {"url": url}}.items():
                taken = latencies(spark, url, source, args.seconds, args.every)
                p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
                print(f"{name:10} p50 {p50:.2f} s   p99 {p99:.2f} s   {len(taken):,} messages", flush=True)
            for name, source in {"folder": {"data": f"{folder}/data"}, "server": {"url": url}}.items():
                cores = idle_cores(spark, source, args.seconds)
                print(f"{name:10} idle: {cores:.3f} of a core", flush=True)
        finally:
            spark.stop()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
