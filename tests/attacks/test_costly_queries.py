"""A reader of the HTTP API asks in SQL for all of the machine: memory that nobody counts, or time for ever."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headwater
from admin.served import Served, serving
from headwater.admin.query.process import Told
from headwater.admin.query.queries import COMMAND
from server.harness import PATIENCE_S

MIB = 1 << 20
MEMORY = 64 * MIB
ENDLESS = "select count(*) from range(100000000000) a, range(100000000000) b"


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    data = tmp_path_factory.mktemp("asked") / "data"
    with headwater.open(data) as bus:
        bus.clients.add("ann")
        bus.publish("home/x", b"1")
        token = bus.tokens.add("ann", "reader").token
    with serving(data, "--auth", "scram", "--set", f"sql_memory_bytes={MEMORY}") as served:
        served.read_http()
        yield served, token


@pytest.mark.parametrize(
    "query",
    [
        "select length(printf('%1500000000d', 1))",
        "select length(format('{:>1500000000}', 'x'))",
        "select repeat('x', 100000000) from range(40)",
        "select max(len(range(200000000)))",
    ],
)
def test_what_a_query_takes_is_bounded_whatever_function_takes_it(token: tuple[Served, str], query: str):
    served, text = token
    with served.client(text) as http:
        answer = http.get("/v1/sql", params={"query": query})
        assert (answer.status_code, answer.json()["kind"]) == (413, "TooLarge")
        assert http.get("/v1/sql", params={"query": "select topic from 'home/#'"}).json()["rows"] == [["home/x"]]


def test_a_query_ends_with_who_has_begun_it(tmp_path: Path):
    """As its input does when the process that serves HTTP is killed."""
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/x", b"1")
    told = Told(query=ENDLESS, rows_max=1, folder=str(tmp_path / "data"), memory_bytes=MEMORY)
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.close()
            assert process.wait(PATIENCE_S) != 0
        finally:
            process.kill()
