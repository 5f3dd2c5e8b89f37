"""Clients that lose their connections all the time: QoS 1 loses nothing, QoS 2 comes once, both in order."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish
from mqtt.peer import MqttPeer, Served
from server.harness import Ended

MESSAGES = 300
OPEN_MAX = 20


class Publisher:
    """Publishes numbers with QoS 1 and 2 in turn, many at a time, and goes on where it was."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.next = 0
        self.open: dict[int, tuple[Publish, bool]] = {}
        """By number: the message, and whether the server has it."""

    def connected(self, peer: MqttPeer) -> None:
        for number, (message, is_received) in self.open.items():
            again = Publish(message.topic, message.payload, message.qos, dup=True, packet_id=number)
            peer.send(Ack(Kind.PUBREL, number) if is_received else again)

    def step(self, peer: MqttPeer) -> None:
        while len(self.open) < OPEN_MAX and self.next < MESSAGES:
            number = next(n for n in range(1, 100) if n not in self.open)
            qos = self.next % 2 + 1
            message = Publish(f"storm/{qos}", b"%d" % self.next, qos, packet_id=number)
            self.next += 1
            self.open[number] = (message, False)
            peer.send(message)
        for one in [one for one in peer.inbox if isinstance(one, Ack)]:
            # A PUBREL that is sent again is for a number that the server may have forgotten.
            assert one.reason < 0x80 or (one.kind, one.reason) == (Kind.PUBCOMP, 0x92), one
            if one.kind == Kind.PUBREC and one.packet_id in self.open:
                self.open[one.packet_id] = (self.open[one.packet_id][0], True)
                peer.send(Ack(Kind.PUBREL, one.packet_id))
            else:
                self.open.pop(one.packet_id, None)
        peer.inbox.clear()

    @property
    def is_done(self) -> bool:
        return self.next == MESSAGES and not self.open


class Subscriber:
    """Takes what comes, answers some of it later, and goes on where it was."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.found: dict[int, list[int]] = {1: [], 2: []}
        self.open: set[int] = set()

    def connected(self, peer: MqttPeer) -> None:
        """It has nothing to send again: what it answered and the server does not know comes again."""

    def step(self, peer: MqttPeer) -> None:
        for one in list(peer.inbox):
            if self.chance.random() < 0.1:
                break
            peer.inbox.remove(one)
            if isinstance(one, Publish):
                if one.qos == 1 or one.packet_id not in self.open:
                    self.found[one.qos].append(int(one.payload))
                if one.qos == 2:
                    self.open.add(one.packet_id)
                peer.send(Ack(Kind.PUBACK if one.qos == 1 else Kind.PUBREC, one.packet_id))
            elif isinstance(one, Ack) and one.kind == Kind.PUBREL:
                self.open.discard(one.packet_id)
                peer.send(Ack(Kind.PUBCOMP, one.packet_id))

    @property
    def is_done(self) -> bool:
        return len(set(self.found[1]) | set(self.found[2])) == MESSAGES and not self.open


@pytest.mark.parametrize(("version", "seed"), [(V4, 1), (V5, 2), (V5, 3)])
def test_nothing_is_lost_and_qos_2_comes_once(version: int, seed: int) -> None:
    chance = random.Random(seed)
    with Served() as served:
        options = {"receive_maximum": 7} if version == V5 else {}
        clients: dict[str, Publisher | Subscriber] = {"p": Publisher(chance), "s": Subscriber(chance)}
        peers = {id: served.kept(id, version, **options) for id in clients}
        peers["s"].subscribe("storm/#", qos=2)
        while not all(client.is_done for client in clients.values()):
            for id, client in clients.items():
                peer = peers[id]
                try:
                    with suppress(TimeoutError):
                        peer.more(0.002)
                    client.step(peer)
                    if chance.random() < 0.05:
                        peer.close()
                        raise Ended
                except (Ended, OSError):
                    peers[id] = peer = served.kept(id, version, **options)
                    assert peer.connack.session_present
                    client.connected(peer)
        found = clients["s"].found if isinstance(clients["s"], Subscriber) else {}
        assert found[2] == list(range(1, MESSAGES, 2))
        assert sorted(set(found[1])) == list(range(0, MESSAGES, 2))
        peers["s"].ping()
        served.until(lambda: not served.server.sessions.rows_of(b"o"), "the end of all numbers")
        stored = [int(one.payload) for one in served.bus.replay("storm/2")]
        assert stored == list(range(1, MESSAGES, 2))
