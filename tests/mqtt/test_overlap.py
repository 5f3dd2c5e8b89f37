"""Filters of one session that overlap: a message that several of them match comes once, for all of them."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headwater.delivery.options import Options
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish, Subscription
from mqtt.peer import MqttPeer, Served
from mqtt.test_once import Cut, Killed
from server.harness import PATIENCE_S

both = pytest.mark.parametrize("version", [V4, V5])


def is_done(served: Served) -> bool:
    """Whether nothing of any subscription is left to be done."""
    return all(not one.lag and not one.in_flight for one in served.bus.subscriptions())


def taken(peer: MqttPeer, count: int) -> list[bytes]:
    """The next messages, each acknowledged through to the end."""
    found = []
    for _ in range(count):
        message = peer.got()
        found.append(message.payload)
        peer.settle(message)
    return found


# One message


@both
@pytest.mark.parametrize("wanted", [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2), (2, 1), (2, 2)])
def test_a_message_comes_once_with_the_highest_qos(version: int, wanted: tuple[int, int]) -> None:
    with Served() as served:
        peer, other = served.mqtt("s", version), served.mqtt("o", version)
        peer.subscribe("home/#", qos=wanted[0])
        peer.subscribe("home/+", qos=wanted[1])
        for qos in (0, 1, 2):
            other.publish("home/x", b"of qos %d" % qos, qos)
            message = peer.got()
            assert (message.payload, message.qos) == (b"of qos %d" % qos, min(qos, max(wanted)))
            peer.settle(message)
        peer.quiet()
        served.until(lambda: is_done(served))


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_has_the_identifiers_of_all_that_match(qos: int) -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe("home/#", qos=qos, subscription_identifiers=(7,))
        peer.subscribe("home/x", qos=0, subscription_identifiers=(268_435_455,))
        peer.subscribe("+/x", qos=1)
        peer.subscribe("other", qos=1, subscription_identifiers=(9,))
        served.bus.publish("home/x", b"1")
        assert sorted(peer.got().properties.subscription_identifiers) == [7, 268_435_455]
        peer.subscribe("home/#", qos=1, subscription_identifiers=(8,))
        served.bus.publish("home/y", b"2")
        assert peer.got().properties.subscription_identifiers == (8,)
        served.bus.publish("home/x", b"3")
        assert sorted(peer.got().properties.subscription_identifiers) == [8, 268_435_455]
        peer.unsubscribe("home/x")
        served.bus.publish("home/x", b"4")
        assert peer.got().properties.subscription_identifiers == (8,)
        peer.quiet()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_filters_of_one_packet_are_as_others(qos: int) -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe(Subscription("a/#", qos), Subscription("a/b", 1), Subscription("#", 0))
        served.bus.publish("a/b", b"1")
        served.bus.publish("c", b"2")
        assert peer.payloads(2) == [b"1", b"2"]
        peer.quiet()


def test_shared_subscriptions_and_replays_bring_their_own() -> None:
    with Served() as served:
        served.bus.publish("home/x", b"0")
        peer = served.mqtt()
        peer.subscribe("home/#", qos=1)
        peer.subscribe("home/x", qos=1)
        peer.subscribe("$share/g/home/#", qos=1)
        peer.subscribe("$replay/1/home/#")
        assert peer.got().payload == b"0"
        served.bus.publish("home/x", b"1")
        assert peer.payloads(3) == [b"1"] * 3
        peer.quiet()


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_of_many_topics_each_come_once_and_in_order(qos: int) -> None:
    with Served() as served:
        peer, other = served.mqtt("s", receive_maximum=7), served.mqtt("o")
        peer.subscribe("home/#", qos=qos, subscription_identifiers=(1,))
        peer.subscribe("home/+/b", qos=1, subscription_identifiers=(2,))
        peer.subscribe("+/1/#", qos=2, subscription_identifiers=(3,))
        sent = [(f"home/{n % 3}/{'ab'[n % 2]}", b"%d" % n) for n in range(120)]
        other.send(*[Publish(topic, payload, 1, packet_id=n) for n, (topic, payload) in enumerate(sent, 1)])
        found: dict[str, list[bytes]] = {}
        for _ in sent:
            message = peer.got()
            found.setdefault(message.topic, []).append(message.payload)
            wanted = {1}
            wanted |= {2} if message.topic.endswith("b") else set()
            wanted |= {3} if "/1/" in message.topic else set()
            assert set(message.properties.subscription_identifiers) == wanted
            peer.settle(message)
        assert found == {name: [payload for topic, payload in sent if topic == name] for name in found}
        peer.quiet()
        served.until(lambda: is_done(served))


# No local


def test_a_client_that_wants_its_own_messages_with_one_of_two_filters_gets_them_for_that_one() -> None:
    with Served() as served:
        peer, other = served.mqtt("s"), served.mqtt("o")
        peer.subscribe(Subscription("home/#", 1, no_local=True), subscription_identifiers=(1,))
        peer.subscribe(Subscription("home/x", 1), subscription_identifiers=(2,))
        peer.publish("home/x", b"mine", 1)
        peer.publish("home/y", b"mine alone", 1)
        other.publish("home/x", b"of another", 1)
        found = [peer.got(), peer.got()]
        assert [(one.payload, one.properties.subscription_identifiers) for one in found] == [
            (b"mine", (2,)),
            (b"of another", (1, 2)),
        ]
        peer.puback(*found)
        peer.quiet()
        served.until(lambda: is_done(served))


@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_of_before_is_a_client_s_own(qos: int) -> None:
    with Served() as served:
        peer, other = served.mqtt("s"), served.mqtt("o")
        peer.publish("home/mine", b"mine", 1, retain=True)
        other.publish("home/other", b"of another", 1, retain=True)
        peer.subscribe(Subscription("home/#", qos, no_local=True))
        message = peer.got()
        assert message.payload == b"of another"
        assert not message.properties.user_properties
        peer.quiet()
        other.subscribe("home/mine")
        assert not other.got().properties.user_properties


# A subscription ends


@both
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_comes_for_the_other_when_one_is_unsubscribed(version: int, qos: int) -> None:
    with Served(mqtt_in_flight_max=2) as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=qos)
        peer.subscribe("home/x", qos=qos)
        peer.leave()
        other = served.mqtt("o")
        for n in range(6):
            other.publish("home/x", b"%d" % n, qos)
        other.publish("home/y", b"not any more", qos)
        peer = served.kept("s", version)
        first = peer.got()
        peer.unsubscribe("home/#")
        peer.settle(first)
        rest = taken(peer, 5)
        assert [first.payload, *rest] == [b"%d" % n for n in range(6)]
        other.publish("home/x", b"next", qos)
        assert taken(peer, 1) == [b"next"]
        peer.quiet()
        served.until(lambda: is_done(served))


@both
def test_a_message_that_is_under_way_stays_that_when_its_subscription_ends(version: int) -> None:
    with Served() as served:
        peer, other = served.kept("s", version), served.mqtt("o")
        peer.subscribe("home/#", qos=2)
        peer.subscribe("home/x", qos=2)
        peer.subscribe("+/x", qos=2)
        other.publish("home/x", b"1", 2)
        message = peer.got()
        peer.unsubscribe("home/#")
        peer.quiet()
        peer.close()
        peer = served.kept("s", version)
        again = peer.got()
        assert (again.packet_id, again.dup, again.payload) == (message.packet_id, True, b"1")
        peer.unsubscribe("home/x")
        peer.settle(again)
        peer.quiet()
        peer.close()
        peer = served.kept("s", version)
        other.publish("home/x", b"2", 2)
        assert taken(peer, 1) == [b"2"]
        peer.quiet()
        served.until(lambda: is_done(served))


def test_a_message_that_the_client_has_does_not_come_for_a_subscription_that_was_behind() -> None:
    with Served() as served:
        peer, other = served.kept("s", receive_maximum=1), served.mqtt("o")
        peer.subscribe("home/#", qos=2)
        peer.subscribe("home/x", qos=2)
        for n in range(20):
            other.publish("home/x", b"%d" % n, 2)
        assert taken(peer, 10) == [b"%d" % n for n in range(10)]
        message = peer.got()
        peer.send(Ack(Kind.PUBREC, message.packet_id))
        peer.unsubscribe("home/#")
        peer.ack(Kind.PUBREL, message.packet_id)
        peer.send(Ack(Kind.PUBCOMP, message.packet_id))
        assert message.payload == b"10"
        assert taken(peer, 9) == [b"%d" % n for n in range(11, 20)]
        peer.quiet()


def test_nothing_comes_before_each_of_them_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that, what a client is done with could not be noted in all that match it."""
    with Served() as served:
        peer = served.kept("s")
        for wanted in ("home/#", "home/+"):
            peer.subscribe(wanted, qos=1)
        peer.close()
        served.bus.publish("home/x", b"1")
        dispatcher = served.bus.core.dispatcher
        attach, held, go = dispatcher.attach, threading.Event(), threading.Event()

        def hold(options: Options, *more: Any, **others: Any) -> Any:
            if options.filter == "home/+":
                held.set()
                assert go.wait(PATIENCE_S)
            return attach(options, *more, **others)

        monkeypatch.setattr(dispatcher, "attach", hold)
        peer = served.kept("s")
        assert held.wait(PATIENCE_S)
        peer.quiet()
        go.set()
        assert taken(peer, 1) == [b"1"]
        served.until(lambda: is_done(served))
        peer.quiet()


