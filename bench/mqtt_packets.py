"""How fast MQTT packets are read and written: `python bench/mqtt_packets.py [--messages 100000] [--bytes 400]`.

No sockets: bytes that a connection would have received, in pieces as large as it reads at once, become packets; and
messages become the bytes that a connection would send. The best of some runs, in CPU time: nothing waits here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial

from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import acks_bytes, encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Publish, Received, Run
from headwater.mqtt.properties import Properties
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.reader import PacketReader
from headwater.store.body import encode_body

READ_BYTES = 256 * 1024
LIMITS = Limits(packet_bytes_max=1 << 20, connect_bytes_max=1 << 16, properties_max=100, subscriptions_max=100)
RUNS = 5


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def read(data: bytes, version: int, take: Callable[[list[Received]], object] = len) -> None:
    """Each piece's packets are let go before the next, as in a server."""
    reader = PacketReader(LIMITS, version=version)
    for at in range(0, len(data), READ_BYTES):
        take(reader.feed(data[at : at + READ_BYTES]))


def make_bodies(received: list[Received]) -> None:
    for run in received:
        assert isinstance(run, Run)
        for one in run.by_root().values():
            encode_body(one.topics, one.payloads, 1)


def publishes(topics: list[str], count: int, payload: bytes, **more: object) -> Iterable[Publish]:
    for place in range(count):
        qos = more.get("qos", 0)
        number = place % 65_535 + 1 if qos else 0
        yield Publish(topics[place % len(topics)], payload, packet_id=number, **more)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=400)
    args = parser.parse_args()
    count, payload = args.messages, b"x" * args.bytes

    def show(what: str, work: Callable[[], object]) -> None:
        print(f"{what:<64}{count / best(work) / 1e6:8.2f} M/s")

    one = ["home/kitchen/temperature"]
    many = [f"home/device{place}/temperature" for place in range(1000)]
    roots = [f"home{place}/kitchen/temperature" for place in range(1000)]
    for version in (V4, V5):
        for qos in (0, 1):
            for name, topics in {"one topic": one, "1,000 topics": many, "1,000 roots": roots}.items():
                data = b"".join(encode(packet, version) for packet in publishes(topics, count, payload, qos=qos))
                show(f"read PUBLISH, level {version}, QoS {qos}, {name}", partial(read, data, version))
                show("  and make batch bodies of them", partial(read, data, version, make_bodies))
    extra = Properties(message_expiry_interval=60, user_properties=(("unit", "C"),))
    data = b"".join(encode(packet, V5) for packet in publishes(one, count, payload, qos=1, properties=extra))
    show("read PUBLISH, level 5, QoS 1, two properties each", lambda: read(data, V5))
    numbers = [place % 65_535 + 1 for place in range(count)]
    data = acks_bytes(Kind.PUBACK, numbers)
    show("read PUBACK", lambda: read(data, V5))
    show("write PUBACK", lambda: acks_bytes(Kind.PUBACK, numbers))
    packets = list(publishes(one, count, payload, qos=1))
    show("write PUBLISH one by one", lambda: [encode(packet, V5) for packet in packets])
    batch = 1000
    payloads = [payload] * batch
    for name, topics in {"one topic": one * batch, "1,000 topics": many}.items():

        def batches(qos: int, topics: list[str] = topics) -> None:
            for _ in range(count // batch):
                Publishes(topics, payloads, version=V5, qos=qos)

        show(f"write batches of {batch}, QoS 0, {name}", lambda: batches(0))
        show(f"write batches of {batch}, QoS 1, {name}", lambda: batches(1))
    prepared = Publishes(many, payloads, version=V5, qos=1)

    def number() -> None:
        for _ in range(count // batch):
            prepared.numbered(numbers[:batch])

    show("number them for another subscriber", number)


if __name__ == "__main__":
    main()
