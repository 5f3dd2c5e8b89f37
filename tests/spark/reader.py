"""A driver that is killed while it reads: `python reader.py URL CHECKPOINT TARGET EVENTS [now]`.

A query follows topics and appends them to Parquet files, each row once; with `now` it ends where the log ends.
"""

from __future__ import annotations

import sys

from headwater.spark import session


def main(url: str, checkpoint: str, target: str, events: str, *now: str) -> None:
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": events}
    spark = session("reader", master="local[2,4]", conf=conf, logs=True)
    read = spark.readStream.format("headwater").options(url=url, messagesPerPartition="800", subscription="job")
    if not now:
        read = read.option("maxMessagesPerTrigger", "4000")
    write = read.load().writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", target)
    query = (write.trigger(availableNow=True) if now else write).start()
    query.explain(True)
    sys.stdout.flush()
    query.awaitTermination()
    sys.stdout.write(f"{[progress.json for progress in query.recentProgress]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
