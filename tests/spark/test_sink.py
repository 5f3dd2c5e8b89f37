"""`format("headwater")` as a sink: real Spark, a real server, and each row once whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import headwater
from headwater import tracing
from headwater.client.bus import Bus
from headwater.errors import Failed, Malformed, NotFound
from headwater.spark import sink
from headwater.spark.bodies import Encoded
from headwater.spark.sink import check_columns, write_options
from headwater.store.body import encode_body
from spark.served import Server, wait_until, workers
from spark.writer import numbered

pytestmark = pytest.mark.xdist_group("spark")
URL = "headwater://127.0.0.1:7411"
WRITER = str(Path(__file__).with_name("writer.py"))
SECRET = "hush-hush-hush"
SLOW_S = 300
"""For tests that start another Spark, or run one over a server that comes and goes: on a busy machine it takes long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sink") / "data") as made:
        yield made


def save(frame, url: str, **options: object) -> None:
    frame.write.format("headwater").option("url", url).options(**options).mode("append").save()


def messages_of(server: Server, filter: str) -> list[headwater.Message]:
    with headwater.connect(server.url) as bus:
        return list(bus.replay(filter))


def is_each_once(found: list[bytes], count: int) -> bool:
    return Counter(found) == Counter(b"%d" % number for number in range(count))


# Options and columns, before any row


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, 'option\\("url", "headwater://host:7411"\\)'),
        ({"url": "http://127.0.0.1"}, "begins with one of headwater://"),
        ({"url": URL, "data": "var/data"}, "start `headwater serve` on it"),
        ({"url": URL, "writeID ": "x"}, 'did you mean "writeId"'),
        ({"url": URL, "lake": "var/lake"}, "a write has url, writeId"),
        ({"url": URL, "topics": "home"}, 'did you mean "topic"'),
        ({"url": URL, "topic": "home/#"}, 'option "topic": '),
        ({"url": URL, "ttl": "soon"}, "a time such as 90s, 15m or 7d"),
        ({"url": URL, "ttl": "0s"}, "a time such as 90s, 15m or 7d"),
        ({"url": URL, "mode": "redrive", "ttl": "7d"}, "mended dead letters keep theirs"),
        ({"url": URL, "writeId": ""}, "a name that this write alone has"),
        ({"url": URL, "writeId": "x" * 200}, "at most 128"),
        ({"url": URL, "writeEpoch": "1"}, "state that too"),
        ({"url": URL, "writeId": "x", "writeEpoch": "-1"}, "a whole number from 0 on"),
        ({"url": URL, "reconnectS": "soon"}, "seconds from 0 to 86400"),
    ],
)
def test_an_option_that_is_wrong_is_refused_and_says_what_to_write(options, says):
    with pytest.raises(Malformed, match=says):
        write_options(options)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("payload string", 'there is no column "topic"; add it'),
        ("topic string", 'there is no column "payload"'),
        ("topic string, payload string, value string", 'no column "value"; drop it, or make it a header'),
        ("topics string, payload string", 'no column "topics"; rename it to "topic"'),
        ("Topic string, payload string", 'rename it to "topic"'),
        ("topic string, payload int", "is int; cast it to binary or string"),
        ("topic binary, payload string", "cast it to string"),
        ("topic string, payload string, headers map<string,int>", "cast it to map<string,string>"),
        ("topic string, payload string, retain int", "cast it to boolean"),
        ("topic string, payload string, topic string", 'there are 2 columns "topic"'),
    ],
)
def test_columns_that_are_no_messages_are_refused_and_say_what_to_do(spark, columns, says):
    with pytest.raises(Malformed, match=says):
        check_columns(cast(StructType, StructType.fromDDL(columns)))


def test_a_secret_does_not_show_in_what_options_say():
    options = write_options({"url": f"headwater://me:{SECRET}@127.0.0.1", "checkpointLocation": "x"})
    assert SECRET not in repr(options) + str(options)
    with pytest.raises(Malformed) as caught:
        write_options({"url": f"headwater://me:{SECRET}@127.0.0.1:x"})
    assert SECRET not in str(caught.value)


