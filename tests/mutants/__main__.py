"""Break the code on purpose in a hundred places, and report what the tests do not notice.

    make mutants                                          # a hundred, the same ones as long as the code is the same
    PYTHONPATH=tests python -m mutants --seed 7 --count 20 --room store
    PYTHONPATH=tests python -m mutants --only store/stream.py:DiskStream.sync

Each mutant is one fault (`sites.py`) in one module of the store, the log, delivery or MQTT. The tests that reach its
line run, quickest first, until one fails; what no test notices survives, and wants a test. Faults that change nothing
that anybody could tell are named in `harmless.py`, each with the reason. Which tests reach which line is learnt in one
run of them, under coverage, and noted in `.mutants` until the source changes.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from mutants.harmless import HARMLESS, NOT_JUDGED
from mutants.reach import Reach
from mutants.sites import sites

REPO = Path(__file__).resolve().parents[2]
SOURCE = REPO / "src" / "headwater"
SHARES = {"store": 35, "log": 20, "topics": 5, "delivery": 25, "mqtt": 15}
"""Of each hundred, by room."""
TEST_S_MAX = 90
TESTS_S_MAX = 180
"""Tests of a mutant take about so long at most: the quickest first, and all that fit."""
RUN_S_MAX = 900
NOTICED_MIN = 0.95


class Mutant(NamedTuple):
    """A module with one fault."""

    module: str
    kind: str
    function: str
    line: int
    before: str
    after: str
    number: int
    """Which of the module's sites it is."""
    source: str
    """The module, unbroken."""

    @property
    def place(self) -> str:
        return f"{self.module}:{self.function}"

    @property
    def fault(self) -> tuple[str, str, str]:
        """What tells it from others, also when lines have moved."""
        return self.place, self.kind, self.before

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}  {self.kind}: {self.before}  →  {self.after}"


def main() -> int:
    """Draw mutants, try each, and tell."""
    options = _options()
    reach = Reach()
    drawn = list(draw(options.seed, options.count, options.room, options.only))
    workers: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(options.workers):
        workers.put(Worker())
    survivors, noticed = [], Counter[str]()

    def attempt(mutant: Mutant) -> tuple[Mutant, str | None]:
        worker = workers.get()
        try:
            return mutant, worker.attempt(mutant, reach)
        finally:
            workers.put(worker)

    with ThreadPoolExecutor(options.workers) as pool:
        for number, (mutant, by) in enumerate(pool.map(attempt, drawn), 1):
            print(
                f"{number:3}/{len(drawn)} {'survived' if by is None else 'noticed '} {mutant}  {by or ''}", flush=True
            )
            if by is None:
                survivors.append(mutant)
            else:
                noticed[mutant.kind] += 1
    while not workers.empty():
        workers.get().close()
    share = sum(noticed.values()) / max(1, len(drawn))
    print(f"\n{sum(noticed.values())} of {len(drawn)} noticed ({share:.0%}); by kind: {dict(sorted(noticed.items()))}")
    for mutant in survivors:
        print(f"not noticed: {mutant}")
    return 0 if share >= NOTICED_MIN else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--room", choices=list(SHARES), help="of this room alone")
    parser.add_argument("--only", default="", help="those whose place (module:function) has this in it, all of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


# Drawing


def draw(seed: int, count: int, room: str | None, only: str) -> Iterator[Mutant]:
    """So many faults; of each room its share, and of each kind in it as many as of the others."""
    for name, share in SHARES.items():
        if room not in (None, name):
            continue
        found = [
            mutant
            for mutant in faults_in(name)
            if only in f"{mutant.place}:{mutant.line}" and mutant.fault not in HARMLESS
        ]
        yield from found if only else _spread(seed, found, count if room else round(count * share / 100))


@cache
def faults_in(room: str) -> tuple[Mutant, ...]:
    """Every fault that the modules of a room can have."""
    return tuple(_find_faults(room))


def _find_faults(room: str) -> Iterator[Mutant]:
    for path in sorted((SOURCE / room).glob("*.py")):
        module = f"{room}/{path.name}"
        if module in NOT_JUDGED:
            continue
        text = path.read_text()
        for number, site in enumerate(sites(ast.parse(text))):
            yield Mutant(module, site.kind, site.function, site.line, site.before, site.after, number, text)


def _spread(seed: int, found: list[Mutant], count: int) -> Iterator[Mutant]:
    """By a digest of each, so that one is drawn again as long as it is there, whatever has changed around it."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(found, key=lambda mutant: sha256(f"{seed} {mutant.fault}".encode()).digest()):
        kinds[mutant.kind].append(mutant)
    while count > 0 and any(kinds.values()):
        for kind in sorted(kinds):
            if count > 0 and kinds[kind]:
                yield kinds[kind].pop()
                count -= 1


def _broken(mutant: Mutant) -> str:
    tree = ast.parse(mutant.source)
    list(sites(tree))[mutant.number].apply()
    return ast.unparse(ast.fix_missing_locations(tree))


# Trying


class Worker:
    """A copy of the source in which one module at a time is broken."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-mutant-"))
        shutil.copytree(REPO / "src", self._folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        self._list = self._folder / "tests"

    def attempt(self, mutant: Mutant, reach: Reach) -> str | None:
        """The test that noticed it; None if none did."""
        tests: list[str] = []
        left_s = float(TESTS_S_MAX)
        for test in reach.tests(mutant.module, mutant.line):
            left_s -= reach.seconds(test)
            if left_s < 0 and tests:
                break
            tests.append(test)
        if not tests:
            return None
        path = self._folder / "src" / "headwater" / mutant.module
        whole = path.read_text()
        path.write_text(_broken(mutant))
        try:
            return self._run(tests)
        finally:
            path.write_text(whole)

    def _run(self, tests: list[str]) -> str | None:
        self._list.write_text("\n".join(tests))
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        command += [f"--timeout={TEST_S_MAX}", "--tb=no", f"@{self._list}"]
        process = subprocess.Popen(
            command, cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return f"nothing ends: {tests[0]} …"
        if process.returncode == 0:
            return None
        failed = [line for line in out.decode(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0][:160] if failed else f"exit {process.returncode}: {tests[0]} …"

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder)


if __name__ == "__main__":
    sys.exit(main())
