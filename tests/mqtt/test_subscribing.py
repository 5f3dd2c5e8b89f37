"""Subscriptions of MQTT clients: filters, options, identifiers, changes, and who is refused what."""

from __future__ import annotations

import threading

import pytest

from headwater.errors import Failed
from headwater.mqtt.connection import MqttConnection
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from headwater.mqtt.reasons import Reason
from headwater.server.sessions import Then
from mqtt.peer import Served
from server.harness import PATIENCE_S

both = pytest.mark.parametrize("version", [V4, V5])


@pytest.mark.parametrize(
    ("filter", "topics"),
    [
        ("home/+/temp", {"home/hall/temp"}),
        ("home/#", {"home", "home/hall/temp", "home/x"}),
        ("+/x", {"home/x", "garden/x"}),
        ("#", {"home", "home/hall/temp", "home/x", "garden/x"}),
        ("home", {"home"}),
        ("$own/#", {"$own/x"}),
        ("+", {"home"}),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_wildcards_match_as_mqtt_says(filter: str, topics: set[str], qos: int) -> None:
    with Served() as served:
        peer, publisher = served.mqtt(), served.mqtt()
        peer.subscribe(filter, qos=qos)
        for topic in ("home", "home/hall/temp", "home/x", "garden/x", "$own/x"):
            assert publisher.publish(topic, b"x", 1).reason < 0x80
        found = {peer.got().topic for _ in topics}
        assert found == topics
        peer.quiet()


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_names_are_compared_as_they_are_written(version: int, qos: int) -> None:
    names = (
        "home/\u00e9",
        "home/e\u0301",
        "home/E\u0301",
        "Home/\u00e9",
        "home/\ufeff\u00e9",
        "home/\u00e9/",
        "home/ \u00e9",
    )
    with Served() as served:
        peer = served.mqtt("s", version)
        for name in names:
            peer.subscribe(name, qos=qos)
            for other in names:
                served.bus.publish(other, b"x")
            assert peer.got().topic == name
            peer.unsubscribe(name)
        peer.quiet()


@both
def test_filters_that_are_none_are_refused_and_the_others_made(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", version)
        wanted = peer.subscribe("home/#", "home/#/x", "a+", "garden/+", qos=1)
        bad = Reason.TOPIC_FILTER_INVALID if version == V5 else Reason.UNSPECIFIED_ERROR
        assert wanted == (1, bad, bad, 1)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_does_not_want_its_own_messages_gets_those_of_others(qos: int) -> None:
    with Served() as served:
        peer, other = served.mqtt("s"), served.mqtt("o")
        peer.subscribe(Subscription("home/#", qos, no_local=True))
        other.subscribe("home/#", qos=1)
        peer.publish("home/x", b"mine", 1)
        other.publish("home/x", b"of another", 1)
        message = peer.got()
        assert message.payload == b"of another"
        assert not message.properties.user_properties
        found = other.got()
        assert found.payload == b"mine"
        peer.quiet()


@both
def test_a_subscription_made_again_has_the_new_qos(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        for qos in (0, 1, 2, 0, 2, 1, 0):
            assert peer.subscribe("home/#", qos=qos) == (qos,)
            peer_publish = served.mqtt("p", version)
            peer_publish.publish("home/x", b"%d" % qos, 2)
            message = peer.got()
            assert (message.payload, message.qos) == (b"%d" % qos, qos)
            peer.settle(message)
        peer.quiet()


def test_what_waits_is_not_lost_when_a_subscription_is_made_again() -> None:
    with Served() as served:
        peer = served.mqtt("s", receive_maximum=1)
        peer.subscribe("home/#", qos=1)
        for number in range(5):
            served.bus.publish("home/x", b"%d" % number)
        first = peer.got()
        peer.subscribe("home/#", qos=0)
        peer.puback(first)
        assert peer.payloads(4) == [b"1", b"2", b"3", b"4"]


def test_messages_go_on_while_a_live_subscription_becomes_a_durable_one() -> None:
    with Served() as served:
        peer, publisher = served.mqtt("s"), served.mqtt("p")
        peer.subscribe("home/#")
        for number in range(1, 1001):
            publisher.send(Publish("home/x", b"%d" % number, 1, packet_id=number))
            if number == 500:
                peer.send(Subscribe(77, (Subscription("home/#", 1),)))
        found: set[int] = set()
        while len(found) < 1000:
            found.add(int(peer.got().payload))


@both
def test_what_is_unsubscribed_comes_no_more(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=1)
        peer.subscribe("live/#", qos=0)
        served.bus.publish("home/x", b"1")
        peer.got()
        success = (0, Reason.NO_SUBSCRIPTION_EXISTED, 0) if version == V5 else ()
        assert peer.unsubscribe("home/#", "garden/#", "live/#") == success
        served.bus.publish("home/x", b"2")
        served.bus.publish("live/x", b"3")
        peer.quiet()
        served.until(lambda: not served.bus.subscriptions(), "the end of the subscription")
        peer.leave()
        served.kept("s", version).quiet()


def test_who_may_not_subscribe_is_told_so() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("subscribe home/#",), deny=("subscribe home/secret/#",))
        peer = served.mqtt("s", user="ann")
        assert peer.subscribe("home/x", "garden/#", "home/secret/x", qos=1) == (1, 0x87, 0x87)
        old = served.mqtt("t", V4, user="ann")
        assert old.subscribe("home/x", "garden/#", qos=1) == (1, 0x80)


def test_one_subscription_too_many_is_refused() -> None:
    with Served(subscriptions_per_session_max=3) as served:
        peer = served.mqtt("s")
        assert peer.subscribe("a", "b", "c", qos=1) == (1, 1, 1)
        assert peer.subscribe("d", qos=1) == (Reason.QUOTA_EXCEEDED,)
        assert peer.subscribe("d") == (Reason.QUOTA_EXCEEDED,)
        assert peer.subscribe("c", qos=0) == (0,)
        assert peer.unsubscribe("a") == (0,)
        assert peer.subscribe("d", qos=1) == (1,)


def test_a_right_that_is_taken_away_ends_the_subscription() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("subscribe home/#",))
        peer = served.mqtt("s", user="ann")
        peer.subscribe("home/#", qos=1)
        served.rules("ann", deny=("subscribe home/#",))
        served.until(lambda: not served.bus.subscriptions(), "the end of the subscription")
        served.bus.publish("home/x", b"1")
        peer.quiet()


@pytest.mark.parametrize("qos", [1, 2])
def test_who_may_not_publish_is_told_so_and_nothing_is_stored(qos: int) -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))
        peer = served.mqtt("s", user="ann")
        assert peer.publish("home/x", b"1", qos).reason == 0
        refused = peer.publish("garden/x", b"2", qos)
        assert refused.reason == Reason.NOT_AUTHORIZED
        assert "garden/x" in (refused.properties.reason_string or "")
        peer.publish("garden/x", b"2", 0)
        peer.ping()
        old = served.mqtt("t", V4, user="ann")
        assert old.publish("garden/x", b"3", qos).kind in (Kind.PUBACK, Kind.PUBCOMP)
        assert [one.payload for one in served.bus.replay("#")] == [b"1"]


