"""QoS 2: once end to end, whatever is cut off, restarted or killed between any two of its packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import headwater
from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater.bus import Bus
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from mqtt.killable import Killable
from mqtt.peer import MqttPeer, Served
from server.harness import Ended

both = pytest.mark.parametrize("version", [V4, V5])
STEPS = (
    "published",
    "stored",  # and the PUBREC is lost
    "pubrec",
    "pubrel",
    "released",  # and the PUBCOMP is lost
    "pubcomp",
    "delivered",
    "sub-pubrec",
    "sub-pubrel",
    "sub-pubcomp",
)


class Cut(Exception):
    """The server is gone, as the test wanted."""


class Killed(Killable):
    """A `headwater serve` of its own that is killed again and again, and its two clients, which forget nothing."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        self.kill_at = ""
        self.delivered: Counter[bytes] = Counter()
        self.open: dict[int, bytes] = {}
        """What the subscriber has and the server has not released."""
        super().__init__(folder)

    def at(self, step: str) -> None:
        """Here the server is killed, if that is wanted."""
        if step == self.kill_at:
            self.kill_at = ""
            self.kill()
            self.start()
            raise Cut

    @contextmanager
    def client(self, id: str) -> Iterator[tuple[MqttPeer, bool]]:
        """One of the clients, and whether the server knows it."""
        peer = MqttPeer(self.port, self.version)
        kept_s = 600 if self.version == V5 else None
        try:
            yield peer, peer.connect(id, clean_start=False, session_expiry_interval=kept_s).session_present
        finally:
            peer.close()

    def publish(self, payload: bytes, number: int) -> None:
        """Publish once, however often that is cut off."""
        is_received = is_sent = False
        while True:
            try:
                with self.client("publisher") as (peer, _):
                    if not is_received:
                        peer.send(Publish("once/x", payload, 2, packet_id=number, dup=is_sent))
                        is_sent = True
                        self.at("published")
                        peer.ack(Kind.PUBREC, number)
                        self.at("stored")
                        is_received = True
                        self.at("pubrec")
                    peer.send(Ack(Kind.PUBREL, number))
                    self.at("pubrel")
                    peer.ack(Kind.PUBCOMP, number)
                    self.at("released")
                    break
            except (Cut, Ended, ConnectionError):
                continue
        with suppress(Cut):
            self.at("pubcomp")

    def take(self, payload: bytes) -> None:
        """Be delivered a message once, however often that is cut off; its application sees it with the PUBLISH."""
        while not self.delivered[payload] or self.open:
            try:
                with self.client("subscriber") as (peer, is_known):
                    assert is_known
                    self.settle(peer, payload)
            except (Cut, Ended, ConnectionError):
                continue

    def settle(self, peer: MqttPeer, payload: bytes) -> None:
        while not self.delivered[payload] or self.open:
            packet: Any = peer.expect((Publish, Ack))
            if isinstance(packet, Publish):
                if packet.packet_id not in self.open:
                    self.open[packet.packet_id] = packet.payload
                    self.delivered[packet.payload] += 1
                assert self.open[packet.packet_id] == packet.payload
                self.at("delivered")
                peer.send(Ack(Kind.PUBREC, packet.packet_id))
                self.at("sub-pubrec")
            elif packet.kind == Kind.PUBREL:
                assert packet.reason == Reason.SUCCESS
                self.at("sub-pubrel")
                self.open.pop(packet.packet_id, None)
                peer.send(Ack(Kind.PUBCOMP, packet.packet_id))
                self.at("sub-pubcomp")
        peer.ping()


@pytest.mark.parametrize("version", [V5])
def test_a_message_arrives_once_though_the_server_is_killed_at_any_step(tmp_path: Path, version: int) -> None:
    killed = Killed(tmp_path, version)
    try:
        with killed.client("subscriber") as (peer, _):
            peer.subscribe("once/#", qos=2)
        for number, step in enumerate(STEPS, 1):
            payload = step.encode()
            killed.kill_at = step
            killed.publish(payload, number)
            killed.take(payload)
            assert not killed.kill_at, f"the server was not killed at {step}"
        # The same numbers stand for other messages now.
        for number in range(1, len(STEPS) + 1):
            payload = b"again %d" % number
            killed.publish(payload, number)
            killed.take(payload)
    finally:
        killed.end()
    sent = [step.encode() for step in STEPS] + [b"again %d" % number for number in range(1, len(STEPS) + 1)]
    assert killed.delivered == dict.fromkeys(sent, 1)
    with headwater.open(str(tmp_path)) as bus:
        assert [one.payload for one in bus.replay("once/#")] == sent


# Without a kill, step by step


