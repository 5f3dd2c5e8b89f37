"""A publisher in a process of its own, for tests that read beside it; what it was acknowledged is its journal."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

SCRIPT = Path(__file__).with_name("publisher.py")


class Owner:
    """A process that publishes into a folder, or to a server if the place is its address."""

    def __init__(self, place: object) -> None:
        self.acked: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._is_ready.wait(60), "the owner did not start"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.acked = {root: int(number) for root, _, number in (part.partition("=") for part in line.split())}
            if all(self.acked.values()):
                self._is_ready.set()

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._thread.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """As a machine would that loses its patience."""
        self._process.kill()
