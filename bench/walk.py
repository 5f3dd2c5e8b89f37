"""The way of a message through the code: every call of it, in order, with its module.

    PYTHONPATH=src python bench/walk.py               # embedded publish, native publish, MQTT QoS 1 to QoS 1
    PYTHONPATH=src python bench/walk.py embedded

A call is a Python frame of `src/headwater`, uncompiled. What is shown is the second message of its kind, by which time
topics, roots and caches are warm. docs/contribute/architecture.md has the figures.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import headwater
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.config import Serving
from headwater.core import Core
from headwater.mqtt.protocol import MqttProtocol
from headwater.server.server import Server
from headwater.serving.composition import server_of

SOURCE = str(Path(headwater.__file__).parent)
PULSE = str(Path(headwater.__file__).parent / "server" / "watch" / "pulse.py")
"""What beats four times a second, whatever the messages do."""
QUIET_S = 0.3
"""After so long nothing of a message is under way any more."""
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01"
SUBSCRIBE = b"\x82\x0b\x00\x01\x00\x06home/x\x01"


class Walk:
    """Calls of the package, as long as it is on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.is_on = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Of `sys.setprofile`."""
        if event == "call" and self.is_on and frame.f_code.co_filename.startswith(SOURCE):
            module = frame.f_code.co_filename[len(SOURCE) + 1 :].removesuffix(".py")
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
            is_of_a_timer = PULSE in (frame.f_code.co_filename, caller)
            if not (frame.f_code.co_name.startswith("<") or is_of_a_timer):
                self.calls.append((module, frame.f_code.co_qualname))

    def tell(self, name: str) -> None:
        """Say what was walked."""
        modules = list(dict.fromkeys(module for module, _ in self.calls))
        print(f"{name}: {len(self.calls)} calls in {len(modules)} modules")
        for module, call in self.calls:
            print(f"    {module:28} {call}")


def embedded(walk: Walk) -> None:
    """`bus.publish`, from the call to its receipt, which is durable."""
    with headwater.open(":memory:") as bus:
        bus.publish("home/x", b"1")
        walk.is_on = True
        bus.publish("home/x", b"2")
        walk.is_on = False


@contextmanager
def served(walk: Walk) -> Iterator[Server]:
    """A server whose loop is walked; a small publish that comes alone is committed there, too."""
    ready, over = threading.Event(), asyncio.Event()
    found: list[Server] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        with Core(":memory:") as core:
            server = server_of(core, Serving(port=0, mqtt_port=0, http=False))
            await server.start()
            await server.extension(MqttProtocol).listen()
            found.append(server)
            loops.append(asyncio.get_running_loop())
            sys.setprofile(walk.note)
            ready.set()
            await over.wait()
            sys.setprofile(None)
            await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()


def native(walk: Walk) -> None:
    """A PUBLISH frame, from its bytes to those of PUBLISHED."""
    with served(walk) as server:
        client = Raw(("127.0.0.1", server.port))
        for number in (1, 2, 3):
            time.sleep(QUIET_S)
            walk.is_on = number == 3
            client.socket.sendall(publish_frame([("home/x", b"1")], SystemClock().now_us(), number))
            client.read()
            walk.is_on = False
        client.close()


def mqtt(walk: Walk) -> None:
    """A PUBLISH of QoS 1, from its bytes to PUBACK, to a subscriber of QoS 1, and its PUBACK till that is stored."""
    with served(walk) as server:
        port = server.extension(MqttProtocol).port
        with socket.create_connection(("127.0.0.1", port)) as one, socket.create_connection(("127.0.0.1", port)) as two:
            for client, name in ((one, b"a"), (two, b"b")):
                client.sendall(CONNECT + name)
                client.recv(100)
            two.sendall(SUBSCRIBE)
            two.recv(100)
            for number in (1, 2, 3):
                time.sleep(QUIET_S)
                walk.is_on = number == 3
                one.sendall(b"\x32\x0b\x00\x06home/x\x00" + bytes((number,)) + b"1")
                one.recv(100)
                got = two.recv(100)
                two.sendall(b"\x40\x02" + got[10:12])
                time.sleep(QUIET_S)
                walk.is_on = False


WALKS = {"embedded": embedded, "native": native, "mqtt": mqtt}

if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        walk = Walk()
        if name == "embedded":
            sys.setprofile(walk.note)
        WALKS[name](walk)
        sys.setprofile(None)
        walk.tell(name)
