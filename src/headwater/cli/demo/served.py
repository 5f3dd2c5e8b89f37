"""The act of the demo in which the bus is served: clients come and go, the server is killed, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict

from rich.table import Table

import headwater
from headwater import Closed, HeadwaterError
from headwater.cli.demo.stage import Stage, meter, pairs
from headwater.cli.demo.thermostat import wait_until
from headwater.cli.following import pause

ROOT = "fleet"
TRUCKS = 4
DRIVER = "dispatcher"
LIMIT_S = 60.0


class Served:
    """A `headwater serve` process, on a port that stays when it is started again."""

    def __init__(self, folder: str, *, with_http: bool = False) -> None:
        self._folder = folder
        self._port = 0
        self._with_http = with_http
        self.http_url = ""
        """Of the API and the dashboard."""
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"headwater://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Have it listen."""
        command = [sys.executable, "-m", "headwater", "serve", "--data", self._folder, "--port", str(self._port)]
        doors = ["--no-mqtt", *(["--http-port", "0"] if self._with_http else ["--no-http"])]
        self.process = subprocess.Popen(  # noqa: S603  (our own module)
            [*command, *doors, "--log-level", "error"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            where = line.split()[-1]
            if where.startswith("headwater://"):
                self._port = int(where.rpartition(":")[2])
            elif where.startswith("http"):
                self.http_url = where
            if where.startswith("http" if self._with_http else "headwater://"):
                return
        raise Closed("the demo's server did not start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end; it finishes what is under way."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


class Truck(threading.Thread):
    """A client that reports where it is, one message after another, whatever happens to the server."""

    def __init__(self, number: int, url: str, count: int) -> None:
        super().__init__(name=f"truck-{number}", daemon=True)
        self.topic = f"{ROOT}/truck{number}/position"
        self.acknowledged = 0
        self._url = url
        self._count = count

    def run(self) -> None:
        """Publish all of them; each returns once it is on the server's disk."""
        with headwater.connect(self._url) as bus:
            for position in range(1, self._count + 1):
                bus.publish(self.topic, b"%d" % position)
                self.acknowledged = position


class Dispatcher(threading.Thread):
    """A client with a durable subscription; from time to time it leaves, and comes back as a new one."""

    def __init__(self, url: str, total: int) -> None:
        super().__init__(name="dispatcher", daemon=True)
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self.visits = 0
        self._url = url
        self._total = total

    def run(self) -> None:
        """Take until everything has come."""
        while self.count < self._total:
            try:
                self._visit(self.count + self._total // 3)
            except HeadwaterError:
                pause(0.1)  # the server is down

    def _visit(self, upto: int) -> None:
        with (
            headwater.connect(self._url) as bus,
            bus.subscribe(f"{ROOT}/#", id=DRIVER, start="earliest", max_in_flight=500) as sub,
        ):
            self.visits += 1
            while self.count < min(upto, self._total):
                messages = sub.batch(100, timeout_s=1)
                for message in messages:
                    position = int(message.payload)
                    seen = self.seen[message.topic]
                    if not seen or position > seen[-1]:  # what was not acked when the server died comes again
                        seen.append(position)
                        self.count += 1
                sub.ack(messages)


def serve(stage: Stage, folder: str, each: int) -> None:
    """Serve, kill, serve again; then look whether anything is missing or there twice."""
    stage.act(
        "Served",
        f"`headwater serve` puts the folder behind a port. {TRUCKS} trucks publish over TCP, a dispatcher comes and "
        "goes, and the server is killed with -9 in the middle, twice. The clients reconnect by themselves.",
    )
    server = Served(folder)
    server.start()
    total = TRUCKS * each
    trucks = [Truck(number, server.url, each) for number in range(TRUCKS)]
    dispatcher = Dispatcher(server.url, total)
    killed = 0

    def show() -> Table:
        return pairs(
            *((truck.name, meter(truck.acknowledged, each)) for truck in trucks),
            ("dispatcher", meter(dispatcher.count, total)),
            ("server", f"killed {killed} times" if killed else "up"),
        )

    try:
        with stage.moving(show):
            for client in (*trucks, dispatcher):
                client.start()
            for share in (1, 2):
                wait_until(lambda share=share: sum(t.acknowledged for t in trucks) > share * total // 3, LIMIT_S)  # type: ignore[misc]  # bound by default
                server.kill()
                killed += 1
                pause(0.2)
                server.start()
            arrived = wait_until(lambda: dispatcher.count >= total, LIMIT_S)
            for truck in trucks:
                truck.join(LIMIT_S)
        _check(stage, server.url, trucks, dispatcher, arrived, each)
    finally:
        server.stop()
    stage.figure("published over TCP, through two kills of the server", f"{total:,}")


def _check(stage: Stage, url: str, trucks: list[Truck], dispatcher: Dispatcher, arrived: bool, each: int) -> None:
    everything = list(range(1, each + 1))
    stored: dict[str, list[int]] = defaultdict(list)
    with headwater.connect(url) as bus:
        for message in bus.replay(f"{ROOT}/#"):
            stored[message.topic].append(int(message.payload))
    stage.check(
        f"each truck's {each:,} positions are stored once, in order, although the server died twice under them",
        all(truck.acknowledged == each and stored[truck.topic] == everything for truck in trucks),
    )
    stage.check(
        f"the dispatcher got every one of them in order, over {dispatcher.visits} visits, and missed none",
        arrived and all(dispatcher.seen[truck.topic] == everything for truck in trucks),
    )
