"""`headwater serve` as an operator meets it: a process that gets ready, hears signals, and says what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater
from cli.command import ENVIRONMENT, one_sentence, run
from headwater.server.tls import peer_name
from server.authority import LOCAL, Authority

STUB = Path(__file__).with_name("stub_server.py")
TIMEOUT_S = 200


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.ready = process.stdout.readline()
        """The line that it prints when it is ready."""

    @property
    def port(self) -> int:
        met = re.search(r"://[^\s\"]*:(\d+)", self.ready)
        assert met, self.ready
        return int(met[1])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for(self, text: str) -> str:
        """The next line on stderr with a text in it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}")

    def end(self) -> tuple[int, str]:
        """Its exit code, and the rest of stderr."""
        _, rest = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, rest


def _headwater(environment: dict[str, str]) -> list[str]:
    """The command; around a stand-in for the server where STUB says what that should do badly."""
    return [sys.executable, str(STUB)] if "STUB" in environment else [sys.executable, "-m", "headwater"]


@contextmanager
def serving(data: Path, *arguments: object, **environment: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [*_headwater(environment), "serve", "--port", "0", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data.parent,
        env={**ENVIRONMENT, "HEADWATER_DATA": str(data), "HEADWATER_MQTT": "no", **environment},
    )
    with process:
        try:
            yield Served(process)
        finally:
            process.kill()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_without_memory_to_store_with_ends_with_a_sentence_and_a_code(data: Path, as_json: bool) -> None:
    with serving(data, "--no-http", *["--log-json"][: int(as_json)], STUB="run out of memory") as served:
        served.signal(signal.SIGHUP)
        code, told = served.end()
    assert code == 71
    last = told.splitlines()[-1]
    reason = json.loads(last)["reason"] if as_json else last
    assert "out of memory while storing" in reason
    assert "start it again" in reason
    assert "Traceback" not in told


def test_it_prints_one_line_with_its_url_when_clients_may_come(data: Path):
    with serving(data) as served:
        assert re.fullmatch(r"headwater is ready at headwater://127\.0\.0\.1:\d+\n", served.ready)
        socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S).close()


def test_without_a_cluster_nothing_of_one_is_imported(data: Path):
    with serving(data, "--http", "--http-port", "0", PYTHONPROFILEIMPORTTIME="1") as served:
        assert served.process.stderr is not None
        told: list[str] = []
        for line in served.process.stderr:
            told.append(line)
            if "INFO http url=" in line:  # the process for HTTP is there, whose imports are told here, too
                break
        served.signal(signal.SIGTERM)
        told += served.end()[1].splitlines()
    imported = {line.rpartition("|")[2].strip() for line in told if line.startswith("import time:")}
    assert {"headwater.server.server", "headwater.admin.arrivals"} <= imported
    assert [name for name in sorted(imported) if name.startswith(("headwater.cluster", "nats"))] == []


