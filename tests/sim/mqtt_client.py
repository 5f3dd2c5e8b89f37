"""A small MQTT client of the simulation, 3.1.1 or 5, that keeps what a real one keeps and breaks no rule.

What it has not finished outlives its connections, and its process too, as with a client that has a store: messages on
their way with their numbers, and numbers of QoS 2 that it was given. It comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Acks,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Run,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from headwater.mqtt.properties import Properties
from headwater.mqtt.reader import PacketReader
from sim.green import Threads
from sim.host import MQTT_PORT, Host
from sim.judge import Judge
from sim.loop import Loop
from sim.network import Network
from sim.promises import Glance, Sent, Session, Wanted
from sim.world import SECOND_US, Process, World

LIMITS = Limits(packet_bytes_max=1 << 24, connect_bytes_max=1 << 20, properties_max=100, subscriptions_max=100)
KEEP_ALIVE_S = 8
KEPT_S = 500_000
AGAIN_S = (0.05, 2.0)
IN_FLIGHT_MAX = 12


class Talk(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client: Mqtt) -> None:
        self.client = client
        self.reader = PacketReader(LIMITS, is_server=False, version=client.version)
        self.transport: Any = None

    @property
    def is_to_the_dead(self) -> bool:
        """Whether the server that it was to is gone."""
        return bool(self.transport.peer.process.is_dead)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.client.on_connection(self)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client.talk is not self:
            return
        client.heard_us = client.world.now_us
        for one in self.reader.feed(data):
            packets: list[Any] = (
                one.publishes() if isinstance(one, Run) else one.each() if isinstance(one, Acks) else [one]
            )
            for packet in packets:
                if client.talk is self:
                    client.on_packet(packet)

    def connection_lost(self, exc: Exception | None) -> None:
        self.client.on_lost(self)


class Mqtt:
    """A client, over all of its connections and processes."""

    def __init__(
        self,
        world: World,
        network: Network,
        threads: Threads,
        judge: Judge,
        host: Host,
        name: str,
        version: int,
        *,
        is_kept: bool,
    ) -> None:
        self.world = world
        self.host = host
        self.network = network
        self.threads = threads
        self.judge = judge
        self.name = name
        self.version = version
        self.is_kept = is_kept
        self.receive_max = 0
        """What it takes at once; 0: as much as there is."""
        self.will_topic = ""
        self.user: str | None = None
        self.password: bytes | None = None
        self.outgoing: dict[int, tuple[Sent, bool]] = {}
        """What it sent with a number, and whether the server has it: then PUBREL is due."""
        self.waiting: deque[tuple[Sent, int]] = deque()
        self.received: set[int] = set()
        self.asked: dict[int, tuple[str, int, int]] = {}
        """SUBSCRIBE and UNSUBSCRIBE without an answer, by number: filter, QoS (-1: the end), and when."""
        self.asked_us: dict[str, int] = {}
        """When it first asked for a filter, of those that it has."""
        self.held: list[Publish] = []
        """What came and is not acknowledged, while it is slow."""
        self.is_slow = False
        self.is_away = False
        """Whether it does not come back by itself for now."""
        self.wants_clean = False
        self.session = self._new_session()
        self.is_known = False
        """Whether the server has told it that there is a session, which is to stay."""
        self.process: Process | None = None
        self.lives = 0
        self.start()

    def _new_session(self) -> Session:
        session = Session(self.name, self.is_kept, len(self.judge.sessions))
        self.judge.sessions.append(session)
        return session

    # Processes and connections

    def start(self) -> None:
        """A process, which connects."""
        self.lives += 1
        self.process = Process(self.world, f"{self.name}.{self.lives}")
        self.loop = Loop(self.process, self.network, self.threads)
        self.talk: Talk | None = None
        self.is_up = False
        self.heard_us = 0
        self.got_us = self.world.now_us
        """When the last message came."""
        self._again: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        loop = self.loop
        self.process.spawn(lambda: loop.run(self._main()), "main")

    async def _main(self) -> None:
        self._dial()
        while not self._ended.is_set():
            await asyncio.sleep(KEEP_ALIVE_S / 2)
            if self.talk is None:
                continue
            silent_s = (self.world.now_us - self.heard_us) / SECOND_US
            if silent_s > 2 * KEEP_ALIVE_S:
                self.world.reach("mqtt: gave up a silent connection")
                self.talk.transport.abort()
                self.on_lost(self.talk)
            elif self.is_up:
                self.send(Pingreq())

    def kill(self, *, forgets: bool) -> None:
        """Its process dies; perhaps it had no store, and begins anew."""
        assert self.process is not None
        self.world.reach("fault: mqtt client killed")
        self.process.kill()
        if forgets:
            self.forget()
        elif not self.session.is_kept:
            self.end_session()
        self.held.clear()
        self.start()

    def forget(self) -> None:
        """It knows nothing any more, and asks for a clean start."""
        self.wants_clean = True
        self.end_session()

    def end_session(self) -> None:
        """What was promised to it ends."""
        self.session.is_over = True
        self.outgoing.clear()
        self.waiting.clear()
        self.received.clear()
        self.held.clear()
        self.asked_us.clear()
        self.is_known = False
        self.session = self._new_session()

    def _dial(self) -> None:
        self._again = None
        if self.talk is None and self._dialling is None and not self.is_away:
            self._dialling = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self.loop.create_connection(lambda: Talk(self), "127.0.0.1", MQTT_PORT)
        except (OSError, TimeoutError):
            self._come_again()
        finally:
            self._dialling = None

    def _come_again(self) -> None:
        if self._again is None and not self.is_away:
            self._again = self.loop.call_later(self.world.rng.uniform(*AGAIN_S), self._dial)

    def on_connection(self, talk: Talk) -> None:
        """It may speak."""
        self.talk = talk
        self.heard_us = self.world.now_us
        self.is_up = False
        self._is_clean = self.wants_clean or not self.is_kept
        properties: dict[str, Any] = {}
        if self.version == V5:
            properties["session_expiry_interval"] = KEPT_S if self.is_kept else 0
            if self.receive_max:
                properties["receive_maximum"] = self.receive_max
        self.will: Sent | None = None
        will = None
        if self.will_topic:
            self.will = self.judge.message(self.will_topic, 0, "will", self.name)
            will = Will(self.will_topic, self.will.payload, 1)
        self.send(
            Connect(
                self.name,
                self.version,
                self._is_clean,
                KEEP_ALIVE_S,
                will,
                self.user,
                self.password,
                Properties(**properties),
            )
        )

    def send(self, *packets: Packet) -> None:
        """Packets, in this order."""
        if self.talk is not None:
            self.talk.transport.write(b"".join(encode(packet, self.version) for packet in packets))

    def on_lost(self, talk: Talk) -> None:
        """The connection is gone."""
        if self.talk is not talk:
            return
        self.talk = None
        self.is_up = False
        self.asked.clear()
        self.held.clear()
        self.world.reach("mqtt: connection lost")
        if not self.session.is_kept:
            self.end_session()
        self._come_again()

    # What the server says

    def on_packet(self, packet: Any) -> None:
        """The next packet."""
        if not self.is_up:
            if isinstance(packet, Connack):
                self._on_connack(packet)
            return
        match packet:
            case Publish():
                self._on_publish(packet)
            case Ack():
                self._on_ack(packet)
            case Suback():
                self._on_suback(packet)
            case Unsuback():
                asked = self.asked.pop(packet.packet_id, None)
                if asked is not None:
                    self.world.reach("mqtt: unsubscribed")
            case Disconnect():
                self.world.reach("mqtt: told to disconnect")
            case _:
                pass

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason:
            self.world.reach("mqtt: refused")
            assert self.talk is not None
            self.talk.transport.close()
            return
        self.is_up = True
        present = packet.session_present
        if self._is_clean:
            self.judge.expect(not present, f"{self.name} asked for a clean start, and was given its old session")
            self.wants_clean = False
        else:
            self.judge.expect(present or not self.is_known, f"the session of {self.name} is gone")
        if present:
            self.world.reach("mqtt: session resumed")
            again: list[Packet] = []
            for number, (sent, is_there) in self.outgoing.items():
                if is_there:
                    again.append(Ack(Kind.PUBREL, number))
                else:
                    sent.tries += 1
                    qos = 2 if sent.kind == "qos2" else 1
                    again.append(Publish(sent.topic, sent.payload, qos, sent.retain, True, number))
            if again:
                self.world.reach("mqtt: sent again")
                self.send(*again)
        else:
            self.world.reach("mqtt: new session")
            if self.is_known or self.outgoing:
                self.end_session()
        # With a clean start, a session of 3.1.1 ends with its connection.
        self.is_known = self.session.is_kept = self.is_kept and (self.version == V5 or not self._is_clean)
        self._send_waiting()

    def _on_publish(self, packet: Publish) -> None:
        self.got_us = self.world.now_us
        is_again = packet.qos == 2 and packet.packet_id in self.received
        if packet.qos == 2:
            self.received.add(packet.packet_id)
            self.world.reach("qos 2 out: PUBLISH" + (" again" if is_again else ""))
        elif packet.dup:
            self.world.reach("qos 1 out: PUBLISH again")
        self.judge.given(self.session, packet, is_retained=packet.retain, is_again=is_again)
        if packet.retain and not is_again:
            self._on_retained(packet)
        if packet.qos:
            if self.is_slow:
                self.held.append(packet)
            else:
                self._acknowledge(packet)

    def _on_retained(self, packet: Publish) -> None:
        """A value that came with a subscription: not older than what was known when it was asked for."""
        sent = self.judge.see(packet.topic, packet.payload, f"{self.name} retained")
        asked_us = self.asked_us.get(f"{packet.topic.partition('/')[0]}/#", 0)
        if sent is not None and asked_us:
            self.world.reach("mqtt: retained value")
            values = {packet.topic: sent.name}
            self.judge.glances.append(Glance(packet.topic, asked_us, self.world.now_us, values, False))

    def _acknowledge(self, packet: Publish) -> None:
        self.send(Ack(Kind.PUBACK if packet.qos == 1 else Kind.PUBREC, packet.packet_id))

    def _on_ack(self, packet: Ack) -> None:
        number = packet.packet_id
        match packet.kind:
            case Kind.PUBREL:
                self.received.discard(number)
                self.world.reach("qos 2 out: PUBREL")
                self.send(Ack(Kind.PUBCOMP, number))
            case Kind.PUBACK:
                found = self.outgoing.pop(number, None)
                if found is not None:
                    self._decide(found[0], packet.reason)
            case Kind.PUBREC:
                found = self.outgoing.get(number)
                if found is not None and packet.reason >= 0x80:
                    del self.outgoing[number]
                    self._decide(found[0], packet.reason)
                elif found is not None:
                    self._decide(found[0], packet.reason)
                    self.outgoing[number] = (found[0], True)
                    self.world.reach("qos 2 in: PUBREC")
                    self.send(Ack(Kind.PUBREL, number))
            case Kind.PUBCOMP:
                if self.outgoing.pop(number, None) is not None:
                    self.world.reach("qos 2 in: PUBCOMP")
        self._send_waiting()

    def _decide(self, sent: Sent, reason: int) -> None:
        if reason < 0x80:
            self.judge.acked(sent)
        else:
            self.world.note(f"{self.name} {sent.name} refused: {reason:#x}")
            if reason != 0x80:  # a failure of the disk, after which nobody knows
                self.judge.refused(sent)

    def _on_suback(self, packet: Suback) -> None:
        asked = self.asked.pop(packet.packet_id, None)
        if asked is None or asked[1] < 0:
            return
        filter, qos, asked_us = asked
        may = self.judge.may(self.name, filter)
        if packet.reasons[0] >= 0x80:
            self.judge.expect(not may or self.host.was_troubled, f"{self.name} may not subscribe to {filter}")
            self.world.reach("mqtt: subscription refused")
            return
        self.judge.expect(may, f"{self.name} was let subscribe to {filter}")
        self.judge.expect(packet.reasons[0] == qos, f"{self.name} asked for QoS {qos} and got {packet.reasons[0]}")
        self.world.reach(f"mqtt: subscribed with QoS {qos}")
        if not any(wanted.filter == filter and wanted.until_us > asked_us for wanted in self.session.wanted):
            self.session.wanted.append(Wanted(filter, qos, self.world.now_us))

    # What it does

    def do(self, work: Any) -> None:
        """Something that happens in its process, if it is connected."""

        def begin() -> None:
            if self.is_up:
                work()

        self.loop.post(begin)

    def _number(self) -> int:
        number = 1
        while number in self.outgoing or number in self.asked:
            number += 1
        return number

    def publish(self, topic: str, size: int, qos: int, *, retain: bool = False) -> None:
        """One message."""

        def work() -> None:
            lane = f"{self.name}/{self.session.number}"
            sent = self.judge.message(topic, size, f"qos{qos}", self.name, retain=retain, lane=lane)
            self.waiting.append((sent, qos))
            self._send_waiting()

        self.do(work)

    def _send_waiting(self) -> None:
        while self.waiting and self.is_up and (len(self.outgoing) < IN_FLIGHT_MAX or not self.waiting[0][1]):
            sent, qos = self.waiting.popleft()
            sent.began_us = self.world.now_us
            number = 0
            if qos:
                number = self._number()
                self.outgoing[number] = (sent, False)
            self.send(Publish(sent.topic, sent.payload, qos, sent.retain, False, number))

    def subscribe(self, filter: str, qos: int) -> None:
        """Ask for a filter's messages."""

        def work() -> None:
            for wanted in self.session.wanted:
                if wanted.filter == filter and wanted.until_us > self.world.now_us and wanted.qos != qos:
                    return
            if any(other == filter and known not in (-1, qos) for other, known, _ in self.asked.values()):
                return  # another QoS is on its way
            number = self._number()
            self.asked_us.setdefault(filter, self.world.now_us)
            self.asked[number] = (filter, qos, self.world.now_us)
            self.send(Subscribe(number, (Subscription(filter, qos),)))

        self.do(work)

    def unsubscribe(self, filter: str) -> None:
        """Ask for their end."""

        def work() -> None:
            for wanted in self.session.wanted:
                if wanted.filter == filter:
                    wanted.until_us = min(wanted.until_us, self.world.now_us)
            for place, (other, qos, asked_us) in tuple(self.asked.items()):
                if other == filter and qos >= 0:
                    self.asked[place] = (filter, -1, asked_us)
            number = self._number()
            self.asked[number] = (filter, -1, self.world.now_us)
            self.send(Unsubscribe(number, (filter,)))

        self.do(work)

    def slow(self, *, is_slow: bool) -> None:
        """Acknowledge nothing for a while; then everything, in order."""

        def work() -> None:
            self.is_slow = is_slow
            if not is_slow:
                held, self.held = self.held, []
                for packet in held:
                    self._acknowledge(packet)

        self.loop.post(work)

    def leave(self, seconds: float) -> None:
        """Take leave, and come back after a while."""

        def work() -> None:
            if self.talk is None:
                return
            talk = self.talk
            self.send(Disconnect())
            talk.transport.close()
            self.world.reach("mqtt: left")
            self.is_away = True
            self.on_lost(talk)

        def back() -> None:
            self.is_away = False
            if self.talk is None:
                self._come_again()

        self.do(work)
        self.loop.post(lambda: self.loop.call_later(seconds, back))

    def come(self) -> None:
        """Be there."""

        def work() -> None:
            self.is_away = False
            self._come_again()

        if self.talk is None:
            self.loop.post(work)
