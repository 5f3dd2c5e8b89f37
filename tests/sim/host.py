"""The machine that the server runs on: its disk, its state, its clock, and the lives of the server one after another.

The server is started and stopped as `headwater serve` does it; whatever else happens to it comes through its doors.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from faults.faulty_files import Crash, FaultyFiles, Keep
from faults.faulty_state import FaultyState
from headwater.access.acl import ACTIONS
from headwater.bus import Bus
from headwater.config import Config, Serving
from headwater.errors import HeadwaterError
from headwater.mqtt.protocol import MqttProtocol
from headwater.serving.composition import server_of
from headwater.settings import given
from sim.green import Threads
from sim.judge import Judge
from sim.loop import Loop
from sim.network import Network
from sim.world import SECOND_US, Clock, Process, World

FOLDER = "data"
PORT, MQTT_PORT = 7411, 1883
PROGRAM, DEVICE, SECRET = "program", "device", "a secret of a story"
WALL_US = 1_700_000_000 * SECOND_US
KEEPS: tuple[Keep, ...] = ("none", "all", "random", "prefix")
AGAIN_US = (5_000, 100_000, 1_500_000)
"""After so long it is started again."""
RESTART_US = (100_000, 1_000_000, 8_000_000)
"""After so long somebody ends a server whose disk has failed."""
STOP_S_MAX = 120.0
"""By then a server that was told to stop has stopped."""


class Host:
    """Where the server lives."""

    def __init__(
        self, world: World, network: Network, threads: Threads, judge: Judge, config: Config, serving: Serving
    ) -> None:
        self.world = world
        self.network = network
        self.threads = threads
        self.judge = judge
        self.config = config
        self.serving = serving
        self._settings = given(config, serving, FOLDER)
        self.files = FaultyFiles()
        self.state = FaultyState()
        self.rng = random.Random(world.rng.getrandbits(64))
        self.process: Process | None = None
        self.is_up = False
        """Whether it listens."""
        self.is_troubled = False
        """Whether its disk failed or was full, in this life: then it may refuse what it is asked."""
        self.slowness = 1.0
        self.before_next: Callable[[], None] | None = None
        """Done while the server is down, the next time that it is."""
        self.syncs_left = -1
        """How many syncs there will be before the power is gone; negative: it stays."""
        self.was_troubled = False
        """Whether they ever did, in this story."""
        self.lives = 0
        self.wall_us = WALL_US
        self.was_set = False
        """Whether its clock was set by more than what counts at once."""
        self.is_off = False
        """Whether it was set at all."""
        self.furthest_us = WALL_US
        """Where its clock was at most: by then everything is due that was due by it."""
        self._stopping: asyncio.Event | None = None
        self._loop: Loop | None = None
        self._wire()
        world.excuses = self._excuses

    def _excuses(self, process: Process, error: BaseException | None) -> bool:
        """What comes out of a server whose disk has failed."""
        return process is self.process and self.is_troubled and isinstance(error, HeadwaterError | OSError)

    def _wire(self) -> None:
        self.files.on_sync = lambda path, _: self._on_sync(path)
        self.state.on_sync = lambda _: self._on_sync("state")

    def _on_sync(self, what: str) -> None:
        world = self.world
        world.note(f"sync {what}")
        if self.syncs_left >= 0:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                self.world.reach("fault: power lost at a sync")
                self.lose_power()
                raise Crash
        rng = world.rng
        took_us = rng.randint(60, 400) if rng.random() < 0.97 else rng.randint(400, 60_000)
        world.pause(int(took_us * self.slowness))

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and not self.process.is_dead

    # Lives

    def start(self) -> None:
        """A new life; it may take a while until it listens, or end before."""
        if self.is_alive:
            return
        self.lives += 1
        self.is_up = False
        process = self.process = Process(self.world, f"server{self.lives}", self.wall_us)
        loop = self._loop = Loop(process, self.network, self.threads)
        self._stopping = asyncio.Event()
        process.spawn(lambda: self._live(process, loop), "main")
        self.world.note(f"start {process.name}")

    def _live(self, process: Process, loop: Loop) -> None:
        try:
            loop.run(self._serve(process))
        except (HeadwaterError, OSError, Crash) as error:
            self.world.note(f"{process.name} ended: {error!r}")
            self.judge.expect(self.is_troubled or process.is_dead, f"{process.name} ended by itself: {error!r}")
        self.is_up = False
        self._after_exit(process)

    async def _serve(self, process: Process) -> None:
        assert self._stopping is not None
        clock = Clock(process)
        bus = Bus(FOLDER, self.config, files=self.files, state=self.state, clock=clock)
        is_killed = False
        try:
            self._grant(bus)
            server = server_of(bus.core, self.serving, self._settings)
            await server.start()
            await server.extension(MqttProtocol).listen()
            self.is_up = True
            self.world.reach("server: listens")
            await self._stopping.wait()
            await server.stop()
        except GeneratorExit:  # what a kill has left is collected
            is_killed = True
            raise
        finally:
            if not is_killed:
                bus.close()
        self.world.reach("server: stopped in good order")

    def _grant(self, bus: Bus) -> None:
        """Where it asks who comes: programs may everything, devices all but the root c."""
        if self.serving.auth == "none":
            return
        if self.serving.auth == "scram":
            known = {client.name for client in bus.clients.list()}
            for user in (PROGRAM, DEVICE):
                if user not in known:
                    bus.clients.add(user, SECRET)
        for action in ACTIONS:
            bus.acl.allow(PROGRAM, action, "#")
        for root in ("a", "b"):
            for action in ACTIONS[:3]:
                bus.acl.allow(DEVICE, action, f"{root}/#")

    def _after_exit(self, process: Process) -> None:
        """The last thread of a process goes: nothing of it is left, and the next finds the disk as it left it."""

        def bury() -> None:
            process.kill()
            if self.process is process:
                self._next(self.files.process_kill(), self.state.process_kill())

        self.world.after(1, bury)

    def stop(self) -> None:
        """SIGTERM."""
        process, loop = self.process, self._loop
        if process is None or process.is_dead or not self.is_up or loop is None or self._stopping is None:
            return
        self.world.reach("fault: server stopped")
        loop.post(self._stopping.set)

        def late() -> None:
            self.judge.expect(process.is_dead or self.is_troubled, f"{process.name} was told to stop, and did not")

        self.world.after(int(STOP_S_MAX * SECOND_US), late)

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive and self.process is not None:
            self.world.reach("fault: server killed")
            self.world.note("kill server")
            process = self.process
            process.on_death.append(lambda: self._next(self.files.process_kill(), self.state.process_kill()))
            process.kill()

    def lose_power(self) -> None:
        """The machine goes dark; disk and state keep what they please of what was not synced."""
        if self.is_alive and self.process is not None:
            self.world.reach("fault: power lost")
            self.world.note("power lost")
            rng = self.rng
            disk, state = rng.choice(KEEPS), rng.choice(KEEPS)
            process = self.process
            process.on_death.append(lambda: self._next(self.files.crash(rng, disk), self.state.crash(rng, state)))
            process.kill(power=True)

    def _next(self, files: FaultyFiles, state: FaultyState) -> None:
        self.files, self.state = files, state
        if self.rng.random() < 0.5:
            files.capacity_bytes = None
        self.is_up = False
        self.is_troubled = files.capacity_bytes is not None
        self.syncs_left = -1
        self.process = None
        self._wire()
        before, self.before_next = self.before_next, None
        if before is not None:
            before()
        self.world.after(self.rng.choice(AGAIN_US), self.start)

    # What its disk does

    def rot(self) -> None:
        """A bit of a message that was stored turns over, while the server is down."""
        paths = [
            f"{FOLDER}/streams/{folder}/{name}"
            for folder in self.files.list(f"{FOLDER}/streams")
            if "=24" not in folder  # what begins with $ is the server's own
            for name in self.files.list(f"{FOLDER}/streams/{folder}")
            if name.endswith(".log")
        ]
        if paths:
            path = self.rng.choice(paths)
            written = len(self.files.durable(path).rstrip(b"\0"))
            if written:
                self.files.flip(path, self.rng.randrange(written), self.rng.randrange(8))
                self.world.reach("fault: a bit turned over")
                self.world.note(f"rot {path}")

    def heal(self) -> None:
        """The disk has room again, and fails no more; what has failed in this life stays so."""
        files = self.files
        files.capacity_bytes = files.fail_sync_at = files.fail_write_at = files.short_write_at = None
        self.state.fail_sync_at = None
        self.slowness = 1.0
        self.syncs_left = -1

    def trouble(self, cause: Callable[[], None], kind: str) -> None:
        """Something is wrong with the disk from now on."""
        if self.is_alive:
            self.is_troubled = self.was_troubled = True
            self.world.reach(f"fault: {kind}")
            self.world.note(kind)
            cause()
            process = self.process

            def restart() -> None:
                if self.process is process:
                    self.kill()

            self.world.after(self.rng.choice(RESTART_US), restart)

    def fill(self, left_bytes: int) -> None:
        """So much room is left."""
        files = self.files
        files.capacity_bytes = 1 << 40
        files.capacity_bytes -= files.free_bytes("") - left_bytes

    def jump(self, seconds: float) -> None:
        """Somebody sets the machine's clock."""
        self.wall_us += int(seconds * SECOND_US)
        self.furthest_us = max(self.furthest_us, self.wall_us)
        self.was_set = self.was_set or abs(seconds) > 60
        self.is_off = self.is_off or bool(seconds)
        if self.process is not None:
            self.process.wall_us = self.wall_us
