"""One Spark session for all tests: starting it takes as long as many of them together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from shutil import which
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Every Java that a test starts lives for seconds or minutes: the optimizing compiler and the parallel collector cost it
# more than they gain. Start and queries took 0.6 times the processor time without them (4 streams and 6 frames: 33 s
# of 53 s).
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS",
    " ".join(f'--conf "spark.{who}.defaultJavaOptions={BRIEF}"' for who in ("driver", "executor")) + " pyspark-shell",
)
for _name in ("SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, BRIEF)
os.environ.setdefault("PYICEBERG_HOME", tempfile.mkdtemp(prefix="headwater-pyiceberg-"))
"""Where tests describe catalogs: Spark's planner has the environment that its session was started with."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if which("java") is None:
        pytest.skip(
            "Spark needs Java, and there is none: `make test` installs it, or apt install openjdk-17-jre-headless"
        )
    from headwater.spark import session

    tables = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(tables)}
    made = session("headwater-tests", master="local[2]", conf=conf)
    yield made
    made.stop()


@pytest.fixture(scope="module", params=["python", "jvm"])
def reader(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of the two readers `rows` and `partitions` of `spark.rows` ask: a module that uses this is run for both."""
    if request.param == "python":
        yield request.param
        return
    from spark import jvm

    with jvm.reading(request.getfixturevalue("spark")):
        yield request.param
