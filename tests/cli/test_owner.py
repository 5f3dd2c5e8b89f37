"""Commands that meet a folder that a server owns: they go through it, and say so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here
from cli.test_serve import Served, serving
from headwater.store.owner import ADDRESS, SOCKET, socket_of


@pytest.fixture(scope="module", params=["none", "scram", "gatekeeper"])
def auth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(auth: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(auth) / "data"


@pytest.fixture(scope="module")
def server(auth: str, place: Path) -> Iterator[Served]:
    with serving(place, "--auth", auth, "--no-http") as served:
        yield served


@pytest.fixture
def data(server: Served, place: Path) -> Path:
    """The folder of a server that runs."""
    assert server.port
    return place


def test_commands_that_change_something_go_through_the_server_and_say_so(data: Path, server: Served):
    done = here("pub", "home/x", "21.5", data=data)
    assert "offset" in done.stdout
    said = f'"{data}" is served by process {server.process.pid}: this goes through it, as its administrator'
    assert done.stderr.strip() == said
    (message,) = objects_here("sub", "home/#", "--id", "reader", "--start", "earliest", "--count", 1, data=data)
    assert message["payload"] == "21.5"
    here("subs", "pause", "reader", data=data)
    here("subs", "delete", "reader", data=data)
    here("purge", "home/x", "--yes", data=data)


def test_a_second_server_is_told_which_one_serves_the_folder(data: Path, server: Served):
    refused = subprocess.run(
        [sys.executable, "-m", "headwater", "serve", "--data", data, "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    where = f"process {server.process.pid} at headwater://127.0.0.1:{server.port}; stop that one"
    assert f'"{data}" is served already, by {where}' in refused.stderr


def test_the_urls_that_are_shown_are_the_servers_own(data: Path, server: Served):
    shown = here("clients", "add", "bob", data=data).stdout
    assert re.search(rf"use it: headwater://bob:[^@]+@127\.0\.0\.1:{server.port}$", shown, re.MULTILINE)
    here("acl", "allow", "bob", "admin", data=data)
    (token,) = objects_here("tokens", "add", "bob", "--role", "admin", data=data)
    here("tokens", "remove", token["id"], data=data)
    here("clients", "remove", "bob", data=data)


def test_sessions_and_figures_are_the_servers_without_a_url(data: Path):
    (session,) = objects_here("sessions", "list", data=data)
    assert session["address"] == "unix"
    (look,) = objects_here("top", "--once", data=data)
    assert look["gauges"]["connections"] == 1


def test_channels_are_tried_and_shown_by_the_server_that_runs_them(data: Path):
    with headwater.receive(0) as receiver:
        here("channels", "add", "n", "home/#", f"127.0.0.1:{receiver.port}", "--id", "hook", data=data)
        tried = here("channels", "test", "hook", data=data)
        assert "greeted" in tried.stdout
        assert "as its administrator" in tried.stderr
        (listed,) = objects_here("channels", "list", data=data)
        (shown,) = objects_here("channels", "show", "hook", data=data)
        assert "stopped" not in (listed["state"], shown["state"])
    here("channels", "remove", "hook", "--force", data=data)


def test_a_backup_lies_where_the_command_was_run_not_where_the_server_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    here("backup", "copy", data=data)
    assert (tmp_path / "copy" / "VERSION").exists()


def test_the_audit_names_the_administrator_of_the_folder(data: Path):
    here("clients", "add", "ann", data=data)
    with headwater.open(data, read_only=True) as bus:
        entries = [message.json() for message in bus.replay("$sys/audit")]
    assert entries[-1]["what"] == "client-added"
    assert entries[-1]["who"] == "$admin"
    here("clients", "remove", "ann", data=data)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_of_the_machine_reaches_neither_socket_nor_address(data: Path):
    script = f"""
import os, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
call = lambda: socket.socket(socket.AF_UNIX).connect({str(data / SOCKET)!r})
read = lambda: open({str(data / ADDRESS)!r})
for attempt in (call, read):
    try:
        attempt()
    except PermissionError:
        print("refused")
"""
    above = [path for path in data.parents if path.stat().st_uid == 0 and path.stat().st_mode & 0o777 == 0o700]
    for path in (*above, data):  # nothing but the socket's own mode is in the way
        path.chmod(0o755)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    finally:
        for path in (*above, data):
            path.chmod(0o700)
    assert done.stdout.split() == ["refused", "refused"]


def test_a_name_that_is_stated_by_the_socket_is_not_believed(data: Path):
    """Whoever may open it is the administrator, and can be nobody else."""
    bus = headwater.connect(f"headwater+unix://somebody@{socket_of(str(data))}")
    with bus:
        assert [client.name for client in bus.clients.list()] == []  # an administrator may


# Owners that are no servers


def test_an_embedded_owner_is_named_and_nothing_is_done(tmp_path: Path):
    with headwater.open(tmp_path / "data"):
        refused = here("pub", "home/x", "1", data=tmp_path / "data", code=2)
    assert refused.stderr.startswith("Owned(409): ")
    assert "is owned by this process" in refused.stderr


def test_what_a_killed_server_left_is_nobodys_door(tmp_path: Path):
    data = tmp_path / "data"
    with serving(data, "--no-http") as served:
        assert served.port
        served.process.kill()
        served.process.wait()
        assert (data / SOCKET).exists()
        with headwater.open(data) as bus:
            left = (data / ADDRESS).read_bytes()
            (data / ADDRESS).write_bytes(left.replace(b"%d" % served.process.pid, b"%d" % os.getpid()))
            refused = here("pub", "home/x", "1", data=data, code=2)
            assert "is owned by this process" in refused.stderr
            assert not bus.topics()
    assert "offset 1" in here("pub", "home/x", "1", data=data).stdout
    with serving(data, "--no-http") as served:  # the next server takes the place of what was left
        assert served.port
        assert "as its administrator" in here("pub", "home/x", "1", data=data).stderr


def test_a_server_that_ends_leaves_nothing_beside_its_lock(tmp_path: Path):
    data = tmp_path / "data"
    with serving(data, "--no-http") as served:
        assert served.port
        served.process.terminate()
        assert served.end()[0] == 0
    assert not [path.name for path in data.iterdir() if path.name in (ADDRESS, SOCKET)]


# Folders that are not there


@pytest.mark.parametrize(
    "command",
    [
        "topics", "subs", "subs delete s", "dead list s", "dead redrive s --all", "dead drop s --all", "clients list",
        "clients remove bob", "acl list", "acl remove bob admin", "tokens list", "tokens remove t",
        "tokens add bob --role admin", "sessions list", "channels list", "replay home/#", "sub home/# --timeout-s 0",
        "purge home/# --yes", "remove-root home --yes", "backup copy", "verify", "subs pause s",
    ],
)  # fmt: skip
def test_a_command_that_only_looks_makes_no_folder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    refused = here(*command.split(), code=2)
    assert list(tmp_path.iterdir()) == []
    assert "headwater-data" in refused.stderr
    assert "headwater.open" not in refused.stderr


def test_every_command_takes_the_folder_that_the_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headwater.toml").write_text('data = "elsewhere"\n')
    here("pub", "home/x", "1")
    assert (tmp_path / "elsewhere").is_dir()
    assert "home" in here("topics").stdout
    assert "home" in here("topics", "--data", "elsewhere").stdout
    assert not (tmp_path / "headwater-data").exists()
