"""A driver that is killed: `python writer.py URL LINES CHECKPOINT EVENTS`.

A query writes files of numbers to topics, one file a micro-batch. Now and then the Python worker of a task's first
attempt is killed when its rows have gone on to the sink.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from headwater.spark import session

KILLS = 0.1


def numbered(spark: SparkSession, lines: str, killing: bool = False) -> DataFrame:
    """The numbers in files as messages: topics of three roots."""
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(lines)

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0 and random.random() < KILLS:
            os.kill(os.getpid(), signal.SIGKILL)

    if killing:
        rows = rows.mapInArrow(pass_on, rows.schema)
    return rows.selectExpr("concat('root', value % 3, '/x', value % 7) topic", "value payload").repartition(3)


def main(url: str, lines: str, checkpoint: str, events: str) -> None:
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": events}
    conf["spark.sql.shuffle.partitions"] = "3"
    spark = session("writer", master="local[2,4]", conf=conf, logs=True)
    empty = spark.range(0).selectExpr("'none/x' topic", "'' payload")
    empty.write.format("headwater").option("url", url).mode("append").save()
    query = (
        numbered(spark, lines, killing=True)
        .writeStream.format("headwater")
        .option("url", url)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive and not query.recentProgress:
        time.sleep(0.1)
    query.explain(True)
    sys.stdout.flush()
    query.awaitTermination()
    sys.stdout.write(f"{[progress.json for progress in query.recentProgress]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
