"""`headwater serve` with its HTTP port, as a process, for tests of what is behind that port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

TIMEOUT_S = 60.0


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self._out: IO[str] = process.stdout
        self.url = self.read_url()
        """Of the native port."""
        self.http = ""

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
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}")

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
            **environment,
        },
    )
    with process:
        try:
            yield Served(process)
        finally:
            process.kill()
