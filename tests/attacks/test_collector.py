"""A collector: durable subscriptions to all that is retained, one after another, which nobody reads."""

from __future__ import annotations

from pathlib import Path

import headwater
import headwater.bus
from headwater.config import Config, Retention
from headwater.store import state as rows

MESSAGES = 20
SIZE = 100_000
SUBSCRIPTIONS = 30


def copied_bytes(bus: headwater.bus.Bus) -> int:
    return sum(len(key) + len(value) for key, value in bus.core.state.scan(rows.COPY))


def test_subscriptions_that_wait_for_what_is_retained_take_no_copies_of_it(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        for count in range(MESSAGES):
            bus.publish(f"kept/{count:02}", b"%d" % count * SIZE, retain=True)
        for number in range(SUBSCRIPTIONS):
            bus.subscribe("kept/#", id=f"s{number}", order=("strict", "key", "none")[number % 3]).close()
        assert copied_bytes(bus) < SUBSCRIPTIONS * MESSAGES * 100
    with headwater.open(tmp_path) as bus:
        for number in range(3):
            with bus.subscribe("kept/#", id=f"s{number}") as consumer:
                found = consumer.batch(100, timeout_s=5)
                assert [(one.topic, one.payload[:2], one.retained) for one in found] == [
                    (f"kept/{count:02}", (b"%d" % count * 2)[:2], True) for count in range(MESSAGES)
                ]
                for one in found:
                    one.ack()
                assert consumer.batch(100, timeout_s=0) == []


def test_what_was_retained_is_read_where_it_is_when_it_is_handed_out(tmp_path: Path) -> None:
    small = Config(segment_bytes=64 * 1024, retention=Retention(bytes=1), tail_bytes=1, tails_bytes=1)
    with headwater.open(tmp_path, small) as bus:
        bus.publish("kept/a", b"in the log no more", retain=True)
        for _ in range(8):
            bus.publish("kept/filling", b"x" * 20_000)
        root = bus.core.roots.get("kept")
        assert root is not None
        bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))
        assert root.stream.first_offset > 1
        bus.publish("kept/b", b"old", retain=True)
        bus.publish("kept/c", b"purged", retain=True)
        with bus.subscribe("kept/#", id="s") as consumer:
            bus.publish("kept/b", b"new", retain=True)
            bus.purge("kept/c")
            bus.core.roots.commit.run(bus.core.roots.checkpoints.make)
            found = consumer.batch(100, timeout_s=5)
        assert [(one.payload, one.retained) for one in found] == [
            (b"in the log no more", True),
            (b"old", True),
            (b"new", False),
        ]