def test_a_right_that_is_taken_away_leaves_the_messages_to_the_other_filter() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("subscribe home/#", "subscribe home/x"))
        peer = served.mqtt("s", user="ann", receive_maximum=1)
        peer.subscribe("home/#", qos=1)
        peer.subscribe("home/x", qos=1)
        for n in range(4):
            served.bus.publish("home/x", b"%d" % n)
        first = peer.got()
        served.rules("ann", deny=("subscribe home/y",))
        served.until(lambda: len(served.bus.subscriptions()) == 1, "the end of the subscription")
        peer.puback(first)
        assert [first.payload, *taken(peer, 3)] == [b"0", b"1", b"2", b"3"]
        peer.quiet()


# Though the server is killed


@pytest.mark.parametrize("ends", [False, True])
def test_a_message_arrives_once_though_the_server_is_killed(tmp_path: Path, ends: bool) -> None:
    killed = Killed(tmp_path, V5)
    steps = ("delivered", "sub-pubrec", "sub-pubrel", "sub-pubcomp")
    try:
        for number, step in enumerate(steps, 1):
            with killed.client("subscriber") as (peer, _):
                peer.unsubscribe("once/#", "+/x")
                peer.subscribe("once/#", qos=2)
                peer.subscribe("+/x", qos=2)
            killed.publish(step.encode(), number)
            killed.kill_at = step
            with suppress(Cut), killed.client("subscriber") as (peer, _):
                killed.settle(peer, step.encode())
            assert not killed.kill_at, f"the server was not killed at {step}"
            if ends:
                with killed.client("subscriber") as (peer, _):
                    peer.unsubscribe("once/#")
            killed.take(step.encode())
            with killed.client("subscriber") as (peer, _):
                peer.quiet()
    finally:
        killed.end()
    assert killed.delivered == {step.encode(): 1 for step in steps}


# Numbers


@pytest.mark.parametrize("version", [V4, V5])
def test_a_number_of_qos_2_is_given_back_when_its_message_is_gone(version: int) -> None:
    with Served() as served:
        peer, other = served.kept("s", version), served.mqtt("o")
        peer.subscribe("home/#", qos=2)
        other.publish("home/x", b"gone", 2)
        message = peer.got()
        peer.close()
        served.bus.purge("home/x")
        peer = served.kept("s", version)
        other.publish("home/x", b"next", 2)
        peer.ack(Kind.PUBREL, message.packet_id)
        peer.send(Ack(Kind.PUBCOMP, message.packet_id))
        assert taken(peer, 1) == [b"next"]
        window = served.mqtt_session("s").flight.window
        served.until(lambda: window.room == window.size and not window.behind, "the number's freedom")
