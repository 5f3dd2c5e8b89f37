"""Workers that begin anew whenever a Python file changes, for those who develop handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from headwater.cli.output import remark

LOOK_S = 0.3
"""How often it is looked for changes."""
NOT_OURS = {"__pycache__", "node_modules", "site-packages"}


def run_and_reload(arguments: list[str], folder: Path) -> int:
    """Run `headwater work` in a process of its own, and again after each change; its exit code, once it is to end."""
    is_ending = False
    process: subprocess.Popen[bytes] | None = None

    def end(number: int, _: object) -> None:
        nonlocal is_ending
        if is_ending and process is not None:
            process.send_signal(number)  # the second, which waits for no handler
        is_ending = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the last as a terminal closes
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, end)
    command = [sys.executable, "-m", "headwater", "work", *arguments]
    while True:
        seen = changes_of(folder)
        # In a group of its own, so that Ctrl-C reaches it once, through us.
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603  # what we were called with
        while not is_ending and changes_of(folder) == seen:
            # One that ended by itself waits for somebody to mend it.
            threading.Event().wait(LOOK_S)
        process.terminate()
        code = process.wait()
        if is_ending:
            return code
        remark("files changed; the workers begin anew")


def changes_of(folder: Path) -> dict[Path, int]:
    """When each Python file below a folder was changed."""
    found: dict[Path, int] = {}
    for path in _python_files(folder):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:
            continue  # gone meanwhile
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in NOT_OURS]
        yield from (Path(where, name) for name in files if name.endswith(".py"))
