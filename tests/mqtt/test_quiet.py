"""Messages of QoS 0 that come one by one: live subscriptions have them at once, the disk soon, in one order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import headwater
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Publish
from mqtt.peer import MqttPeer, Served
from server.harness import nothing_is_committed


def say(peer: MqttPeer, topic: str, *payloads: bytes) -> None:
    """Each in a read of its own."""
    for payload in payloads:
        peer.send(Publish(topic, payload))
        peer.ping()


def test_everybody_has_it_in_turn_live_ones_before_it_is_on_disk_and_durable_ones_after():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, old, new, native = served.mqtt("ann"), served.mqtt("old", V4), served.mqtt("new"), served.peer()
        durable = served.mqtt("durable")
        for peer in (old, new):
            peer.subscribe("home/#")
        durable.subscribe("home/x", qos=1)
        native.subscribe(1, "home/+")
        with nothing_is_committed(served.bus):
            say(ann, "home/x", b"1", b"2", b"3")
            assert new.payloads(3) == [b"1", b"2", b"3"]
            assert [(one.offset, one.payload) for one in native.take(1, 3)] == [(2, b"1"), (3, b"2"), (4, b"3")]
            live = [old.got() for _ in range(3)]
            assert [(one.payload, one.qos) for one in live] == [(b"1", 0), (b"2", 0), (b"3", 0)]
            durable.quiet()
        assert durable.payloads(3) == [b"1", b"2", b"3"]
        stored = [(one.offset, one.payload) for one in served.bus.replay("home/#", after=1)]
        assert stored == [(2, b"1"), (3, b"2"), (4, b"3")]


def test_it_overtakes_nothing_that_somebody_waits_for_and_is_not_overtaken():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, bob, watcher = served.mqtt("ann"), served.peer(), served.mqtt("watcher")
        watcher.subscribe("home/#")
        with nothing_is_committed(served.bus):
            say(ann, "home/x", b"1")
            waited = bob.publish_soon("home/x", b"2")
            bob.ping()
            say(ann, "home/x", b"3", b"4")
            assert watcher.payloads(1) == [b"1"]
            watcher.quiet()
        bob.published(waited)
        assert watcher.payloads(3) == [b"2", b"3", b"4"]
        say(ann, "home/x", b"5")
        assert watcher.payloads(1) == [b"5"]
        served.until(lambda: served.bus.ends()["home"] == 6)
        assert [one.payload for one in served.bus.replay("home/#")] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_each_has_the_offset_that_it_is_stored_under_however_they_are_mixed(tmp_path: Path):
    rng = random.Random(7)
    with Served(tmp_path) as served:
        topics = [f"home/{number}" for number in range(5)]
        served.bus.publish_many([(topic, b"first") for topic in topics])
        ann, bob, cat, watcher = served.mqtt("ann", V4), served.mqtt("bob"), served.peer(), served.peer()
        watcher.subscribe(1, "home/#")
        count = 0
        for number in range(400):
            payload, topic = b"%d" % number, rng.choice(topics)
            many = rng.choice((1, 1, 1, 4))
            match rng.choice(("ann", "bob", "waited", "native")):
                case "ann":
                    ann.send(*[Publish(topic, payload)] * many)
                case "bob":
                    bob.send(*[Publish(topic, payload)] * many)
                case "waited":
                    bob.send(*[Publish(topic, payload, 1, packet_id=bob.number()) for _ in range(many)])
                case _:
                    cat.publish_soon([topic] * many, [payload] * many)
            count += many
        got = watcher.take(1, count)
        served.until(lambda: served.bus.ends()["home"] == 5 + count)
    assert [one.offset for one in got] == list(range(6, 6 + count))
    with headwater.open(tmp_path) as bus:
        stored = [(one.offset, one.topic, one.payload) for one in bus.replay("home/#", after=5)]
    assert stored == [(one.offset, one.topic, one.payload) for one in got]


def test_those_that_come_one_by_one_and_those_that_come_together_are_stored_in_the_order_in_which_they_came():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, watcher = served.mqtt("ann"), served.peer()
        watcher.subscribe(1, "home/#")
        with nothing_is_committed(served.bus):
            say(ann, "home/x", b"1", b"2")
            ann.send(*[Publish("home/x", payload) for payload in (b"3", b"4", b"5")])
            ann.ping()
            say(ann, "home/x", b"6", b"7")
            got = watcher.take(1, 7)
        served.until(lambda: served.bus.ends()["home"] == 8)
        stored = [(one.offset, one.payload) for one in served.bus.replay("home/#", after=1)]
        assert stored == [(one.offset, one.payload) for one in got]
        assert [payload for _, payload in stored] == [b"%d" % number for number in range(1, 8)]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("publisher", [V4, V5])
def test_those_that_come_together_reach_each_in_its_version_and_as_it_wishes(publisher: int, retain: bool):
    with Served() as served:
        served.bus.publish_many([("home/x", b"0"), ("home/y", b"0")])
        ann, old, new = served.mqtt("ann", publisher), served.mqtt("old", V4), served.mqtt("new")
        known, some, small = served.mqtt("known"), served.mqtt("some"), served.mqtt("small", maximum_packet_size=50)
        for peer in (old, new, small):
            peer.subscribe("home/#")
        known.subscribe("home/#", subscription_identifiers=(3,))
        some.subscribe("home/y")
        sent = [("home/x", b"1"), ("home/y", b"2" * 100), ("home/y", b"3"), ("home/x", b"4")]
        ann.send(*[Publish(topic, payload, retain=retain) for topic, payload in sent])
        for peer in (old, new, known):
            got = [peer.got() for _ in sent]
            assert [(one.topic, one.payload, one.qos, one.retain) for one in got] == [(*one, 0, False) for one in sent]
            assert all(one.properties.subscription_identifiers == ((3,) if peer is known else ()) for one in got)
        assert some.payloads(2) == [b"2" * 100, b"3"]
        assert small.payloads(3) == [b"1", b"3", b"4"]


def test_one_that_comes_after_others_were_stored_is_stored_too():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann = served.mqtt("ann")
        for end in range(2, 5):
            say(ann, "home/x", b"%d" % end)
            while served.bus.ends()["home"] < end:
                ann.ping()


def test_what_was_shown_is_stored_when_the_server_stops(tmp_path: Path):
    with Served(tmp_path) as served:
        served.bus.publish("home/x", b"0")
        ann = served.mqtt("ann")
        say(ann, "home/x", *[b"%d" % number for number in range(1, 20)])
    with headwater.open(tmp_path) as bus:
        assert [one.payload for one in bus.replay("home/#")] == [b"%d" % number for number in range(20)]


def test_whoever_sends_more_than_may_be_on_its_way_is_read_again_once_it_is_on_disk():
    with Served(publishes_in_flight_max=1) as served:
        served.bus.publish("home/x", b"0")
        ann, watcher = served.mqtt("ann"), served.mqtt("watcher")
        watcher.subscribe("home/#")
        with nothing_is_committed(served.bus):
            for number in range(1, 17):
                ann.send(Publish("home/x", b"%d" % number))
                assert watcher.payloads(1) == [b"%d" % number]
            ann.send(Publish("home/x", b"17"))
            watcher.quiet()
        assert watcher.payloads(1) == [b"17"]
        ann.ping()


def test_a_client_that_takes_short_packets_alone_gets_the_short_ones():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, small = served.mqtt("ann"), served.mqtt("small", maximum_packet_size=100)
        small.subscribe("home/#")
        say(ann, "home/x", b"short", bytes(200), b"also short")
        assert small.payloads(2) == [b"short", b"also short"]
        small.quiet()


@pytest.mark.parametrize("version", [V4, V5])
def test_an_empty_payload_is_a_message_too(version: int):
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, bob = served.mqtt("ann", version), served.mqtt("bob", version)
        bob.subscribe("home/+")
        say(ann, "home/x", b"", b"x" * 200, b"x" * 20_000)
        assert [len(one) for one in bob.payloads(3)] == [0, 200, 20_000]


def test_identifiers_and_aliases_come_with_it_where_they_are_wanted():
    with Served() as served:
        served.bus.publish("home/x", b"0")
        ann, bob, cat = served.mqtt("ann"), served.mqtt("bob"), served.mqtt("cat", topic_alias_maximum=5)
        bob.subscribe("home/+", subscription_identifiers=(7,))
        cat.subscribe("home/+")
        say(ann, "home/x", b"1", b"2")
        assert [bob.got().properties.subscription_identifiers for _ in range(2)] == [(7,), (7,)]
        first, second = cat.got(), cat.got()
        assert (first.topic, second.topic) == ("home/x", "")
        assert first.properties.topic_alias == second.properties.topic_alias == 1
