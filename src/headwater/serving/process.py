"""The process that serves: it opens the folder, listens, hears signals, and ends in order.

SIGTERM, SIGINT   takes no more connections, finishes what is under way, tells the clients, ends with code 0;
                  a second one ends it at once, with 128 + the signal
SIGHUP            reads certificates, clients and rules anew; what is wrong is logged, and the old ones stay

A process without memory to store with ends with a sentence and code 71: the remedy is to start it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from headwater.core import Core
from headwater.log.group_commit import NO_THREAD, OUT_OF_MEMORY
from headwater.pacing import hand_over_sooner
from headwater.server.descriptors import fit
from headwater.server.exposure import check_exposure
from headwater.server.issuer import check_keys
from headwater.server.log import Log, configure
from headwater.server.memory import Collector, keep_what_is_freed
from headwater.server.tls import open_tls
from headwater.serving.pipelines import check_pipelines
from headwater.serving.service import Service
from headwater.settings import Loaded
from headwater.store.files import write_to_stderr

GIVEN_UP = 71
"""The exit code (EX_OSERR) of a process that the system gave too little to go on with: one that is worth a restart, as
2 is not."""

log = Log("headwater.server.process")


def run(loaded: Loaded, announce: Callable[[str], None]) -> int:
    """Serve until a signal comes; `announce` gets the URL once clients may come. The exit code."""
    configure(loaded.process.log_json, loaded.process.log_level)
    # Asked to reload before there is anything to: that is done, not a reason to die of, as it would be by default.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    check_exposure(loaded.serving)
    check_pipelines(loaded.serving.pipelines)
    loaded = fit(loaded)
    check_keys(loaded.serving)
    open_tls(loaded.serving)  # so that a wrong file is told before a folder is opened, and perhaps repaired, for it
    end = Ending(loaded.process.log_json)
    if loaded.clustering.cluster:
        from headwater.serving.clustered import run_node  # which takes part in a cluster, and a server does not

        return run_node(loaded, announce, end)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner, Core(loaded.data, loaded.config) as core:
            core.when_given_up(end.now)
            return runner.run(_serve(core, loaded, announce))
    except MemoryError:
        end.now(OUT_OF_MEMORY)
        raise


class Ending:
    """The end of a process that can store nothing any more: a sentence, and no more than that is tried."""

    def __init__(self, as_json: bool) -> None:
        # Made while there is memory.
        self._lines = {reason: self._line(reason, as_json) for reason in (OUT_OF_MEMORY, NO_THREAD)}

    @staticmethod
    def _line(reason: str, as_json: bool) -> bytes:
        if as_json:
            return msgspec.json.encode({"level": "critical", "event": "given-up", "reason": reason}) + b"\n"
        return f"headwater: {reason}\n".encode()

    def now(self, reason: str) -> None:
        """Say why, and end. What was acked is on disk; whoever waits for more is told by the closing connection."""
        try:
            write_to_stderr(self._lines[reason])
        finally:
            os._exit(GIVEN_UP)


def loop_factory() -> Any:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(core: Core, loaded: Loaded, announce: Callable[[str], None]) -> int:
    signals = Signals()
    service = Service(core, loaded, announce, None)
    signals.on_reload = service.reload

    def begin() -> None:
        signals.listen()
        settle()

    await service.start(begin)
    notify("READY=1")
    await signals.ended.wait()
    notify("STOPPING=1")
    await service.stop()
    log.info("stopped")
    return 0


class Signals:
    """What signals ask of the process."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None
        """Called once with the first of those that end it."""
        self.on_reload: Callable[[], None] = lambda: None
        """What SIGHUP asks for."""

    def listen(self) -> None:
        """From now on signals are heard."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        self.on_reload()

    def _end(self, number: int) -> None:
        if self.ended.is_set():
            # What was acked is on disk; everything else may be lost by whoever asks twice.
            log.warning("ended-at-once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        log.info("signal", signal=signal.Signals(number).name)
        self.ended.set()
        self.on_end()


def settle() -> None:
    """Have the process as one that serves for days: its garbage collector, its threads and its memory."""
    Collector(asyncio.get_running_loop()).start()
    hand_over_sooner()
    keep_what_is_freed()


def notify(state: str) -> None:
    """Tell systemd, where it started us and wants to know (sd_notify)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
    except OSError as error:
        log.warning("notify-failed", reason=error)
