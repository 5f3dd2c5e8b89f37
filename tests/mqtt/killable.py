"""A `headwater serve` of its own, to be killed and started again on the same folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

NURSERY = Path(__file__).with_name("nursery.py")


class Killable:
    """A server process that serves MQTT."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        self.options = options
        self._nursery = subprocess.Popen(
            [sys.executable, str(NURSERY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.start()

    def __enter__(self) -> Killable:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Serve; returns once clients can connect."""
        words = ("serve", "--data", self.folder, "--port", 0, "--mqtt", "--mqtt-port", 0, "--log-level", "error")
        nursery = self._nursery
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write("\t".join(map(str, (*words, *self.options))) + "\n")
        nursery.stdin.flush()
        self.pid = int(nursery.stdout.readline())
        nursery.stdout.readline()
        met = re.search(r"mqtt://[^:]*:(\d+)", nursery.stdout.readline())
        assert met
        self.port = int(met[1])

    def kill(self) -> None:
        """End it at once: nothing is written any more."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Have it end in good order."""
        os.kill(self.pid, signal.SIGTERM)

    def end(self) -> None:
        """End it for good."""
        self.kill()
        self._nursery.communicate()
