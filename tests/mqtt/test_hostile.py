"""MQTT clients that mean no good: each is told why, costs no more than the limits, and hurts nobody else."""

from __future__ import annotations

import gc
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.config import Config
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Connack, Connect, Pingreq, Publish, Suback, Subscribe, Subscription, Will
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import Reason
from mqtt.peer import MqttPeer, Served
from server.harness import Ended

MIB = 1 << 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def undisturbed(served: Served) -> Iterator[None]:
    """A good client publishes and receives all the while."""
    good = served.mqtt("good")
    good.subscribe("good/1", qos=1)
    good.subscribe("good/0", qos=0)
    is_over, sent, wrong = threading.Event(), [0], []

    def work() -> None:
        try:
            while not is_over.is_set() or not sent[0]:
                payload = b"%d" % sent[0]
                for topic, qos in (("good/1", 1), ("good/0", 0)):
                    good.publish(topic, payload, qos)
                    message = good.got()
                    assert message.payload == payload
                    good.settle(message)
                good.inbox.clear()
                sent[0] += 1
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert not wrong, wrong
    assert sent[0] > 0


def answer_of(peer: MqttPeer) -> int | None:
    """The reason of the CONNACK or DISCONNECT with which the server closes."""
    reason = peer.ends()
    refused = [one.reason for one in peer.inbox if isinstance(one, Connack)]
    return refused[0] if refused else reason


