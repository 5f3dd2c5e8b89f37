"""Plays a story: builds the world, lets the moves happen in it, lets it come to rest, and has everything judged."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from faults.machine import SMALL
from headwater.client.aio import Bus
from headwater.config import Config, Serving
from headwater.errors import Gap, HeadwaterError, NotFound
from sim.host import DEVICE, MQTT_PORT, PORT, SECRET, Host
from sim.judge import Judge
from sim.mqtt_client import Mqtt
from sim.native import Native, read_all
from sim.network import Network
from sim.promises import Reader
from sim.seams import opened, tidied
from sim.story import MQTTS, NAMED, NATIVES, ROOTS, Move, Story, draw
from sim.threaded import CHANNEL, SINK_PORT, Sink, Threaded
from sim.world import SECOND_US, Violation, World

CONFIGS: tuple[Config, ...] = (
    msgspec.structs.replace(SMALL, bulk_bytes_min=600),
    msgspec.structs.replace(SMALL, journal_bytes=1 << 20, checkpoint_batches=3, bulk_bytes_min=100),
    msgspec.structs.replace(SMALL, checkpoint_batches=1 << 20, checkpoint_bytes=1 << 30),
    msgspec.structs.replace(SMALL, group_messages_max=4, group_bytes_max=4000, bulk_bytes_min=300),
    msgspec.structs.replace(SMALL, tail_bytes=1 << 20, read_bytes=1 << 20, open_files_max=100),
)
REST_S_MAX = 200.0
"""By then everything that was under way has come to an end, once nothing goes wrong any more."""
QUIET_S = 4.0
CLOCK_SETTLES_S = 1000.0
"""By then a clock that was set counts."""
AUDIT_S_MAX = 900.0
PUSH_S_MAX = 200
DRAINS_MAX = 300
THREADS_MAX = 26
"""Those of its pools, of the commits, of the timers, and its main one."""
PLAIN = frozenset(
    (
        *("clear", "delay", "stage", "commit", "take", "nack", "reject", "redrive", "pause", "pass_by", "let_go"),
        *("listen", "look", "replay", "follow", "ask"),
    )
)
"""Moves that a client of ours makes as they are called."""


@dataclass
class Ending:
    """How a story ended."""

    seed: int
    violations: list[str]
    digest: str
    reached: Counter[str]
    turns: int

    @property
    def is_good(self) -> bool:
        return not self.violations


def play(story: Story | int, *, shows: bool = False) -> Ending:
    """Play a story, or that of a seed."""
    with tidied():
        return _play(draw(story) if isinstance(story, int) else story, shows=shows)


def _play(story: Story, *, shows: bool) -> Ending:
    world = World(story.seed, shows=shows)
    network = Network(world)
    with opened(world, network, story.seed) as threads:
        player = Player(world, network, threads, story)
        try:
            player.play()
        except Violation as error:
            player.judge.violations.append(str(error))
        except Exception:
            player.judge.violations.append(f"the simulation itself failed: {traceback.format_exc()}")
        violations = player.judge.violations + world.troubles
        return Ending(story.seed, violations, world.digest, world.reached, world.turns)


class Player:
    """The world of one story."""

    def __init__(self, world: World, network: Network, threads: Any, story: Story) -> None:
        self.world = world
        self.story = story
        self.rng = random.Random(story.seed ^ 0xE4D)
        self.network = network
        self.judge = Judge(world)
        setup = story.setup
        serving = Serving(
            port=PORT,
            mqtt_port=MQTT_PORT,
            http=False,
            keepalive_s=10.0,
            handshake_s=5.0,
            linger_s=2.0,
            drain_s=3.0,
            write_stalled_s=20.0,
            session_expire_after_s=600.0,
            channel_connect_s=3.0,
            channel_retry_s_max=5.0,
            sys_every_s=setup["sys_every_s"],
            publishes_in_flight_max=setup["publishes_in_flight_max"],
            requests_in_flight_max=setup["requests_in_flight_max"],
            mqtt_receive_max=setup["mqtt_receive_max"],
            mqtt_in_flight_max=setup["mqtt_in_flight_max"],
            attention_us=setup["attention_us"],
            auth=setup["auth"],
            scram_iterations=4096,
            write_bytes_max=setup["write_bytes_max"],
        )
        self.host = Host(world, self.network, threads, self.judge, CONFIGS[setup["config"]], serving)
        self.host.start()
        self.natives = [
            Native(world, self.network, threads, self.judge, self.host, f"native{number}") for number in range(NATIVES)
        ]
        self.mqtts = [
            Mqtt(world, self.network, threads, self.judge, self.host, f"mqtt{number}", version, is_kept=is_kept)
            for number, (version, is_kept) in enumerate(MQTTS)
        ]
        self.threaded = Threaded(world, self.judge, self.host)
        self.sink = Sink(world, network, self.judge)
        for client in self.mqtts:
            client.receive_max = setup["receive_max"]
            client.will_topic = "b/will" if setup["will"] else ""
            if serving.auth != "none":
                client.user = DEVICE
                client.password = SECRET.encode() if serving.auth == "scram" else None
        if serving.auth != "none":
            self.judge.may = lambda by, topic: not (by.startswith("mqtt") and topic.startswith("c/"))
        self._threads = threads
        self.since_us = 0
        """When the server was started for the last time."""

    def play(self) -> None:
        """All of it."""
        self._run(lambda: self.host.is_up and all(one.bus is not None for one in self.natives), 30.0)
        for move in self.story.moves:
            self._run(lambda: False, move.gap_us / SECOND_US)
            if self.judge.violations or self.world.troubles:
                return
            self.world.note(str(move))
            self.do(move)
        self.rest()
        if not self.judge.violations:
            self.audit()

    def _run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Let the world go on for a while, or until something is so or goes wrong."""
        violations, troubles = self.judge.violations, self.world.troubles
        until_us = self.world.now_us + int(seconds * SECOND_US)
        return self.world.run(lambda: bool(violations or troubles) or done(), until_us)

    def do(self, move: Move) -> None:
        """A move."""
        native, mqtt, host = self.natives, self.mqtts, self.host
        match move.kind, move.args:
            case "publish", (number, topic, size, retain):
                native[number].publish(topic, size, retain=retain)
            case "publish_many", (number, topics, size):
                native[number].publish_many(topics, size)
            case "produce", (number, topics, again):
                native[number].produce(topics, again=again)
            case "subscribe", (number, id):
                native[number].subscribe(id, *NAMED[id])
            case "ack", (number, id, share, wait):
                native[number].ack(id, share, wait=wait)
            case kind, (number, *args) if kind in PLAIN:
                getattr(native[number], kind)(*args)
            case "threaded_publish", (topic, size):
                self.threaded.publish(topic, size)
            case "threaded_publish_soon", (topic, count):
                self.threaded.publish_soon(topic, count)
            case "threaded_consume", (count,):
                self.threaded.consume("threaded", "+/y", count)
            case "kill_threaded", ():
                self.threaded.kill()
            case "add_channel", (number,):
                native[number].add_channel(CHANNEL, "#", SINK_PORT)
            case "fail_channel", (count,):
                self.sink.fails_at = self.sink._taken + count
            case "kill_receiver", ():
                self.sink.kill()
            case "kill_native", (number,):
                native[number].kill()
            case "leave_native", (number,):
                native[number].leave()
            case "mqtt_publish", (number, topic, size, qos, retain):
                mqtt[number].publish(topic, size, qos, retain=retain)
            case "mqtt_subscribe", (number, root, qos):
                mqtt[number].subscribe(f"{ROOTS[root]}/#", qos)
            case "mqtt_unsubscribe", (number, root):
                mqtt[number].unsubscribe(f"{ROOTS[root]}/#")
            case "mqtt_slow", (number, is_slow):
                mqtt[number].slow(is_slow=is_slow)
            case "mqtt_leave", (number, seconds):
                mqtt[number].leave(seconds)
            case "kill_mqtt", (number, forgets):
                mqtt[number].kill(forgets=forgets)
            case (("reset" | "silence" | "stall" | "cut_off" | "slow_network"), args):
                self._disturb(move.kind, args)
            case "kill_server", ():
                host.kill()
            case "stop_server", ():
                host.stop()
            case "lose_power", ():
                host.lose_power()
            case "lose_power_at_sync", (syncs,):
                host.syncs_left = syncs
            case "slow_disk", (slowness,):
                host.slowness = slowness
                self.world.reach("fault: slow disk")
            case "jump_clock", (seconds,):
                host.jump(seconds)
                self.world.reach("fault: clock set")
            case _, (number,):
                self._fail_disk(move.kind, number)
            case _:
                raise ValueError(f"what is {move}?")

    def _disturb(self, kind: str, args: tuple[Any, ...]) -> None:
        network = self.network
        if kind == "cut_off":
            network.cut_off(args[0])
        elif kind == "slow_network":
            network.latency_us = (20 * args[0], 400 * args[0])
        else:
            connections = list(network.connections.values())
            if not connections:
                return
            connection = connections[args[0] % len(connections)]
            if kind == "reset":
                connection.reset()
            elif kind == "silence":
                connection.go_silent()
            else:
                connection.stall(args[1])
        self.world.reach(f"fault: network {kind}")

    def _fail_disk(self, kind: str, number: int) -> None:
        files, state = self.host.files, self.host.state

        def cause() -> None:
            match kind:
                case "fail_sync":
                    files.fail_sync_at = files.syncs + number
                case "fail_write":
                    files.fail_write_at = files.writes + number
                case "short_write":
                    files.short_write_at = files.writes + number
                case "fail_state":
                    state.fail_sync_at = state.syncs + number
                case "fill_disk":
                    self.host.fill(number)
                case _:
                    raise ValueError(f"what is {kind}?")

        self.host.trouble(cause, f"disk {kind}")

    # The end

    def rest(self) -> None:
        """Nothing goes wrong any more: everything that was under way comes to its end."""
        self._heal()
        self._settle()
        last = self.story.setup["last"]
        if last != "as it is" and not self.judge.violations:
            if last == "rot":
                self.judge.may_rot = True
                self.host.before_next = self.host.rot
            {"kill": self.host.kill, "power": self.host.lose_power}.get(last, self.host.stop)()
            life = self.host.lives
            is_back = self._run(lambda: self.host.lives > life and self.host.is_up, REST_S_MAX)
            self.judge.expect(is_back, "the server did not come back")
            self._heal()
            self._settle()

    def _heal(self) -> None:
        host = self.host
        self._run(lambda: False, 0.05)  # the last moves begin
        self.since_us = self.world.now_us  # whoever hears nothing from now on has a connection that fell silent
        self.network.latency_us = (20, 400)
        self.network.cut_off_until_us = 0
        host.heal()
        host.jump((host.furthest_us - host.wall_us) / SECOND_US)
        if host.is_troubled:
            host.kill()
            host.files.capacity_bytes = None
            host.is_troubled = False
        for client in self.mqtts:
            client.come()
            client.slow(is_slow=False)
        is_up = self._run(lambda: host.is_up, REST_S_MAX)
        self.judge.expect(is_up, "the server does not come up")

    def _settle(self) -> None:
        def is_over(client: Mqtt) -> bool:
            # And not a connection that has not noticed its end, though bytes of it still arrived.
            is_new = client.heard_us > self.since_us and client.talk is not None and not client.talk.is_to_the_dead
            is_done = not client.outgoing and not client.waiting and not client.received
            return client.is_up and is_new and is_done

        def is_at_rest() -> bool:
            return (
                all(one.bus is not None and one.is_idle for one in self.natives)
                and self.threaded.is_idle
                and all(map(is_over, self.mqtts))
            )

        if not self._run(is_at_rest, REST_S_MAX) and not self.judge.violations:
            for one in self.natives:
                self.judge.expect(one.is_idle and one.bus is not None, f"{one.tag} waits for ever: {one.tasks}")
            self.judge.expect(self.threaded.is_idle, f"{self.threaded.tag} waits for ever")
            for client in self.mqtts:
                waits = f"{client.is_up} {[sent.name for sent, _ in client.outgoing.values()]} {client.received}"
                self.judge.expect(is_over(client), f"{client.name} waits for ever: {waits}")
            return
        for one in self.natives:
            for _ in tuple(one.unsure):
                one.produce((), again=True)
            if one.epoch in one.staged:
                one.commit()
        if self.host.was_set and any(sent.kind == "delayed" for sent in self.judge.sent.values()):
            self._run(lambda: False, CLOCK_SETTLES_S)
            self.host.was_set = False
        due_us = max((sent.due_us for sent in self.judge.sent.values()), default=0)
        if due_us and self.host.is_off:  # a clock that was set is looked at again each minute
            due_us = max(due_us, self.world.now_us) + 62 * SECOND_US
        self._run(lambda: self.world.now_us > due_us + 2 * SECOND_US, REST_S_MAX)

        def is_quiet() -> bool:
            quiet_us = self.world.now_us - int(QUIET_S * SECOND_US)
            return is_at_rest() and all(client.got_us < quiet_us for client in self.mqtts)

        self.judge.expect(self._run(is_quiet, REST_S_MAX), "it does not come to rest")
        process = self.host.process
        if process is not None:  # nobody who has left is remembered
            leaving = sum(not earlier.is_dead for one in self.natives for earlier in one.leaving)
            expected = len(self.natives) + len(self.mqtts) + 2 + self.judge.has_channel + leaving
            self.judge.expect(len(process.threads) <= THREADS_MAX, f"the server has {len(process.threads)} threads")
            # One whose client was killed behind a silent line is noticed once nothing was heard of it for long.
            is_noticed = self._run(lambda: len(process.ends) <= expected, REST_S_MAX)
            self.judge.expect(is_noticed, f"the server has {len(process.ends)} connections, of {expected} clients")

    # Judging

    def audit(self) -> None:
        """A last client reads everything, and takes what is left."""
        for process in tuple(self.world.processes):  # those too that have left, and are not through with it
            if process.name.startswith(("native", "threaded")):
                process.kill()
        self._run(lambda: False, 1.0)  # what they had sent arrives
        auditor = Native(self.world, self.network, self._threads, self.judge, self.host, "auditor")
        self._run(lambda: auditor.bus is not None, REST_S_MAX)
        done: list[bool] = []

        async def work(bus: Bus) -> None:
            try:
                await self._audit(bus)
            except HeadwaterError as error:
                self.judge.expect(False, f"the auditor was told: {error!r}")
            done.append(True)

        auditor.do(work)
        self._run(lambda: bool(done), AUDIT_S_MAX)
        if not self.judge.violations:
            self.judge.expect(done, f"the auditor waits for ever: {auditor.tasks}")

    async def _audit(self, bus: Bus) -> None:
        judge = self.judge
        roots = sorted(root for root in await bus.ends() if not root.startswith("$"))
        found: dict[str, list[Any]] = {}
        for root in roots:
            gaps: list[tuple[int, int]] | None = [] if judge.may_rot else None
            messages = await read_all(bus, f"{root}/#", 60.0, gaps)
            if gaps:
                judge.gaps[root] = gaps
                self.world.reach("damage: told")
            judge.expect(messages is not None, f"{root} cannot be replayed")
            found[root] = messages or []
        judge.check(found)
        if not judge.gaps:
            await self._audit_topics(bus, found)
        subscriptions = {info.id for info in await bus.subscriptions()}
        judge.expect(not subscriptions & judge.gone, f"{subscriptions & judge.gone} were deleted, and are there")
        for reader in judge.readers.values():
            judge.expect(reader.id in subscriptions or not reader.is_certain, f"subscription {reader.id} is gone")
            if reader.id in subscriptions:
                await self._drain(bus, reader)
        for session in judge.sessions:
            judge.check_session(session)
        if judge.has_channel:
            await self._await_pushes()

    async def _await_pushes(self) -> None:
        """The channel delivers what it has not yet."""
        judge, reader = self.judge, self.sink.reader
        for _ in range(PUSH_S_MAX):
            if judge.owed(reader) <= reader.known:
                break
            await asyncio.sleep(1)
        judge.check_reader(reader, [], [])

    async def _audit_topics(self, bus: Bus, found: dict[str, list[Any]]) -> None:
        judge = self.judge
        count: Counter[str] = Counter()
        last: dict[str, int] = {}
        for messages in found.values():
            for message in messages:
                count[message.topic] += 1
                last[message.topic] = message.offset
        topics = [info for info in await bus.topics("#") if not info.topic.startswith("$")]
        listed = {info.topic: (info.messages, info.last_offset) for info in topics}
        judge.expect(
            listed == {topic: (count[topic], last[topic]) for topic in count}, f"topics are {listed}, not {count}"
        )
        expected = judge.retained_of(found)
        values = {}
        for message in (await bus.retained("#")).values():
            sent = judge.see(message.topic, message.payload, "retained")
            values[message.topic] = sent.name if sent is not None else ""
        judge.expect(values == expected, f"retained are {values}, not {expected}")

    async def _drain(self, bus: Bus, reader: Reader) -> None:
        consumer = await bus.subscribe(reader.filter, id=reader.id)
        await consumer.resume()
        got: list[Any] = []
        for _ in range(DRAINS_MAX):
            try:
                batch = await consumer.batch(1000, timeout_s=1.0)
            except Gap as gap:
                self.judge.expect(self.judge.may_rot, f"{reader.id} was told of a gap: {gap!r}")
                continue
            if not batch and not await bus.states(reader.id):  # nothing is left that comes later
                break
            for message in batch:
                self.judge.taken(reader, message, "the auditor")
            if batch:
                self.judge.settled(reader, self.judge.settles(reader, batch))
                await consumer.ack(batch)
                reader.done |= {(message.root, message.offset) for message in batch if not message.retained}
            got += batch
        await consumer.close()
        try:
            letters = await bus.dead_letters(reader.id)
        except NotFound:
            letters = []
        self.judge.check_reader(reader, got, letters)
