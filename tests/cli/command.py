"""The command `headwater`, run as users run it: in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from headwater.cli import output
from headwater.cli.app import app_for

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")},
    "NO_COLOR": "1",
    "COLUMNS": "160",
}
TIMEOUT_S = 200


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headwater", *map(str, arguments)]


def run(
    *arguments: object, data: Path | None = None, stdin: bytes = b"", code: int = 0, timeout_s: int = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, and expect an exit code."""
    environment = ENVIRONMENT if data is None else {**ENVIRONMENT, "HEADWATER_DATA": str(data)}
    done = subprocess.run(
        command(*arguments), input=stdin, capture_output=True, env=environment, timeout=timeout_s, check=False
    )
    result = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    return result


def here(*arguments: object, data: Path | None = None, stdin: bytes = b"", code: int | None = 0) -> Result:
    """Run it in this process, which takes a moment instead of a second, and expect an exit code, unless it is None."""
    output.console.cache_clear()  # it may have seen another width
    given = [str(one) for one in arguments]
    environment = {"NO_COLOR": "1", "COLUMNS": "160", **({} if data is None else {"HEADWATER_DATA": str(data)})}
    result = CliRunner(env=environment).invoke(app_for(given), given, input=stdin)
    assert code in (None, result.exit_code), f"exit code {result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def objects_here(
    *arguments: object, data: Path | None = None, stdin: bytes = b"", code: int = 0
) -> list[dict[str, Any]]:
    """The same with --json, each line read."""
    result = here(*arguments, "--json", data=data, stdin=stdin, code=code)
    return [json.loads(line) for line in result.stdout.splitlines()]


def objects(*arguments: object, data: Path | None = None, stdin: bytes = b"", code: int = 0) -> list[dict[str, Any]]:
    """Run it with --json, and read each line."""
    result = run(*arguments, "--json", data=data, stdin=stdin, code=code)
    return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def start(*arguments: object, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start it, with its output to be read; a test that fails leaves no process behind."""
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "HEADWATER_DATA": str(data)},
        # Where the tests themselves run in the background, Ctrl-C is ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done there)
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def one_sentence(text: str) -> bool:
    """Whether somebody was told in one line what went wrong."""
    return len(text.strip().splitlines()) == 1 and "Traceback" not in text
