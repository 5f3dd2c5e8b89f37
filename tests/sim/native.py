"""A process with a client of ours in it: the real one, for asyncio, that publishes, consumes and asks.

What it does it does in tasks, as a program would; each tells the judge what was asked and what came of it. When it is
killed, what was under way stays unknown, and another process goes on with its subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from faults.oracle import root_of
from headwater.client.aio import Bus, Consumer
from headwater.client.client import Client
from headwater.client.url import parse_url
from headwater.clock import to_datetime
from headwater.config import Connecting
from headwater.errors import Closed, Conflict, Disconnected, Failed, Gap, HeadwaterError, NotFound, TimedOut
from sim.green import Threads
from sim.host import PORT, PROGRAM, SECRET, Host
from sim.judge import Judge
from sim.loop import Loop
from sim.network import Network
from sim.promises import FailedOnce, Glance, Reader, Sent
from sim.world import SECOND_US, Clock, Process, World

URLS = {
    "none": f"headwater://127.0.0.1:{PORT}",
    "gatekeeper": f"headwater://{PROGRAM}@127.0.0.1:{PORT}",
    "scram": f"headwater://{PROGRAM}:{SECRET.replace(' ', '%20')}@127.0.0.1:{PORT}",
}
"""Where the server is, by how it asks who comes."""
UNKNOWN = (Disconnected, TimedOut, Failed)
"""After these nobody knows what became of a request."""
HOLDS_MAX = 40


class Native:
    """A client program, over all of its lives."""

    def __init__(self, world: World, network: Network, threads: Threads, judge: Judge, host: Host, name: str) -> None:
        self.world = world
        self.network = network
        self.threads = threads
        self.judge = judge
        self.host = host
        self.name = name
        self.lives = 0
        self.sequence = 0
        self.epoch = 0
        self.staged: dict[int, list[Sent]] = {}
        self.unsure: dict[int, list[Sent]] = {}
        """Calls of its idempotent producer that have no answer, by sequence."""
        self.settings = Connecting(request_timeout_s=20.0, connect_timeout_s=5.0, prefetch_messages=20)
        self.process: Process | None = None
        self.leaving: list[Process] = []
        """Earlier lives that were told to leave: each may come back once more, to say so."""
        self._serial: asyncio.Lock | None = None
        self.start()

    # Lives

    def start(self) -> None:
        """A new process, which connects."""
        self.lives += 1
        self.tag = f"{self.name}.{self.lives}"
        self.process = Process(self.world, self.tag, 1_700_000_000 * SECOND_US)
        self.loop = Loop(self.process, self.network, self.threads)
        self.bus: Bus | None = None
        self.consumers: dict[str, Consumer] = {}
        self.held: dict[str, list[Any]] = {}
        self.readings: list[Any] = []
        self.tasks: dict[asyncio.Task[None], None] = {}
        self._ended = asyncio.Event()
        self._serial = asyncio.Lock()
        process, loop, ended = self.process, self.loop, self._ended
        readers = (self.consumers, self.readings)
        process.spawn(lambda: loop.run(self._main(process, ended, *readers)), "main")

    async def _main(
        self, process: Process, ended: asyncio.Event, consumers: dict[str, Consumer], readings: list[Any]
    ) -> None:
        bus: Bus | None = None
        while bus is None and not ended.is_set():
            client = Client(parse_url(URLS[str(self.host.serving.auth)]), self.settings, Clock(process))
            try:
                await client.open()
                bus = Bus(client)
                self.world.reach("native: connected")
            except HeadwaterError:
                await asyncio.sleep(0.3)
        if bus is None:
            return
        if self.process is process:
            self.bus = bus
        await ended.wait()
        for reader in (*consumers.values(), *readings):
            await self._try(reader.close())
        await self._try(bus.close())

    async def _try(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except HeadwaterError as error:
            self._allow(error)
            return None

    def _allow(self, error: HeadwaterError) -> None:
        """Errors that may come; a failure of the server's disk only if it has failed."""
        if isinstance(error, Failed):
            self.judge.expect(self.host.was_troubled, f"{self.tag} was told: {error!r}")

    def kill(self) -> None:
        """It dies, and its next life begins."""
        if self.process is not None:
            self.world.reach("fault: native client killed")
            self.process.kill()
            self.start()

    def leave(self) -> None:
        """It closes its bus and ends, and its next life begins."""
        process = self.process
        assert process is not None
        self.loop.post(self._ended.set)
        self.bus = None
        self.world.reach("native: left")
        self.leaving.append(process)
        self.world.after(30 * SECOND_US, process.kill)
        self.start()

    def do(self, work: Callable[[Bus], Coroutine[Any, Any, None]]) -> None:
        """A task of the program; nothing happens while it has no bus."""

        def begin() -> None:
            if self.bus is not None:
                task = self.loop.create_task(self._do(work, self.bus))
                self.tasks[task] = None
                task.add_done_callback(lambda done: self.tasks.pop(done, None))

        self.loop.post(begin)

    async def _do(self, work: Callable[[Bus], Coroutine[Any, Any, None]], bus: Bus) -> None:
        try:
            await work(bus)
        except HeadwaterError as error:
            self._allow(error)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing."""
        return not self.tasks

    # Publishing

    async def _publish(self, messages: Sequence[Sent], call: Coroutine[Any, Any, Any]) -> bool:
        try:
            receipts = await call
        except HeadwaterError as error:
            if not isinstance(error, (*UNKNOWN, Closed)) and len({root_of(sent.topic) for sent in messages}) == 1:
                for sent in messages:
                    self.judge.refused(sent)
            self._allow(error)
            self.world.note(f"{self.tag} {[sent.name for sent in messages]}: {error!r}")
            return False
        found = list(receipts) if len(messages) > 1 or not hasattr(receipts, "offset") else [receipts]
        self.judge.expect(len(found) == len(messages), f"{len(messages)} messages got {len(found)} receipts")
        for sent, receipt in zip(messages, found, strict=False):
            self.judge.expect(receipt.topic == sent.topic, f"a receipt for {sent.topic} is for {receipt.topic}")
            self.judge.acked(sent, receipt.offset)
        return True

    def publish(self, topic: str, size: int, *, retain: bool = False) -> None:
        """One message."""

        async def work(bus: Bus) -> None:
            sent = self.judge.message(topic, size, "native", self.tag, retain=retain, lane=self.tag)
            await self._publish([sent], bus.publish(topic, sent.payload, retain=retain))

        self.do(work)

    def publish_many(self, topics: Sequence[str], size: int) -> None:
        """Several with one call."""

        async def work(bus: Bus) -> None:
            messages = [self.judge.message(topic, size, "native", self.tag, lane=self.tag) for topic in topics]
            self.judge.together(messages)
            await self._publish(messages, bus.publish_many([(sent.topic, sent.payload) for sent in messages]))

        self.do(work)

    def clear(self, topic: str) -> None:
        """A retained value goes."""

        async def work(bus: Bus) -> None:
            sent = self.judge.clear(topic, "native", self.tag)
            try:
                await bus.publish(topic, b"", retain=True)
            except HeadwaterError as error:
                self._allow(error)
            else:
                self.judge.acked(sent)

        self.do(work)

    def delay(self, topic: str, seconds: float) -> None:
        """A message that is to come later."""

        async def work(bus: Bus) -> None:
            due_us = bus._client.clock.now_us() + int(seconds * SECOND_US)
            sent = self.judge.message(topic, 0, "delayed", self.tag, due_us=self.world.now_us)
            sent.due_us = self.world.now_us + int(seconds * SECOND_US)
            await self._publish([sent], bus.publish(topic, sent.payload, deliver_at=to_datetime(due_us)))

        self.do(work)

    def produce(self, topics: Sequence[str], *, again: bool) -> None:
        """A call of an idempotent producer, or one that was not answered once more."""

        async def work(bus: Bus) -> None:
            assert self._serial is not None
            async with self._serial:
                if again and self.unsure:
                    sequence = min(self.unsure)
                    messages = self.unsure[sequence]
                    self.world.reach("producer: sent again")
                    for sent in messages:
                        sent.tries += 1
                        sent.outcome = "unknown" if sent.outcome == "refused" else sent.outcome
                else:
                    sequence = self.sequence = self.sequence + 1
                    messages = [self.judge.message(topic, 8, "producer", self.name) for topic in topics]
                    self.judge.together(messages)
                    self.unsure[sequence] = messages
                pairs = [(sent.topic, sent.payload) for sent in messages]
                try:
                    if await self._publish(messages, bus.publish_many(pairs, producer=self.name, sequence=sequence)):
                        self.unsure.pop(sequence, None)
                except Conflict:
                    self.unsure.pop(sequence, None)

        self.do(work)

    # Staging

    def stage(self, topics: Sequence[str]) -> None:
        """A part of the epoch that is not committed yet."""

        async def work(bus: Bus) -> None:
            if self.epoch in self.staged:
                return
            self.epoch += 1  # what was staged for the one before, and not answered, nobody ever commits
            epoch = self.epoch
            messages = [self.judge.message(topic, 8, "stage", self.name) for topic in topics]
            await bus.stage(self.name, epoch, [(sent.topic, sent.payload) for sent in messages])
            if self.epoch == epoch:
                self.staged[epoch] = messages
                self.world.reach("stage: staged")

        self.do(work)

    def commit(self) -> None:
        """What is staged becomes visible; asked for again and again until there is an answer."""

        async def work(bus: Bus) -> None:
            epoch = self.epoch
            messages = self.staged.get(epoch)
            if messages is None:
                return
            for sent in messages:
                if sent.tries == 1:
                    sent.began_us = self.world.now_us
                sent.tries += 1
            self.judge.together(messages)
            gave = await bus.commit_stage(self.name, epoch)
            places = {root: iter(range(first, last + 1)) for root, (first, last) in gave.items()}
            for sent in messages:
                offset = next(places.get(root_of(sent.topic), iter(())), 0)
                self.judge.expect(offset, f"epoch {epoch} of {self.name} is where {gave} says, and {sent.name} is not")
                self.judge.acked(sent, offset)
            if self.epoch == epoch:
                self.epoch += 1
                self.world.reach("stage: committed")

        self.do(work)

    # Consuming

    def subscribe(self, id: str, filter: str, order: str) -> None:
        """Become a consumer of a named subscription."""

        async def work(bus: Bus) -> None:
            if id in self.consumers:
                return
            reader = self.judge.readers.setdefault(id, Reader(id, filter, order))
            options: dict[str, Any] = {
                "ack_timeout_s": 10.0,
                "max_attempts": 0,
                "max_in_flight": 16,
                "retry_delay_s_max": 20.0,
            }
            consumer = await bus.subscribe(filter, id=id, start="earliest", order=order, **options)  # type: ignore[call-overload]
            reader.is_certain = True
            self.world.reach("subscription: attached")
            if id in self.consumers or bus is not self.bus:  # or it has left, and this is of the life before
                await consumer.close()
                return
            self.consumers[id] = consumer

        self.do(work)

    def take(self, id: str, count: int) -> None:
        """Take what is there."""

        async def work(bus: Bus) -> None:
            consumer = self.consumers.get(id)
            held = self.held.setdefault(id, [])
            if consumer is None or len(held) > HOLDS_MAX:
                return
            found = await consumer.batch(count, timeout_s=0.5)
            for message in found:
                self.judge.taken(self.judge.readers[id], message, f"{self.tag} {id}")
            if found:
                self.world.reach("message: pending to in flight")
            held += found

        self.do(work)

    def _some(self, id: str, share: float) -> tuple[Consumer, list[Any]] | None:
        held, consumer = self.held.get(id), self.consumers.get(id)
        if not held or consumer is None:
            return None
        count = max(1, int(len(held) * share))
        chosen = held[:count]
        del held[:count]
        return consumer, chosen

    def ack(self, id: str, share: float, *, wait: bool) -> None:
        """Done with some of what it holds."""

        async def work(bus: Bus) -> None:
            chosen = self._some(id, share)
            if chosen is None:
                return
            consumer, messages = chosen
            reader = self.judge.readers[id]
            places = {(message.root, message.offset) for message in messages if not message.retained}
            reader.doubtful |= places
            behind = self.judge.settles(reader, messages)
            await consumer.ack(messages, wait=wait)
            if wait:
                self.judge.settled(reader, behind)
                reader.done |= places
                self.world.reach("message: in flight to acked")

        self.do(work)

    def nack(self, id: str, delay_s: float | None) -> None:
        """The first that it holds failed."""

        async def work(bus: Bus) -> None:
            chosen = self._some(id, 0.0)
            if chosen is None:
                return
            _, [message] = chosen
            reader = self.judge.readers[id]
            place = (message.root, message.offset)
            settled = reader.settled[place]
            await message.nack("not now", delay_s)
            self.world.reach("message: in flight to retry")
            if not message.retained:
                reader.attempts[place] += 1
                # It may have come again, and be acked, before this answer came.
                if reader.chain(message) and reader.settled[place] == settled:
                    reader.failed[reader.chain(message)] = FailedOnce(message.offset, self.world.now_us)

        self.do(work)

    def reject(self, id: str) -> None:
        """The first that it holds will never succeed."""

        async def work(bus: Bus) -> None:
            reader = self.judge.readers.get(id)
            chosen = self._some(id, 0.0) if reader is not None and not reader.is_moving else None
            if chosen is None or reader is None:
                return
            _, [message] = chosen
            place = (message.root, message.offset)
            reader.is_moving = True
            reader.rejected.add(place)
            if not message.retained:
                reader.doubtful.add(place)
            self.judge.settles(reader, [message])
            try:
                await message.reject("never")
            except Conflict:
                reader.is_moving = False  # it was taken back
                raise
            reader.is_moving = False
            self.world.reach("message: in flight to dead")
            if not message.retained:
                reader.done.add(place)
                reader.dead.add(place)

        self.do(work)

    def redrive(self, id: str) -> None:
        """Have dead letters handed out again."""

        async def work(bus: Bus) -> None:
            reader = self.judge.readers.get(id)
            if reader is None or reader.is_moving:
                return
            reader.is_moving = True
            reader.redriven |= reader.rejected
            reader.done -= reader.redriven
            for place in reader.redriven:
                reader.attempts.pop(place, None)
            reader.dead.clear()
            try:
                if await bus.redrive(id):
                    self.world.reach("message: dead to redriven")
            except NotFound:
                pass
            reader.is_moving = False

        self.do(work)

    def pause(self, id: str, is_paused: bool) -> None:
        """Have nothing handed out for a while, or go on."""

        async def work(bus: Bus) -> None:
            consumer = self.consumers.get(id)
            if consumer is not None:
                await (consumer.pause() if is_paused else consumer.resume())
                self.world.reach("subscription: paused" if is_paused else "subscription: resumed")

        self.do(work)

    def pass_by(self, number: int) -> None:
        """A subscription that is made, used and deleted."""

        async def work(bus: Bus) -> None:
            id = f"{self.tag}-{number}-{self.world.now_us}"
            async with bus.subscribe("#", id=id, start="earliest") as consumer:
                found = await consumer.batch(3, timeout_s=0.2)
                await consumer.ack(found)
            await bus.unsubscribe(id)
            self.judge.gone.add(id)
            self.world.reach("subscription: deleted")

        self.do(work)

    def let_go(self, id: str) -> None:
        """Leave a subscription; what it holds goes back."""

        async def work(bus: Bus) -> None:
            consumer = self.consumers.pop(id, None)
            self.held.pop(id, None)
            if consumer is not None:
                await consumer.close()
                self.world.reach("subscription: left")

        self.do(work)

    def add_channel(self, id: str, filter: str, port: int) -> None:
        """Have messages pushed to a receiver, from the first on."""

        async def work(bus: Bus) -> None:
            try:
                await bus.channels.add(
                    "everything", filter, destination_host="127.0.0.1", destination_port=port, id=id, start="earliest"
                )
                self.world.reach("channel: added")
            except Conflict:
                pass  # it is there
            self.judge.has_channel = True

        self.do(work)

    # Looking

    def listen(self, filter: str, seconds: float) -> None:
        """A live subscription for a while."""

        async def work(bus: Bus) -> None:
            live = await bus.subscribe(filter)
            end_us = self.world.now_us + int(seconds * SECOND_US)
            while self.world.now_us < end_us:
                found = await live.batch(50, timeout_s=seconds / 4)
                if not found:
                    await asyncio.sleep(0.05)  # one that is closed has nothing, and says so at once
                for message in found:
                    self.judge.see(message.topic, message.payload, f"{self.tag} live", is_stored=False)
            await live.close()
            self.world.reach("live: listened")

        self.do(work)

    def look(self, filter: str) -> None:
        """Ask for the retained values."""

        async def work(bus: Bus) -> None:
            asked_us = self.world.now_us
            values: dict[str, str] = {}
            for message in (await bus.retained(filter)).values():
                sent = self.judge.see(message.topic, message.payload, f"{self.tag} retained")
                if sent is not None:
                    values[message.topic] = sent.name
            self.judge.glances.append(Glance(filter, asked_us, self.world.now_us, values, True))

        self.do(work)

    def replay(self, root: str) -> None:
        """Read a root from its beginning: what was acked by now is there, and nothing is left out."""

        async def work(bus: Bus) -> None:
            asked_us = self.world.now_us
            found = await read_all(bus, f"{root}/#", 20.0)
            if found is None:
                return
            offsets = [message.offset for message in found]
            dense = list(range(1, len(offsets) + 1))
            self.judge.expect(offsets == dense, f"{self.tag} replays {root} with gaps: {offsets}")
            names = set()
            for message in found:
                sent = self.judge.see(message.topic, message.payload, f"{self.tag} replay", offset=message.offset)
                if sent is not None:
                    names.add(sent.name)
            for sent in self.judge.sent.values():
                if sent.ended_us < asked_us and root_of(sent.topic) == root and sent.kind != "delayed":
                    self.judge.expect(sent.name in names, f"{sent.name} was acked, and {self.tag} does not replay it")
            self.world.reach("replay: read")

        self.do(work)

    def follow(self, root: str, seconds: float) -> None:
        """History and what comes: no gap, no repeat, in order, whatever becomes of the connection."""

        async def work(bus: Bus) -> None:
            reading = bus.follow(f"{root}/#")
            self.readings.append(reading)
            last = 0
            end_us = self.world.now_us + int(seconds * SECOND_US)
            try:
                while self.world.now_us < end_us:
                    found = await reading.batch(50, timeout_s=seconds / 4)
                    if not found:
                        await asyncio.sleep(0.05)
                    for message in found:
                        is_next = message.offset == last + 1
                        self.judge.expect(is_next, f"{self.tag} follows {root}: {message.offset} after {last}")
                        last = message.offset
                        self.judge.see(message.topic, message.payload, f"{self.tag} follow", offset=message.offset)
            finally:
                if reading in self.readings:
                    self.readings.remove(reading)
            await reading.close()
            self.world.reach("follow: followed")

        self.do(work)

    def ask(self, what: int) -> None:
        """A request that changes nothing."""

        async def work(bus: Bus) -> None:
            match what % 5:
                case 0:
                    await bus.topics("#")
                case 1:
                    await bus.subscriptions()
                case 2:
                    await bus.ends()
                case 3:
                    await bus.extents("#")
                case 4:
                    try:
                        await bus.states("strict")
                    except NotFound:
                        pass
            self.world.reach("request: answered")

        self.do(work)


async def read_all(
    bus: Bus, filter: str, patience_s: float, gaps: list[tuple[int, int]] | None = None
) -> list[Any] | None:
    """Everything that a replay finds, and the gaps that it tells of, if those are wanted; None if it is cut short."""
    reading = bus.replay(filter)
    found: list[Any] = []
    try:
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    batch = await reading.batch(10_000)
            except Gap as gap:
                if gaps is None:
                    raise
                gaps.append((gap.first, gap.last))
                continue
            if not batch:
                return found
            found += batch
    except (TimeoutError, Disconnected, TimedOut):
        return None
    finally:
        try:
            async with asyncio.timeout(patience_s):
                await reading.close()
        except (TimeoutError, HeadwaterError):
            pass