def test_spark_says_what_is_wrong_before_any_row(spark, server):
    frame = spark.range(3).selectExpr("'early/x' topic", "id payload")
    with pytest.raises(PySparkException, match=r'Malformed\(422\): column "payload" is bigint; cast it'):
        save(frame, server.url)
    with pytest.raises(PySparkException, match=r'not overwritten; use mode\("append"\)'):
        frame.write.format("headwater").option("url", server.url).mode("overwrite").save()
    assert server.count("early/#") == 0


# Batch writes


def test_rows_may_share_a_topic_and_expire(spark, server):
    frame = spark.range(0, 4, 1, 1).selectExpr("if(id = 1, 'own/x', null) topic", "cast(id as string) payload")
    save(frame, server.url, topic="shared/x", ttl="7d")
    assert [m.payload for m in messages_of(server, "own/#")] == [b"1"]
    save(frame.select("payload"), server.url, topic="shared/x", ttl="1ms")
    wait_until(lambda: [m.payload for m in messages_of(server, "shared/#")] == [b"0", b"2", b"3"], "the others expire")
    with pytest.raises(PySparkException, match="name one topic for all rows"):
        save(frame.select("payload"), server.url)


def test_rows_arrive_as_they_are_in_the_order_of_their_partitions(spark, server):
    frame = spark.range(0, 30_000, 1, 3).selectExpr(
        "id % 5 = 0 retain",
        "cast(id as string) payload",
        "concat('all', id % 2, '/x', id % 7) topic",
        "if(id % 3 = 0, cast(cast(id as string) as binary), null) key",
        "if(id % 4 = 0, null, map('n', cast(id as string), 'é', '')) headers",
    )
    save(frame, server.url)
    for root in range(2):
        found = [(m.topic, m.payload, m.key, dict(m.headers)) for m in messages_of(server, f"all{root}/#")]
        assert found == [
            (
                f"all{root}/x{n % 7}",
                b"%d" % n,
                b"%d" % n if n % 3 == 0 else None,
                {} if n % 4 == 0 else {"n": str(n), "é": ""},
            )
            for n in range(root, 30_000, 2)
        ]
    with headwater.connect(server.url) as bus:
        retained = {one.topic: one.payload for one in bus.retained("all0/x1").values()}
    last = max(n for n in range(0, 30_000, 10) if n % 7 == 1)
    assert retained == {"all0/x1": b"%d" % last}


def test_a_write_with_an_id_is_done_once_though_rows_come_in_another_order(spark, server):
    frame = spark.range(1000).selectExpr("concat('once', id % 2, '/x') topic", "cast(id as string) payload")
    save(frame, server.url, writeId="monday")
    save(frame.orderBy(frame.payload.desc()), server.url, writeId="monday")
    assert is_each_once(server.payloads("once0/#") + server.payloads("once1/#"), 1000)
    save(frame, server.url, writeId="tuesday")
    save(frame, server.url)
    assert server.count("once0/#") == 1500


def test_epochs_of_a_write_id_make_foreach_batch_exactly_once(spark, server):
    frame = spark.range(10).selectExpr("'epochs/x' topic", "cast(id as string) payload")
    for epoch in (0, 1, 1, 0):
        save(frame, server.url, writeId="alerts", writeEpoch=epoch)
    assert server.count("epochs/#") == 20


def test_what_another_attempt_has_staged_is_not_seen(spark, server):
    with headwater.connect(server.url) as bus:
        bus.stage("write:stale", 0, [("stale/x", b"old"), ("staler/x", b"old")], part="an attempt before")
    save(spark.range(1).selectExpr("'stale/x' topic", "'new' payload"), server.url, writeId="stale")
    assert server.payloads("stale/#") == [b"new"]
    assert server.payloads("staler/#") == []


def test_a_row_that_is_no_message_keeps_all_rows_from_being_seen(spark, server):
    frame = spark.range(0, 20_000, 1, 2).selectExpr("if(id = 19999, 'bad/+', 'bad/x') topic", "'' payload")
    with pytest.raises(PySparkException, match=r"Malformed\(422\).*without wildcards"):
        save(frame, server.url, writeId="bad")
    assert server.count("bad/#") == 0
    with headwater.connect(server.url) as bus, pytest.raises(NotFound):
        bus.commit_stage("write:bad", 0, ["anything"])  # and it was not committed as an empty one
    save(frame.where("id < 5"), server.url, writeId="bad")
    assert server.count("bad/#") == 5


