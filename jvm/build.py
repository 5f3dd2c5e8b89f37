"""Builds the reader that works in Spark's own process: `python jvm/build.py`, or `make jvm`.

It needs javac, and an installed pyspark, whose jars it is compiled against. What is made is kept in build/, under the
hash of its sources, and there for as long as these stay the same.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from shutil import which
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "17"
"""The oldest Java that Spark runs on."""
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""When the files of a jar were made, so that the same sources make the same jar."""


def _jar_module() -> ModuleType:
    """`headwater.spark.jar`, without the rest of Headwater, which a build may not have."""
    spec = importlib.util.spec_from_file_location("headwater_spark_jar", ROOT / "src/headwater/spark/jar.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def javac() -> str | None:
    """The compiler, if there is one."""
    home = os.environ.get("JAVA_HOME")
    return which("javac") or (which("javac", path=f"{home}/bin") if home else None)


def build() -> Path | None:
    """The jar, which is made if it is not there; None where there is no javac, or no pyspark."""
    jar = _jar_module()
    spark, compiler = jar.spark_version(), javac()
    sources = ROOT / jar.SOURCES
    if spark is None or not sources.is_dir():
        return None
    made: Path = ROOT / jar.BUILT / jar.key(sources) / jar.NAME.format(spark)
    if made.exists() or compiler is None:
        return made if made.exists() else None
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        _compile(compiler, Path(package.origin).parent / "jars", jar.sources(sources), folder)
        packed = Path(folder, "made.jar")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            classes = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*.class")}
            services = {path.relative_to(sources).as_posix(): path for path in sources.rglob("META-INF/*/*")}
            for name, path in sorted({**classes, **services}.items()):
                archive.writestr(zipfile.ZipInfo(name, EARLIEST), path.read_bytes(), zipfile.ZIP_DEFLATED)
        packed.replace(made)  # whole, or not at all: two builds at once do no harm
    return made


def _compile(compiler: str, jars: Path, sources: list[Path], folder: str) -> None:
    java = [str(path) for path in sources if path.suffix == ".java"]
    command = [compiler, "--release", RELEASE, "-Xlint:all,-processing,-serial,-classfile,-path", "-cp", f"{jars}/*"]
    subprocess.run([*command, "-d", folder, *java], check=True)


if __name__ == "__main__":
    found = build()
    if found is None:
        sys.exit(
            "nothing was built: it takes javac (on Debian and Ubuntu: apt install openjdk-17-jdk-headless) and pyspark"
        )
    print(found.relative_to(ROOT))
