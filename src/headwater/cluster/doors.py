"""The doors of a follower: whoever connects is passed through to the leader, byte by byte.

So any client of any protocol may come to any node: plain MQTT 3.1.1, HTTP, TLS (which ends at the leader) and old
clients. The leader is told by a preamble where each comes from. Promises: nothing is read from one side that the other
has not taken, so a connection holds two `CHUNK_BYTES` each way at most; half-closed connections stay half-closed; once
another node leads, no connection to the one before is left; nobody is passed on twice, so there are no rounds.

Native clients that say at once that they only read (`?read=any`) are served by this node itself, unless TLS hides it.
Probes of /healthz and /readyz without TLS are answered here, as they ask about this node.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.cluster import passage
from headwater.cluster.leader import Leader
from headwater.cluster.passage import Passage
from headwater.cluster.preamble import Preambles
from headwater.config import Serving
from headwater.errors import Conflict
from headwater.server import accepting
from headwater.server.accepting import Introductions, Peer
from headwater.server.exposure import plain_mqtt_host
from headwater.server.log import Log
from headwater.server.network import network_of
from headwater.server.watch.cluster import ClusterView

LEADER_WAIT_S = 15.0
"""How long a connection waits for a leader that takes it; then it is closed, and its client tries again."""
CONNECT_S = 3.0
"""How long a leader may take to accept."""
RETRY_S = 0.1
"""After how long it is tried again."""
STALE_S = 1.0
"""What a client has said that waited for a leader for so long, and has gone meanwhile, is passed on to nobody."""
SWEEP_S = 1.0
LOOPBACK = "127.0.0.1"
NOBODY = Leader(node="")
"""Stands for the leader where one reads at this node."""

log = Log("headwater.cluster.doors")


class Door(NamedTuple):
    """Where a follower listens."""

    name: str
    host: str
    port: int


def doors_of(serving: Serving) -> list[Door]:
    """The doors that a server has by its settings."""
    found = [Door("native", serving.host, serving.port)]
    if serving.mqtt:
        found.append(Door("mqtt", plain_mqtt_host(serving), serving.mqtt_port))
        if serving.tls_certificate:
            found.append(Door("mqtts", serving.mqtt_host or serving.host, serving.mqtt_tls_port))
    if serving.http:
        found.append(Door("http", serving.http_host or serving.host, serving.http_port))
    return found


class Doors:
    """All doors of a follower; in one event loop."""

    def __init__(self, view: ClusterView, serving: Serving, clock: Clock | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.view = view
        self.serving = serving
        self.clock = clock or SystemClock()
        self.ports: dict[str, int] = {}
        """Where it listens, by the name of the door."""
        self.leader: Leader | None = None
        self.reads_at: int | None = None
        """The port of loopback where this node itself serves those who only read; None while it does not."""
        self.before_reads: Callable[[], Awaitable[None]] | None = None
        """What is awaited before some of them are connected."""
        self.buffer = memoryview(bytearray(passage.CHUNK_BYTES))
        self._ways: list[Way] = []
        self._room = Room(
            *(serving.connections_max, serving.connections_per_address_max),
            *(serving.handshakes_max, serving.handshakes_per_address_max),
        )
        """Natively and for MQTT, as at the leader;"""
        http = serving.http_connections_max, serving.http_connections_per_address_max
        self._http_room = Room(*http, *http)
        self._led = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.Task[None] | None = None
        """One that awaits `before_reads`,"""
        self._next_look: asyncio.Task[None] | None = None
        """and the one after it, for all who come meanwhile."""

    async def open(self) -> None:
        """Listen; OSError if that cannot be, and then nowhere."""
        try:
            for door in doors_of(self.serving):
                way = Way(self, door.name, self._http_room if door.name == "http" else self._room)
                self._ways.append(way)
                self.ports[door.name] = await way.open(door.host, door.port)
        except OSError:
            await self.close()
            raise
        self._sweep()

    @property
    def passages(self) -> int:
        """Connections that are passed through."""
        return sum(len(way.passages) for way in self._ways)

    def point(self, leader: Leader | None) -> None:
        """Pass everybody on to this node from now on; with None, have those who come wait until one leads."""
        if leader == self.leader:
            return
        self.leader = leader
        for way in self._ways:
            for one in tuple(way.passages):
                if one.leader is not None and one.leader != leader and not one.is_here:
                    one.abort()
        if leader is not None:
            self._led.set()
        else:
            self._led.clear()

    async def led(self) -> Leader:
        """The node that leads, once one does."""
        while self.leader is None:
            await self._led.wait()
        return self.leader

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something in a task of its own."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def prepare_reads(self) -> None:
        """Await `before_reads`, begun from now on; once for all who come at once, as nobody knows them yet."""
        if self._next_look is None:
            self._next_look = self.begin(self._look_after(self._look))
        await asyncio.shield(self._next_look)

    async def _look_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._look, self._next_look = self._next_look, None
        if self.before_reads is not None:
            await self.before_reads()

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        now_s = self.loop.time()
        for way in self._ways:
            for one in tuple(way.passages):
                one.sweep(now_s, self.serving)

    async def close(self) -> None:
        """Listen no more, and end every connection: their clients come back, to whoever listens here next."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for way in self._ways:
            way.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which what was aborted lets go


