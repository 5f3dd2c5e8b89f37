"""A Spark session that suits Headwater: quiet, with filters pushed down, its workers in this Python."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from headwater.errors import Failed
from headwater.spark.jar import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Path(__file__).with_name("quiet.properties")
QUIET_OPTIONS = f"-Dlog4j2.configurationFile={QUIET.as_uri()} -Dderby.stream.error.file={os.devnull}"
"""Of Spark's process: no log, and none in the working folder either."""
JARS = "spark.jars"
QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
SETTINGS = {
    # A filter on root, topic, offset or timestamp then prunes what is read.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What Iceberg's tables hold.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    name: str = "headwater", *, master: str | None = None, logs: bool = False, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with this master (this machine's cores if none is named); `conf` goes before what is set here.

    With `logs`, Spark says all that it has to say; without, errors alone.
    """
    check_java()
    from pyspark.sql import SparkSession

    # Workers would take the system's Python otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(SETTINGS)
    if "PYTHONPATH" in os.environ:  # what this process imports, workers of a cluster import too
        settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    if master is None:
        settings["spark.master"] = os.environ.get("SPARK_MASTER", "local[*]")
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    else:
        settings["spark.master"] = master
    if not logs:
        settings["spark.driver.extraJavaOptions"] = QUIET_OPTIONS
    builder = SparkSession.builder.appName(name)
    for key, value in _with_jar({**settings, **(conf or {})}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not logs:
        spark.sparkContext.setLogLevel("ERROR")
        hush_queries()
    return spark


def hush_queries() -> None:
    """PySpark prints each error of a query, with Java's stack, before it raises it: raised is enough."""
    from pyspark.logger import PySparkLogger

    for printed in QUERY_LOGGERS:
        PySparkLogger.getLogger(printed).setLevel(logging.CRITICAL)


def _with_jar(settings: dict[str, str]) -> dict[str, str]:
    """With the reader that works in Spark's own process, where there is one for this Spark."""
    jar = find()
    if jar is None:
        return settings
    named = settings.get(JARS)
    return {**settings, JARS: f"{named},{jar}" if named else str(jar)}


def check_java() -> None:
    """That there is a Java; Failed otherwise."""
    home = os.environ.get("JAVA_HOME")
    if which("java") is None and not (home and which("java", path=f"{home}/bin")):
        raise Failed(
            "Spark needs Java 17 or newer, and there is none; on Debian and Ubuntu: apt install openjdk-17-jre-headless"
        )