def test_a_refused_message_does_not_keep_those_beside_it_from_being_published() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"), deny=("publish home/secret",))
        peer = served.mqtt("s", user="ann")
        topics = ("home/a", "home/secret", "home/b")
        peer.send(*[Publish(topic, b"x", 1, packet_id=n) for n, topic in enumerate(topics, 1)])
        answers = {peer.ack(Kind.PUBACK, n).packet_id: n for n in (1, 2, 3)}
        assert set(answers) == {1, 2, 3}
        assert [one.topic for one in served.bus.replay("#")] == ["home/a", "home/b"]


def test_too_many_new_topics_are_refused() -> None:
    with Served(auth="scram", topics_created_per_minute_max=2) as served:
        served.client("ann", allow=("publish #", "create #"))
        peer = served.mqtt("s", user="ann")
        found = [peer.publish(f"home/{n}", b"x", 1).reason for n in range(4)]
        assert found == [0, 0, Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED]


def test_who_asks_for_no_reasons_gets_codes_alone() -> None:
    with Served(auth="scram") as served:
        served.client("ann")
        peer = served.mqtt("s", user="ann", request_problem_information=0)
        assert peer.publish("garden/x", b"2", 1).properties.reason_string is None


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_published_right_behind_a_subscribe_is_part_of_it(qos: int) -> None:
    with Served() as served:
        peer = served.mqtt()
        for place in range(20):
            topic = f"behind/{place}"
            peer.send(Subscribe(place + 1, (Subscription(topic, qos),)), Publish(topic, b"x", qos, packet_id=100 * qos))
            assert peer.got().topic == topic


