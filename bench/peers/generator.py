"""The load generator: C sources that are built on the spot, and one line of JSON for each run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parent / "load"
RUN_S_MAX = 300.0


class Refused(Exception):
    """The generator could not do the work; it says why."""


class Generator:
    """The built program."""

    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def built(cls, folder: Path) -> Generator:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit(
                "the load generator is C, and there is no compiler; on Debian: apt-get install gcc libc6-dev"
            )
        program = folder / "load"
        sources = sorted(str(path) for path in SOURCES.glob("*.c"))
        command = [compiler, "-std=gnu11", "-O2", "-o", str(program), *sources, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the load generator could not be built:\n{done.stderr}")
        return cls(program)

    def run(self, protocol: str, work: str, port: int, options: Mapping[str, float | str]) -> dict[str, float]:
        command = self._command(protocol, work, port, options)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            raise Refused(f"did not end within {RUN_S_MAX:g} s") from None
        if done.returncode:
            raise Refused(
                done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"ended with {done.returncode}"
            )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    @contextmanager
    def idle(self, protocol: str, port: int, options: Mapping[str, float | str]) -> Iterator[None]:
        """While connections are open and subscribed, and do nothing."""
        command = self._command(protocol, "idle", port, options)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                if process.stdout.readline().strip() != "ready":
                    raise Refused(process.stderr.read().strip() or "was not ready")
                yield
            finally:
                process.stdin.close()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _command(self, protocol: str, work: str, port: int, options: Mapping[str, float | str]) -> list[str]:
        flags = [text for name, value in options.items() for text in (f"--{name}", f"{value}")]
        where = ["--port", str(port)] if port else []
        return [str(self._program), protocol, work, *where, *flags]
