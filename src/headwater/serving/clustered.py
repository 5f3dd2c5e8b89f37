"""The process of a cluster's node: it follows behind doors that pass everybody on, leads when it is its turn, and goes
back to following, all in one process and at the same ports.

SIGTERM, SIGINT   as for any server; a node that leads has another lead first
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from headwater import threads
from headwater.cluster.doors import Doors
from headwater.cluster.leader import Leader
from headwater.cluster.nats_engine import NatsEngine
from headwater.cluster.node import Mandate, Node, name_of
from headwater.cluster.reading import Reading
from headwater.cluster.replica import Replica
from headwater.config import Serving
from headwater.core import Core
from headwater.errors import Damaged, Malformed, Unavailable
from headwater.server.connection import Elsewhere
from headwater.server.log import Log
from headwater.serving.process import Ending, Signals, loop_factory, notify, settle
from headwater.serving.service import Service, unable_to_listen
from headwater.settings import Loaded

ENGINE_WAIT_S = 1.0
"""How long a node that finds no engine waits before it looks again."""
ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  (nothing listens here)

T = TypeVar("T")
log = Log("headwater.cluster.process")


def run_node(loaded: Loaded, announce: Callable[[str], None], end: Ending) -> int:
    """Take part in a cluster until a signal comes; the exit code."""
    serving, clustering = loaded.serving, loaded.clustering
    if serving.host in ANYWHERE and not clustering.advertise:
        raise Malformed(
            f'a node that listens on every address ("{serving.host}") says where others find it: --advertise HOST:PORT'
        )
    name = name_of(clustering, clustering.advertise or f"{serving.host}:{serving.port}")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_NodeProcess(loaded, name, announce, end).run())


class _NodeProcess:
    """One node, from the start of its process to the end."""

    def __init__(self, loaded: Loaded, name: str, announce: Callable[[str], None], end: Ending) -> None:
        self._loaded = loaded
        self._name = name
        self._tell = announce
        self._end = end
        self._told: set[str] = set()
        self._signals = Signals()

    async def run(self) -> int:
        """Follow and lead, by turns."""
        self._signals.listen()
        settle()
        engine = await self._engine()
        if engine is None:
            return 0
        node = Node(
            *(self._loaded.data, self._loaded.config, self._loaded.clustering, engine),
            name=self._name,
        )
        self._signals.on_end = node.stop
        try:
            if not await self._try_until_done(node.begin):
                return 0
            while not self._signals.ended.is_set():
                mandate = await self._follow(node)
                if mandate is None:
                    break
                await self._lead(node, mandate)
        finally:
            notify("STOPPING=1")
            await _aside(node.close)
        log.info("stopped")
        return 0

    async def _engine(self) -> NatsEngine | None:
        """The engine, once its servers answer; None if the process is to end before that."""
        made: list[NatsEngine] = []

        def connect() -> None:
            made.append(NatsEngine(self._loaded.clustering, self._name))

        return made[0] if await self._try_until_done(connect) else None

    async def _try_until_done(self, work: Callable[[], None]) -> bool:
        """Do what the engine has to answer for, again and again; False if the process is to end before that."""
        while not self._signals.ended.is_set():
            try:
                await _aside(work)
            except Unavailable as error:
                log.warning("waiting", reason=error.args[0])
                await self._pause(ENGINE_WAIT_S)
            else:
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._signals.ended.wait()
        except TimeoutError:
            pass

    def _advertised(self, port: int) -> str:
        said = self._loaded.clustering.advertise
        return said or f"{_in_url(self._loaded.serving.host)}:{port}"

    # Following

    async def _follow(self, node: Node) -> Mandate | None:
        """Pass everybody on until this node is to lead; None if the process is to end."""
        serving = self._loaded.serving
        doors = Doors(node, serving)
        try:
            await doors.open()
        except OSError as error:
            raise unable_to_listen(error, serving, is_socket=False) from None
        self._loaded = msgspec.structs.replace(self._loaded, serving=_at_ports(serving, doors.ports))
        loop = asyncio.get_running_loop()

        def point(leader: Leader | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(doors.point, leader)

        readings = _Readings(node, self._loaded, doors)
        node.on_leader, node.on_replica = point, readings.point
        node.doors = _doors(serving, self._advertised(doors.ports["native"]), self._name, doors.ports)
        self._announce_doors(doors.ports)
        try:
            if not await self._try_until_done(node.join):
                return None
            return await _aside(node.follow)
        finally:
            node.on_leader = lambda _: None
            node.on_replica = lambda _: None
            await doors.close()

    def _announce_doors(self, ports: dict[str, int]) -> None:
        serving = self._loaded.serving
        host, scheme = _in_url(serving.host), "headwaters" if serving.tls_certificate else "headwater"
        self._announce(f"{scheme}://{host}:{ports['native']}")
        if "mqtt" in ports:
            self._announce(f"mqtt://{_in_url(serving.mqtt_host or serving.host)}:{ports['mqtt']}")
        if "http" in ports:
            web = "https" if serving.tls_certificate else "http"
            self._announce(f"{web}://{_in_url(serving.http_host or serving.host)}:{ports['http']}")
        notify("READY=1")

    def _announce(self, url: str) -> None:
        """Tell of a door, once: it is at the same place whether this node leads or not."""
        if url not in self._told:
            self._told.add(url)
            self._tell(url)

    # Leading

    async def _lead(self, node: Node, mandate: Mandate) -> None:
        """Serve until another node is to lead, or the process is to end."""
        turn = _Turn(node, self._signals)
        successor = ""
        core: Core | None = None
        try:
            core = await _aside(lambda: Core(self._loaded.data, self._loaded.config, replication=mandate.replication))
            core.when_given_up(self._end.now)
            core.data.streams.on_bad = node.note_bad
            service = Service(core, self._loaded, self._announce, node)
            self._signals.on_reload = service.reload
            await service.start()
            node.opened()
            await turn.wait()
            successor = turn.successor or node.successor()
            log.info("leaving", planned=node.is_leading, next=successor or "-")
            await service.stop(self._elsewhere(node, successor))
        except Unavailable as error:
            log.warning("not-leading", reason=error.args[0])  # it is another's turn
        except Damaged as error:
            log.warning("not-leading", reason=error.args[0])
            node.note_damaged(str(error.args[0]))
        finally:
            self._signals.on_reload = lambda: None
            turn.end()
            if core is not None:
                if not node.is_leading:
                    await _aside(mandate.replication.keep)
                await _aside(core.close if node.is_leading else core.drop)
            await _aside(lambda: node.leave_lead(successor))

    def _elsewhere(self, node: Node, successor: str) -> Elsewhere | None:
        """Where clients find the node that leads next."""
        doors = node.doors_of(successor)
        return None if doors is None else Elsewhere(doors.native, doors.mqtt, doors.mqtts)


class _Readings:
    """What serves those who read at a node that follows."""

    def __init__(self, node: Node, loaded: Loaded, doors: Doors) -> None:
        self._node, self._loaded, self._doors = node, loaded, doors
        self._reading: Reading | None = None
        self._loop = asyncio.get_running_loop()

    def point(self, replica: Replica | None) -> None:
        """Serve what this folder has, and with None nothing any more; by the thread that follows, which waits."""
        if self._loaded.serving.tls_certificate:
            return  # nobody sees who only reads: they are passed on with everybody else
        try:
            asyncio.run_coroutine_threadsafe(self._point(replica), self._loop).result()
        except Exception:  # whatever keeps it from being read, the node follows
            log.error("readings-failed")

    async def _point(self, replica: Replica | None) -> None:
        self._doors.reads_at = None
        before, self._reading = self._reading, None
        if before is not None:
            await before.stop()
        if replica is not None:
            reading = await _aside(lambda: Reading(self._node, replica, self._loaded, self._node.note_bad))
            port, self._reading = await reading.start(), reading
            self._doors.before_reads = partial(_aside, reading.come)
            self._doors.reads_at = port


class _Turn:
    """One time of leading, until somebody says that it is over."""

    def __init__(self, node: Node, signals: Signals) -> None:
        self.successor = ""
        """Which node is to lead next, if that was said."""
        self._node, self._signals = node, signals
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        node.on_over = lambda _: self._end_soon("")
        node.on_step_down = self._end_soon
        signals.on_end = self._over.set

    def _end_soon(self, successor: str) -> None:
        """By any thread."""

        def end() -> None:
            self.successor = successor
            self._over.set()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(end)

    async def wait(self) -> None:
        """Return once it is over."""
        if self._node.is_leading and not self._signals.ended.is_set():
            await self._over.wait()

    def end(self) -> None:
        """Hear of nothing more."""
        self._node.on_over = self._node.on_step_down = lambda _: None
        self._signals.on_end = self._node.stop


def _doors(serving: Serving, advertised: str, node: str, ports: dict[str, int]) -> Leader:
    """Where clients find the doors of a node."""
    host = advertised.rpartition(":")[0]

    def at(name: str, listens: str) -> str:
        if name not in ports:
            return ""
        return f"{_in_url(listens) if listens and listens != serving.host else host}:{ports[name]}"

    return Leader(
        node=node,
        native=advertised,
        mqtt=at("mqtt", serving.mqtt_host),
        mqtts=at("mqtts", serving.mqtt_host),
        http=at("http", serving.http_host),
    )


def _at_ports(serving: Serving, ports: dict[str, int]) -> Serving:
    """Settings with the ports that were chosen at the start, which are kept."""
    names = {"native": "port", "mqtt": "mqtt_port", "mqtts": "mqtt_tls_port", "http": "http_port"}
    return msgspec.structs.replace(serving, **{names[door]: port for door, port in ports.items()})


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _aside(work: Callable[[], T]) -> T:
    """Have something done in a thread of its own, as it waits for disks and for other machines."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            loop.call_soon_threadsafe(_set, done.set_exception, done, error)
        else:
            loop.call_soon_threadsafe(_set, done.set_result, done, found)

    threads.Thread(target=run, name="headwater-node", daemon=True).start()
    return await done


def _set(call: Callable[[Any], None], done: asyncio.Future[Any], value: Any) -> None:
    if not done.done():
        call(value)
