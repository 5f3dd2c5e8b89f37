"""A server in a process of its own, which comes back at the same address after it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import headwater
from server.site import free_port

WAIT_S = 60.0


class Server:
    """`headwater serve` on a folder; with a user, its secret is in the address, and it may do everything."""

    def __init__(self, folder: Path, user: str = "", secret: str = "", settings: Sequence[str] = ()) -> None:
        self._held = ExitStack()
        self.port = self._held.enter_context(free_port())
        self.folder = folder
        self._command = [sys.executable, "-m", "headwater", "serve", "--data", str(folder), "--port", str(self.port)]
        for setting in settings:
            self._command += ["--set", setting]
        self.url = f"headwater://127.0.0.1:{self.port}"
        if user:
            self._command += ["--auth", "scram"]
            self.url = f"headwater://{user}:{secret}@127.0.0.1:{self.port}"
            with headwater.open(folder) as bus:
                bus.clients.add(user, secret)
                for action in ("publish", "subscribe", "create"):
                    bus.acl.allow(user, action, "#")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline()  # clients may connect

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def payloads(self, filter: str) -> list[bytes]:
        with headwater.connect(self.url) as bus:
            return [message.payload for message in bus.replay(filter)]

    def count(self, filter: str) -> int:
        with headwater.connect(self.url) as bus:
            return sum(one.messages for one in bus.topics(filter))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._held.close()


def workers(driver: int | None = None) -> set[int]:
    """The Python workers of a driver's Spark (this process's, if none is named): leaves below `pyspark.daemon`."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    top = os.getpid() if driver is None else driver
    found = {child for child in parents if b"pyspark.daemon" in _command(child) and top in _above(child, parents)}
    return {child for child in found if parents[child] in found}


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _above(process: int, parents: dict[int, int]) -> set[int]:
    above = set()
    while process in parents:
        process = parents[process]
        above.add(process)
    return above


def wait_until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    until_s = monotonic() + wait_s
    while not condition():
        assert monotonic() < until_s, f"{what}: not after {wait_s} s"
        sleep(0.1)
