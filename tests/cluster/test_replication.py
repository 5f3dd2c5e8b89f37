"""A leader's core goes by records, and whoever applies them has the same folder."""

from __future__ import annotations

from pathlib import Path

from cluster.nodes import another, first, rows, segments


def test_a_follower_has_the_leaders_segments_to_the_byte_and_its_rows(tmp_path: Path) -> None:
    one = first(tmp_path / "1")
    two = another(one, tmp_path / "2")
    leader = one.lead(1)
    bus = leader.bus
    assert bus.publish("home/kitchen", b"21.5", retain=True).offset == 1
    for number in range(200):
        bus.publish_many([("home/hall", b"%d" % number * 200), ("away/garden", b"x" * 30)])
    consumer = bus.subscribe("home/#", id="thermostat", start="earliest")
    for message in consumer.batch(50, timeout_s=5):
        message.ack()
    consumer.close()
    leader.close()
    replica = two.followed()
    replica.close()
    one.followed().close()
    assert replica.position == leader.sequencer.position
    assert segments(one.path) == segments(two.path)
    assert len(segments(one.path)) > 2
    assert rows(one.path) == rows(two.path)
