"""What a wheel has besides its sources: the jar of the reader that works in Spark's own process, where there are javac
and pyspark to build it with (`jvm/build.py`); and compiled modules, when COMPILE_HEADWATER=1 is set.

Which modules are compiled stands in pyproject.toml, under [tool.hatch.build.targets.wheel.hooks.custom]. Their sources
stay in the wheel beside what was made of them, which Python prefers. Nothing is ever put under src/, where it would go
on hiding a source that was changed since; what was made is kept in build/, under the hash of all that it was made
from, and taken from there for as long as that stays the same.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import sys
import tempfile
from contextlib import chdir
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = "COMPILE_HEADWATER"
COMPILER = "mypy[mypyc]>=1.15"
LIBRARY = "headwater"
"""What the library is named after that holds the code of all of them; a module's own file only leads to it."""
TYPES = """
[mypy]
mypy_path = src
explicit_package_bases = true
follow_imports = silent
ignore_missing_imports = true
[mypy-headwater.bus,headwater.core,headwater.lake.*,headwater.client.*,headwater.seal,headwater.spark.*,headwater.admin.*]
follow_imports = skip
"""
"""How types are found out: `make test` checks all of them, so that here those count that compiled modules work with. To
leave out the rest, and with it Spark, takes a tenth of the time."""


class BuiltParts(BuildHookInterface[Any]):
    """Adds to a wheel what javac makes of `jvm/`, and mypyc of its modules."""

    def dependencies(self) -> list[str]:
        """What the build needs: the compiler, and the packages whose types the modules use."""
        return [COMPILER, *self.metadata.core.dependencies] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the build is one for editing, whose modules change after it."""
        if version == "editable":
            return
        root = Path(self.root)
        jar: Path | None = runpy.run_path(str(root / "jvm" / "build.py"))["build"]()
        if jar is not None:
            build_data["force_include"][str(jar)] = f"headwater/spark/{jar.name}"
        if not _is_wanted():
            return
        modules: list[str] = self.config["modules"]
        kept = root / "build" / "compiled" / _key(root, modules)
        if not kept.exists():
            _compile(root, modules, kept)
        for library in filter(Path.is_file, kept.rglob("*")):
            build_data["force_include"][str(library)] = str(library.relative_to(kept))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _is_wanted() -> bool:
    return os.environ.get(WANTED, "0") not in {"", "0"}


def _key(root: Path, modules: list[str]) -> str:
    """Changes with any source, as one module's types are used by another, with the list and with the tools."""
    found = hashlib.sha256(repr((modules, sys.version, version_of("mypy"))).encode())
    for path in [Path(__file__), *sorted((root / "src").rglob("*.py"))]:
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _compile(root: Path, modules: list[str], kept: Path) -> None:
    """In a folder of its own, renamed when it is whole: two builds at once, or one that was stopped, do no harm."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    kept.parent.mkdir(parents=True, exist_ok=True)
    with chdir(root), tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        types = Path(folder, "mypy.ini")
        types.write_text(TYPES, encoding="utf-8")
        extensions = mypycify(
            ["--config-file", str(types), f"--cache-dir={os.devnull}", *(f"src/{module}" for module in modules)],
            opt_level="2",
            debug_level="0",
            group_name=LIBRARY,
            target_dir=f"{folder}/c",
        )
        command: Any = Distribution({"name": LIBRARY, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{folder}/made", f"{folder}/objects"
        command.ensure_finalized()
        command.run()
        for old in kept.parent.glob("[0-9a-f]" * 16):
            shutil.rmtree(old, ignore_errors=True)
        Path(folder, "made").replace(kept)
