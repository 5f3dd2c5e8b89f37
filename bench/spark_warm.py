"""How soon a warm session answers: `python bench/spark_warm.py [--rows 1000000] [--runs 7]`.

`headwater pipeline serve` keeps a session warm; each run is a command of its own, `headwater pipeline sql -e`, from its
start until it has ended: a count, and one by topic. Beside it, the same query by a command that starts Spark itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark import fill

GOAL_S = 2.0
QUERIES = {
    "count": "SELECT count(*) AS messages FROM home",
    "groupBy topic": "SELECT topic, count(*) AS messages FROM home GROUP BY topic ORDER BY topic LIMIT 10",
}
HEADWATER = (sys.executable, "-m", "headwater", "pipeline")


@contextmanager
def kept_warm(folder: str) -> Iterator[str]:
    """The address of a session."""
    command = [*HEADWATER, "serve", "--data", folder, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def asked_s(query: str, *more: str, warm: str | None = None) -> float:
    """How long a command takes that asks this."""
    environment = {**os.environ, **({"HEADWATER_SPARK": warm} if warm is not None else {})}
    begun = time.perf_counter()
    subprocess.run([*HEADWATER, "sql", *more, "-e", query], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as temporary:
        folder = f"{temporary}/data"
        fill(folder, args.rows, args.topics)
        with kept_warm(folder) as address:
            for name, query in QUERIES.items():
                first, *others = [asked_s(query, warm=address) for _ in range(args.runs + 1)]
                median = statistics.median(others)
                shown = " ".join(f"{taken:.2f}" for taken in others)
                print(f"{name:16} warm   first {first:.2f} s, then {median:.2f} s  ({shown}; goal {GOAL_S:.0f} s)")
        print(f"{'count':16} cold   {asked_s(QUERIES['count'], '--data', folder):.2f} s")


if __name__ == "__main__":
    main()
