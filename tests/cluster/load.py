"""Mixed work on a cluster, from threads of this process, with a journal of what was promised to whom.

    load = Load(rig)
    load.start()
    ...                      # whatever happens to nodes and servers
    load.stop()
    load.judge()

Who works: one that publishes one by one, one that sends batches, one that names a producer and repeats itself, a
durable subscription, a client of MQTT that publishes and is subscribed with QoS 2, and one that retains. What is
judged: all that was acknowledged is where it was said to be; no offset was told twice; nothing is there twice that was
published with a producer, or with QoS 2; all comes to a durable subscription, and what it acked does not come again.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from paho.mqtt.client import Client, MQTTMessage, mqtt_ms_resend_pubrel, mqtt_ms_wait_for_pubcomp
from paho.mqtt.enums import CallbackAPIVersion

import headwater
from cluster.rig import PATIENCE_S, Rig
from headwater.errors import HeadwaterError

BATCH = 40
PAUSE_S = 0.005
"""Between two publishes of one thread: what is looked for is faults, not speed."""
QOS2_MAX = 20
"""Messages of QoS 2 under way."""
REPEATED = 5
"""Each so many-th publish with a producer is said twice."""
SAID_MAX = 100_000
LAST_SAID = 400
KEPT = 7
"""Topics with retained values."""


class Careful(Client):
    """The client of paho, which after two lost connections in a row publishes again what it has released already."""

    def _messages_reconnect_reset_out(self) -> None:
        for message in self._out_messages.values():
            if message.state == mqtt_ms_resend_pubrel:
                message.state = mqtt_ms_wait_for_pubcomp
        super()._messages_reconnect_reset_out()


class Load:
    """All of it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.acked: dict[tuple[str, bytes], int] = {}
        """Offsets, by topic and payload."""
        self.acked_at: list[float] = []
        """When those were acknowledged that are published one by one."""
        self.troubles: list[str] = []
        self.once: set[bytes] = set()
        """What was published with QoS 2, and whose handshake came to its end."""
        self.heard: list[bytes] = []
        """What came with QoS 2."""
        self.taken: Counter[int] = Counter()
        """Offsets that a durable subscription was handed out, and how often after they were acked."""
        self.kept: dict[str, int] = {}
        """The last value that was acknowledged of each topic with a retained one."""
        self.consumed: set[int] = set()
        self.doubtful: set[int] = set()
        """What was handed out, and whose ack was not answered: it may come again or not."""
        self.drain_s = PATIENCE_S
        """How long the durable subscription has in the end for what it has yet to be handed out."""
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._mqtt: Client | None = None
        self.said: deque[str] = deque(maxlen=SAID_MAX)
        """What the client of MQTT has sent and received."""
        self._under_way: dict[int, bytes] = {}
        """By packet id, what was published with QoS 2 and is yet to be through."""
        self._early: set[int] = set()
        self._is_subscribed = threading.Event()

    def start(self) -> None:
        """Begin."""
        works: list[Callable[[headwater.Bus], None]] = [
            *(self._one_by_one, self._batches, self._named, self._consume, self._retain)
        ]
        self._begin_mqtt()
        for work in works:
            thread = threading.Thread(target=self._run, args=(work,), name=f"load{work.__name__}")
            self._threads.append(thread)
            thread.start()
        qos2 = threading.Thread(target=self._qos2, name="load-qos2")
        self._threads.append(qos2)
        qos2.start()

    def stop(self) -> None:
        """Publish no more, and wait for what is under way."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            if thread.is_alive():
                self.troubles.append(f"{thread.name} does not end")
        assert self._mqtt is not None
        self.rig.wait("handshakes of QoS 2", lambda: not self._under_way)
        try:
            self.rig.wait("all of QoS 2", lambda: self.once <= set(self.heard), 20.0)
        except AssertionError:
            missing = sorted(self.once - set(self.heard), key=int)
            said = "\n".join([*self.said][-LAST_SAID:])
            self.troubles.append(f"of QoS 2 did not come: {missing[:10]}; {self.rig.bus.subscriptions()}\n{said}")
        self._mqtt.disconnect()
        self._mqtt.loop_stop()

    def _run(self, work: Callable[[headwater.Bus], None]) -> None:
        try:
            bus = self._again(lambda: headwater.connect(self.rig.url))
            assert isinstance(bus, headwater.client.bus.Bus)
            with bus:
                work(bus)
        except Exception as error:  # whatever ends it, the test is to fail with it
            self.troubles.append(f"{work.__name__}: {error!r}\n{traceback.format_exc()}")

    def _again(self, work: Callable[[], object]) -> object:
        """What it answers: whoever is told to try again does."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return work()
            except HeadwaterError as error:
                if not error.retryable or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _note(self, topic: str, payload: bytes, offset: int) -> None:
        with self._lock:
            self.acked[topic, payload] = offset

    # Who works

    def _one_by_one(self, bus: headwater.Bus) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            topic, payload = f"plain/{number % 10}", b"%d" % number
            try:
                receipt = bus.publish(topic, payload)
            except HeadwaterError as error:
                if not error.retryable:
                    raise
            else:
                self._note(topic, payload, receipt.offset)
                self.acked_at.append(time.monotonic())
            self._is_over.wait(PAUSE_S)

    def _batches(self, bus: headwater.Bus) -> None:
        number = 0
        while not self._is_over.is_set():
            given = [(f"many/{place % 3}", b"%d-%d" % (number, place)) for place in range(BATCH)]
            future = bus.publish_many_soon(given)
            try:
                receipts = future.result(PATIENCE_S)
            except HeadwaterError as error:
                if not error.retryable:
                    raise
            else:
                for (topic, payload), receipt in zip(given, receipts, strict=True):
                    self._note(topic, payload, receipt.offset)
            number += 1
            self._is_over.wait(PAUSE_S)

    def _named(self, bus: headwater.Bus) -> None:
        sequence = 0
        while not self._is_over.is_set():
            sequence += 1
            topic, payload = "named/a", b"%d" % sequence
            publish = partial(bus.publish, topic, payload, producer="importer", sequence=sequence)
            receipt = self._again(publish)
            assert isinstance(receipt, headwater.Receipt)
            self._note(topic, payload, receipt.offset)
            if sequence % REPEATED == 0:
                again = self._again(publish)
                assert isinstance(again, headwater.Receipt)
                if again.offset != receipt.offset:
                    self.troubles.append(f"sequence {sequence} was stored at {receipt.offset} and {again.offset}")
            self._is_over.wait(PAUSE_S)

    def _consume(self, bus: headwater.Bus) -> None:
        with bus.subscribe("plain/#", id="auditor", start="earliest", max_in_flight=50) as consumer:
            while not self._is_over.is_set():
                taken: list[headwater.Message] = []
                try:
                    taken = consumer.batch(50, timeout_s=0.2)
                    for message in taken:
                        if message.offset in self.consumed:
                            self.taken[message.offset] += 1
                    if taken:
                        consumer.ack(taken)
                        self.consumed.update(message.offset for message in taken)
                except HeadwaterError as error:
                    self.doubtful.update(message.offset for message in taken)
                    if not error.retryable and error.code != 409:
                        raise

    def _retain(self, bus: headwater.Bus) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            topic, payload = f"kept/{number % KEPT}", b"%d" % number
            receipt = self._again(partial(bus.publish, topic, payload, retain=True))
            assert isinstance(receipt, headwater.Receipt)
            self._note(topic, payload, receipt.offset)
            self.kept[topic] = number
            self._is_over.wait(PAUSE_S)

    # MQTT

    def _begin_mqtt(self) -> None:
        client = self._mqtt = Careful(CallbackAPIVersion.VERSION2, client_id="meter", clean_session=False)
        client.max_inflight_messages_set(QOS2_MAX)
        client.reconnect_delay_set(1, 2)
        client.on_message = self._hear
        client.on_connect = lambda client, *_: client.subscribe("once/#", 2)
        client.on_publish = self._published
        client.on_subscribe = lambda *_: self._is_subscribed.set()
        client.on_log = lambda _, __, ___, said: self.said.append(f"{time.time():.3f} {said}")
        ports = deque(self.rig.mqtt_ports)

        def elsewhere(client: Client, *_: object) -> None:
            ports.rotate(1)
            client._port = ports[0]  # paho knows one address alone, and lets nobody change it from here

        client.on_disconnect = client.on_connect_fail = elsewhere
        client.connect_async("127.0.0.1", ports[0], keepalive=5)
        client.loop_start()

    def _hear(self, _: Client, __: object, message: MQTTMessage) -> None:
        self.heard.append(bytes(message.payload))

    def _published(self, _: Client, __: object, number: int, *___: object) -> None:
        with self._lock:
            payload = self._under_way.pop(number, None)
            if payload is None:
                self._early.add(number)  # before whoever publishes knows its number
            else:
                self.once.add(payload)

    def _qos2(self) -> None:
        client, number = self._mqtt, 0
        assert client is not None
        self._is_subscribed.wait(PATIENCE_S)  # what is published before is nobody's to hear
        while not self._is_over.is_set():
            if len(self._under_way) < QOS2_MAX:
                number += 1
                payload = b"%d" % number
                made = client.publish("once/a", payload, qos=2).mid  # not under a lock: it has its own
                with self._lock:
                    if made in self._early:
                        self._early.remove(made)
                        self.once.add(payload)
                    else:
                        self._under_way[made] = payload
            self._is_over.wait(PAUSE_S)

    # In the end

    @property
    def pauses_s(self) -> list[float]:
        """How long it was from each acknowledgement to the next, of those that are published one by one."""
        return [later - earlier for earlier, later in zip(self.acked_at, self.acked_at[1:], strict=False)]

    def _told(self, payload: bytes) -> str:
        """What was said about a message of QoS 2."""
        number = payload.decode()
        marks = f"(Mid: {number})", f" m{number})"
        return "\n".join(line for line in self.said if any(mark in line for mark in marks) or "CONN" in line)

    def _missed(self, bus: headwater.Bus, stored: set[int]) -> set[int]:
        """What the durable subscription has yet to be handed out of what is stored, once all came that comes."""
        missed = stored - self.consumed - self.doubtful
        until = time.monotonic() + self.drain_s
        with bus.subscribe("plain/#", id="auditor", start="earliest", max_in_flight=50) as consumer:
            while missed and time.monotonic() < until:
                taken = consumer.batch(50, timeout_s=0.2)
                for message in taken:
                    self.taken[message.offset] += message.offset in self.consumed
                    missed.discard(message.offset)
                if taken:
                    consumer.ack(taken)
        self.taken = +self.taken
        return missed

    def judge(self) -> None:
        """Whether all was kept that was promised."""
        assert not self.troubles, "\n".join(self.troubles)
        assert self.acked_at, "nothing was published one by one"
        there: dict[tuple[str, bytes], list[int]] = {}
        offsets: dict[str, list[int]] = {}
        with headwater.connect(self.rig.url) as bus:
            for message in bus.replay("#"):
                root = message.topic.partition("/")[0]
                offsets.setdefault(root, []).append(message.offset)
                there.setdefault((message.topic, message.payload), []).append(message.offset)
            retained = {topic: int(message.payload) for topic, message in bus.retained("kept/#").items()}
            missed = self._missed(bus, set(offsets.get("plain", ())))
        for found in offsets.values():
            assert found == list(range(1, len(found) + 1))
        lost = {place: offset for place, offset in self.acked.items() if offset not in there.get(place, [])}
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged: {dict(list(lost.items())[:5])}"
        doubled = {place: at for place, at in there.items() if len(at) > 1 and place[0] != "once/a"}
        assert not doubled, f"{len(doubled)}: {dict(list(doubled.items())[:5])}"
        stored = Counter(payload for (topic, payload), at in there.items() for _ in at if topic == "once/a")
        twice = [payload for payload, count in stored.items() if count > 1]
        assert not twice, f"QoS 2 was stored twice: {twice[:5]}\n{self._told(twice[0])}"
        assert self.once <= stored.keys(), "QoS 2 was lost"
        repeats = [payload for payload, count in Counter(self.heard).items() if count > 1]
        assert not repeats, f"QoS 2 came twice: {repeats[:5]}"
        missing = sorted(self.once - set(self.heard), key=int)
        assert not missing, f"{len(missing)} of QoS 2 did not come: {missing[:10]}"
        assert not missed, f"{len(missed)} never came to a durable subscription: {sorted(missed)[:5]}"
        assert not self.taken, f"acked, and handed out again: {dict(self.taken.most_common(5))}"
        older = {topic: number for topic, number in self.kept.items() if retained.get(topic, 0) < number}
        assert not older, f"what is retained is older than what was acknowledged: {older}"
