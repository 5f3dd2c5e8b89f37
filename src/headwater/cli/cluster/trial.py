"""A cluster on this machine, to be tried: NATS servers and nodes, each a process of its own, below one folder."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from headwater import threads
from headwater.cli.cluster.reach import hush, wait_for
from headwater.cli.following import pause
from headwater.cli.nats_servers import NatsServers, free_ports
from headwater.clock import SECOND_US, SystemClock
from headwater.cluster.engine import Engine
from headwater.cluster.nats_engine import NatsEngine
from headwater.cluster.overview import Overview, look
from headwater.config import Clustering
from headwater.errors import Failed, Unavailable

SERVERS = 3
NATS_PORT, PORT, MQTT_PORT, HTTP_PORT = 4222, 7411, 1883, 7480
"""Of the first NATS server and the first node; the others have the ports above."""
START_S = 60.0
END_S = 10.0
LOG_LINES = 5


class Ports(msgspec.Struct, frozen=True):
    """Where one node listens."""

    native: int
    mqtt: int
    http: int


class Trial:
    """Some NATS servers and nodes; with its block, all of it is ended."""

    def __init__(
        self,
        folder: str,
        nodes: int = 3,
        *,
        usual_ports: bool = False,
        with_doors: bool = True,
        more: Sequence[str] = (),
    ) -> None:
        """`with_doors`: nodes serve MQTT and HTTP, too. `more` are further arguments of `headwater serve`."""
        self.folder = folder
        self.names = [f"n{place + 1}" for place in range(nodes)]
        self._with_doors = with_doors
        self.has_http = with_doors and find_spec("fastapi") is not None
        self._more = more
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hearing: dict[str, threads.Thread] = {}
        self._said: dict[str, deque[str]] = {name: deque(maxlen=LOG_LINES) for name in self.names}
        self._engine: NatsEngine | None = None
        self.servers = NatsServers(Path(folder), SERVERS)
        self.has_usual_ports = usual_ports and self._take_usual(nodes)
        if not self.has_usual_ports:
            free = free_ports(3 * nodes)
            places = range(nodes)
            self.ports = [Ports(free[place], free[nodes + place], free[2 * nodes + place]) for place in places]

    def _take_usual(self, nodes: int) -> bool:
        nats = [NATS_PORT + place for place in range(SERVERS)]
        self.ports = [Ports(PORT + place, MQTT_PORT + place, HTTP_PORT + place) for place in range(nodes)]
        wanted = [*nats, *(port for ports in self.ports for port in (ports.native, ports.mqtt, ports.http))]
        if not all(map(_is_free, wanted)):
            return False
        self.servers.ports = nats
        return True

    # Where it is

    @property
    def url(self) -> str:
        """For clients: all nodes."""
        return "headwater://" + ",".join(f"127.0.0.1:{ports.native}" for ports in self.ports)

    @property
    def nats_urls(self) -> str:
        """For commands, as --cluster takes them."""
        return ",".join(self.servers.urls)

    @property
    def engine(self) -> Engine:
        """For questions to nodes."""
        assert self._engine is not None
        return self._engine

    def leader(self) -> str:
        """Where the node that leads is found natively; raises `Unavailable` if none does."""
        found = look(self.engine).leader
        if found is None:
            raise Unavailable(f"nobody leads:\n{self.logs()}")
        return found.doors.native

    def stream_place(self) -> int:
        """Which of the NATS servers leads the stream."""
        assert self._engine is not None
        return int(self._engine.stream_leader().removeprefix("nats")) - 1

    def data(self, name: str) -> str:
        """A node's folder."""
        return f"{self.folder}/{name}"

    def pid(self, name: str) -> int:
        """A node's process."""
        return self._processes[name].pid

    def command(self, name: str) -> list[str]:
        """What starts a node."""
        ports = self.ports[self.names.index(name)]
        doors = ["--mqtt", "--mqtt-port", str(ports.mqtt), "--http", "--http-port", str(ports.http)]
        return [
            *("headwater", "serve", "--data", self.data(name), "--cluster", self.nats_urls, "--node", name),
            *("--port", str(ports.native), *(doors if self._with_doors else ["--no-mqtt", "--no-http"]), *self._more),
        ]

    # Its processes

    def start(self) -> Overview:
        """Have all of it run; Failed if it does not come about."""
        self.servers.start()
        self._reach()
        for name in self.names:
            self.start_node(name)
        found = wait_for(self.engine, lambda seen: seen.is_well() and len(seen.reports) == len(self.names), START_S)
        if found is None or not self._is_listening():
            raise Failed(f"the cluster did not come up within {START_S:.0f} s:\n{self.logs()}")
        return found

    def _is_listening(self) -> bool:
        """Whether all doors are open, once they are: that for HTTP is the last, as it is a process of its own."""
        if not self.has_http:
            return True
        clock = SystemClock()
        until_us = clock.monotonic_us() + round(START_S * SECOND_US)
        while any(_is_free(ports.http) for ports in self.ports):
            if clock.monotonic_us() > until_us:
                return False
            pause(0.1)
        return True

    def _reach(self) -> None:
        hush()
        clock = SystemClock()
        until_us = clock.monotonic_us() + round(START_S * SECOND_US)
        while self._engine is None:
            try:
                self._engine = NatsEngine(Clustering(cluster=self.servers.urls), "trial")
            except Unavailable:
                if clock.monotonic_us() > until_us:
                    raise
                pause(0.1)

    def start_node(self, name: str) -> None:
        """Start one."""
        process = self._processes[name] = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", *self.command(name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which ends them
        )
        assert process.stdout is not None
        hearing = self._hearing[name] = threads.Thread(target=self._hear, args=(name, process.stdout), daemon=True)
        hearing.start()

    def _hear(self, name: str, said: IO[bytes]) -> None:
        """Remember the end of what a node logs."""
        with said:
            for line in said:
                self._said[name].append(line.decode(errors="replace").rstrip())

    def kill_node(self, name: str) -> None:
        """End one without a word."""
        process = self._processes[name]
        process.kill()
        process.wait()

    def ended(self) -> list[str]:
        """Nodes that run no more."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def logs(self) -> str:
        """The ends of what the nodes have logged."""
        return "\n".join(f"{name}: {line}" for name in self.names for line in tuple(self._said[name]))

    def stop(self) -> None:
        """End all of it."""
        if self._engine is not None:
            self._engine.close()
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        # Those that end in order have the next lead, which nobody needs any more.
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait(END_S)
        for hearing in self._hearing.values():
            hearing.join(END_S)
        self.servers.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