class Room:
    """How many may be connected by some doors together, and wait there, and how many of an address."""

    def __init__(self, most: int, per_address_max: int, waiting_max: int, waiting_per_address_max: int) -> None:
        self.by_network: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """Of them, those that are not passed on yet: they have said nothing, or wait for a leader."""
        self._most = most
        self._per_address_max = per_address_max
        self._waiting_max = waiting_max
        self._waiting_per_address_max = waiting_per_address_max
        self._taken = self._all_waiting = 0
        self._when_left: list[Callable[[], None]] = []

    @property
    def is_left(self) -> bool:
        """Whether there is room for one more."""
        return self._taken < self._most

    def when_left(self, call: Callable[[], None]) -> None:
        """Have something called as soon as there is."""
        self._when_left.append(call)

    def lacking(self, network: str) -> str:
        """The setting that keeps one more from there out; empty if none does."""
        if self.by_network[network] >= self._per_address_max:
            return "connections_per_address_max"
        if self.waiting[network] >= self._waiting_per_address_max:
            return "handshakes_per_address_max"
        return "handshakes_max" if self._all_waiting >= self._waiting_max else ""

    def take(self, network: str) -> None:
        """Somebody has come, and waits."""
        self._taken += 1
        self._all_waiting += 1
        self.by_network[network] += 1
        self.waiting[network] += 1

    def pass_on(self, network: str) -> None:
        """One of those who wait does so no more."""
        self._all_waiting -= 1
        _less(self.waiting, network)

    def leave(self, network: str) -> None:
        """Somebody has gone."""
        self._taken -= 1
        _less(self.by_network, network)
        if self._when_left and self.is_left:
            calls, self._when_left = self._when_left, []
            for call in calls:
                call()


