from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    headwater.open(tmp_path / "data").close()
    return tmp_path / "data"


def knows(data: Path, name: str, secret: str) -> bool:
    with headwater.open(data) as bus:
        return bus.clients.check_secret(name, secret) == name


def test_a_client_is_added_and_its_secret_shown_once_with_how_to_use_it(data: Path):
    shown = run("clients", "add", "sensor-7", data=data).stdout
    secret = shown.partition("secret: ")[2].split()[0]
    assert knows(data, "sensor-7", secret)
    assert f"headwater://sensor-7:{secret}@127.0.0.1:7411" in shown
    assert "once" in shown
    assert secret not in here("clients", "list", data=data).stdout
    assert "sensor-7" in here("clients", "list", data=data).stdout


def test_clients_are_listed_rotated_and_removed_for_machines(data: Path):
    (made,) = objects("clients", "add", "sensor-7", data=data)
    assert set(made) == {"id", "name", "secret"}
    (rotated,) = objects_here("clients", "rotate", "sensor-7", data=data)
    assert (rotated["id"], rotated["name"]) == (made["id"], "sensor-7")
    assert rotated["secret"] != made["secret"]
    assert knows(data, "sensor-7", rotated["secret"])
    with headwater.open(data):  # listing works beside the owner
        (info,) = objects("clients", "list", data=data)
    assert set(info) == {"id", "name", "created", "rotated"}
    assert info["created"] < info["rotated"]
    assert objects_here("clients", "remove", "sensor-7", data=data) == [
        {"name": "sensor-7", "done": "removed", "rules_left": 0}
    ]
    assert objects_here("clients", "list", data=data) == []


def test_a_secret_from_the_input_is_taken_and_not_shown_again(data: Path):
    shown = run("clients", "add", "küche 1", "--secret-stdin", data=data, stdin=b"p\xc3\xa4ncil\r\nmore").stdout
    assert knows(data, "küche 1", "päncil")
    assert "päncil" not in shown
    assert "headwater://k%C3%BCche%201:SECRET@" in shown
    assert "secret" not in objects_here("clients", "rotate", "küche 1", "--secret-stdin", data=data, stdin=b"pen")[0]
    assert knows(data, "küche 1", "pen")


def test_rules_that_outlive_their_client_are_pointed_out(data: Path):
    run("clients", "add", "sensor-7", data=data)
    here("acl", "allow", "sensor-7", "publish", "home/#", data=data)
    assert "would hold for a new client" in here("clients", "remove", "sensor-7", data=data).stderr


@pytest.mark.parametrize(
    ("wrong", "stdin"),
    [
        (("add", "known"), b""),
        (("add", "a/b"), b""),
        (("add", "%u"), b""),
        (("add", "new", "--secret-stdin"), b""),
        (("add", "new", "--secret-stdin"), b"\xff\n"),
        (("add", "new", "--secret-stdin"), b"x" * 5000),
        (("rotate", "nobody"), b""),
        (("remove", "nobody"), b""),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...], stdin: bytes):
    with headwater.open(data) as bus:
        before = bus.clients.add("known")
    assert one_sentence(here("clients", *wrong, data=data, stdin=stdin, code=2).stderr)
    assert [info["id"] for info in objects_here("clients", "list", data=data)] == [before.id]


def test_while_another_process_owns_the_folder_nothing_is_changed(data: Path):
    with headwater.open(data):
        assert one_sentence(run("clients", "add", "sensor-7", data=data, code=2).stderr)
