"""Clients and rules, as the embedded bus keeps them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from headwater import Closed, HeadwaterError, ReadOnly
from headwater.bus import Bus


@pytest.mark.parametrize("where", [None, ":memory:"])
def test_clients_and_rules_are_kept_by_the_bus(where: str | None, folder: Path) -> None:
    with headwater.open(where or folder) as bus:
        assert bus.clients is bus.clients
        assert bus.acl is bus.acl
        made = bus.clients.add("sensor-7")
        bus.acl.allow("sensor-7", "publish", "home/%u/#")
        assert bus.clients.check_secret("sensor-7", made.secret) == "sensor-7"
    if where is None:
        with headwater.open(folder) as bus:
            assert [info.id for info in bus.clients.list()] == [made.id]
            assert bus.acl.may_publish("sensor-7", "home/sensor-7/temp")


def test_beside_the_owner_clients_and_rules_are_seen_and_refreshed(folder: Path) -> None:
    with headwater.open(folder) as bus, headwater.open(folder, read_only=True) as reader:
        assert reader.clients.list() == []
        assert reader.acl.list() == []
        made = bus.clients.add("sensor-7")
        bus.acl.allow("*", "publish", "#")
        reader.refresh()
        assert [info.id for info in reader.clients.list()] == [made.id]
        assert reader.acl.may_publish("sensor-7", "home")
        with pytest.raises(ReadOnly):
            reader.clients.remove("sensor-7")
        with pytest.raises(ReadOnly):
            reader.acl.remove("*", "publish", "#")


def test_a_backup_has_clients_and_rules(bus: Bus, tmp_path: Path) -> None:
    made = bus.clients.add("sensor-7")
    bus.acl.allow("sensor-7", "publish", "#")
    bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored") as restored:
        assert restored.clients.check_secret("sensor-7", made.secret)
        assert restored.acl.list() == bus.acl.list()


def test_an_embedded_bus_loads_nothing_of_it_until_asked(folder: Path) -> None:
    code = "import sys, headwater; headwater.open(':memory:').close(); print('headwater.access' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_closed_bus_has_no_clients_and_no_rules(folder: Path) -> None:
    bus = headwater.open(folder)
    clients = bus.clients
    bus.close()
    with pytest.raises(Closed):
        _ = bus.clients
    with pytest.raises(Closed):
        _ = bus.acl
    with pytest.raises(HeadwaterError):
        clients.add("sensor-7")
