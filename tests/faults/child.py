"""A process to be killed: publishes and consumes from several threads on a real folder, and tells what it was promised.

    python -m faults.child FOLDER ROUND SEQUENCE

Each line on its standard output is a promise that was kept a moment ago, written after the call returned:

    ready                           the bus is open
    sent NAME TOPIC OFFSET          a message is stored
    trying SEQUENCE                 the idempotent producer is about to send this
    got SUBSCRIPTION ROOT OFFSET    a delivery, before anything is said about it
    acked SUBSCRIPTION ROOT OFFSET  its ack returned
    dead SUBSCRIPTION ROOT OFFSET   its rejection returned

A line is one write to a pipe, so that it is there wholly or not at all.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterable

from faults.oracle import payload_of, root_of
from headwater.bus import Bus
from headwater.config import KIB, Config
from headwater.delivery.consumer import Consumer
from headwater.message import Message, Outgoing, Receipt

CONFIG = Config(
    segment_bytes=256 * KIB,
    journal_bytes=128 * KIB,
    checkpoint_batches=150,
    preallocate_bytes=64 * KIB,
    tail_bytes=32 * KIB,
    open_files_max=4,
    retry_delay_s=0.01,
)
SUBSCRIPTIONS = {"strict": "strict", "keyed": "key", "free": "none"}
PRODUCER = "producer"


def tell(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def call_of(name: str, topics: Iterable[str], size: int) -> list[Outgoing]:
    """Messages whose names say which call they belong to and how many of it go to the same root."""
    topics = list(topics)
    roots = [root_of(topic) for topic in topics]
    messages = []
    for place, topic in enumerate(topics):
        root = roots[place]
        number = roots[:place].count(root)
        text = f"{name}.{root}.{number}of{roots.count(root)}"
        messages.append(Outgoing(topic, payload_of(text, topic, size), retain=topic.endswith("/kept")))
    return messages


def tell_stored(messages: list[Outgoing], receipts: Iterable[Receipt]) -> None:
    for message, receipt in zip(messages, receipts, strict=True):
        assert isinstance(message.payload, bytes)
        name = message.payload.split(b" ", 2)[1].decode()
        tell("sent", name, receipt.topic, receipt.offset)


def publish_single(bus: Bus, name: str, rng: random.Random) -> None:
    topic = rng.choice(["a/single", "a/kept"])
    [message] = call_of(name, [topic], rng.choice([10, 400, 3000]))
    receipt = bus.publish(topic, message.payload, retain=message.retain)
    tell_stored([message], [receipt])


def publish_many(bus: Bus, name: str, rng: random.Random) -> None:
    messages = call_of(name, ["b/many"] * rng.randint(1, 40), 100)
    tell_stored(messages, bus.publish_many(messages))


def publish_wide(bus: Bus, name: str, rng: random.Random) -> None:
    topics = ["a/wide", "b/wide", "c/wide", "d/wide", "c/kept", "a/wide"]
    messages = call_of(name, topics[: rng.randint(2, 6)], rng.choice([20, 1000]))
    tell_stored(messages, bus.publish_many(messages))


def publish_soon(bus: Bus, name: str, rng: random.Random) -> None:
    calls = [call_of(f"{name}-{count}", [rng.choice(["a/soon", "d/soon"])], 50) for count in range(5)]
    futures = [bus.publish_soon(message.topic, message.payload) for [message] in calls]
    for messages, future in zip(calls, futures, strict=True):
        tell_stored(messages, [future.result()])


def publish_idempotent(bus: Bus, sequence: int) -> None:
    """The same call for the same sequence, whichever process sends it."""
    tell("trying", sequence)
    topics = ["c/idempotent", "d/idempotent"][: 1 + sequence % 2]
    messages = call_of(f"sequence-{sequence}", topics, 30)
    tell_stored(messages, bus.publish_many(messages, producer=PRODUCER, sequence=sequence))


def consume(consumer: Consumer, rng: random.Random) -> None:
    taken = consumer.batch(rng.randint(1, 30), timeout_s=1)
    for message in taken:
        tell("got", consumer.id, message.root, message.offset)
    rest = settle_one(consumer, taken, rng) if rng.random() < 0.2 else taken
    if rest:
        consumer.ack(rest)
        for message in rest:
            tell("acked", consumer.id, message.root, message.offset)


def settle_one(consumer: Consumer, taken: list[Message], rng: random.Random) -> list[Message]:
    """Something else than an ack for the last of them; answers the others."""
    if not taken:
        return []
    *rest, last = taken
    if rng.random() < 0.5:
        last.reject("never")
        tell("dead", consumer.id, last.root, last.offset)
    else:
        last.nack("not now", 0)
    return rest


def forever(work: Callable[[int], None]) -> threading.Thread:
    def run() -> None:
        count = 0
        while True:
            work(count)
            count += 1

    return threading.Thread(target=run, daemon=True)


def main(folder: str, life: int, sequence: int) -> None:
    bus = Bus(folder, CONFIG)
    tell("ready")
    threads = []
    for number, publish in enumerate((publish_single, publish_single, publish_many, publish_wide, publish_soon)):
        rng = random.Random(life * 100 + number)
        threads.append(
            forever(
                lambda count, publish=publish, number=number, rng=rng: publish(bus, f"l{life}-t{number}-{count}", rng)  # type: ignore[misc]
            )
        )
    threads.append(forever(lambda count: publish_idempotent(bus, sequence + count)))
    for number, (id, order) in enumerate(SUBSCRIPTIONS.items()):
        consumer = bus.subscribe("#", id=id, order=order, start="earliest", max_attempts=0)  # type: ignore[call-overload]
        rng = random.Random(life * 1000 + number)
        threads.append(forever(lambda _, consumer=consumer, rng=rng: consume(consumer, rng)))  # type: ignore[misc]
    for thread in threads:
        thread.start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
