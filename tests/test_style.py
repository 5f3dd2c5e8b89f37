"""The habits of this code base that a machine can check: one door each to disk, time and threads, plain names …

Each failure names the place and what to do there. Where a rule is wrong for a file, change the table here and say why.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src" / "headwater"

DISK_DOOR = tuple(
    f"store/{name}.py" for name in ("files", "disk_file", "disk_cells", "permissions", "unix_socket", "memory_files")
)
STATE_DOOR = ("store/rocks.py", "store/rocksdb.py")
TIME_DOOR = ("clock.py",)
THREAD_DOOR = ("threads.py",)
POOLS = ("concurrent.futures.ThreadPoolExecutor", "concurrent.futures.thread.")
# What runs beside the broker, and not in it: no simulation plays these.
BESIDE_THE_BROKER = ("cli/*", "admin/*", "spark/*")
STOPWATCHES = ("cli/*", "bench/*")
TALKS_TO_PEOPLE = ("cli/*",)
READS_INPUT = ("cli/*",)
BYTES_AND_VALUES = (
    "wire/*",
    "topics/*",
    *(
        f"mqtt/{noun}.py"
        for noun in "kinds reasons fields properties packets decoding encoding publishes runs reader".split()
    ),
)

NAMES_WITHOUT_A_NOUN = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base"}

OS_DISK_CALLS = set(
    """
    open fdopen write writev pwrite pwritev fsync fdatasync sync rename renames replace unlink remove
    rmdir removedirs mkdir makedirs truncate ftruncate posix_fallocate link symlink sendfile
    copy_file_range
    """.split()
)
PATH_DISK_CALLS = set(
    """
    open write_text write_bytes read_text read_bytes touch mkdir rmdir unlink rename replace symlink_to
    hardlink_to
    """.split()
)
# Methods that give another path when called on one.
PATH_STEPS = set(
    """
    parent absolute resolve expanduser joinpath with_name with_stem with_suffix relative_to
    """.split()
)
# What something can be assigned to, so that it may be known to be a path.
TARGETS = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Starred)
# These are unmistakable even where nothing tells that their object is a path.
ONLY_PATHS_HAVE = {"write_text", "read_text"}
# RocksDB does its own I/O in folders of its own, which State makes and removes.
FOLDER_CALLS = {"os.mkdir", "os.makedirs", "shutil.rmtree", "tempfile.mkdtemp"}
SHUTIL_OFF_DISK = {"shutil.get_terminal_size", "shutil.which"}

CLOCK_READS = set(
    """
    time.time time.time_ns time.monotonic time.monotonic_ns time.clock_gettime time.clock_gettime_ns
    time.sleep datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today
    datetime.date.today
    """.split()
)
STOPWATCH_READS = {"time.perf_counter", "time.perf_counter_ns"}

EVENT_LOOP_MODULES = {"asyncio", "selectors", "socket", "ssl", "uvloop"}
HEAVY_MODULES = set(
    """
    pyspark fastapi nicegui cryptography pyarrow pyiceberg pandas typer rich zstandard uvloop
    """.split()
)


class Finding(NamedTuple):
    """A line that breaks a habit, and what to do about it."""

    place: str
    line: int
    advice: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.advice}"


@dataclass
class Module:
    """One source file, parsed, with what its names stand for."""

    name: str  # relative to src/headwater, with slashes
    tree: ast.Module
    imported: dict[str, str] = field(default_factory=dict)  # local name -> dotted origin
    defined: set[str] = field(default_factory=set)  # names bound at the top level
    paths: set[str] = field(default_factory=set)  # expressions known to be pathlib paths: "folder", "self._folder"
    nodes: list[ast.AST] = field(default_factory=list)  # all of the tree's

    @classmethod
    def parse(cls, name: str, text: str) -> Module:
        module = cls(name, ast.parse(text))
        module.nodes = list(ast.walk(module.tree))
        module._learn_names()
        module._learn_paths()
        return module

    def is_one_of(self, patterns: tuple[str, ...]) -> bool:
        return any(fnmatch(self.name, pattern) for pattern in patterns)

    def found(self, node: ast.expr | ast.stmt, advice: str) -> Finding:
        return Finding(f"src/headwater/{self.name}", node.lineno, advice)

    def dotted(self, node: ast.AST) -> str | None:
        """What a name or attribute stands for: `time.time`, `builtins.open`; None if that is not plain to see."""
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if not isinstance(node, ast.Name):
            return None
        if node.id in self.imported:
            return self.imported[node.id]
        if node.id in self.defined or not hasattr(builtins, node.id):
            return None
        return f"builtins.{node.id}"

    @cached_property
    def references(self) -> list[tuple[ast.expr, str]]:
        """Every use of something imported or built in, whether it is called or handed on."""
        found: list[tuple[ast.expr, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                dotted = self.dotted(node)
                if dotted is not None:
                    found.append((node, dotted))
        return found

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                yield node, node.module

    def is_path(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self.is_path(node.left)
        if isinstance(node, ast.Call):
            step = node.func
            is_step = isinstance(step, ast.Attribute) and step.attr in PATH_STEPS and self.is_path(step.value)
            return is_step or self.dotted(step) == "pathlib.Path"
        if isinstance(node, ast.Attribute) and node.attr in PATH_STEPS and self.is_path(node.value):
            return True
        return isinstance(node, TARGETS) and ast.unparse(node) in self.paths

    def _learn_names(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.imported[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for statement in self.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.defined.add(statement.name)
            elif isinstance(statement, ast.Assign):
                self.defined.update(target.id for target in statement.targets if isinstance(target, ast.Name))

    def _learn_paths(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.arg) and self._says_path(node.annotation):
                self.paths.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and self._says_path(node.annotation):
                self.paths.add(ast.unparse(node.target))
        for node in self.nodes:
            if isinstance(node, ast.Assign) and self.is_path(node.value):
                self.paths.update(ast.unparse(target) for target in node.targets)

    def _says_path(self, annotation: ast.expr | None) -> bool:
        if isinstance(annotation, ast.BinOp):  # Path | None, but not str | Path: that one may be a string
            return all(
                self._says_path(side) or ast.unparse(side) == "None" for side in (annotation.left, annotation.right)
            )
        return annotation is not None and self.dotted(annotation) == "pathlib.Path"


def find_missing_docstring(module: Module) -> Iterator[Finding]:
    if not (ast.get_docstring(module.tree) or "").strip():
        yield Finding(
            f"src/headwater/{module.name}",
            1,
            "no module docstring; begin with a sentence that a user would understand",
        )


def find_nameless_module(module: Module) -> Iterator[Finding]:
    for part in Path(module.name).with_suffix("").parts:
        bad = NAMES_WITHOUT_A_NOUN & set(part.split("_"))
        if bad:
            yield Finding(
                f"src/headwater/{module.name}",
                1,
                f"{min(bad)!r} in the name of a module; name it after the noun that it holds",
            )


def find_disk_access(module: Module) -> Iterator[Finding]:
    if module.is_one_of(DISK_DOOR):
        return
    advice = "{} goes past the door to disk; call it through store/files.py, so that tests can play back its faults"
    reads = _input_reads(module) if module.is_one_of(READS_INPUT) else set()
    for node, dotted in module.references:
        if dotted in FOLDER_CALLS and module.is_one_of(STATE_DOOR):
            continue
        if node not in reads and _is_disk_call(dotted):
            yield module.found(node, advice.format(dotted.removeprefix("builtins.")))
    for attribute in module.nodes:
        if isinstance(attribute, ast.Attribute) and attribute not in reads and _is_path_call(module, attribute):
            yield module.found(attribute, advice.format(f"Path.{attribute.attr}"))


def _is_disk_call(dotted: str) -> bool:
    owner, _, name = dotted.rpartition(".")
    if owner == "os":
        return name in OS_DISK_CALLS
    if owner in {"shutil", "tempfile"}:
        return dotted not in SHUTIL_OFF_DISK
    return dotted in {"builtins.open", "io.open", "io.FileIO", "mmap.mmap"}


def _is_path_call(module: Module, node: ast.Attribute) -> bool:
    return node.attr in ONLY_PATHS_HAVE or (node.attr in PATH_DISK_CALLS and module.is_path(node.value))


def _input_reads(module: Module) -> set[ast.expr]:
    return {node.func for node in module.nodes if isinstance(node, ast.Call) and _only_reads(module, node)}


def _only_reads(module: Module, call: ast.Call) -> bool:
    """Whether a call is one of open(x), open(x, "rb"), path.open(), path.read_text() and the like."""
    if module.dotted(call.func) == "builtins.open":
        return _mode_reads(call, position=1)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "open" and module.is_path(call.func.value):
        return _mode_reads(call, position=0)
    return isinstance(call.func, ast.Attribute) and call.func.attr in {"read_text", "read_bytes"}


def _mode_reads(call: ast.Call, position: int) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[position : position + 1]
    if not given:
        return True
    mode = given[0]
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rbt")


def find_rocksdb(module: Module) -> Iterator[Finding]:
    if module.is_one_of(STATE_DOOR):
        return
    for node, name in module.imports():
        if name.partition(".")[0] == "rocksdict":
            yield module.found(node, "rocksdict does I/O of its own; use it through State in store/rocks.py")


def find_clock_reads(module: Module) -> Iterator[Finding]:
    if module.is_one_of(TIME_DOOR):
        return
    for node, dotted in module.references:
        if dotted in CLOCK_READS:
            yield module.found(node, f"{dotted} goes past the door to time; take a Clock (clock.py) and ask that")
        elif dotted in STOPWATCH_READS and not module.is_one_of(STOPWATCHES):
            yield module.found(node, f"{dotted} is for the command line and benches; ask Clock.monotonic_us here")


def find_threads(module: Module) -> Iterator[Finding]:
    if module.is_one_of((*THREAD_DOOR, *BESIDE_THE_BROKER)):
        return
    for node, dotted in module.references:
        if dotted.partition(".")[0] in {"threading", "_thread"} or dotted.startswith(POOLS):
            yield module.found(node, f"{dotted} goes past the door to threads; say threads.Lock() where one is made")


def find_event_loops(module: Module) -> Iterator[Finding]:
    if not module.is_one_of(BYTES_AND_VALUES):
        return
    for node, name in module.imports():
        if name.partition(".")[0] in EVENT_LOOP_MODULES:
            yield module.found(
                node, f"{name} in a module of bytes and values; do I/O in server/, client/ or mqtt/connection"
            )


def find_prints(module: Module) -> Iterator[Finding]:
    if module.is_one_of(TALKS_TO_PEOPLE):
        return
    for node, dotted in module.references:
        if dotted == "builtins.print":
            yield module.found(node, "print in a library; return or raise it here, and show it in cli/")


RULES: tuple[Callable[[Module], Iterator[Finding]], ...] = (
    find_missing_docstring,
    find_nameless_module,
    find_disk_access,
    find_rocksdb,
    find_clock_reads,
    find_threads,
    find_event_loops,
    find_prints,
)


@cache
def source_modules() -> list[Module]:
    return [
        Module.parse(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


@pytest.mark.xdist_group("source")  # which is parsed once
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_its_habits(rule: Callable[[Module], Iterator[Finding]]) -> None:
    modules = source_modules()
    assert modules, f"no source found in {SOURCE}"
    findings = [finding for module in modules for finding in rule(module)]
    if findings:
        pytest.fail("\n".join(map(str, findings)), pytrace=False)


def test_importing_headwater_loads_nothing_heavy() -> None:
    code = f"import sys, headwater; headwater.__version__; print(*sorted({HEAVY_MODULES!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.split()
    if loaded:
        pytest.fail(
            f"`import headwater` loads {', '.join(loaded)}; import them in the function that uses them "
            f"(to see who does: python -X importtime -c 'import headwater')",
            pytrace=False,
        )


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (find_missing_docstring, "bus.py", "x = 1"),
        (find_missing_docstring, "bus.py", '"""  """'),
        (find_nameless_module, "store/utils.py", ""),
        (find_nameless_module, "common/frame.py", ""),
        (find_nameless_module, "session_manager.py", ""),
        (find_disk_access, "bus.py", "open('x')"),
        (find_disk_access, "bus.py", "import os\nos.fsync(3)"),
        (find_disk_access, "bus.py", "from os import replace as move\nmove('a', 'b')"),
        (find_disk_access, "bus.py", "import os as system\nsync = system.fdatasync"),
        (find_disk_access, "bus.py", "import shutil\nshutil.rmtree('x')"),
        (find_disk_access, "bus.py", "from pathlib import Path\nPath('x').write_bytes(b'')"),
        (find_disk_access, "bus.py", "from pathlib import Path\n(Path('x') / 'y').parent.mkdir()"),
        (find_disk_access, "bus.py", "from pathlib import Path\ndef f(p: Path | None): p.unlink()"),
        (find_disk_access, "bus.py", "import pathlib\ndef f(self): self.p = pathlib.Path('x'); self.p.open()"),
        (find_disk_access, "bus.py", "unknown.write_text('x')"),
        (find_disk_access, "cli/pub.py", "open('x', 'w')"),
        (find_disk_access, "cli/pub.py", "from pathlib import Path\nPath('x').open(mode='ab')"),
        (find_disk_access, "cli/pub.py", "from pathlib import Path\nPath('x').unlink()"),
        (find_disk_access, "cli/pub.py", "import os\nos.open('x', os.O_RDWR)"),
        (find_disk_access, "store/state.py", "open('x')"),
        (find_rocksdb, "bus.py", "from rocksdict import Rdict"),
        (find_clock_reads, "bus.py", "import time\nf(now=time.time)"),
        (find_clock_reads, "cli/sub.py", "from time import sleep\nsleep(1)"),
        (find_clock_reads, "bus.py", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
        (find_clock_reads, "bus.py", "import time\ntime.perf_counter()"),
        (find_threads, "bus.py", "import threading\nthreading.Lock()"),
        (find_threads, "log/group_commit.py", "from threading import Condition\nCondition()"),
        (find_threads, "server/server.py", "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(8)"),
        (find_event_loops, "wire/frame.py", "import asyncio.events"),
        (find_event_loops, "topics/tree.py", "def f():\n    from socket import socket"),
        (find_prints, "bus.py", "print('x')"),
        (find_prints, "bus.py", "show = print"),
    ],
)
def test_a_rule_finds_what_it_forbids(rule: Callable[[Module], Iterator[Finding]], name: str, text: str) -> None:
    assert list(rule(Module.parse(name, text)))


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (find_nameless_module, "store/database.py", ""),
        (find_disk_access, "store/files.py", "open('x', 'w')"),
        (find_disk_access, "bus.py", "def open(path): ...\nopen('x')"),
        (find_disk_access, "cli/pub.py", "import headwater\nheadwater.open('x')"),
        (find_disk_access, "bus.py", "files.open('x').write(b'')"),
        (find_disk_access, "bus.py", "'a-b'.replace('-', '_')"),
        (find_disk_access, "cli/pub.py", "open('x', 'rb').read()"),
        (find_disk_access, "cli/pub.py", "from pathlib import Path\nPath('x').read_bytes()"),
        (find_disk_access, "cli/pub.py", "from pathlib import Path\nPath('x').open('rb')"),
        (find_disk_access, "cli/pub.py", "import shutil\nshutil.get_terminal_size()"),
        (find_disk_access, "store/rocks.py", "import shutil\nshutil.rmtree('x')"),
        (find_rocksdb, "store/rocks.py", "import rocksdict"),
        (find_clock_reads, "clock.py", "import time\ntime.sleep(1)"),
        (find_clock_reads, "bus.py", "self.time.sleep(1)"),
        (find_clock_reads, "cli/bench.py", "import time\ntime.perf_counter()"),
        (find_threads, "bus.py", "from headwater import threads\nthreads.Lock()"),
        (find_threads, "server/server.py", "from headwater import threads\nthreads.ThreadPoolExecutor(8)"),
        (find_threads, "bus.py", "from concurrent.futures import Future\nFuture()"),
        (find_threads, "cli/pub.py", "import threading\nthreading.Thread()"),
        (find_event_loops, "server/listener.py", "import asyncio"),
        (find_prints, "cli/demo.py", "print('x')"),
        (find_prints, "bus.py", "console.print('x')"),
    ],
)
def test_a_rule_lets_pass_what_is_right(rule: Callable[[Module], Iterator[Finding]], name: str, text: str) -> None:
    assert not list(rule(Module.parse(name, text)))
