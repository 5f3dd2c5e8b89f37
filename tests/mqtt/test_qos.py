"""The flows of QoS 0 and 1, both versions, both ways; and what is sent again."""

from __future__ import annotations

import time

import pytest

from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish
from headwater.mqtt.reasons import Reason
from mqtt.peer import Served

both = pytest.mark.parametrize("version", [V4, V5])


@both
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_message_comes_with_the_lower_of_the_qos_of_publish_and_subscription(
    version: int, published: int, wanted: int
) -> None:
    with Served() as served:
        subscriber, publisher = served.mqtt("s", version), served.mqtt("p", version)
        assert subscriber.subscribe("home/#", qos=wanted) == (wanted,)
        publisher.publish("home/x", b"1", published)
        message = subscriber.got()
        assert (message.topic, message.payload, message.qos) == ("home/x", b"1", min(published, wanted))
        assert not message.dup
        assert not message.retain
        subscriber.settle(message)
        subscriber.quiet()


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_gets_what_paho_publishes(version: int, qos: int) -> None:
    with Served() as served:
        subscriber, publisher = served.paho("s", version), served.paho("p", version)
        assert subscriber.subscribe("home/+/temp", qos) == qos
        for number in range(10):
            publisher.publish("home/kitchen/temp", b"%d" % number, qos)
        found = [subscriber.got() for _ in range(10)]
        assert [one.payload for one in found] == [b"%d" % number for number in range(10)]
        assert {one.qos for one in found} == {qos}


def test_a_publish_is_in_the_log_before_its_puback() -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.publish("home/x", b"1", 1)
        assert [one.payload for one in served.bus.replay("home/#")] == [b"1"]


@both
def test_what_is_not_acknowledged_comes_again_with_its_number_and_says_so(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=1)
        for number in range(5):
            served.bus.publish("home/x", b"%d" % number)
        first = [peer.got() for _ in range(5)]
        peer.puback(first[1], first[3])
        peer.ping()
        peer.close()
        peer = served.kept("s", version)
        assert peer.connack.session_present
        again = [peer.got() for _ in range(3)]
        assert [one.payload for one in again] == [b"0", b"2", b"4"]
        assert [one.packet_id for one in again] == [first[0].packet_id, first[2].packet_id, first[4].packet_id]
        assert all(one.dup for one in again)
        peer.puback(*again)
        served.bus.publish("home/x", b"5")
        last = peer.got()
        assert (last.payload, last.dup) == (b"5", False)


