"""Sessions: who did how much in one go, with state of our own that Spark keeps (`transformWithState`).

    headwater serve &
    headwater pipeline run examples/sessions.py --url headwater://127.0.0.1:7411 --set pause=30 &
    headwater pub clicks/home '{}' --key ann --url headwater://127.0.0.1:7411
    headwater sub 'sessions/#' --url headwater://127.0.0.1:7411

A session of a key ends with a pause: when messages are seen that are later than its last one by so many seconds. It
is published once then, to `sessions/KEY`. Needs protobuf, as Spark's `transformWithState` does.
"""

import json

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor

STATE = "first_ms bigint, last_ms bigint, clicks bigint, topics array<string>"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sessions(StatefulProcessor):
    """The open session of each key, and a timer that closes it."""

    def __init__(self, pause_s):
        self.pause_ms = int(pause_s * 1000)

    def init(self, handle):
        self.handle = handle
        self.open = handle.getValueState("session", STATE)

    def handleInputRows(self, key, rows, timerValues):
        session = self.open.get() if self.open.exists() else None
        for row in sorted(rows, key=lambda row: row.time_ms):
            if session is not None and row.time_ms - session[1] > self.pause_ms:
                yield self.summary(key, session)
                session = None
            first, last, clicks, topics = session or (row.time_ms, row.time_ms, 0, [])
            session = (min(first, row.time_ms), max(last, row.time_ms), clicks + 1, sorted({*topics, row.topic}))
        self.open.update(session)
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(session[1] + self.pause_ms)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.summary(key, self.open.get())
        self.open.clear()

    def summary(self, key, session):
        first, last, clicks, topics = session
        found = {"clicks": clicks, "seconds": (last - first) / 1000, "topics": list(topics)}
        return Row(topic=f"sessions/{key[0]}", payload=json.dumps(found))


def pipeline(run):
    run.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # as transformWithState demands
    clicks = (
        run.stream("clicks/#")
        .where("key is not null")
        .select(
            f.col("key").cast("string").alias("who"),
            "topic",
            "timestamp",
            f.unix_millis("timestamp").alias("time_ms"),
        )
        .withWatermark("timestamp", "5 seconds")
    )
    sessions = clicks.groupBy("who").transformWithState(
        Sessions(float(run.setting("pause", "30"))), "topic string, payload string", "append", "eventTime"
    )
    run.write(sessions, "sessions")
