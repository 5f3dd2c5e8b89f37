"""The process that serves: it opens the folder, listens, hears signals, and ends in order.

SIGTERM, SIGINT   takes no more connections, finishes what is under way, tells the clients, ends with code 0;
                  a second one ends it at once, with 128 + the signal
SIGHUP            reads certificates, clients and rules anew; what is wrong is logged, and the old ones stay

A process without memory to store with ends with a sentence and code 71: the remedy is to start it again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from headwater.config import Serving
from headwater.core import Core
from headwater.errors import Conflict, Failed, HeadwaterError
from headwater.log.group_commit import NO_THREAD, OUT_OF_MEMORY
from headwater.mqtt.protocol import MqttProtocol
from headwater.pacing import hand_over_sooner
from headwater.server.descriptors import fit
from headwater.server.exposure import check_exposure, is_loopback
from headwater.server.issuer import check_keys
from headwater.server.log import Log, configure
from headwater.server.memory import Collector, keep_what_is_freed
from headwater.server.server import Server
from headwater.server.tls import open_tls
from headwater.serving.composition import server_of
from headwater.serving.sidecar import Sidecar
from headwater.serving.whereabouts import Whereabouts
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
    loaded = fit(loaded)
    check_keys(loaded.serving)
    open_tls(loaded.serving)  # so that a wrong file is told before a folder is opened, and perhaps repaired, for it
    end = Ending(loaded.process.log_json)
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
    serving = loaded.serving
    server = server_of(core, serving, loaded)
    whereabouts = Whereabouts(server)

    def tell(url: str) -> None:
        whereabouts.note(url)
        announce(url)

    sidecar = Sidecar(server, loaded, tell)
    signals = Signals(server, sidecar)
    try:
        await server.start()
    except HeadwaterError as error:
        if isinstance(error.__cause__, OSError):
            raise _unable_to_listen(error.__cause__, serving, is_socket=server.port != 0) from None
        raise
    signals.listen()
    Collector(asyncio.get_running_loop()).start()
    hand_over_sooner()
    keep_what_is_freed()
    _warn_of_plain_text(serving)
    await whereabouts.begin()
    tell(server.url)
    if serving.mqtt:
        await _listen_mqtt(server.extension(MqttProtocol), tell)
    notify("READY=1")
    await sidecar.start()
    await signals.ended.wait()
    notify("STOPPING=1")
    whereabouts.end()
    await sidecar.stop()
    log.info("draining", seconds_max=serving.drain_s)
    try:
        await server.drain()
    except Exception:  # the rest of the end is due all the same
        log.error("drain-failed")
    await server.stop()
    log.info("stopped")
    return 0


async def _listen_mqtt(mqtt: MqttProtocol, announce: Callable[[str], None]) -> None:
    """Serve MQTT; whoever came for the rest is served though the port is taken."""
    try:
        await mqtt.listen()
    except OSError as error:
        advice = "end who has the port, use --mqtt-port (0: a free one), or --no-mqtt"
        log.warning("mqtt-failed", reason=error.strerror or str(error), advice=advice)
    for url in mqtt.urls:
        announce(url)


class Signals:
    """What signals ask of the server."""

    def __init__(self, server: Server, sidecar: Sidecar) -> None:
        self._server = server
        self._sidecar = sidecar
        self.ended = asyncio.Event()

    def listen(self) -> None:
        """From now on signals are heard."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _end(self, number: int) -> None:
        if self.ended.is_set():
            # What was acked is on disk; everything else may be lost by whoever asks twice.
            log.warning("ended-at-once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        log.info("signal", signal=signal.Signals(number).name)
        self.ended.set()

    def _reload(self) -> None:
        try:
            is_whole = self._server.reload()
            if is_whole:
                self._sidecar.reload()
        except Exception:  # whatever a file or a row holds, those who are connected stay so
            log.error("reload-failed")
        else:
            log.info("reloaded", certificates="new" if is_whole else "kept")


def _unable_to_listen(error: OSError, serving: Serving, is_socket: bool) -> HeadwaterError:
    """What to do about it; once there is a port, it was the Unix socket."""
    if is_socket:
        why = error.strerror or str(error)
        return Failed(f'cannot listen on the socket "{serving.unix_path}": {why}; use a short path in a folder of ours')
    where = f"port {serving.port} of {serving.host}"
    match error.errno:
        case errno.EADDRINUSE:
            return Conflict(f"{where} is in use, perhaps by another headwater; end that, or use --port (0: a free one)")
        case errno.EACCES | errno.EPERM:
            return Failed(f"{where} is not open to this user; use a port from 1024 up")
        case errno.EADDRNOTAVAIL:
            return Failed(f"{serving.host} is no address of this machine; use one that it has with --host")
        case _:
            return Failed(f"cannot listen on {where}: {error.strerror or error}")


def _warn_of_plain_text(serving: Serving) -> None:
    advice = "what is sent can be read on the way; give --tls-certificate"
    if serving.tls_certificate:
        # The port of MQTT without TLS is on loopback, unless somebody says where it is to be.
        hosts = {serving.mqtt_host} if serving.mqtt and serving.mqtt_host else set()
        advice = "MQTT without TLS can be read on the way; leave mqtt_host out, and it is on loopback alone"
    else:
        hosts = {serving.host}
        hosts |= {serving.http_host or serving.host} if serving.http else set()
        hosts |= {serving.mqtt_host or serving.host} if serving.mqtt else set()
    for host in sorted(hosts):
        if host != "localhost" and not is_loopback(host):
            log.warning("plain-text", host=host, advice=advice)


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
