from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here, one_sentence, run
from client.served import Served
from headwater.cli import sql as cli_sql

COUNT = "select count(*) as n from 'home/#'"
MEANS = "select topic, avg(value) as mean from 'home/#' group by 1 order by 1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([(f"home/{n % 2}", b"%d" % n) for n in range(4)])
        bus.publish("mill/a", b'{"celsius": 21}', key=b"\xff", headers={"unit": "C"})
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def keeps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the C library was told about memory: by a command of its own, not for the process of these tests."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(cli_sql, "_of_the_library", lambda _: lambda option, value: told.append((option, value)))
    return told


def test_what_a_read_frees_is_kept_for_the_next(data: Path, keeps: list[tuple[int, int]], monkeypatch):
    here("sql", COUNT, data=data)
    assert {option for option, _ in keeps} == {-1, -3}
    assert all(0 < value <= 32 << 20 for _, value in keeps)  # of which glibc takes no more
    monkeypatch.setattr(cli_sql, "_of_the_library", lambda _: None)  # another C library
    assert objects_here("sql", COUNT, data=data) == [{"n": 4}]


def test_rows_come_as_objects_as_csv_and_as_a_table(data: Path):
    assert objects_here("sql", MEANS, data=data) == [{"topic": "home/0", "mean": 1.0}, {"topic": "home/1", "mean": 2.0}]
    assert here("sql", MEANS, "--csv", data=data).stdout == "topic,mean\nhome/0,1.0\nhome/1,2.0\n"
    assert [line.split() for line in run("sql", MEANS, data=data).stdout.splitlines()] == [
        ["topic", "mean"],
        ["home/0", "1.0"],
        ["home/1", "2.0"],
    ]


def test_every_kind_of_value_has_its_form(data: Path):
    asked = """
        select payload, key, headers, sum("offset") as s, null as n, [1.5] as l, {'a': true} as o
        from 'mill/#' group by all
    """
    assert objects_here("sql", asked, data=data) == [
        {
            "payload": '{"celsius": 21}',
            "key_base64": "/w==",
            "headers": [["unit", "C"]],
            "s": 1,
            "n": None,
            "l": [1.5],
            "o": {"a": True},
        }
    ]
    (found,) = objects_here("sql", "select timestamp, celsius from 'mill/#'", "--field", "celsius=float", data=data)
    assert found["celsius"] == 21.0
    assert found["timestamp"].endswith("Z")


def test_a_range_may_be_said_beside_the_query(data: Path):
    count = "select count(*) as n from 'home/#'"
    assert objects_here("sql", count, "--since", "1h", data=data) == [{"n": 4}]
    assert objects_here("sql", count, "--until", "1h", data=data) == [{"n": 0}]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (["selec"], "syntax error"),
        (["select offset from 'home/#'"], 'write it as "offset"'),
        (["select * from 'hme/#'"], 'did you mean "home"'),
        ([MEANS, "--field", "celsius"], "--field celsius=float"),
        ([MEANS, "--json", "--csv"], "say one of them"),
    ],
)
def test_what_is_wrong_is_one_sentence(data: Path, said: list[str], says: str):
    told = here("sql", *said, data=data, code=2).stderr
    assert one_sentence(told)
    assert says in told


def test_a_server_is_asked_too(tmp_path: Path):
    with Served(tmp_path / "data") as served:
        served.bus.publish("home/x", b"1")
        assert objects_here("sql", "select value from 'home/#'", "--url", served.url) == [{"value": 1.0}]


def test_it_starts_without_pandas(tmp_path: Path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/x", b"1")
    asked = "import sys; from headwater.cli import main\ntry: main()\nfinally: print('pandas' in sys.modules)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            asked,
            "sql",
            "select count(*) as n from 'home/#'",
            "--data",
            tmp_path / "data",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == '{"n":1}\nFalse\n', done.stderr