class Way:
    """One door, and those who came by it."""

    def __init__(self, doors: Doors, name: str, room: Room) -> None:
        self.doors = doors
        self.name = name
        self.room = room
        self.passages: dict[Passage, None] = {}
        self.loop = doors.loop
        serving = doors.serving
        self.handshake_s = serving.handshake_s
        is_http = name == "http"
        self.answers_probes = is_http and not serving.tls_certificate
        self.serves_readers = name == "native" and not serving.tls_certificate
        """Whether it can be seen who only reads, as nothing is encrypted."""
        self._door: accepting.Door | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; answers the port."""
        introductions = _NotTwice(self.doors.view.introductions(self.name))
        self._door = await accepting.listen(self, self._passage, host, port, None, introductions)
        return self._door.port

    def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._door is not None:
            self._door.close()
        for one in tuple(self.passages):
            one.abort()

    # As the keeper of those who come

    @property
    def has_room(self) -> bool:
        """Whether one more may be accepted."""
        return self.room.is_left

    def when_room(self, call: Callable[[], None]) -> None:
        """Have something called as soon as one more may be accepted."""
        self.room.when_left(call)

    def on_arrival(self, network: str, weight: int) -> bool:
        """Somebody is accepted; False if there are enough from there."""
        reason = self.room.lacking(network)
        if reason:
            log.at_will(logging.INFO, "refused", door=self.name, network=network, reason=reason)
            return False
        self.room.take(network)
        return True

    def on_arrived(self, network: str, weight: int) -> None:
        """Somebody is connected, or has gone before that."""
        self.room.pass_on(network)
        self.room.leave(network)

    # Passing on

    def _passage(self) -> asyncio.BaseProtocol:
        return Passage(self).outer

    def on_begin(self, one: Passage) -> None:
        """Somebody is connected."""
        self.passages[one] = None
        self.room.take(network_of(one.client[0]))
        if not self.looks_first:
            self.take_on(one)

    @property
    def looks_first(self) -> bool:
        """Whether it matters what a client says first."""
        return self.answers_probes or self.serves_readers

    def on_open(self, one: Passage) -> None:
        """Somebody is passed on; whoever serves it counts its handshake."""
        self.room.pass_on(network_of(one.client[0]))

    def on_end(self, one: Passage) -> None:
        """Both sides of a connection are gone."""
        if self.passages.pop(one, self) is None:
            network = network_of(one.client[0])
            if not one.was_open:
                self.room.pass_on(network)
            self.room.leave(network)

    def take_on(self, one: Passage) -> None:
        """Find the leader, and connect somebody with it."""
        self.doors.begin(self._take_on(one))

    async def _take_on(self, one: Passage) -> None:
        try:
            async with asyncio.timeout(LEADER_WAIT_S):
                while not one.is_over:
                    is_here = one.reads_only and self.doors.reads_at is not None
                    leader = NOBODY if is_here else await self.doors.led()
                    if await self._connect(one, leader):
                        return
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            log.at_will(logging.WARNING, "no-leader", door=self.name, address=one.client[0])
            one.abort()

    async def _connect(self, one: Passage, leader: Leader) -> bool:
        here = self.doors.reads_at if one.reads_only else None
        one.is_here = here is not None
        if one.is_here:
            await self.doors.prepare_reads()
        place = leader.place(self.name) if here is None else (LOOPBACK, here)
        if place is None:
            log.at_will(logging.WARNING, "no-such-door", door=self.name, leader=leader.node)
            one.abort()
            return True
        node = leader.node if here is None else self.doors.view.node
        preambles = Preambles(self.doors.view.secret, self.name, node, self.doors.clock)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(lambda: one.inner, *place)
        except (OSError, TimeoutError):
            one.forget_inner()
            return False
        if (leader != self.doors.leader and here is None) or one.is_over:
            one.abort()  # another leads by now, or the client has gone
            return True
        if one.outer.has_left and self.loop.time() - one.outer.made_s > STALE_S:
            # Its client has given up, and may have said the same over another connection since.
            one.abort()
            return True
        one.leader = leader
        one.open(preambles.pack(one.client))
        return True

    def answer(self, target: str) -> bytes:
        """What a probe is answered."""
        status = self.doors.view.status()
        leader = self.doors.leader
        checks = [{"name": "leader", "ok": leader is not None}, {"name": "applied", "ok": status.role != "joining"}]
        is_ready = target.startswith("/healthz") or all(check["ok"] for check in checks)
        body: dict[str, object] = {"ok": is_ready}
        if target.startswith("/readyz"):
            body = {"ok": is_ready, "role": status.role, "checks": checks}
        text = msgspec.json.encode(body)
        head = f"HTTP/1.1 {200 if is_ready else 503} \r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
        return f"{head}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + text


def _less(counted: Counter[str], network: str) -> None:
    counted[network] -= 1
    if counted[network] <= 0:
        del counted[network]


class _NotTwice:
    """Refuses whoever is passed on already: the node that sent him takes this one for the leader, which it is not."""

    def __init__(self, introductions: Introductions) -> None:
        self._introductions = introductions

    async def read(self, loop: asyncio.AbstractEventLoop, made: socket.socket) -> Peer | None:
        stated = await self._introductions.read(loop, made)
        if stated is not None:
            raise Conflict("this node does not lead; who passes connections on finds the leader in the lease")
        return None
