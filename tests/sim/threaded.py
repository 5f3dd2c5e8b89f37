"""Programs with threads: one that uses the bus for threads, and one that channels push to. Both are our own code.

The first publishes from several threads at once, and consumes in them. The second listens, takes what comes and acks
it; now and then it fails at a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headwater.client.bus import Bus
from headwater.client.receiver import Receiver
from headwater.config import Connecting
from headwater.errors import Closed, Disconnected, Failed, Gap, HeadwaterError, TimedOut
from sim.host import Host
from sim.judge import Judge
from sim.native import URLS
from sim.network import Network
from sim.promises import Reader, Sent
from sim.world import SECOND_US, Process, Thread, World

WORKERS = 3
SINK_PORT = 9000
CHANNEL = "pushed"
UNKNOWN = (Disconnected, TimedOut, Failed, Closed)


class Threaded:
    """A program whose threads share a bus, over all of its lives."""

    def __init__(self, world: World, judge: Judge, host: Host) -> None:
        self.world = world
        self.judge = judge
        self.host = host
        self.lives = 0
        self.start()

    def start(self) -> None:
        """A new process."""
        self.lives += 1
        self.tag = f"threaded.{self.lives}"
        self.process = Process(self.world, self.tag, 1_700_000_000 * SECOND_US)
        self.jobs: deque[Callable[[Bus], None]] = deque()
        self.busy = 0
        self.bus: Bus | None = None
        self._idle: list[Thread] = []
        process = self.process
        process.spawn(lambda: self._main(process), "main")

    def kill(self) -> None:
        """It dies, and its next life begins."""
        self.world.reach("fault: threaded client killed")
        self.process.kill()
        self.start()

    def _main(self, process: Process) -> None:
        settings = Connecting(request_timeout_s=20.0, connect_timeout_s=5.0)
        while self.bus is None:
            try:
                self.bus = Bus(URLS[str(self.host.serving.auth)], settings)
            except HeadwaterError:
                self.world.pause(300_000)
        self.world.reach("threaded: connected")
        for number in range(WORKERS):
            process.spawn(self._work, f"worker{number}")

    def _work(self) -> None:
        world = self.world
        assert world.current is not None
        while True:
            while not self.jobs:
                self._idle.append(world.current)
                world.park()
                if world.current in self._idle:
                    self._idle.remove(world.current)
            job = self.jobs.popleft()
            self.busy += 1
            assert self.bus is not None
            try:
                job(self.bus)
            except HeadwaterError as error:
                is_excused = not isinstance(error, Failed) or self.host.was_troubled
                self.judge.expect(is_excused, f"{self.tag} was told: {error!r}")
            finally:
                self.busy -= 1

    def do(self, job: Callable[[Bus], None]) -> None:
        """Something for the next thread that is free."""
        self.jobs.append(job)
        if self._idle:
            self.world.wake(self._idle.pop(0))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return self.bus is not None and not self.jobs and not self.busy

    def _acked(self, messages: Sequence[Sent], call: Callable[[], Any]) -> None:
        try:
            receipts = call()
        except HeadwaterError as error:
            if not isinstance(error, UNKNOWN):
                for sent in messages:
                    self.judge.refused(sent)
            raise
        for sent, receipt in zip(messages, receipts, strict=True):
            self.judge.acked(sent, receipt.offset)

    def publish(self, topic: str, size: int) -> None:
        """One message, waited for."""

        def job(bus: Bus) -> None:
            sent = self.judge.message(topic, size, "native", self.tag)
            self._acked([sent], lambda: [bus.publish(topic, sent.payload)])

        self.do(job)

    def publish_soon(self, topic: str, count: int) -> None:
        """Several one after the other, waited for at the end."""

        def job(bus: Bus) -> None:
            messages = [self.judge.message(topic, 8, "native", self.tag) for _ in range(count)]
            futures = [bus.publish_soon(topic, sent.payload) for sent in messages]
            for sent, future in zip(messages, futures, strict=True):
                self._acked([sent], lambda future=future: [future.result()])  # type: ignore[misc]  # bound as it is

        self.do(job)

    def consume(self, id: str, filter: str, count: int) -> None:
        """Take some of a named subscription's messages, and ack them."""

        def job(bus: Bus) -> None:
            reader = self.judge.readers.setdefault(id, Reader(id, filter, "none"))
            with bus.subscribe(
                filter, id=id, start="earliest", order="none", ack_timeout_s=10.0, max_attempts=0
            ) as consumer:
                reader.is_certain = True
                messages = consumer.batch(count, timeout_s=0.5)
                for message in messages:
                    self.judge.taken(reader, message, self.tag)
                if messages:
                    places = {(message.root, message.offset) for message in messages if not message.retained}
                    reader.doubtful |= places
                    consumer.ack(messages)
                    reader.done |= places
                    self.world.reach("threaded: consumed")

        self.do(job)


class Sink:
    """What a channel pushes to, over all of its lives."""

    def __init__(self, world: World, network: Network, judge: Judge) -> None:
        self.world = world
        self.judge = judge
        self.reader = Reader(CHANNEL, "#", "strict", is_pushed=True)
        self.fails_at = 0
        """The number of the message at which it fails next; 0: at none."""
        self.lives = 0
        self._taken = 0
        self.start()

    def start(self) -> None:
        """Listen."""
        self.lives += 1
        process = self.process = Process(self.world, f"sink.{self.lives}", 1_700_000_000 * SECOND_US)
        process.spawn(self._main, "main")

    def kill(self) -> None:
        """It dies, and comes back at once."""
        self.world.reach("fault: receiver killed")
        self.process.kill()
        self.start()

    def _main(self) -> None:
        receiver = Receiver(SINK_PORT, settings=Connecting(prefetch_messages=10))
        while True:
            try:
                found = receiver.batch(5, timeout_s=5.0)
            except Gap as gap:
                self.judge.expect(self.judge.may_rot, f"a channel was told of a gap: {gap}")
                continue
            for message in found:
                self.judge.taken(self.reader, message, "the receiver")
            if not found:
                continue
            self.world.reach("channel: pushed")
            self._taken += len(found)
            if self.fails_at and self._taken >= self.fails_at:
                self.fails_at = 0
                try:
                    found[0].nack("not now", 0.5)
                    self.world.reach("channel: refused")
                except HeadwaterError:
                    pass
                continue
            try:
                receiver.ack(found)
            except HeadwaterError:
                pass
            self.reader.doubtful |= {(message.root, message.offset) for message in found}
