"""What a block has shown, while it runs, and whether that is what its page says."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Mapping
from threading import main_thread

from headwater import threads

TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|\+00:00)?")


def pattern(text: str) -> re.Pattern[str]:
    """What a page shows, as a pattern: `…` is anything in a line, or any lines, and a time any time."""
    rows = []
    for row in text.rstrip().splitlines():
        if row.strip() == "…":
            rows.append("(?:.*\n)*?")
            continue
        parts = re.split(f"(…|{TIME.pattern})", row.rstrip())
        rows.append("".join(_part(part) for part in parts) + "[ \t]*\n")
    return re.compile("".join(rows))


def _part(text: str) -> str:
    if text == "…":
        return ".*?"
    return TIME.pattern if TIME.fullmatch(text) else re.escape(text)


class Screen(io.TextIOBase):
    """What is printed goes here; another thread waits for what it should be."""

    def __init__(self, names: Mapping[str, str] | None = None, until: str | None = None) -> None:
        """Ctrl-C is pressed when it has shown what `until` says: at the print that completes it, so that nothing else
        is cut off in its midst."""
        self._shown = ""
        self._until = until
        self._names = {} if names is None else names  # which may come to know more
        self._changed = threads.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._shown += text
            self._changed.notify_all()
        if self._until is not None and self.says(self._until, is_whole=False):
            self._until = None
            if threads.current_thread() is main_thread():
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)  # a worker's: the main thread runs them, and hears of signals
        return len(text)

    @property
    def text(self) -> str:
        """All of it, with ports as pages have them."""
        text = self._shown
        for name, real in self._names.items():
            text = re.sub(rf"\b{real}\b", name, text)
        return text

    def says(self, expected: str, *, is_whole: bool = True) -> bool:
        """Whether that is what was shown, or how it began."""
        text = self.text.rstrip() + "\n"
        return (pattern(expected).fullmatch if is_whole else pattern(expected).match)(text) is not None

    def wait(self, expected: str, timeout_s: float) -> bool:
        """Whether it began with that, in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.says(expected, is_whole=False), timeout_s)