@both
def test_a_message_that_comes_again_is_acknowledged_and_not_published_again(version: int) -> None:
    with Served() as served:
        peer = served.kept("p", version)
        message = Publish("home/x", b"1", 2, packet_id=5)
        peer.send(message)
        peer.ack(Kind.PUBREC, 5)
        peer.send(Publish("home/x", b"1", 2, packet_id=5, dup=True))
        peer.ack(Kind.PUBREC, 5)
        peer.close()
        peer = served.kept("p", version)
        peer.send(Publish("home/x", b"1", 2, packet_id=5, dup=True))
        peer.ack(Kind.PUBREC, 5)
        peer.send(Ack(Kind.PUBREL, 5))
        assert peer.ack(Kind.PUBCOMP, 5).reason == 0
        assert peer.publish("home/x", b"2", 2).reason == 0
        peer.send(Publish("home/x", b"3", 2, packet_id=5))
        peer.ack(Kind.PUBREC, 5)
        assert [one.payload for one in served.bus.replay("home/#")] == [b"1", b"2", b"3"]


@both
def test_a_number_whose_message_may_be_stored_or_not_stays_the_message_s(version: int) -> None:
    files, state = FaultyFiles(), FaultyState()
    with Served(bus=Bus("data", files=files, state=state)) as served:
        peer = served.kept("p", version)
        assert peer.publish("home/x", b"0", 2).reason == 0
        files.fail_sync_at = files.syncs + 1
        peer.send(Publish("home/x", b"1", 2, packet_id=5))
        peer.ends()  # not refused with a PUBREC, after which the number would be free for another message
        assert not [one for one in peer.inbox if isinstance(one, Ack) and one.packet_id == 5]
        peer = served.kept("p", version)
        peer.send(Publish("home/x", b"1", 2, packet_id=5, dup=True))
        peer.ends()  # nor now, as nothing more is stored, and this may be
        assert not [one for one in peer.inbox if isinstance(one, Ack) and one.packet_id == 5]
        written, rows = files.process_kill(), state.process_kill()
    with Served(bus=Bus("data", files=written, state=rows)) as served:
        peer = served.kept("p", version)
        peer.send(Publish("home/x", b"1", 2, packet_id=5, dup=True))
        peer.ack(Kind.PUBREC, 5)
        peer.send(Ack(Kind.PUBREL, 5))
        assert peer.ack(Kind.PUBCOMP, 5).reason == 0
        assert [one.payload for one in served.bus.replay("home/#")] == [b"0", b"1"]


