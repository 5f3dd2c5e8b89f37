"""Shared subscriptions: one durable subscription, several clients."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish, Subscribe, Subscription
from headwater.mqtt.reasons import Reason
from mqtt.peer import MqttPeer, Served

both = pytest.mark.parametrize("version", [V4, V5])
SHARED = "$share/team/jobs/#"


def taken(peers: list[MqttPeer], count: int) -> list[list[bytes]]:
    """What each of them gets, until there are so many; all of it is acknowledged."""
    found: list[list[bytes]] = [[] for _ in peers]
    while sum(map(len, found)) < count:
        for place, peer in enumerate(peers):
            with suppress(TimeoutError):
                peer.more(0.02)
            there = [one for one in peer.inbox if isinstance(one, Publish)]
            peer.inbox.clear()
            for one in there:
                found[place].append(one.payload)
                if one.qos == 1:
                    peer.puback(one)
    return found


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_each_message_goes_to_one_of_them_and_all_have_their_share(version: int, qos: int) -> None:
    with Served() as served:
        peers = [served.mqtt(f"s{number}", version) for number in range(3)]
        for peer in peers:
            assert peer.subscribe(SHARED, qos=qos) == (qos,)
        other = served.mqtt("o", version)
        other.subscribe("$share/others/jobs/#", qos=1)
        for number in range(150):
            served.bus.publish("jobs/x", b"%d" % number)
        found = taken(peers, 150)
        assert sorted(int(one) for many in found for one in many) == list(range(150))
        assert min(map(len, found)) >= 20, list(map(len, found))
        assert len(taken([other], 150)[0]) == 150


@pytest.mark.parametrize("qos", [1, 2])
def test_what_one_refuses_goes_to_nobody_else(qos: int) -> None:
    with Served() as served:
        first, second, publisher = served.mqtt("first"), served.mqtt("second"), served.mqtt()
        first.subscribe(SHARED, qos=qos)
        publisher.publish("jobs/x", b"1", qos)
        refused = Ack(Kind.PUBACK if qos == 1 else Kind.PUBREC, first.got().packet_id, Reason.UNSPECIFIED_ERROR)
        second.subscribe(SHARED, qos=qos)
        first.send(refused)
        first.ping()
        first.leave()
        second.quiet()


def test_a_backlog_is_shared_too() -> None:
    with Served() as served:
        peers = [served.kept(f"s{number}") for number in range(3)]
        for peer in peers:
            peer.subscribe(SHARED, qos=1)
        for number in range(3):
            peers[number].leave()
        served.bus.publish_many([("jobs/x", b"%d" % number) for number in range(300)])
        peers = [served.kept(f"s{number}", receive_maximum=20) for number in range(3)]
        found = taken(peers, 300)
        assert sorted(int(one) for many in found for one in many) == list(range(300))
        assert min(map(len, found)) >= 30, list(map(len, found))


def test_what_one_has_not_acknowledged_goes_to_the_others_when_it_is_gone() -> None:
    with Served() as served:
        first, second = served.mqtt("s1"), served.mqtt("s2")
        first.subscribe(SHARED, qos=1)
        for number in range(10):
            served.bus.publish("jobs/x", b"%d" % number)
        assert len([first.got() for _ in range(10)]) == 10
        second.subscribe(SHARED, qos=1)
        second.quiet()
        first.close()
        assert sorted(taken([second], 10)[0]) == [b"%d" % number for number in range(10)]


def test_it_is_deleted_with_the_last_who_shared_it() -> None:
    with Served() as served:
        first, second = served.mqtt("s1"), served.mqtt("s2")
        for peer in (first, second):
            peer.subscribe(SHARED, qos=1)
        assert [one.id for one in served.bus.subscriptions()] == [SHARED]
        assert first.unsubscribe(SHARED) == (0,)
        served.bus.publish("jobs/x", b"1")
        assert second.got().payload == b"1"
        assert [one.id for one in served.bus.subscriptions()] == [SHARED]
        second.close()
        served.until(lambda: not served.bus.subscriptions(), "its end")


def test_it_survives_the_server(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        peers = [served.kept(f"s{number}") for number in range(2)]
        for peer in peers:
            peer.subscribe(SHARED, qos=1)
    with Served(tmp_path) as served:
        served.bus.publish("jobs/x", b"1")
        peers = [served.kept(f"s{number}") for number in range(2)]
        assert sorted(taken(peers, 1)) == [[], [b"1"]]


def test_it_brings_no_retained_messages_and_leaves_out_nobody_s_own() -> None:
    with Served() as served:
        served.bus.publish("jobs/x", b"kept", retain=True)
        peer = served.mqtt()
        peer.subscribe(SHARED, qos=1)
        peer.quiet()
        peer.publish("jobs/x", b"mine", 1)
        assert peer.got().payload == b"mine"
        peer.send(Subscribe(9, (Subscription("$share/team/x", 1, no_local=True),)))
        assert peer.ends() == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("filter", ["$share", "$share/", "$share/team", "$share//x", "$share/a+/x", "$share/#/x"])
def test_what_names_no_group_or_filter_is_refused(filter: str) -> None:
    with Served() as served:
        assert served.mqtt().subscribe(filter, qos=1) == (Reason.TOPIC_FILTER_INVALID,)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_message_of_qos_2_stays_with_who_was_sent_it(is_restarted: bool, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        first, second = served.kept("s1"), served.kept("s2")
        first.subscribe(SHARED, qos=2)
        served.mqtt("p").publish("jobs/x", b"once", 2, user_properties=(("a", "1"),))
        message = first.got()
        second.subscribe(SHARED, qos=2)
        first.close()
        second.quiet()
        if not is_restarted:
            finish(served, message)
            second.quiet()
    if is_restarted:
        with Served(tmp_path) as served:
            second = served.kept("s2")
            second.quiet()
            finish(served, message)


def finish(served: Served, message: Publish) -> None:
    first = served.kept("s1")
    again = first.got()
    assert (again.payload, again.packet_id, again.dup, again.qos) == (b"once", message.packet_id, True, 2)
    assert again.properties.user_properties == (("a", "1"),)
    first.settle(again)
    first.ping()
    first.close()
    first = served.kept("s1")
    first.quiet()
    first.send(Ack(Kind.PUBCOMP, message.packet_id))
    served.until(lambda: not served.server.sessions.rows_of(b"o"), "the end of all numbers")


def test_what_waits_for_one_client_comes_again_with_its_identifier_also_from_the_next_server(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        peer = served.kept("s")
        peer.subscribe(SHARED, qos=2, subscription_identifiers=(7,))
        served.mqtt("p").publish("jobs/x", b"1", 2)
        sent = peer.got()
        assert sent.properties.subscription_identifiers == (7,)
        peer.close()
    with Served(tmp_path / "data") as served:
        again = served.kept("s").got()
        assert (again.dup, again.packet_id, again.properties) == (True, sent.packet_id, sent.properties)
