"""`headwater pipeline infer`: what is shown, and what --yes makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater
from cli.command import one_sentence, run
from headwater.errors import SchemaMismatch


def test_a_schema_is_shown_and_made_when_it_is_confirmed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with headwater.open(data) as bus:
        bus.publish("home/hall/temp", b'{"celsius": "an old one"}')
        bus.publish_many([("home/hall/door", b"open")] * 50)
        bus.publish_many([("home/hall/temp", b'{"celsius": %d.5}' % n) for n in range(10)])
        bus.publish("home/hall/temp", b"broken")
    shown = json.loads(run("pipeline", "infer", "home/+/temp", "--json", "--sample", "11", data=data).stdout)
    assert shown["schema"] == {"type": "object", "properties": {"celsius": {"type": "number"}}}
    assert (shown["columns"], shown["seen"], shown["unread"], shown["made"]) == ({"celsius": "double"}, 11, 1, False)
    with headwater.open(data) as bus:
        assert not bus.schemas()
    told = run("pipeline", "infer", "home/+/temp", "--sample", "11", "--yes", data=data)
    assert "celsius" in told.stdout
    assert "is the schema" in told.stderr
    with headwater.open(data) as bus, pytest.raises(SchemaMismatch):
        bus.publish("home/hall/temp", b'{"celsius": "hot"}')
    one_sentence(run("pipeline", "infer", "home/+/door", data=data, code=2).stderr)
