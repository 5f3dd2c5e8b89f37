"""A process that was started here, with all that it started: what it costs, and its end."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
END_S = 10.0


class Process:
    """A process and its descendants, all of them ended by their ids."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.log = folder / f"{Path(command[0]).name}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the bench, which then ends its brokers
            )

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def ids(self) -> list[int]:
        """Its own, and those of its descendants."""
        return descent(self._popen.pid) if self.is_running else []

    @property
    def resident_bytes(self) -> int:
        pages = sum(int(fields[1]) for fields in self._fields("statm"))
        return pages * resource.getpagesize()

    @property
    def cpu_s(self) -> float:
        """Processor time that they have used so far."""
        ticks = sum(int(fields[13]) + int(fields[14]) for fields in self._fields("stat"))
        return ticks / TICKS_PER_S

    def send(self, number: signal.Signals) -> None:
        for each in self.ids:
            try:
                os.kill(each, number)
            except ProcessLookupError:  # it has ended meanwhile
                pass

    def kill(self) -> None:
        """As kill -9 does: nothing is written any more, and nobody is told."""
        self.send(signal.SIGKILL)
        self._popen.wait(END_S)

    def _fields(self, name: str) -> list[list[str]]:
        found = []
        for each in self.ids:
            try:
                text = Path(f"/proc/{each}/{name}").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            _, bracket, tail = text.rpartition(")")
            # A command's name may have spaces in it, and counts as one field.
            found.append([*(["id", "name"] if bracket else []), *tail.split()])
        return found


def descent(id: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = [
            int(child)
            for thread in Path(f"/proc/{id}/task").iterdir()
            for child in (thread / "children").read_text(encoding="utf-8").split()
        ]
    except OSError:  # it has ended meanwhile
        return [id]
    return [id, *(below for child in children for below in descent(child))]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def wait_for_port(port: int, process: Process, within_s: float) -> None:
    """Until somebody listens; a RuntimeError with what the process said last, if it ends or takes too long."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and process.is_running:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    said = process.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise RuntimeError(f"did not listen on port {port}: {' / '.join(said) or 'it said nothing'}")
