"""Somebody who reads a page and pastes each block of it, in a folder of their own.

What is different from a reader's machine, and nothing else:

| on the page | in the test |
|---|---|
| 7411, 7480, 1883 | the ports on which the page's server listens, which the system chose |
| 8080, 9000, 9001 | free ports |
| `mosquitto_pub`, `mosquitto_sub` | the same with `-p` and the server's port |
| SECRET, TOKEN | the last ones that a command showed |
| `headwater cluster try`, and ports of what it starts | the same with `--free-ports`, and those ports |
| `headwater pipeline archive` and others that start a Spark | the same, in the session of the tests |
| `headwater pipeline serve`, and 15002 | the same with `--port 0`, and that port |
| `make …` | `make -n …`, in the repository: that there is such a target, and not what it does |
| `pip install .` | the same with `--dry-run`, in the repository: what is installed there stays |
| `headwater serve`; a command that says "Ctrl-C" behind it | goes on in a terminal of its own until the page ends |
| Python that says "Ctrl-C" | gets it, when it has shown what the page says |
| examples/, tests/ | the repository's |
| "var/… in Python | the same with the page's folder before it: Spark runs in another one |
| HTTP and MQTT | are served where the page speaks of their ports |
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from docs.pages import REPO, Block
from docs.screen import Screen
from headwater import settings, threads
from headwater.cli.app import app_for
from headwater.errors import HeadwaterError

PATIENCE_S = 60.0
SPARK_PATIENCE_S = 240.0
"""Of a command that starts a Spark of its own, on a machine that does something else, too."""
SERVED = {"7411": "url", "7480": "http", "1883": "mqtt"}
FREE = ("8080", "9000", "9001")
KEPT_OPEN = re.compile(r"^headwater serve\b|#.*Ctrl-C")
CLUSTER = "headwater cluster try"
PIPELINE = "headwater pipeline "
SHARES = re.compile(rf"{PIPELINE}(?:archive|dead-letters|replay|rollup|run) ")
"""Takes the session of the tests, rather than to start one."""
WARM = "headwater pipeline serve"
WARM_ADDRESS = re.compile(r"sc://localhost:(?P<port>\d+)/;token=(?P<token>[\w-]+)")
CODE = re.compile(r"#.*\bexit code (\d+)")
SHOWN_ONCE = {
    "SECRET": re.compile(r"^secret: (\S+)", re.MULTILINE),
    "TOKEN": re.compile(r"\b(hwt_\w+_[\w-]+)"),
}


class Terminal:
    """A command that goes on while other blocks are run."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str], names: dict[str, str]) -> None:
        self.command = command
        self.screen = Screen(names)
        self.errors = Screen()
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [
            threads.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.screen), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, source: Any, screen: Screen) -> None:
        for line in source:
            screen.write(line)

    def end(self) -> None:
        """As SIGTERM ends it; a server with all that it does at its end."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for reader in self._readers:
                reader.join()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()


class Reader:
    """One page, from its first block to its last."""

    def __init__(self, folder: Path, blocks: list[Block]) -> None:
        self.folder = folder
        for name in ("examples", "tests"):
            (folder / name).symlink_to(REPO / name)
        self._page = "".join(block.text + (block.output or "") for block in blocks)
        self._names: dict[str, str] = {}
        self._secrets: dict[str, str] = {}
        self._terminals: list[Terminal] = []
        self._module: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """As the page says; an AssertionError says what was different."""
        text = self._here(block.text, block.language)
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif block.language == "python":
            self._python(block, text)
        elif block.language == "sh":
            self._shell(block, text)
        elif block.language == "toml":
            self._settings(text)
        elif block.language == "json":
            for value in text.split("\n{"):
                json.loads(value if value.startswith(("{", "[")) else "{" + value)

    def _here(self, text: str, language: str = "") -> str:
        """With ports of this machine and secrets of this page."""
        for port in FREE:
            if port in text and port not in self._names:
                self._names[port] = str(free_port())
        if "1883" in self._names:
            text = re.sub(r"\bmosquitto_(pub|sub)\b", rf"mosquitto_\1 -p {self._names['1883']}", text)
        for name, real in (self._names | self._secrets).items():
            text = re.sub(rf"\b{name}\b", real, text)
        if language == "python":
            text = text.replace('"var/', f'"{self.folder}/var/')
        if language == "sh":
            text = re.sub(r"(?m)^make ", f"make -n -C {REPO} ", text)
            dry = "pip install --quiet --dry-run --no-deps --no-build-isolation"
            text = re.sub(r"(?m)^pip install ('?)\.", rf"{dry} \1{REPO}", text)
        return text

    # Python

    def _python(self, block: Block, text: str) -> None:
        is_endless = "Ctrl-C" in block.text
        assert block.output or not is_endless, f"{block.place}: a block that ends with Ctrl-C shows something"
        screen = Screen(self._names, block.output if is_endless else None)
        code = compile("\n" * block.line + text, block.place.rpartition(":")[0], "exec", dont_inherit=True)
        with contextlib.redirect_stdout(screen):
            try:
                exec(code, self._module)
            except KeyboardInterrupt:
                if not is_endless:
                    raise
            except HeadwaterError as error:
                if block.output is None:
                    raise
                screen.write(f"{error}\n")
        self._compare(block, screen)

    # Commands

    def _shell(self, block: Block, text: str) -> None:
        commands = list(_joined(text.splitlines()))
        screen = Screen(self._names)
        now: list[str] = []
        for command in commands:
            is_kept = KEPT_OPEN.search(command) is not None
            if is_kept or SHARES.match(command):
                self._finish(block, now, screen)
                now = []
            if is_kept:
                self._keep_open(block, command)
            elif SHARES.match(command):
                self._share(block, command, screen)
            else:
                now.append(command)
        self._finish(block, now, screen)
        if not (self._terminals and block.output is not None and KEPT_OPEN.search(commands[-1])):
            self._compare(block, screen)

    def _finish(self, block: Block, commands: list[str], screen: Screen) -> None:
        if not any(command.strip() for command in commands):
            return
        script = "\n".join(commands)
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=SPARK_PATIENCE_S if PIPELINE in script else PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        code = CODE.search(block.text)
        said = done.stdout + done.stderr
        assert done.returncode == (int(code[1]) if code else 0), f"{block.place}: {script}\n{said}\n{self._said()}"
        for name, secret in SHOWN_ONCE.items():
            if found := secret.findall(done.stdout):
                self._secrets[name] = found[-1]
        screen.write(said if code else done.stdout)

    def _share(self, block: Block, command: str, screen: Screen) -> None:
        text = re.sub(r"\s#.*", "", command).replace("\\\n", " ")
        arguments = shlex.split(re.sub(r"(?<=[ =])var/", f"{self.folder}/var/", text))[1:]  # Spark is in another folder
        done = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app_for(arguments), arguments)
        assert done.exit_code == 0, f"{block.place}: {command}\n{done.output}\n{done.exception!r}\n{self._said()}"
        screen.write(done.stdout)

    def _keep_open(self, block: Block, command: str) -> None:
        is_server, is_cluster = command.startswith("headwater serve"), command.startswith(CLUSTER)
        is_warm = command.startswith(WARM)
        environment = self._environment()
        if is_server:
            environment |= {f"HEADWATER_{which}PORT": "0" for which in ("", "HTTP_", "MQTT_")}
        if is_cluster:
            command = command.replace(CLUSTER, f"{CLUSTER} --free-ports", 1)
        if is_warm:
            command = command.replace(WARM, f"{WARM} --port 0", 1)
        terminal = Terminal(command.partition("  #")[0], self.folder, environment, self._names)
        self._terminals.append(terminal)
        if is_server:
            self._meet(block, terminal, environment)
        if is_cluster:
            self._meet_nodes(block, terminal)
        if is_warm:
            self._meet_session(block, terminal)
        if block.output is not None:
            said = terminal.screen.wait(block.output, PATIENCE_S)
            assert said, f"{block.place} shows\n{terminal.screen.text}\n{terminal.errors.text}"

    def _meet(self, block: Block, server: Terminal, environment: dict[str, str]) -> None:
        """Learn where it listens, as its page says on which ports it does."""
        lines = {
            "": "headwater is ready at …",
            "HTTP": "…\nthe dashboard and the API are at …",
            "MQTT": "…\nMQTT clients connect at …",
        }
        for which, line in lines.items():
            if not which or environment[f"HEADWATER_{which}"] == "true":
                ready = server.screen.wait(line, PATIENCE_S)
                assert ready, f"{block.place}: {server.screen.text}\n{server.errors.text}"
        for owner in self.folder.rglob("owner.json"):
            said = json.loads(owner.read_text())
            if said["pid"] != server.process.pid:
                continue
            for port, name in SERVED.items():
                for url in [said[name]] if isinstance(said[name], str) else said[name][:1]:
                    if url:
                        self._names[port] = url.rpartition(":")[2]

    def _meet_nodes(self, block: Block, cluster: Terminal) -> None:
        """The same of three nodes and the first of their NATS servers."""
        assert cluster.screen.wait("…\nn… leads", PATIENCE_S), f"{block.place}: {cluster.errors.text}"
        places = {
            "4222": r"nats1 +nats://\S+:(\d+)",
            "1883": r"n1 .* mqtt://\S+:(\d+)",
            "7480": r"n1 .* http://\S+:(\d+)",
            **{str(7410 + node): rf"n{node} +headwater://\S+?:(\d+)" for node in (1, 2, 3)},
        }
        for port, pattern in places.items():
            found = re.search(pattern, cluster.screen.text)
            assert found, f"{block.place}: {port}\n{cluster.screen.text}"
            self._names[port] = found[1]

    def _meet_session(self, block: Block, warm: Terminal) -> None:
        """The same of a session of Spark that is kept warm, and its token."""
        is_there = warm.screen.wait("export HEADWATER_SPARK=…", SPARK_PATIENCE_S)
        found = WARM_ADDRESS.search(warm.screen.text)
        assert is_there, f"{block.place}: {warm.screen.text}\n{warm.errors.text}"
        assert found is not None, f"{block.place}: {warm.screen.text}\n{warm.errors.text}"
        self._names["15002"], self._secrets["TOKEN"] = found["port"], found["token"]

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTEST_"))}
        return mine | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "160",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "HEADWATER_HTTP": "true" if "7480" in self._page else "false",
            "HEADWATER_MQTT": "true" if re.search("1883|mosquitto", self._page) else "false",
        }

    def _said(self) -> str:
        return "\n".join(f"{one.command}\n{one.screen.text}{one.errors.text}" for one in self._terminals)

    # What is shown

    def _compare(self, block: Block, screen: Screen) -> None:
        if block.output is not None:
            assert screen.says(block.output), f"{block.place} shows\n{screen.text}"

    def _settings(self, text: str) -> None:
        tomllib.loads(text)
        path = self.folder / "page.toml"
        path.write_text(text, encoding="utf-8")
        settings.load(path=str(path))

    def close(self) -> None:
        """Whatever the page left open."""
        for value in reversed(list(self._module.values())):
            close = getattr(value, "close", None)
            if callable(close) and type(value).__module__.startswith("headwater"):
                with contextlib.suppress(HeadwaterError):
                    close()
        for terminal in reversed(self._terminals):
            code = terminal.process.poll()
            terminal.end()
            assert not code, f"{terminal.command}\n{terminal.screen.text}\n{terminal.errors.text}"


def _joined(lines: list[str]) -> Iterator[str]:
    """Commands, each with the lines that it goes on in."""
    command = ""
    for line in lines:
        command += line
        if line.endswith("\\"):
            command += "\n"
        else:
            yield command
            command = ""


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
