"""One Spark session for all tests: starting it takes as long as many of them together."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import which
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if which("java") is None:
        pytest.skip(
            "Spark needs Java, and there is none: `make test` installs it, or apt install openjdk-17-jre-headless"
        )
    from headwater.spark import session

    made = session("headwater-tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()
