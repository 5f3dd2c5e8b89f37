"""What is retained, for whoever subscribes."""

from __future__ import annotations

from headwater import Outgoing
from headwater.bus import Bus


def test_retained_messages_are_those_of_every_root_that_the_filter_covers(bus: Bus) -> None:
    bus.publish_many(
        [Outgoing(topic, topic.encode(), retain=True) for topic in ("home/a", "hall/a", "$box/a", "home/b/c")]
    )
    assert list(bus.retained("#")) == ["home/a", "home/b/c", "hall/a"]
    assert list(bus.retained("+/a")) == ["home/a", "hall/a"]
    assert list(bus.retained("$box/#")) == ["$box/a"]
    assert not bus.retained("nowhere/#")
