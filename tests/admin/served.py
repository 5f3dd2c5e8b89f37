"""`headwater serve` with its HTTP port, as a process, for tests of what is behind that port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import IO

import httpx

TIMEOUT_S = 60.0


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._out: IO[str] = process.stdout
        self._errors: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        self.url = ""
        """Of the native port."""
        self.http = ""

    def _read_errors(self) -> None:
        """Whoever writes into a pipe that nobody reads waits for ever once it is full."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.put(line)
        self._errors.put("")

    def read_url(self) -> str:
        """The URL in the next line that it prints."""
        line = self._out.readline()
        met = re.search(r"\w+://\S+", line)
        assert met, f"it said {line!r}"
        return met[0]

    def read_http(self) -> str:
        """Where HTTP is served, from now on."""
        self.http = self.read_url()
        return self.http

    def wait_for(self, text: str) -> str:
        """The next line on stderr with a text in it."""
        while line := self._errors.get(timeout=TIMEOUT_S):
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}")

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self._reader.join()

    def client(self, token: str = "", **options: object) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.http, timeout=TIMEOUT_S, headers=headers, **options)  # type: ignore[arg-type]


@contextmanager
def serving(data: Path, *arguments: object, **environment: str) -> Iterator[Served]:
    """A server of its own process, ready natively; `read_http` waits for the rest."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "serve", "--port", "0", "--log-text", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data.parent,
        env={
            **os.environ,
            "HEADWATER_HTTP": "true",
            "HEADWATER_HTTP_PORT": "0",
            "HEADWATER_DATA": str(data),
            "HEADWATER_LOOP_LAG_S_MAX": "60",  # a machine that is busy is no ailment of the server's
            **environment,
        },
    )
    with process:
        served = Served(process)
        try:
            served.url = served.read_url()
            yield served
        finally:
            served.end()
