"""A driver on a cluster: `python clustered.py MASTER URL DATA LAKE` archives beside a server and from it, and copies.

What `home` has is copied by the sink, once as read from the server and once from its folder; a second write of the same
`writeId` is to change nothing.
"""

from __future__ import annotations

import sys
import time

import headwater
from headwater.spark import session
from headwater.spark.pipelines.archive import Archive

MORE = 500
EXECUTORS = 2
WAIT_S = 60.0


def main(master: str, url: str, data: str, lake: str) -> None:
    spark = session("clustered", master=master)
    until_s = time.monotonic() + WAIT_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= EXECUTORS:
        assert time.monotonic() < until_s, "there are not enough executors"
        time.sleep(0.1)
    for source in ({"data": data}, {"url": url}):
        for step in Archive(spark, lake, source).round():
            sys.stdout.write(f"{step.root} {step.first} {step.last} {step.rows}\n")
        with headwater.connect(url) as bus:
            bus.publish_many([(f"home/{n % 7}", b"%d" % n) for n in range(MORE)])
    for name, source in (("served", {"url": url}), ("beside", {"data": data}), ("served", {"url": url})):
        read = spark.read.format("headwater").options(**source, topics="home/#", messagesPerPartition="500").load()
        copy = read.selectExpr(f"concat('{name}/', substr(topic, 6)) topic", "concat(offset, ' ', payload) payload")
        copy.write.format("headwater").options(url=url, writeId=name).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
