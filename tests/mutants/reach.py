"""Which tests reach a line, and how long each of them takes: learnt in one run of the tests under coverage.

As a plugin of pytest (`-p mutants.reach`) it notes the test that runs and its time; `Reach` answers from what was
noted. What runs in processes that a test starts is not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

REPO = Path(__file__).resolve().parents[2]
NOTES = REPO / ".mutants"
ASKED = (
    "store log topics delivery channels mqtt faults sim server fuzz bus test_aio.py test_send.py test_staging.py "
    "client/test_served.py cli/test_verify.py"
)
"""The tests that stand around the rooms that are broken."""
STATEMENT_LINES_MAX = 8

_times: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(item.nodeid)
    started = time.perf_counter()
    yield
    _times[item.nodeid] = time.perf_counter() - started


def pytest_sessionfinish() -> None:
    if (folder := os.environ.get("MUTANTS_NOTES")) is not None:
        Path(folder, "times.json").write_text(json.dumps(_times))


def learn() -> None:
    """Run the tests once, and note what they reach."""
    NOTES.mkdir(exist_ok=True)
    settings = NOTES / "coverage.ini"
    settings.write_text(f"[run]\nsource_pkgs = headwater\ndata_file = {NOTES}/lines\nconcurrency = thread\n")
    asked = [f"tests/{name}" for name in ASKED.split()]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-p", "mutants.reach"]
    paths = f"{REPO}/src{os.pathsep}{REPO}/tests"
    environment = {**os.environ, "PYTHONPATH": paths, "MUTANTS_NOTES": str(NOTES)}
    ran = subprocess.run([*command, "-q", "-p", "no:cacheprovider", *asked], cwd=REPO, env=environment, check=False)
    if ran.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"the tests did not run (pytest ended with {ran.returncode}): nothing was learnt")


class Reach:
    """What one run of the tests has shown."""

    def __init__(self) -> None:
        digest = hashlib.sha256()
        for path in sorted((*(REPO / "src" / "headwater").rglob("*.py"), *(REPO / "tests").rglob("*.py"))):
            digest.update(path.read_bytes())
        noted = NOTES / "source"
        if not noted.exists() or noted.read_text() != digest.hexdigest():
            learn()
            noted.write_text(digest.hexdigest())
        self._times: dict[str, float] = json.loads((NOTES / "times.json").read_text())
        self._data = coverage.CoverageData(str(NOTES / "lines"))
        self._data.read()
        self._by_module: dict[str, dict[int, list[str]]] = {}

    def tests(self, module: str, line: int) -> list[str]:
        """The tests that run a line, quickest first."""
        lines = self._by_module.get(module)
        if lines is None:
            path = str(REPO / "src" / "headwater" / module)
            lines = self._by_module[module] = self._data.contexts_by_lineno(path)
        # A statement of several lines may be known by its first.
        for near in range(line, line - STATEMENT_LINES_MAX, -1):
            found = [test for test in lines.get(near, []) if test in self._times]
            if found:
                break
        return sorted(found, key=lambda test: self._times[test])

    def seconds(self, test: str) -> float:
        """How long a test took."""
        return self._times[test]
