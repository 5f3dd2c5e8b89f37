"""The session that `headwater.spark.session` makes: Spark's workers are of the Python that runs the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

import headwater

pytestmark = pytest.mark.xdist_group("spark")
PROGRAM = """
import sys
import headwater.spark
spark = headwater.spark.session("elsewhere", master="local[1]")
rows = spark.read.format("headwater").option("data", sys.argv[1]).option("topics", "#").load()
print([row.topic for row in rows.collect()])
try:
    spark.sql("SELECT * FROM nowhere")
except Exception as error:
    print(type(error).__name__)
"""
SLOW_S = 300


@pytest.mark.timeout(SLOW_S)
def test_a_program_elsewhere_finds_the_format_though_another_python3_comes_first(tmp_path: Path) -> None:
    if which("java") is None:
        pytest.skip("Spark needs Java")
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/kitchen/temp", b"21.5")
    program, other = tmp_path / "program.py", tmp_path / "bin" / "python3"
    program.write_text(PROGRAM)
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")  # as a system's Python that knows nothing of Headwater
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_PY", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, program, tmp_path / "data"],
        env={**environment, "PATH": f"{other.parent}{os.pathsep}{environment['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["['home/kitchen/temp']", "AnalysisException"], done.stderr
    assert "nowhere" not in done.stderr, "an error is raised, and not printed besides"
