"""A cluster of real processes: NATS servers and nodes, which a test kills, stops, cuts off and starts again.

    with Rig(folder) as rig:
        leader = rig.leader()
        rig.kill_node(leader)
        rig.bus.publish("home/x", b"1")         # at whichever node leads by then

Nodes reach the NATS servers through proxies of their own, and these reach each other so, too: whoever is cut off has
open connections on which nothing comes any more.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

import headwater
from headwater.cli.nats_servers import NatsServers, free_ports
from headwater.cluster.digests import Digests
from headwater.cluster.members import Members, Report
from headwater.cluster.nats_engine import NatsEngine
from headwater.cluster.node import DIGESTS
from headwater.config import Clustering
from headwater.errors import HeadwaterError

PATIENCE_S = 90.0
NODES = 3
CHUNK_BYTES = 65_536


class CutServers(NatsServers):
    """NATS servers that reach each other through proxies."""

    def __init__(self, folder: Path, count: int = NODES) -> None:
        super().__init__(folder, count)
        self.proxies = {
            (one, other): Proxy(self._routes[other]) for one in range(count) for other in range(count) if one != other
        }

    def config(self, place: int, text: str) -> str:
        """A server's configuration, with the proxies in place of the others' addresses."""
        for (one, other), proxy in self.proxies.items():
            if one == place:
                text = text.replace(f"nats://127.0.0.1:{self._routes[other]}", f"nats://127.0.0.1:{proxy.port}")
        return text.replace("cluster {", "cluster {\n  no_advertise: true", 1)

    def cut(self, place: int, is_cut: bool) -> None:
        """Have nothing come to a server from the others any more, nor from it to them."""
        for pair, proxy in self.proxies.items():
            if place in pair:
                proxy.is_cut = is_cut

    def stop(self) -> None:
        super().stop()
        for proxy in self.proxies.values():
            proxy.close()


class Rig:
    """Three NATS servers and three nodes."""

    def __init__(self, folder: Path, *, lease_s: float = 3.0) -> None:
        self.folder = folder
        self.lease_s = lease_s
        self.servers = CutServers(folder)
        ports = free_ports(3 * NODES)
        self.ports, self.mqtt_ports, self.http_ports = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        self.proxies = [[Proxy(port) for port in self.servers.ports] for _ in range(NODES)]
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._engine: NatsEngine | None = None
        self._bus: headwater.Bus | None = None

    def __enter__(self) -> Rig:
        try:
            self.servers.start()
            for place in range(NODES):
                self.start_node(place)
            self.wait("a leader and its followers", self.is_whole)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        if self._bus is not None:
            self._bus.close()
        if self._engine is not None:
            self._engine.close()
        for process in self._nodes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.servers.stop()
        for proxies in self.proxies:
            for proxy in proxies:
                proxy.close()

    @property
    def url(self) -> str:
        """For clients: all nodes."""
        return "headwater://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def bus(self) -> headwater.Bus:
        """A client that knows all nodes."""
        if self._bus is None:
            self._bus = headwater.connect(self.url)
        return self._bus

    @property
    def engine(self) -> NatsEngine:
        """For questions to nodes, and about the stream."""
        if self._engine is None:
            self._engine = NatsEngine(Clustering(cluster=self.servers.urls, lease_s=self.lease_s), "rig")
        return self._engine

    # Nodes

    def name(self, place: int) -> str:
        return f"n{place + 1}"

    def start_node(self, place: int, *more: str, program: Sequence[str] = ("-m", "headwater")) -> None:
        urls = ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in self.proxies[place])
        with (self.folder / f"{self.name(place)}.log").open("ab") as log:
            self._nodes[place] = subprocess.Popen(
                [
                    *(sys.executable, *program, "serve", "--data", str(self.folder / self.name(place))),
                    *("--cluster", urls, "--node", self.name(place), "--port", str(self.ports[place])),
                    *("--mqtt-port", str(self.mqtt_ports[place]), "--http-port", str(self.http_ports[place])),
                    *("--set", "mqtt=true", "--set", "http=true"),
                    *("--set", f"lease_s={self.lease_s}", "--set", "disk_free_bytes_min=0", *more),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_node(self, place: int) -> None:
        process = self._nodes.pop(place)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def end_node(self, place: int) -> int:
        """As an operator does."""
        process = self._nodes.pop(place)
        process.terminate()
        return process.wait(PATIENCE_S)

    def pause_node(self, place: int, is_paused: bool) -> None:
        os.kill(self._nodes[place].pid, signal.SIGSTOP if is_paused else signal.SIGCONT)

    def cut_node(self, place: int, is_cut: bool) -> None:
        """Have nothing come to a node from the NATS servers any more, nor from it to them."""
        for proxy in self.proxies[place]:
            proxy.is_cut = is_cut

    def cut_server(self, place: int, is_cut: bool) -> None:
        """Have nothing come to a NATS server any more, from the others or from the nodes, nor from it to them."""
        self.servers.cut(place, is_cut)
        for proxies in self.proxies:
            proxies[place].is_cut = is_cut

    def pause_server(self, place: int, is_paused: bool) -> None:
        os.kill(self.servers.process(place).pid, signal.SIGSTOP if is_paused else signal.SIGCONT)

    # What is so

    def reports(self) -> dict[str, Report]:
        """What those nodes say that answer."""
        members = Members(self.engine)
        try:
            return members.reports([self.name(place) for place in range(NODES)])
        finally:
            members.close()

    def leader(self) -> int:
        """The place of the node that leads, once one does."""
        return self.wait("a leader", self.leads)

    def leads(self) -> int | None:
        """Which node leads, if just one does."""
        leading = [name for name, report in self.reports().items() if report.role == "leading" and not report.trouble]
        return int(leading[0][1:]) - 1 if len(leading) == 1 else None

    def is_whole(self) -> bool:
        """Whether all are there, one leads, and the others follow."""
        roles = sorted(report.role for report in self.reports().values() if not report.trouble)
        return roles == ["following", "following", "leading"]

    def wait(self, what: str, look: Callable[[], int | None], patience_s: float = PATIENCE_S) -> int:
        """What `look` finds, once that is neither None nor False."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            try:
                found = look()
            except (HeadwaterError, OSError):
                found = None
            if found is not None and found is not False:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {patience_s} s\n{self.logs()}")

    def logs(self) -> str:
        """The ends of what the nodes have logged."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("n?.log")))

    def log(self, place: int) -> str:
        """What a node has logged, since its folder was made."""
        return (self.folder / f"{self.name(place)}.log").read_text()

    def stream_place(self) -> int:
        """Which of the NATS servers leads the stream."""
        return int(self.engine.stream_leader().removeprefix("nats")) - 1

    def digests(self) -> list[Digests]:
        """What all nodes have, once all stand at the same record."""

        def look() -> bool:
            found.clear()
            for place in range(NODES):
                answer = self.engine.ask(self.name(place), DIGESTS, b"", 60.0)
                found.append(msgspec.msgpack.decode(answer, type=Digests))
            return len({digests.position for digests in found}) == 1

        found: list[Digests] = []
        self.wait("all nodes at one record", look)
        return found


class Proxy:
    """Passes connections of loopback on, until it is cut: then they stay open, and nothing comes any more."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_cut = False
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._waiting: dict[socket.socket, deque[bytes]] = {}
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            if self.is_cut:
                time.sleep(0.02)
                continue
            for key, _ in self._selector.select(0.1):
                if self.is_cut:
                    break
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._listener:
                    self._accept()
                else:
                    self._pass_on(one)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._to), timeout=2)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.settimeout(5)
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(CHUNK_BYTES)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (one, other):
            self._selector.unregister(end)
            del self._pairs[end]
            end.close()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(5)
        for one in (self._listener, *self._pairs):
            one.close()
        self._selector.close()


def retried(work: Callable[[], object], patience_s: float = PATIENCE_S) -> object:
    """What it answers, once it does: whoever is told 503 asks again."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return work()
        except HeadwaterError as error:
            if not error.retryable or time.monotonic() > until:
                raise
            time.sleep(0.05)
