"""Standard output, for bytes.

Promises: what is written is written whole, also where Python does not buffer it (`PYTHONUNBUFFERED`, `python -u`):
there a write to a pipe may end early, and says so to nobody but its caller.
"""

from __future__ import annotations

import io
import sys


class Stdout:
    """What standard output was when this was made."""

    def __init__(self) -> None:
        self._out: io.RawIOBase | io.BufferedIOBase = sys.stdout.buffer  # type: ignore[assignment]  # raw, if unbuffered

    def write(self, data: bytes) -> None:
        """Write all of it."""
        written = self._out.write(data) or 0
        while written < len(data):
            written += self._out.write(memoryview(data)[written:]) or 0

    def flush(self) -> None:
        """Have whoever reads see it."""
        self._out.flush()