def test_an_empty_frame_is_written_too(spark, server):
    save(spark.range(0).selectExpr("'none/x' topic", "'' payload"), server.url)
    assert server.count("none/#") == 0


def test_a_server_that_does_not_answer_is_an_error_that_names_it(spark):
    frame = spark.range(1).selectExpr("'a' topic", "'' payload")
    with pytest.raises(PySparkException, match=r"Disconnected\(503\).*me@127\.0\.0\.1:1") as caught:
        save(frame, f"headwater://me:{SECRET}@127.0.0.1:1", reconnectS="0")
    assert SECRET not in str(caught.value)


def test_an_epoch_that_is_decided_and_not_finished_is_finished_by_who_stages_it_again(monkeypatch):
    """A driver was killed while it committed, and the disk failed under the commit."""
    body = encode_body(["a/x"], [b"again"], 1_700_000_000_000_000)
    with headwater.open(":memory:") as bus:
        bus.stage("q", 7, [("a/x", b"first")], part="p")
        finish = bus.core.staging._finish

        def fail(*_: object) -> None:
            monkeypatch.setattr(bus.core.staging, "_finish", finish)
            raise Failed("no")

        monkeypatch.setattr(bus.core.staging, "_finish", fail)
        with pytest.raises(Failed):
            bus.commit_stage("q", 7, ["p"])
        sink._stage_one(cast(Bus, bus), "q", 7, "other", Encoded("a", 1, body))
        bus.commit_stage("q", 7, ["other"])
        assert [message.payload for message in bus.replay("#")] == [b"first"]


# Streams


def lines(folder: Path, files: int, rows: int) -> str:
    """Files of numbers from 0 on, each a micro-batch."""
    folder.mkdir()
    for file in range(files):
        text = "\n".join(map(str, range(file * rows, (file + 1) * rows)))
        (folder / f"{file:04}.txt").write_text(text)
        os.utime(folder / f"{file:04}.txt", (file + 1, file + 1))
    return str(folder)


def wait_for_rows(server: Server, count: int) -> None:
    wait_until(lambda: server.count("#") >= count, f"{count} rows", 120)


def start(frame, url: str, checkpoint: Path):
    writer = frame.writeStream.format("headwater").option("url", url).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_a_micro_batch_that_spark_runs_again_is_not_doubled(spark, tmp_path):
    with Server(tmp_path / "data") as server:
        source, checkpoint = lines(tmp_path / "lines", 3, 100), tmp_path / "checkpoint"
        start(numbered(spark, source), server.url, checkpoint).awaitTermination()
        found = server.payloads("#")
        assert is_each_once(found, 300)
        # As if the driver had been killed when Headwater had committed, and Spark had not yet written that down.
        for name in ("2", ".2.crc"):
            (checkpoint / "commits" / name).unlink()
        again = numbered(spark, source).repartition(2)
        start(again, server.url, checkpoint).awaitTermination()
        assert server.payloads("#") == found


def test_a_trace_travels_from_publish_through_a_stream_into_what_the_sink_publishes(
    spark, server, tmp_path, monkeypatch
):
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with tracing.instrument(headwater.connect(server.url)) as bus:
        bus.publish_many([("traced/in", b"1"), ("traced/in", b"2")])
        bus.publish("traced/in", b"3", headers={"unit": "C"})
    rows = spark.readStream.format("headwater").option("url", server.url).option("topics", "traced/in").load()
    start(rows.selectExpr("'onward/out' topic", "payload", "headers"), server.url, tmp_path / "c").awaitTermination()
    read, written = (messages_of(server, filter) for filter in ("traced/in", "onward/out"))
    assert [one.payload for one in written] == [b"1", b"2", b"3"]
    assert [one.headers["traceparent"] for one in written] == [one.headers["traceparent"] for one in read]
    assert len({one.headers["traceparent"] for one in read}) == 2  # one span for each call
    with tracing.processing(written[-1]) as span:
        assert f"{span.get_span_context().trace_id:032x}" == read[-1].headers["traceparent"].split("-")[1]