@both
def test_what_comes_anew_of_one_subscription_costs_no_other_its_numbers(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        for name in ("home", "garden"):
            peer.subscribe(f"{name}/#", qos=1)
            served.bus.publish(f"{name}/x", b"before")
        before = {one.topic: one.packet_id for one in (peer.got(), peer.got())}
        peer.close()
        for name in ("home", "garden"):
            served.bus.publish(f"{name}/x", b"after")
        again = served.kept("s", version)
        got = [again.got() for _ in range(4)]
        assert {one.topic: one.packet_id for one in got if one.payload == b"before" and one.dup} == before
        assert not {one.packet_id for one in got if one.payload == b"after"} & set(before.values())


def test_nothing_comes_again_while_the_client_is_connected() -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe("home/#", qos=1)
        served.bus.publish("home/x", b"1")
        peer.got()
        peer.quiet(0.3)


@both
def test_no_more_are_on_their_way_than_the_client_takes(version: int) -> None:
    with Served() as served:
        options = {"receive_maximum": 3} if version == V5 else {}
        peer = served.mqtt("s", version, **options)
        peer.subscribe("home/#", qos=1)
        for number in range(10):
            served.bus.publish("home/x", b"%d" % number)
        if version == V4:
            assert len([peer.got() for _ in range(10)]) == 10
            return
        there = [peer.got() for _ in range(3)]
        peer.quiet()
        peer.puback(there[0])
        assert peer.got().payload == b"3"
        peer.quiet()
        peer.puback(*there[1:])
        assert peer.payloads(2) == [b"4", b"5"]


def test_who_has_more_under_way_than_the_server_takes_is_told_so() -> None:
    with Served(mqtt_receive_max=4) as served:
        peer = served.mqtt()
        assert peer.connack.properties.receive_maximum == 4
        peer.send(*[Publish("home/x", b"", 2, packet_id=number) for number in range(1, 6)])
        assert peer.ends() == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_numbers_that_are_done_with_count_no_more() -> None:
    with Served(mqtt_receive_max=4) as served:
        peer = served.mqtt()
        for _ in range(10):
            assert peer.publish("home/x", b"", 2).reason == 0
            assert peer.publish("home/x", b"", 1).reason == 0
        peer.ping()


@both
def test_many_publishes_at_once_are_each_acknowledged(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("p", version)
        topics = ("home/a", "garden/b", "home/c")
        peer.send(*[Publish(topics[n % 3], b"%d" % n, 1, packet_id=n) for n in range(1, 301)])
        assert {peer.ack(Kind.PUBACK).packet_id for _ in range(300)} == set(range(1, 301))
        found = [int(one.payload) for one in served.bus.replay("home/#")]
        assert found == [n for n in range(1, 301) if n % 3 != 1]


def test_a_client_that_refuses_a_message_does_not_get_it_again() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        served.bus.publish("home/x", b"no")
        peer.send(Ack(Kind.PUBACK, peer.got().packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        peer.ping()
        peer.leave()
        served.kept("s").quiet()


@both
def test_an_acknowledgement_of_nothing_is_no_harm(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", version)
        peer.send(Ack(Kind.PUBACK, 77), Ack(Kind.PUBCOMP, 78))
        peer.ping()
        peer.send(Ack(Kind.PUBREC, 79))
        rel = peer.ack(Kind.PUBREL, 79)
        assert rel.reason == (Reason.PACKET_IDENTIFIER_NOT_FOUND if version == V5 else 0)
        peer.send(Ack(Kind.PUBREL, 80))
        comp = peer.ack(Kind.PUBCOMP, 80)
        assert comp.reason == (Reason.PACKET_IDENTIFIER_NOT_FOUND if version == V5 else 0)


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize(
    ("qos", "kinds"),
    [
        (1, [Kind.PUBREC]),
        (1, [Kind.PUBCOMP]),
        (2, [Kind.PUBACK]),
        (2, [Kind.PUBCOMP]),
        (2, [Kind.PUBREC, Kind.PUBACK]),
    ],
)
def test_an_answer_that_is_not_due_ends_the_connection_and_the_message_comes_again(
    qos: int, kinds: list[Kind], version: int
) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=qos)
        served.mqtt().publish("home/x", b"1", qos)
        message = peer.got()
        for kind in kinds:
            peer.send(Ack(kind, message.packet_id))
            if kind is not kinds[-1]:
                peer.ack(Kind.PUBREL)
        assert peer.ends() == (Reason.PROTOCOL_ERROR if version == V5 else None)
        peer = served.kept("s", version)
        if len(kinds) == 1:
            again = peer.got()
            assert (again.packet_id, again.dup) == (message.packet_id, True)
        else:
            assert peer.ack(Kind.PUBREL).packet_id == message.packet_id


@both
@pytest.mark.parametrize("qos", [1, 2])
def test_a_number_that_is_in_use_is_not_given_to_another_message(qos: int, version: int) -> None:
    with Served() as served:
        peer, publisher = served.mqtt("s", version), served.mqtt("p")
        peer.subscribe("home/#", qos=qos)
        open = {}
        for number in range(40):
            publisher.publish("home/x", b"%d" % number, qos)
            message = peer.got()
            assert message.packet_id
            assert message.packet_id not in open
            if number % 4:
                peer.settle(message)
            else:
                open[message.packet_id] = message


@both
def test_after_its_acknowledgement_a_number_stands_for_another_message(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("p", version)
        for payload in (b"1", b"1", b"2"):
            peer.send(Publish("home/x", payload, 1, dup=True, packet_id=7))
            peer.ack(Kind.PUBACK, 7)
        assert [one.payload for one in served.bus.replay("home/#")] == [b"1", b"1", b"2"]


def test_the_number_of_a_message_that_has_expired_is_free_again() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        served.bus.publish("home/x", b"short", ttl_s=1.0)
        expired_s = time.monotonic() + 1.05
        assert peer.got().payload == b"short"
        peer.close()
        time.sleep(max(0.0, expired_s - time.monotonic()))
        peer = served.kept("s")
        served.bus.publish("home/x", b"next")
        assert peer.got().payload == b"next"
        session = served.mqtt_session("s")
        assert not served.call(lambda: session.flight.window.behind)
