"""Both wheels, built from these sources: the plain one, and the one whose hot modules are compiled.

What is compiled is held to the tests that it has uncompiled, in a process of its own that finds it first. Where nothing
changed since it was built, the build takes a second; where there is no C compiler, these tests are left out.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
HOOK = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
MODULES: list[str] = HOOK["wheel"]["hooks"]["custom"]["modules"]
BUILD_S = 600
"""Long enough for a machine that has much else to do."""

# One worker builds it, and runs what needs it.
pytestmark = [pytest.mark.xdist_group("compiled"), pytest.mark.timeout(2 * BUILD_S)]

HELD_TO = (
    "tests/fuzz/test_fuzz_mqtt.py",
    "tests/fuzz/test_fuzz_wire.py",
    "tests/mqtt/test_packets.py",
    "tests/mqtt/test_paho.py",
    "tests/mqtt/test_publishes.py",
    "tests/mqtt/test_reader.py",
    "tests/mqtt/test_runs.py",
    "tests/topics/test_tree.py::TestTreesAgainstBruteForce",
    "tests/wire/test_batches.py",
    "tests/wire/test_reader.py",
    "tests/server/test_publish_flow.py",
    "tests/faults/test_crash_points.py::test_nothing_is_lost_when_a_kill_is_followed_by_a_crash[0]",
)


PATCHED = ("tests/wire/test_reader.py::test_a_reader_looks_at_a_dripping_frame_only_when_it_could_say_more",)
"""They replace a method to look at what is called, which compiled code does not notice."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled Headwater."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C compiler ({compiler})")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("Python's headers are not installed (python3-dev)")
    folder = tmp_path_factory.mktemp("compiled")
    wheel = build(folder / "wheel", compile="1")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def build(folder: Path, compile: str) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    environment = {**os.environ, "COMPILE_HEADWATER": compile}
    done = subprocess.run(
        command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def run(compiled: Path, *arguments: str) -> str:
    """A Python that finds the compiled modules first; what it says."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(compiled)},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_plain_wheel_needs_no_compiler_and_runs_everywhere(tmp_path: Path) -> None:
    wheel = build(tmp_path, compile="0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(tuple(EXTENSION_SUFFIXES))]


def test_every_module_that_is_listed_is_compiled_and_no_other(compiled: Path) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    found = {str(path.relative_to(compiled)).removesuffix(suffix) for path in compiled.rglob(f"*{suffix}")}
    assert found == {module.removesuffix(".py") for module in MODULES} | {"headwater__mypyc"}
    names = [module.removesuffix(".py").replace("/", ".") for module in MODULES]
    code = f"from importlib import import_module\nfor name in {names!r}: print(import_module(name).__file__)"
    assert run(compiled, "-c", code).splitlines() == [
        str(compiled / module.removesuffix(".py")) + suffix for module in MODULES
    ]


def test_the_sources_stay_as_they_are(compiled: Path) -> None:
    assert not [path for path in (REPO / "src").rglob("*") if path.name.endswith(tuple(EXTENSION_SUFFIXES))]
    for module in MODULES:
        assert (compiled / module).read_bytes() == (REPO / "src" / module).read_bytes()


def test_it_says_that_it_is_compiled(compiled: Path) -> None:
    assert run(compiled, "-m", "headwater", "--version").endswith(" (compiled)\n")


@pytest.mark.parametrize("module", MODULES)
def test_no_compiled_module_makes_a_struct(module: str) -> None:
    """Compiled, it would be made without its `frozen`, `gc` and `array_like`, and nobody would notice."""
    for node in ast.walk(ast.parse((REPO / "src" / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not node.keywords
            assert not [base for base in node.bases if ast.unparse(base).endswith("Struct")]


def test_what_is_compiled_passes_the_tests_that_it_has_uncompiled(compiled: Path) -> None:
    without = [f"--deselect={test}" for test in PATCHED]
    run(compiled, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *without, *HELD_TO)
