"""How long `import headwater` takes, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from headwater.cli.bench.figure import Figure

TIMES = 9
EXTRAS = ("cryptography", "fastapi", "nicegui", "pandas", "pyarrow", "pyspark", "rich", "typer", "uvicorn", "zstandard")


def measure() -> Iterator[Figure]:
    """Time of a Python that imports it, less that of one that does not; and which of the extras come with it."""
    imports, nothing = [], []
    _run("import headwater")
    for _ in range(TIMES):
        imports.append(_run("import headwater"))
        nothing.append(_run("pass"))
    yield Figure("import headwater", "a new process", median(imports) - median(nothing), "s", goal=("value ≤", 0.15))
    code = f"import sys, headwater; sys.exit(sum(name in sys.modules for name in {EXTRAS!r}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=False).returncode  # noqa: S603  (our own code)
    yield Figure("extras that it loads", "a new process", loaded, "modules", goal=("value ≤", 0))


def _run(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603  (our own code)
    return time.perf_counter() - start