@both
def test_open_numbers_survive_the_server(version: int, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        peer = served.kept("p", version)
        for number in (1, 2, 3, 4):
            peer.send(Publish(f"root-{number % 2}/x", b"%d" % number, 2, packet_id=number))
            peer.ack(Kind.PUBREC, number)
        peer.send(Ack(Kind.PUBREL, 2))
        peer.ack(Kind.PUBCOMP, 2)
        peer.send(Publish("root-0/x", b"6", 2, packet_id=6))
        peer.ack(Kind.PUBREC, 6)
    with Served(tmp_path) as served:
        peer = served.kept("p", version)
        for number in (1, 3, 4, 6):
            peer.send(Publish(f"root-{number % 2}/x", b"%d" % number, 2, packet_id=number, dup=True))
            peer.ack(Kind.PUBREC, number)
        peer.send(Publish("root-0/x", b"2 anew", 2, packet_id=2))
        peer.ack(Kind.PUBREC, 2)
        for number in (1, 2, 3, 4, 6):
            peer.send(Ack(Kind.PUBREL, number))
            assert peer.ack(Kind.PUBCOMP, number).reason == 0
        found = sorted(one.payload for one in served.bus.replay("#"))
        assert found == [b"1", b"2", b"2 anew", b"3", b"4", b"6"]


@both
def test_each_step_goes_on_where_it_was_over_the_next_connection(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=2)
        publisher = served.mqtt("p", version)
        for text in (b"1", b"2", b"3"):
            publisher.publish("home/x", text, 2)
        first, second, third = peer.got(), peer.got(), peer.got()
        assert [one.qos for one in (first, second, third)] == [2, 2, 2]
        peer.send(Ack(Kind.PUBREC, second.packet_id))
        peer.ack(Kind.PUBREL, second.packet_id)
        peer.close()
        peer = served.kept("s", version)
        peer.ack(Kind.PUBREL, second.packet_id)
        again = [peer.got(), peer.got()]
        assert [(one.payload, one.packet_id, one.dup, one.qos) for one in again] == [
            (b"1", first.packet_id, True, 2),
            (b"3", third.packet_id, True, 2),
        ]
        peer.send(Ack(Kind.PUBCOMP, second.packet_id))
        for one in again:
            peer.settle(one)
        peer.ping()
        peer.close()
        peer = served.kept("s", version)
        peer.quiet()
        publisher.publish("home/x", b"4", 2)
        peer.settle(peer.got())
        peer.ping()
        served.until(lambda: not served.server.sessions.rows_of(b"o"), "the end of all numbers")


@both
def test_outgoing_numbers_survive_the_server(version: int, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=2)
        publisher = served.mqtt("p", version)
        for text in (b"1", b"2"):
            publisher.publish("home/x", text, 2)
        first, second = peer.got(), peer.got()
        peer.send(Ack(Kind.PUBREC, first.packet_id))
        peer.ack(Kind.PUBREL, first.packet_id)
    with Served(tmp_path) as served:
        peer = served.kept("s", version)
        peer.ack(Kind.PUBREL, first.packet_id)
        again = peer.got()
        assert (again.payload, again.packet_id, again.dup, again.qos) == (b"2", second.packet_id, True, 2)
        served.mqtt("p", version).publish("home/x", b"3", 2)
        third = peer.got()
        assert third.packet_id not in (first.packet_id, second.packet_id)
        peer.send(Ack(Kind.PUBCOMP, first.packet_id))
        peer.settle(again)
        peer.settle(third)
        peer.quiet()


def test_the_steps_go_on_though_the_message_s_time_is_over() -> None:
    with Served() as served:
        peer = served.mqtt("p")
        over = Properties(message_expiry_interval=0)
        peer.send(Publish("home/x", b"1", 2, packet_id=5, properties=over))
        peer.ack(Kind.PUBREC, 5)
        peer.send(Ack(Kind.PUBREL, 5))
        assert peer.ack(Kind.PUBCOMP, 5).reason == 0
        assert not served.bus.subscribe("home/#", id="s", start="earliest").batch(1, 0)


def test_messages_of_every_qos_keep_their_order() -> None:
    with Served() as served:
        peer, publisher = served.mqtt("s"), served.mqtt("p")
        peer.subscribe("home/#", qos=2)
        for number in range(60):
            publisher.publish("home/x", b"%d" % number, number % 3)
        found = []
        for _ in range(60):
            message = peer.got()
            found.append(int(message.payload))
            peer.settle(message)
        assert found == list(range(60))


def test_a_number_counts_until_the_last_word_about_it() -> None:
    with Served() as served:
        peer, publisher = served.mqtt("s", receive_maximum=2), served.mqtt("p")
        peer.subscribe("home/#", qos=2)
        for number in range(4):
            publisher.publish("home/x", b"%d" % number, 2)
        first, second = peer.got(), peer.got()
        peer.send(Ack(Kind.PUBREC, first.packet_id), Ack(Kind.PUBREC, second.packet_id))
        peer.ack(Kind.PUBREL, first.packet_id)
        peer.quiet()
        peer.send(Ack(Kind.PUBCOMP, first.packet_id))
        assert peer.got().payload == b"2"
        peer.quiet()


def test_a_refused_publish_leaves_its_number_free() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))
        peer = served.mqtt("s", user="ann")
        peer.send(Publish("garden/x", b"1", 2, packet_id=1))
        assert peer.ack(Kind.PUBREC, 1).reason == Reason.NOT_AUTHORIZED
        peer.send(Publish("home/x", b"2", 2, packet_id=1))
        assert peer.ack(Kind.PUBREC, 1).reason == 0
        assert [one.payload for one in served.bus.replay("#")] == [b"2"]


def test_a_session_that_ends_leaves_no_rows_behind() -> None:
    with Served() as served:
        peer, publisher = served.kept("s"), served.kept("p")
        peer.subscribe("home/#", qos=2)
        publisher.publish("home/x", b"1", 2)
        publisher.send(Publish("home/x", b"2", 2, packet_id=77))
        publisher.ack(Kind.PUBREC, 77)
        peer.send(Ack(Kind.PUBREC, peer.got().packet_id))
        peer.ack(Kind.PUBREL)
        peer.leave(session_expiry_interval=0)
        publisher.leave(session_expiry_interval=0)
        there = served.server.sessions.rows_of
        served.until(lambda: not [*there(b"o"), *there(b"j"), *there(b"E")], "the end of their rows")


def test_a_retained_message_of_qos_2_is_in_flight_in_its_subscription_until_the_client_has_it() -> None:
    with Served() as served:
        assert served.mqtt("p").publish("home/x", b"kept", 2, retain=True).reason < 0x80
        peer = served.kept("s")
        peer.subscribe("home/#", qos=2)
        sent = peer.got()
        assert (sent.qos, sent.payload) == (2, b"kept")
        (info,) = served.bus.subscriptions()
        assert (info.in_flight, info.lag) == (1, 1)
        peer.send(Ack(Kind.PUBREC, sent.packet_id))
        peer.ack(Kind.PUBREL)
        peer.send(Ack(Kind.PUBCOMP, sent.packet_id))
        served.until(lambda: served.bus.subscriptions()[0].in_flight == 0)
        assert served.bus.subscriptions()[0].lag == 0
