"""A broker to measure: a process of its own, on a folder of its own.

This module is also that process: `python -m headwater.cli.bench.served.broker FOLDER AUTH SETTINGS` serves the folder,
prints its ports (native, MQTT), and stops when its input ends.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

import headwater
from headwater.cli.temporary import temporary_folder
from headwater.config import Config, Serving
from headwater.errors import Failed
from headwater.store.files import DiskFiles

USER = "bench"
SECRET = "a secret for one run"  # noqa: S105  (of a server that lives as long as its measurement)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker is to have otherwise than by default."""

    config: dict[str, object] = {}
    serving: dict[str, object] = {}


DEFAULT = Settings()


class Broker:
    """A broker that runs, and what it costs the machine."""

    def __init__(self, process: subprocess.Popen[str], ports: str, folder: str) -> None:
        self._process = process
        self.port, self.mqtt_port = map(int, ports.split())
        self.folder = folder
        """For whatever is measured beside it, on the same disk."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Its memory, as the system counts it."""
        pages = self._read("statm").split()[1]
        return int(pages) * resource.getpagesize()

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        fields = self._read("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def _read(self, name: str) -> str:
        file = DiskFiles().open(f"/proc/{self.pid}/{name}", write=False)
        try:
            return file.pread(4096, 0).decode()
        finally:
            file.close()


class Spent:
    """Processor time that a broker spends while something is measured; nothing is known of one that runs elsewhere."""

    def __init__(self, broker: Broker | None) -> None:
        self._broker = broker
        self._before = broker.cpu_s if broker is not None else 0.0
        self._done = 0.0

    def add(self, done: float) -> None:
        """So much was done."""
        self._done += done

    def beside(self) -> tuple[float | None, str]:
        """What is done in a second of its processor time: a machine that is busy elsewhere does not change it."""
        if self._broker is None:
            return None, ""
        return self._done / max(self._broker.cpu_s - self._before, 1 / TICKS_PER_S), "in a second of its CPU"


@contextmanager
def running(
    place: str, auth: str = "none", settings: Settings = DEFAULT, prepare: Callable[[str], None] | None = None
) -> Iterator[Broker]:
    """A broker of its own, gone at the end; `prepare` gets the folder that it will serve."""
    raise_files_max()
    with temporary_folder(place, "headwater-bench") as folder:
        bus = f"{folder}/bus"
        if prepare is not None:
            prepare(bus)
        said_to_it = msgspec.json.encode(settings).decode()
        command = [sys.executable, "-m", "headwater.cli.bench.served.broker", bus, auth, said_to_it]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (our own module)
            assert process.stdout is not None
            assert process.stdin is not None
            said = process.stdout.readline()
            if not said:
                raise Failed("the broker that was to be measured did not start; what it says is above")
            try:
                yield Broker(process, said, folder)
            finally:
                process.stdin.close()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def raise_files_max() -> None:
    """Thousands of connections are thousands of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(folder: str, auth: str, settings: Settings) -> None:
    from headwater.mqtt.protocol import MqttProtocol
    from headwater.pacing import hand_over_sooner
    from headwater.server.memory import Collector, keep_what_is_freed
    from headwater.serving.composition import server_of

    with headwater.open(folder, msgspec.convert(settings.config, Config)) as bus:
        given = {
            "port": 0,
            "mqtt_port": 0,
            "mqtt_tls_port": 0,
            "auth": auth,
            "drain_s": 1.0,
            "connections_max": 20_000,
            "connections_per_address_max": 20_000,
            **settings.serving,
        }
        server = server_of(bus.core, msgspec.convert(given, Serving))
        await server.start()
        if auth != "none":
            bus.clients.add(USER, SECRET)
            bus.acl.allow(USER, "admin", "#")
            for action in ("publish", "subscribe", "create"):
                bus.acl.allow(USER, action, "#")
        Collector(asyncio.get_running_loop()).start()
        hand_over_sooner()
        keep_what_is_freed()
        mqtt = server.extension(MqttProtocol)
        await mqtt.listen()
        print(server.port, mqtt.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()


def _main(folder: str, auth: str, settings: str) -> None:
    raise_files_max()
    from headwater.serving.process import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(folder, auth, msgspec.json.decode(settings, type=Settings)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
