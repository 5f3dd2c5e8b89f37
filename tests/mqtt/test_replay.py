"""$replay: history for ordinary MQTT clients, and then what comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Publish, Subscription
from headwater.mqtt.reasons import Reason
from mqtt.peer import Served


def place(message: Publish) -> int:
    return int(dict(message.properties.user_properties)["headwater-offset"])


@pytest.mark.parametrize("version", [V4, V5])
def test_history_comes_from_an_offset_on_and_then_what_is_new(version: int) -> None:
    with Served() as served:
        for number in range(1, 6):
            served.bus.publish("home/x", b"%d" % number)
        served.bus.publish("home/other", b"not this")
        peer = served.mqtt("c", version)
        assert peer.subscribe("$replay/3/home/x", qos=1) == (0,)
        assert peer.payloads(3) == [b"3", b"4", b"5"]
        served.bus.publish("home/x", b"6")
        message = peer.got()
        assert (message.topic, message.payload, message.qos, message.retain) == ("home/x", b"6", 0, False)
        peer.quiet()


def test_each_message_says_where_and_when_it_was_published() -> None:
    with Served() as served:
        receipt = served.bus.publish("home/x", b"1", headers={"unit": "C"}, key=b"k")
        peer = served.mqtt()
        peer.subscribe("$replay/1/home/#", subscription_identifiers=(9,))
        message = peer.got()
        said = dict(message.properties.user_properties)
        stored = next(iter(served.bus.replay("home/#")))
        assert said["headwater-offset"] == str(receipt.offset)
        assert datetime.fromisoformat(said["headwater-time"]) == stored.timestamp
        assert said["unit"] == "C"
        assert message.properties.subscription_identifiers == (9,)


def test_a_moment_reaches_over_all_roots() -> None:
    with Served() as served:
        served.bus.publish_many([("home/x", b"1"), ("garden/x", b"2")])
        since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        peer = served.mqtt()
        for moment in (since, since.replace("+00:00", "Z"), since.replace("+00:00", "")):
            assert peer.subscribe(f"$replay/{moment}/#") == (0,)
            assert sorted(peer.payloads(2)) == [b"1", b"2"]
            peer.unsubscribe(f"$replay/{moment}/#")
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert peer.subscribe(f"$replay/{tomorrow}/home/#") == (0,)
        peer.quiet()


def test_a_client_goes_on_where_it_was() -> None:
    with Served() as served:
        served.bus.publish_many([("home/x", b"%d" % number) for number in range(5)])
        peer = served.mqtt("c")
        peer.subscribe("$replay/0/home/#")
        last = [peer.got() for _ in range(5)][-1]
        peer.close()
        served.bus.publish("home/x", b"meanwhile")
        peer = served.mqtt("c")
        peer.subscribe(f"$replay/{place(last) + 1}/home/#")
        assert peer.payloads(1) == [b"meanwhile"]


def test_a_replay_is_the_connection_s_and_beside_the_session_s_subscriptions() -> None:
    with Served() as served:
        peer = served.kept("c")
        peer.subscribe("home/#", qos=1)
        peer.subscribe("$replay/1/home/#")
        served.bus.publish("home/x", b"1")
        peer.settle(peer.got())
        peer.settle(peer.got())
        assert peer.unsubscribe("$replay/1/home/#", "$replay/1/home/#") == (0, Reason.NO_SUBSCRIPTION_EXISTED)
        peer.subscribe("$replay/1/home/#")
        peer.got()
        peer.close()
        peer = served.kept("c")
        served.bus.publish("home/x", b"2")
        assert peer.payloads(1) == [b"2"]
        peer.quiet()


def test_asked_again_it_begins_again() -> None:
    with Served() as served:
        served.bus.publish("home/x", b"1")
        peer = served.mqtt()
        for _ in range(3):
            peer.subscribe("$replay/1/home/#")
            assert peer.payloads(1) == [b"1"]
        served.bus.publish("home/x", b"2")
        assert peer.payloads(1) == [b"2"]
        peer.quiet()


@pytest.mark.parametrize(
    "filter",
    [
        *("$replay/1", "$replay/1/", "$replay/x/home/#", "$replay//home/#", "$replay/-1/home/#", "$replay/1/#"),
        *("$replay/99999999999999999999/home/#", "$replay/+/home/#", "$replay/#", "$replay/1/home/#/x"),
    ],
)
def test_what_is_no_replay_is_refused(filter: str) -> None:
    with Served() as served:
        served.bus.publish("home/x", b"1")
        peer = served.mqtt()
        assert peer.subscribe(filter) == (Reason.TOPIC_FILTER_INVALID,)
        peer.quiet()


def test_history_takes_the_right_to_subscribe_and_counts_among_subscriptions() -> None:
    with Served(auth="scram", subscriptions_per_session_max=2) as served:
        served.client("ann", allow=("subscribe home/#",))
        served.bus.publish_many([("home/x", b"1"), ("other/x", b"2")])
        peer = served.mqtt(user="ann")
        assert peer.subscribe("$replay/1/other/#", "$replay/1/home/#") == (Reason.NOT_AUTHORIZED, 0)
        assert peer.subscribe("$replay/2/home/#", "$replay/3/home/#") == (0, Reason.QUOTA_EXCEEDED)


def test_a_reader_that_is_slow_gets_all_of_it() -> None:
    with Served(write_bytes_max=50_000) as served:
        for _ in range(10):
            served.bus.publish_many([("home/x", bytes(1000))] * 500)
        peer = served.mqtt()
        peer.subscribe(Subscription("$replay/1/home/#"))
        assert [place(peer.got()) for _ in range(5000)] == list(range(1, 5001))