def test_with_log_json_every_line_is_an_object(data: Path):
    with serving(data, "--log-json") as served:
        ready = json.loads(served.ready)
        assert (ready["event"], ready["level"], ready["pid"]) == ("ready", "info", served.process.pid)
        assert ready["url"] == f"headwater://127.0.0.1:{served.port}"
        served.signal(signal.SIGTERM)
        code, rest = served.end()
        lines = [json.loads(line) for line in rest.splitlines()]
    assert code == 0
    assert [line["event"] for line in lines] == ["signal", "draining", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_then_stops_and_the_folder_is_free_again(data: Path, number: signal.Signals):
    with serving(data) as served:
        served.signal(number)
        code, rest = served.end()
    assert code == 0
    assert [line.split()[2] for line in rest.splitlines()] == ["signal", "draining", "stopped"]
    headwater.open(data).close()


def test_it_drains_before_it_stops(data: Path):
    with serving(data, STUB="as it should") as served:
        served.signal(signal.SIGTERM)
        assert re.findall(r"stub (\w+)", served.end()[1]) == ["drain", "stop"]


def test_a_drain_that_fails_is_logged_and_it_stops_all_the_same(data: Path):
    with serving(data, STUB="fail to drain") as served:
        served.signal(signal.SIGTERM)
        code, rest = served.end()
    assert code == 0
    assert "drain-failed" in rest
    assert "stub stop" in rest


def test_a_second_signal_ends_it_at_once(data: Path):
    with serving(data, STUB="drain for ever") as served:
        served.signal(signal.SIGTERM)
        served.wait_for("stub drain")
        served.signal(signal.SIGTERM)
        code, rest = served.end()
    assert code == 128 + signal.SIGTERM
    assert "stub stop" not in rest
    headwater.open(data).close()


def test_sighup_reloads_and_it_goes_on(data: Path):
    with serving(data) as served:
        for _ in range(2):
            served.signal(signal.SIGHUP)
            served.wait_for(" reloaded")
        served.signal(signal.SIGTERM)
        assert served.end()[0] == 0


def test_a_reload_that_fails_is_logged_and_it_goes_on(data: Path):
    with serving(data, STUB="fail to reload") as served:
        served.signal(signal.SIGHUP)
        assert 'error="no such thing"' in served.wait_for("reload-failed")
        served.signal(signal.SIGTERM)
        assert served.end()[0] == 0


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(data: Path, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(TIMEOUT_S)
        with serving(data, NOTIFY_SOCKET=str(tmp_path / "notify")) as served:
            assert heard.recv(100) == b"READY=1"
            served.signal(signal.SIGTERM)
            assert heard.recv(100) == b"STOPPING=1"
            assert served.end()[0] == 0


def test_settings_reach_the_bus_and_the_server(data: Path):
    (data.parent / "headwater.toml").write_text('host = "127.0.0.2"\nlog_level = "error"\n')
    with serving(data) as served:
        assert "://127.0.0.2:" in served.ready
        served.signal(signal.SIGTERM)
        assert served.end() == (0, "")


def name_of_server(port: int, authority: Authority) -> str | None:
    context = ssl.create_default_context(cafile=authority.path)
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return peer_name(connection)


def test_sighup_takes_new_certificates_and_keeps_the_old_ones_if_they_are_bad(data: Path, tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "before", others=LOCAL)
    with serving(data, "--tls-certificate", certificate, "--tls-key", key) as served:
        assert "headwaters://" in served.ready
        assert name_of_server(served.port, authority) == "before"
        authority.issue("server", "after", others=LOCAL)
        served.signal(signal.SIGHUP)
        served.wait_for(" reloaded")
        assert name_of_server(served.port, authority) == "after"
        Path(certificate).write_text("garbage")
        served.signal(signal.SIGHUP)
        assert certificate in served.wait_for("certificates-kept")
        served.wait_for(" reloaded")
        assert name_of_server(served.port, authority) == "after"
        served.signal(signal.SIGTERM)
        assert served.end()[0] == 0


def mqtt_answers(connection: socket.socket) -> bool:
    """Whether an MQTT client is greeted."""
    with connection:
        connection.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03ann")
        return connection.recv(4) == b"\x20\x02\x00\x00"


def test_mqtt_clients_are_served_with_and_without_tls(data: Path, tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "server", others=LOCAL)
    words = ("--mqtt", "--mqtt-port", 0, "--set", "mqtt_tls_port=0", "--tls-certificate", certificate, "--tls-key", key)
    with serving(data, *words) as served:
        assert served.process.stdout is not None
        lines = [served.process.stdout.readline() for _ in range(2)]
        found = [re.fullmatch(r"MQTT clients connect at (mqtts?)://127\.0\.0\.1:(\d+)\n", line) for line in lines]
        ports = {one[1]: int(one[2]) for one in found if one}
        assert mqtt_answers(socket.create_connection(("127.0.0.1", ports["mqtt"]), TIMEOUT_S))
        plain = socket.create_connection(("127.0.0.1", ports["mqtts"]), TIMEOUT_S)
        context = ssl.create_default_context(cafile=authority.path)
        assert mqtt_answers(context.wrap_socket(plain, server_hostname="localhost"))
        served.signal(signal.SIGTERM)
        assert served.end()[0] == 0


def test_an_mqtt_port_that_is_taken_is_said_and_the_rest_is_served(data: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(data, "--mqtt", "--mqtt-port", port) as served:
            assert "--mqtt-port" in served.wait_for("mqtt-failed")
            with headwater.connect(f"headwater://127.0.0.1:{served.port}") as bus:
                bus.publish("home/x", b"1")


def test_the_unix_socket_is_there_while_it_serves(data: Path, tmp_path: Path):
    with serving(data, "--unix", tmp_path / "socket") as served:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "socket"))
        served.signal(signal.SIGTERM)
        assert served.end()[0] == 0
    assert not (tmp_path / "socket").exists()


# What is wrong is one sentence, and code 2


def refusal(data: Path, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [*_headwater(environment), "serve", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=data.parent,
        env={**ENVIRONMENT, "HEADWATER_DATA": str(data), "HEADWATER_MQTT": "no", **environment},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert one_sentence(done.stderr), done.stderr
    return done.stderr


def test_a_port_in_use_is_said(data: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refusal(data, "--port", taken.getsockname()[1])
    assert "is in use" in said
    assert "--port" in said
    headwater.open(data).close()


def test_a_folder_that_another_process_owns_is_said(data: Path):
    with headwater.open(data):
        assert refusal(data, "--port", 0).startswith("Owned(409)")


def test_a_missing_certificate_is_said_before_the_folder_is_made(data: Path):
    said = refusal(data, "--port", 0, "--tls-certificate", "none.crt", "--tls-key", "none.key")
    assert "none.crt" in said
    assert not data.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_listening_beyond_loopback_without_authentication_is_refused(data: Path, host: str):
    assert "--auth scram" in refusal(data, "--port", 0, "--host", host)
    assert not data.exists()


@pytest.mark.parametrize("has_tls", [False, True])
def test_mqtt_that_can_be_read_on_its_way_is_warned_of(data: Path, tmp_path: Path, has_tls: bool):
    arguments = ["--no-http", "--auth", "scram", "--set", "mqtt_host=0.0.0.0"]
    if has_tls:
        certificate, key = Authority(tmp_path, "authority").issue("server", "localhost", others=LOCAL)
        arguments += ["--tls-certificate", certificate, "--tls-key", key, "--set", "mqtt_tls_port=0"]
    with serving(data, *arguments, HEADWATER_MQTT="yes", HEADWATER_MQTT_PORT="0") as served:
        assert "host=0.0.0.0" in served.wait_for("plain-text")
        served.signal(signal.SIGTERM)
        code, rest = served.end()
    assert code == 0
    assert "plain-text" not in rest


def test_an_address_of_another_machine_is_said(data: Path):
    assert "no address of this machine" in refusal(data, "--port", 0, "--host", "192.0.2.1", "--auth", "scram")


@pytest.mark.parametrize("path", ["none/socket", "x" * 200], ids=["no folder", "too long"])
def test_a_socket_that_cannot_be_made_is_said(data: Path, path: str):
    assert path in refusal(data, "--port", 0, "--unix", path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen anywhere")
def test_a_port_for_root_only_is_said(data: Path):
    assert "1024" in refusal(data, "--port", 1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--port", "70000"], "port is from --port"),
        (["--auth", "scrum"], '"scram"'),
        (["--log-level", "loud"], '"warning"'),
        (["--set", "segment_byte=5"], "did you mean segment_bytes?"),
        (["--set", "port=5", "--port", "6"], "given twice"),
        (["--tls-key", "k"], "tls_certificate"),
        (["--config", "none.toml"], "none.toml"),
        (["--json"], "--log-json"),
    ],
)
def test_flags_that_cannot_be_right_are_said(data: Path, arguments: list[str], part: str):
    assert part in refusal(data, *arguments)


def test_a_variable_that_is_no_setting_is_said_with_the_nearest_one(data: Path):
    assert "did you mean HEADWATER_KEEPALIVE_S?" in refusal(data, HEADWATER_KEEPALIV_S="5")


def test_it_is_in_the_help():
    assert " serve " in run("--help").stdout