BEFORE_CONNECT = {
    "a length of 256 MiB": (b"\x10\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    "a length without end": (b"\x10\xff\xff\xff\xff\x01", None),
    "a CONNECT over the limit": (b"\x10\x80\x80\x02" + bytes(100), Reason.PACKET_TOO_LARGE),
    "a PUBLISH": (encode(Publish("x", b""), V5), None),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", None),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", None),
    "a native HELLO": (struct.pack("<I", 20) + bytes(20), None),
    "another protocol": (b"\x10\x0c\x00\x04QTTM\x04\x02\x00\x3c\x00\x00", None),
    "a bad CONNECT of 3.1.1": (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x3c\x00\x00", None),
    "a bad CONNECT of 5": (b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x3c\x00\x00\x00", Reason.MALFORMED_PACKET),
    "nonsense": (b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\xff", Reason.MALFORMED_PACKET),
}


@pytest.mark.parametrize("what", BEFORE_CONNECT)
def test_what_is_no_connect_ends_the_connection_at_once(what: str):
    data, expected = BEFORE_CONNECT[what]
    with Served() as served, undisturbed(served):
        for split in (len(data), 1):
            peer = served.line()
            for at in range(0, len(data), split):
                try:
                    peer.send(data[at : at + split])
                except OSError:
                    break
            assert answer_of(peer) == expected


def test_length_bombs_hold_no_memory():
    with Served() as served, undisturbed(served):
        before = resident_bytes()
        peers = []
        for _ in range(200):
            peer = served.mqtt()
            peer.send(b"\x30\xff\xff\xff\x03" + bytes(1000))  # a PUBLISH of 8 MiB of which nothing more comes
            peers.append(peer)
        served.until(lambda: len(served.server.listener.connections) > 200)
        assert resident_bytes() - before < 64 * MIB


def test_thousands_of_properties_are_refused():
    user = tuple(("a", "b") for _ in range(5000))
    with Served() as served, undisturbed(served):
        peer = served.line()
        peer.send(encode(Connect("c", V5, properties=Properties(user_properties=user)), V5))
        assert answer_of(peer) in (Reason.QUOTA_EXCEEDED, Reason.PACKET_TOO_LARGE)
        peer = served.mqtt()
        peer.send(Publish("home/x", b"x", properties=Properties(user_properties=user)))
        assert peer.ends() == Reason.QUOTA_EXCEEDED
        assert not list(served.bus.replay("home/x"))


@pytest.mark.parametrize("version", [V4, V5])
def test_65000_slashes_are_no_topic_and_no_filter(version: int):
    slashes = "/" * 65_000
    with Served() as served, undisturbed(served):
        peer = served.mqtt("c", version)
        assert peer.subscribe(slashes, qos=1)[0] >= 0x80
        if version == V5:
            assert peer.publish(slashes, qos=1).reason == Reason.TOPIC_NAME_INVALID
        peer.unsubscribe(slashes)
        will = served.line(version)
        assert will.connect("w", will=Will(slashes[:10_000], b"")).reason >= 0x80
        peer.ping()
        if version == V4:
            peer.send(Publish(slashes, b"", 1, packet_id=1))
            peer.ends()
            assert not [one for one in peer.inbox if isinstance(one, Ack)]


def test_a_packet_id_that_is_in_use_stands_for_one_message():
    with Served() as served, undisturbed(served):
        peer = served.mqtt()
        for _ in range(100):
            peer.send(Publish("home/x", b"once", 2, packet_id=1))
        for _ in range(100):
            peer.ack(Kind.PUBREC, 1)
        assert len(list(served.bus.replay("home/x"))) == 1
        for _ in range(10):
            peer.send(Ack(Kind.PUBREL, 1), Ack(Kind.PUBACK, 77), Ack(Kind.PUBCOMP, 78))
        for _ in range(10):
            peer.ack(Kind.PUBCOMP, 1)
        peer.ping()


def test_more_messages_than_may_be_under_way_end_the_connection():
    with Served(mqtt_receive_max=10) as served, undisturbed(served):
        peer = served.mqtt()
        peer.send(*[Publish("home/x", b"x", 2, packet_id=number) for number in range(1, 12)])
        assert peer.ends() == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_a_subscriber_that_never_acknowledges_holds_up_itself_alone(tmp_path: Path):
    with Served(tmp_path, mqtt_in_flight_max=50) as served, undisturbed(served):
        peer = served.mqtt()
        peer.subscribe("home/#", qos=1)
        before = resident_bytes()
        for _ in range(20):
            served.bus.publish_many([("home/x", bytes(1000))] * 1000)
        found = [peer.got() for _ in range(50)]
        assert len({one.packet_id for one in found}) == 50
        peer.quiet()
        assert resident_bytes() - before < 48 * MIB
        peer.puback(found[0])
        assert peer.got().packet_id not in {one.packet_id for one in found[1:]}


def test_a_reader_that_reads_nothing_holds_no_more_than_its_limit(tmp_path: Path):
    with Served(tmp_path, write_bytes_max=MIB) as served, undisturbed(served):
        slow = [served.mqtt() for _ in range(4)]
        for peer in slow:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.subscribe("flood/#", qos=0)
            peer.subscribe("kept/#", qos=1)
        before = resident_bytes()
        for _ in range(30):
            served.bus.publish_many([("flood/x", bytes(10_000))] * 100)
            served.bus.publish_many([("kept/x", bytes(10_000))] * 100)
        waiting = served.call(lambda: [one.waiting_bytes for one in served.server.listener.connections])
        assert max(waiting) < 4 * MIB
        assert resident_bytes() - before < 256 * MIB  # the buffers of live subscriptions, which are shared


def test_half_open_handshakes_are_bounded_and_end():
    with Served(handshakes_max=20, handshake_s=1.0) as served:
        lines = [served.line() for _ in range(60)]
        for line in lines:
            try:
                line.send(b"\x10")
            except OSError:
                continue
        for line in lines:
            line.ends()
        served.until(lambda: not served.server.listener.connections, "their end")
        served.mqtt("after").ping()


def test_a_packet_that_drips_ends_the_connection_and_silence_between_packets_does_not():
    with Served(frame_s=0.2) as served, undisturbed(served):
        silent, peer = served.mqtt(), served.mqtt()
        peer.send(encode(Publish("home/x", bytes(1000)), V5)[:10])
        assert peer.ends() == Reason.MALFORMED_PACKET
        silent.ping()


def test_the_longest_keep_alive_is_the_server_s_and_silence_ends_at_it():
    with Served(mqtt_keep_alive_s_max=1) as served, undisturbed(served):
        untold = [served.mqtt("", V4, keep_alive_s=asked) for asked in (65_535, 0)]
        peers = [served.mqtt(keep_alive_s=asked) for asked in (65_535, 0)]
        for peer in peers:
            assert peer.connack.properties.server_keep_alive == 1
            assert peer.ends() == Reason.KEEP_ALIVE_TIMEOUT
        for peer in untold:
            peer.ping()  # a client of 3.1.1 keeps to what it said


def test_a_flood_of_subscribes_stays_within_the_limit():
    with Served(subscriptions_per_session_max=50) as served, undisturbed(served):
        peer = served.mqtt()
        for number in range(1, 201):
            peer.send(Subscribe(number, (Subscription(f"home/{number}", number % 2),)))
        reasons = [peer.expect(Suback).reasons[0] for _ in range(200)]
        assert reasons.count(Reason.QUOTA_EXCEEDED) == 150
        assert len(served.mqtt_session(peer.connack.properties.assigned_client_identifier or "").subscriptions) == 50
        peer.send(Subscribe(999, tuple(Subscription(f"x/{place}") for place in range(51))))
        assert peer.ends() == Reason.QUOTA_EXCEEDED


def test_topics_made_up_as_they_come_are_bounded():
    with Served(config=Config(topics_per_root_max=100)) as served, undisturbed(served):
        peer = served.mqtt()
        reasons = [peer.publish(f"made/{place}", qos=1, retain=True).reason for place in range(150)]
        assert reasons.count(Reason.QUOTA_EXCEEDED) == 50


def test_retained_messages_are_bounded():
    with Served(config=Config(retained_per_root_max=10)) as served, undisturbed(served):
        peer = served.mqtt()
        reasons = [peer.publish(f"kept/{place}", qos=1, retain=True).reason for place in range(15)]
        assert reasons.count(Reason.QUOTA_EXCEEDED) == 5


def test_the_bytes_of_retained_messages_are_bounded():
    with Served(config=Config(retained_bytes_per_root_max=1000)) as served, undisturbed(served):
        peer, old = served.mqtt("new"), served.mqtt("old", V4)
        mark = len("headwater-from" + "anonymous/new")  # each says whose it is
        reasons = [
            peer.publish(f"kept/{place}", b"x" * (300 - mark), qos, retain=True).reason
            for place, qos in enumerate((1, 2, 1))
        ]
        assert max(reasons) == 0
        assert peer.publish("kept/4", b"x" * (101 - mark), 1, retain=True).reason == Reason.QUOTA_EXCEEDED
        assert (
            peer.publish("kept/4", b"x", 1, retain=True, user_properties=(("n", "v" * 100),)).reason
            == Reason.QUOTA_EXCEEDED
        )
        old.send(Publish("kept/4", b"x" * (101 - mark), 1, retain=True, packet_id=1))
        old.ends()
        assert not [one for one in old.inbox if isinstance(one, Ack)]
        assert len(served.bus.retained("kept/#")) == 3
        assert peer.publish("kept/4", b"x" * (100 - mark), 1, retain=True).reason == 0


def test_sessions_of_one_user_are_bounded():
    with Served(sessions_per_client_max=5) as served:
        for place in range(5):
            served.kept(f"c{place}").close()
        assert served.line().connect("one-more").reason == Reason.QUOTA_EXCEEDED
        assert served.line(V4).connect("one-more").reason >= 0x80


def test_connections_from_one_address_are_bounded():
    with Served(connections_per_address_max=5) as served:
        here = [served.mqtt() for _ in range(5)]
        peer = served.line()
        assert answer_of(peer) == Reason.QUOTA_EXCEEDED
        here[0].close()
        served.until(lambda: len(served.server.listener.connections) < 5)
        served.mqtt().ping()


def test_a_client_id_that_is_too_long_is_refused():
    with Served(mqtt_client_id_chars_max=20) as served:
        assert served.line().connect("x" * 21).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert served.line().connect("x" * 20).reason == Reason.SUCCESS


def test_a_refusal_is_no_longer_than_the_client_takes():
    with Served(mqtt_client_id_chars_max=5) as served:
        for size, has_words in ((10, False), (1000, True)):
            answer = served.line().connect("longer", maximum_packet_size=size)
            assert answer.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
            assert (answer.properties.reason_string is not None) is has_words
        peer = served.mqtt("short", maximum_packet_size=20)
        for qos in (1, 2):
            assert peer.publish("$SYS/x", b"", qos).properties == NONE
        peer.send(Connect("again", V5))
        assert peer.ends() == Reason.PROTOCOL_ERROR


def test_a_client_that_takes_no_connack_is_closed():
    with Served() as served, undisturbed(served):
        peer = served.line()
        peer.send(Connect("c", V5, properties=Properties(maximum_packet_size=2)))
        assert peer.ends() is None
        assert not peer.inbox


def test_two_clients_that_fight_for_one_id_disturb_nobody():
    with Served() as served, undisturbed(served):
        for _ in range(20):
            old = served.kept("wanted")
            new = served.kept("wanted")
            assert old.ends() == Reason.SESSION_TAKEN_OVER
            new.ping()
            new.close()


def test_pings_without_end_are_answered_no_faster_than_they_are_read():
    with Served(write_bytes_max=100_000) as served, undisturbed(served):
        peer = served.mqtt()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.socket.settimeout(0.5)
        flood = encode(Pingreq(), V5) * 100_000
        end = time.monotonic() + 2
        try:
            while time.monotonic() < end:
                peer.socket.sendall(flood)
        except (TimeoutError, OSError, Ended):
            pass
        waiting = served.call(lambda: [one.waiting_bytes for one in served.server.listener.connections])
        assert max(waiting) < 2 * MIB
