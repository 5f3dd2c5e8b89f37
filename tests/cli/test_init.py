"""`headwater init`: from an empty folder to a server that asks who comes, and its first administrator."""

from __future__ import annotations

import os
import re
import shlex
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from cli.command import ENVIRONMENT, TIMEOUT_S, here, objects_here
from cli.test_serve import serving
from headwater.admin import Admin
from headwater.cli.certificate import make_certificate
from headwater.errors import Disconnected, Malformed, Unauthenticated


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(place: Path) -> dict[str, str]:
    """The environment of a shell whose server finds its port free."""
    given = {"HEADWATER_PORT": str(free_port()), "HEADWATER_MQTT": "no", "HEADWATER_HTTP": "no"}
    return {**ENVIRONMENT, **given, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def said(shell: dict[str, str], line: str) -> str:
    done = subprocess.run(shlex.split(line), env=shell, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_commands_from_an_empty_folder_to_a_message_with_authentication_and_tls(shell: dict[str, str]):
    told = said(shell, "headwater init --tls")  # the first
    start = re.search(r"^start it: +(.+)$", told, re.MULTILINE)
    use = re.search(r"^use it: +(.+)$", told, re.MULTILINE)
    assert start
    assert use
    with subprocess.Popen(
        shlex.split(start[1]), env=shell, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:  # the second
        try:
            assert server.stdout is not None
            assert "headwaters://" in server.stdout.readline()
            assert "home/kitchen/temp  offset 1" in said(shell, use[1])  # the third
            url = shlex.split(use[1])[-1]
            with headwater.connect(url) as bus:
                assert [message.payload for message in bus.replay("home/#")] == [b"21.5"]
            with pytest.raises(Unauthenticated):
                headwater.connect(re.sub(r":[^:@/]+@", ":wrong@", url))
            with pytest.raises(Disconnected, match="not trusted"):
                headwater.connect(url.partition("?")[0])
        finally:
            server.kill()


def test_what_it_makes_is_for_its_user_alone_and_is_what_serve_takes(place: Path):
    (made,) = objects_here("init", "--tls", "--host", "0.0.0.0")
    assert made["url"] == f"headwaters://admin:{made['secret']}@127.0.0.1:7411?ca={place}/headwater.crt"
    assert made["http"] == "https://127.0.0.1:7480"
    for name in ("headwater.key", "headwater.toml", "headwater-data"):
        assert stat.S_IMODE((place / name).stat().st_mode) & 0o077 == 0
    settings = {row["setting"]: row["value"] for row in objects_here("serve", "--print-config")}
    assert settings["auth"] == "scram"
    assert settings["host"] == "0.0.0.0"
    assert settings["data"] == str(place / "headwater-data")
    assert settings["tls_key"] == str(place / "headwater.key")


def test_a_second_time_it_says_who_is_there_and_changes_nothing(place: Path):
    here("init")
    before = {path: path.read_bytes() for path in place.glob("headwater.*")}
    refused = here("init", "--admin", "ann", "--tls", code=2)
    assert 'there is an administrator already, "admin"' in refused.stderr
    assert {path: path.read_bytes() for path in place.glob("headwater.*")} == before
    assert [client["name"] for client in objects_here("clients", "list")] == ["admin"]


def test_settings_that_are_there_are_kept_and_what_they_lack_is_told(place: Path):
    (place / "headwater.toml").write_text('data = "mine"\n')
    refused = here("init", "--tls", code=2)
    assert "names no certificate" in refused.stderr
    done = here("init")
    assert 'headwater.toml has auth = "none"' in done.stderr
    assert (place / "headwater.toml").read_text() == 'data = "mine"\n'
    assert (place / "mine").is_dir()


def test_while_a_server_runs_the_first_administrator_is_added_through_it(place: Path):
    data = place / "data"
    with serving(data, "--no-http", "--auth", "scram") as served:
        assert served.port
        assert "end it, then init again" in here("init", "--tls", data=data, code=2).stderr
        (made,) = objects_here("init", data=data)
        assert made["settings"] is None
        with headwater.connect(made["url"]) as bus:
            bus.publish("home/x", b"1")
            assert [client.name for client in bus.clients.list()] == ["admin"]
            assert Admin(bus).tokens.check(made["token"]).role == "admin"
        assert "already" in here("init", data=data, code=2).stderr
    assert not (place / "headwater.toml").exists()


def test_a_bad_name_or_option_makes_nothing(place: Path):
    for arguments in (["--admin", "a/b"], ["--name", "x"], ["--url", "headwater://127.0.0.1"]):
        here("init", *arguments, code=2)
    assert list(place.iterdir()) == []


def test_a_certificate_is_good_by_the_strictest_rules(place: Path):
    make_certificate("one.crt", "one.key", ["broker.example", "192.0.2.7"])
    context = ssl.create_default_context(cafile="one.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain("one.crt", "one.key")
    for name in ("broker.example", "192.0.2.7"):
        shake_hands(context, server, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, server, "another.example")
    with pytest.raises(Malformed, match="no name of a host"):
        make_certificate("two.crt", "two.key", ["brökér.example"])
    assert sorted(path.name for path in place.iterdir()) == ["one.crt", "one.key"]


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """As a client of a host does, without a network."""
    asked, told = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(told, asked, server_hostname=name)
    other = server.wrap_bio(asked, told, server_side=True)
    for _ in range(3):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert one.getpeercert()


def test_a_port_that_is_chosen_at_the_start_is_named_so(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWATER_PORT", "0")
    monkeypatch.setenv("HEADWATER_HTTP_PORT", "0")
    told = here("init").stdout
    assert ":0" not in told
    assert re.search(r"@127\.0\.0\.1:PORT'\s+\(PORT is chosen at the start: headwater serve shows it\)", told)
    assert "http://127.0.0.1:PORT" in told
    assert ":PORT  (PORT is chosen" in here("clients", "add", "bob").stdout
    assert "(PORT is chosen" in here("tokens", "add", "bob", "--role", "admin").stdout
    (made,) = objects_here("init", "--data", "other")
    assert (made["url"], made["http"]) == (None, None)
