"""What it was measured on."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.peers import libraries
from bench.peers.brokers import PEERS, version_of
from headwater import __version__


def description() -> dict[str, str]:
    """The machine, in a few words each."""
    return {
        "processor": _after("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{int(_after('/proc/meminfo', 'MemTotal').split()[0] or 0) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def versions(programs: Mapping[str, str]) -> dict[str, str]:
    """Of all that were measured."""
    found = {"headwater": f"{__version__}, Python {platform.python_version()}"}
    found |= {name: version_of(PEERS[name], program) for name, program in programs.items() if name in PEERS}
    return found | libraries.versions(programs)


def has_spark() -> bool:
    """Whether Spark and its Java are here."""
    return importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None


def _after(path: str, word: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == word:
            return value.strip()
    return ""
