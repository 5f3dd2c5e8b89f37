"""Dead letters, subscriptions and message states as tables, beside a running owner."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

import headwater

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A bus that is open, with a subscription that gave up on one message and tries another again."""
    path = tmp_path_factory.mktemp("tables") / "data"
    with headwater.open(path) as bus:
        bus.publish("home/a", b"bad", key=b"k", headers=(("unit", "C"), ("unit", "F")))
        bus.publish_many([("home/a", b"%d" % n) for n in range(5)])
        sub = bus.subscribe("home/#", id="thermostat", start="earliest", order="none")
        sub.next(1).reject("cannot be")  # type: ignore[union-attr]
        sub.next(1).nack("later", delay_s=600)  # type: ignore[union-attr]
        sub.next(1).ack()  # type: ignore[union-attr]
        bus.acl.allow("ann", "publish", "home/#")
        bus.durables.pause("thermostat")
        bus.durables.resume("thermostat")
        yield path


def table(spark, folder, name, **options):
    return spark.read.format("headwater").option("data", str(folder)).option("table", name).options(**options).load()


def test_dead_letters(spark, folder):
    (row,) = table(spark, folder, "dead_letters").collect()
    assert (row.subscription, row.root, row.topic, row.offset, row.attempts) == (
        "thermostat",
        "home",
        "home/a",
        1,
        1,
    )
    assert (bytes(row.key), bytes(row.payload), row.headers, row.errors) == (b"k", b"bad", {"unit": "F"}, ["cannot be"])
    assert row.dead_at >= row.timestamp


def test_the_audit(spark, folder):
    read = spark.read.format("headwater").option("data", str(folder)).option("topics", "$sys/audit").load()
    told = "from_json(CAST(payload AS STRING), 'time TIMESTAMP, who STRING, what STRING, target STRING') AS e"
    rows = read.selectExpr("timestamp", told).select("timestamp", "e.*").orderBy("time").collect()
    assert [(row.who, row.what, row.target) for row in rows] == [
        ("local", "rule-allowed", "ann"),
        ("local", "subscription-paused", "thermostat"),
        ("local", "subscription-resumed", "thermostat"),
    ]
    assert all(row.time <= row.timestamp for row in rows)


def test_subscriptions(spark, folder):
    (row,) = table(spark, folder, "subscriptions").collect()
    assert (row.id, row.filter, row.order, row.dead, row.retrying, row.paused) == (
        "thermostat",
        "home/#",
        "none",
        1,
        1,
        False,
    )
    assert row.floors == {"home": 1}
    assert (row.in_flight, row.consumers) == (None, None)  # its owner alone knows


def test_message_states(spark, folder):
    found = {row.offset: row for row in table(spark, folder, "message_states").collect()}
    row = found[2]
    assert (row.root, row.topic, row.state, row.attempts, row.errors) == ("home", "home/a", "retry", 1, ["later"])
    assert (row.deliveries, row.retry_at - row.since) == (0, timedelta(seconds=600))
    assert row.consumer.endswith(f":{os.getpid()}")
    assert (found[3].state, found[3].since, found[3].consumer) == ("acked", None, None)


def test_tables_can_be_grouped_and_filtered(spark, folder):
    frame = table(spark, folder, "dead_letters")
    assert frame.where("root = 'home' and offset > 0").groupBy("subscription").count().first()[1] == 1
    assert frame.where("root = 'office'").count() == 0


def test_a_bus_without_subscriptions_has_empty_tables(spark, tmp_path):
    headwater.open(tmp_path / "data").close()
    for name in ("dead_letters", "subscriptions", "message_states"):
        assert table(spark, tmp_path / "data", name).count() == 0
