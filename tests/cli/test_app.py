"""The command line as a whole: each command is there, and costs what it needs alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
