"""How long `import headwater` takes, in processes of its own, once Python has compiled it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from headwater.cli.bench.figure import Figure
from headwater.cli.temporary import temporary_folder, temporary_place

TIMES = 9
EXTRAS = ("cryptography", "fastapi", "nicegui", "pandas", "pyarrow", "pyspark", "rich", "typer", "uvicorn", "zstandard")


def measure() -> Iterator[Figure]:
    """Time of a Python that imports it, less that of one that does not; and which of the extras come with it."""
    with temporary_folder(temporary_place(), "headwater-bench") as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        took: dict[str, list[float]] = {"pass": [], "import headwater": [], "import headwater.bus": []}
        for turn in range(TIMES + 1):
            for code, times in took.items():
                seconds = _run(code, environment)
                if turn:  # the first one compiles
                    times.append(seconds)
    nothing = median(took.pop("pass"))
    for code, times in took.items():
        with_what = "the bus is loaded when opened" if code == "import headwater" else "and the bus"
        yield Figure("import headwater", with_what, median(times) - nothing, "s", goal=("value ≤", 0.15))
    code = f"import sys, headwater; sys.exit(sum(name in sys.modules for name in {EXTRAS!r}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=False).returncode  # noqa: S603  (our own code)
    yield Figure("extras that it loads", "a new process", loaded, "modules", goal=("value ≤", 0))


def _run(code: str, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)  # noqa: S603  (our own code)
    return time.perf_counter() - start