def test_a_stream_has_no_write_id(spark, server, tmp_path):
    rows = spark.readStream.format("rate").load().selectExpr("'no/x' topic", "'' payload")
    query = rows.writeStream.format("headwater").option("url", server.url).option("writeId", "x")
    with pytest.raises(PySparkException, match="exactly once by its checkpoint"):
        query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()


@pytest.mark.timeout(SLOW_S)
def test_a_broker_that_is_killed_under_a_query_loses_and_doubles_nothing(spark, tmp_path):
    with Server(tmp_path / "data") as server:
        query = start(numbered(spark, lines(tmp_path / "lines", 6, 2000)), server.url, tmp_path / "checkpoint")
        for seen in (1, 5000):
            wait_for_rows(server, seen)
            time.sleep(random.uniform(0, 0.5))
            server.kill()
            server.start()
        query.awaitTermination()
        assert is_each_once(server.payloads("#"), 12_000)


@pytest.mark.timeout(SLOW_S)
def test_a_python_worker_that_is_killed_while_it_stages_leaves_nothing_behind(spark, tmp_path):
    frame = spark.range(0, 400_000, 1, 2).selectExpr("'w/x' topic", "cast(id as string) payload")
    with Server(tmp_path / "data") as server:

        def kill() -> None:
            wait_until(lambda: list((server.folder / "streams").glob("*staged/*")), "something is staged")
            server.process.send_signal(signal.SIGSTOP)  # so that it stays in the middle of it
            for worker in workers():
                os.kill(worker, signal.SIGKILL)
            server.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises((PySparkException, Py4JJavaError)):  # the session has one attempt for each task
            save(frame, server.url, writeId="w")
        thread.join()
        assert server.count("#") == 0
        save(frame, server.url, writeId="w")
        assert is_each_once(server.payloads("#"), 400_000)


class Driver:
    """A query in a process of its own, with its JVM and workers."""

    def __init__(self, server: Server, source: str, folder: Path) -> None:
        (folder / "events").mkdir(exist_ok=True)
        self.output = folder / "output"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, WRITER, server.url, source, str(folder / "checkpoint"), str(folder / "events")],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, wait_s: float) -> int:
        return self._process.wait(wait_s)


def written(folder: Path) -> bytes:
    """All that Spark has written down: logs, plans, progress, its event log and checkpoint."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and "data" not in path.parts)


@pytest.mark.timeout(SLOW_S)
def test_a_driver_that_is_killed_loses_and_doubles_nothing_and_shows_no_secret(spark, tmp_path):
    with Server(tmp_path / "data", "spark", SECRET) as server:
        source = lines(tmp_path / "lines", 12, 1000)
        driver = Driver(server, source, tmp_path)
        wait_for_rows(server, 2000)
        time.sleep(random.uniform(0, 1))
        driver.kill()
        assert server.count("#") < 12_000, "it was killed too late"
        query = start(numbered(spark, source), server.url, tmp_path / "checkpoint")
        query.awaitTermination()
        assert is_each_once(server.payloads("#"), 12_000)
        progress = "".join(one.json for one in query.recentProgress) + query._jsq.explainInternal(True)
        assert SECRET not in progress
        assert b"WriteToMicroBatchDataSource headwater" in written(tmp_path)
        assert SECRET.encode() not in written(tmp_path)


@pytest.mark.soak
def test_driver_broker_and_workers_are_killed_again_and_again(tmp_path):
    with Server(tmp_path / "data", "spark", SECRET) as server:
        source = lines(tmp_path / "lines", 40, 10_000)
        chance = random.Random(4)
        for _ in range(4):
            driver = Driver(server, source, tmp_path)
            before = server.count("#")
            wait_for_rows(server, before + 1)
            time.sleep(chance.uniform(0, 3))
            server.kill()
            time.sleep(chance.uniform(0, 3))
            server.start()
            time.sleep(chance.uniform(0, 6))
            driver.kill()
        assert Driver(server, source, tmp_path).wait(900) == 0
        assert is_each_once(server.payloads("#"), 400_000)
        assert SECRET.encode() not in written(tmp_path)
