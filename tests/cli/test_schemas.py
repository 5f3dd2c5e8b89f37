"""`headwater schemas`, on a folder and at a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here
from client.served import Served

NUMBER = '{"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}'
STORED = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}


def test_a_schema_is_added_listed_shown_and_removed(tmp_path: Path):
    data, file = tmp_path / "data", tmp_path / "reading.json"
    file.write_text(NUMBER)
    assert "home/+/temp" in here("schemas", "add", "home/+/temp", file, data=data).stdout
    (found,) = objects_here("schemas", "list", data=data)
    assert (found["filter"], found["schema"]) == ("home/+/temp", STORED)
    with headwater.open(data) as bus:  # beside the owner, too
        assert json.loads(here("schemas", "show", "home/+/temp", data=data).stdout) == STORED
        bus.publish("garden/x", b"hello")
    said = here("schemas", "add", "garden/#", file, data=data, code=2).stderr
    assert 'contradicts message 1 of "garden/x"' in said
    assert "say --check none" in said
    here("schemas", "add", "garden/#", file, "--check", "none", data=data)
    assert "does not fit" in here("pub", "home/a/temp", "21.5", data=data, code=2).stderr
    here("schemas", "remove", "garden/#", data=data)
    assert "headwater schemas list" in here("schemas", "remove", "garden/#", data=data, code=2).stderr
    assert "headwater schemas list" in here("schemas", "show", "garden/#", data=data, code=2).stderr
    assert len(objects_here("schemas", "list", data=data)) == 1


def test_a_type_of_a_module_is_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "house_types.py").write_text("class Types:\n    Kelvin = float\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    data = tmp_path / "data"
    (made,) = objects_here("schemas", "add", "home/+/temp", "house_types:Types.Kelvin", data=data)
    assert made["schema"] == {"type": "number"}
    for given, why in (("no-such-file", "is no file"), ("house_types:Fahrenheit", 'has no "Fahrenheit"')):
        assert why in here("schemas", "add", "x/#", given, data=data, code=2).stderr
    assert "recent, all or none" in here("schemas", "add", "x/#", "x", "--check", "some", data=data, code=2).stderr


def test_the_same_at_a_server(tmp_path: Path):
    file = tmp_path / "reading.json"
    file.write_text(NUMBER)
    with Served(tmp_path / "data") as served:
        at = ("--url", served.url)
        here("schemas", "add", "home/+/temp", file, *at)
        assert [one.filter for one in served.bus.schemas()] == ["home/+/temp"]
        assert "home/+/temp" in here("schemas", "list", *at).stdout
        here("schemas", "remove", "home/+/temp", *at)
        assert served.bus.schemas() == []
