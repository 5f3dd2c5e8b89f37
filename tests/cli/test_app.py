"""The command line as a whole: each command is there, and costs what it needs alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import ENVIRONMENT
from headwater.cli.app import COMMANDS, app_for


def names(arguments: list[str]) -> list[str]:
    app = app_for(arguments)
    found = [one.name for one in app.registered_commands] + [one.name for one in app.registered_groups]
    return [name for name in found if name is not None]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_found_alone(name: str):
    assert names([name, "--help"]) == [name]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["no-such-command"]])
def test_all_are_there_where_none_is_asked_for(arguments: list[str]):
    assert sorted(names(arguments)) == sorted(COMMANDS)


def test_a_server_starts_without_what_other_commands_need():
    code = (
        "import sys; from headwater.cli.app import app_for; app_for(['serve']); "
        "print(sorted(set(sys.modules) & {'headwater.admin.client', 'headwater.client.bus', 'headwater.cli.demo'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path: Path):
    """At any moment: it is pressed while a module of ours is loaded, which is made to wait there."""
    (tmp_path / "sitecustomize.py").write_text(WAITS)
    for module in ("headwater.message", "headwater.cli.app", "headwater.cli.pub", "headwater.bus"):
        process = subprocess.Popen(
            [sys.executable, "-c", "from headwater_command import main; main()", "pub", "home/x", "1"],
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path), "WAIT_AT": module},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done)
        )
        with process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"waiting\n", module
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == b"", module
        assert process.returncode in (130, -signal.SIGINT), module


def test_ctrl_c_while_commands_are_put_together_is_no_traceback():
    code = (
        "import os, typer.main\n"
        "def waits(app):\n"
        "    os.write(2, b'waiting\\n')\n"
        "    while True: pass\n"
        "typer.main.get_command = waits\n"
        "from headwater_command import main\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "pub", "home/x", "1"],
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done)
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGINT


WAITS = """
import os, sys

class Waits:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["WAIT_AT"]:
            os.write(2, b"waiting\\n")
            while True:
                pass

sys.meta_path.insert(0, Waits())
"""