@pytest.mark.parametrize("topic", ["known/x", "new/x"])
def test_what_another_publishes_after_a_subscribe_has_come_is_part_of_it(topic: str) -> None:
    with Served() as served:
        served.bus.publish("known/x", b"before", retain=True)
        peer, other = served.mqtt("peer"), served.mqtt("other")
        session, is_over = served.mqtt_session("peer"), threading.Event()
        served.call(lambda: session.later(is_over.wait, lambda *_: None))  # the making of subscriptions waits
        peer.send(Subscribe(1, (Subscription(topic, 1),)))
        served.until(lambda: bool(session.making))
        other.publish(topic, b"after", 1, retain=True)
        is_over.set()
        assert peer.payloads(1) == [b"after"]
        peer.quiet()


@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscription_does_not_run_dry(qos: int) -> None:
    with Served(credit_messages_max=100, credit_bytes_max=10_000) as served:
        peer = served.mqtt()
        peer.subscribe("home/#", qos=qos)
        for _ in range(5):
            served.bus.publish_many([("home/x", bytes(100))] * 80)
            messages = [peer.got() for _ in range(80)]
            if qos:
                peer.puback(*messages)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_said_twice_or_taken_back_at_once_is_taken_in_order(qos: int) -> None:
    with Served() as served:
        peer = served.mqtt()
        wanted = (Subscription("home/x", qos),)
        peer.send(Subscribe(1, wanted), Subscribe(2, wanted), Unsubscribe(3, ("home/x",)), Subscribe(4, wanted))
        assert peer.expect(Unsuback).reasons == (Reason.SUCCESS,)
        assert [peer.expect(Suback).reasons for _ in range(3)] == [(qos,)] * 3
        served.bus.publish("home/x", b"1")
        peer.settle(peer.got())
        peer.quiet()


@pytest.mark.parametrize("qos", [0, 1])
def test_what_a_subscription_lacks_was_acknowledged_before_its_suback_left(
    qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = MqttConnection.write

    def note(connection: MqttConnection, data: bytes) -> None:
        if data[0] >> 4 == Kind.PUBACK:
            written.extend(["PUBACK"] * (len(data) // 4))
        elif data[0] >> 4 == Kind.SUBACK:
            written.append("SUBACK")
        write(connection, data)

    monkeypatch.setattr(MqttConnection, "write", note)
    with Served() as served:
        publisher, peer = served.mqtt("p"), served.mqtt("s")
        served.bus.publish("home/x", b"before")
        held, go = threading.Event(), threading.Event()
        commit = served.bus.core.roots.commit

        def hold() -> None:
            held.set()
            go.wait()

        holding = threading.Thread(target=commit.run, args=(hold,))
        holding.start()
        assert held.wait(PATIENCE_S)
        # All of these share one commit, which waits.
        publisher.send(Publish("home/x", b"1", 1, packet_id=1))
        served.until(lambda: len(commit._pending) == 1)
        peer.send(Subscribe(1, (Subscription("home/#", qos),)))
        served.until(lambda: len(commit._pending) == 2 + (qos > 0))
        publisher.send(Publish("home/x", b"2", 1, packet_id=2))
        served.until(lambda: len(commit._pending) == 3 + (qos > 0))
        go.set()
        holding.join()
        peer.expect(Suback)
        publisher.publish("home/x", b"3", 1)
        got = peer.got()
        if got.payload == b"2":  # which may be, and need not
            got = peer.got()
        else:
            assert written[: written.index("SUBACK")] == ["PUBACK"] * 2
        assert got.payload == b"3"


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_whoever_is_told_that_a_subscription_could_not_be_changed_gets_nothing_for_it(
    version: int, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served() as served:
        served.bus.publish("home/x", b"kept", retain=True)
        peer = served.kept("s", version)
        assert peer.subscribe("home/#", qos=qos) == (qos,)
        assert peer.got().payload == b"kept"

        def fail(session: object, one: object, then: Then) -> None:
            then(None, Failed("the disk fails"))

        monkeypatch.setattr(served.server.sessions, "hold", fail)
        assert peer.subscribe("home/#", qos=qos) == (Reason.UNSPECIFIED_ERROR,)
        peer.quiet()
