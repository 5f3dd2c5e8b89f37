"""Where the reader is that works in Spark's own process: `jvm/` in a checkout, a jar of the wheel once it is built.

Imports nothing of ours, as the build of the wheel uses it before there is a Headwater.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
SOURCES = "jvm"
BUILT = "build/jvm"
NAME = "headwater-spark-{}.jar"
"""With the version of Spark that it is for: it stands on what Spark may change from one to the next."""


def spark_version() -> str | None:
    """The version of Spark that is installed, as far as a jar depends on it; None if there is none."""
    try:
        return ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return None


def find() -> Path | None:
    """The jar for the Spark that is installed, as it was made of these sources; None if there is none."""
    spark = spark_version()
    if spark is None:
        return None
    name = NAME.format(spark)
    root = CHECKOUT / SOURCES
    path = CHECKOUT / BUILT / key(root) / name if root.is_dir() else HERE / name
    return path if path.is_file() else None


def sources(root: Path) -> list[Path]:
    """What a jar is made of."""
    return sorted([*root.rglob("*.java"), *root.rglob("META-INF/*/*")])


def key(root: Path) -> str:
    """Changes with any source."""
    found = hashlib.sha256()
    for path in sources(root):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
