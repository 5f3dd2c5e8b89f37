"""The compose file: its services, what they mount, and how they find one another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.settings import known

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("compose.yaml")["services"]
    return found


def test_what_is_mounted_is_there(services: dict[str, dict[str, Any]]) -> None:
    declared = read("compose.yaml")["volumes"].keys()
    mounted = [one.split(":")[0] for service in services.values() for one in service["volumes"]]
    assert {name for name in mounted if not name.startswith("./")} == set(declared)
    for name in mounted:
        assert not name.startswith("./") or (DEPLOY / name).exists()
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()


def test_the_server_is_built_from_the_file_here_with_settings_that_there_are(
    services: dict[str, dict[str, Any]],
) -> None:
    server = services["headwater"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).samefile(DEPLOY / "Containerfile")
    for name in server["environment"]:
        assert name.removeprefix("HEADWATER_").lower() in known()
    assert server["environment"]["HEADWATER_AUTH"] != "none"


def test_nothing_is_published_beyond_this_machine(services: dict[str, dict[str, Any]]) -> None:
    exposed = re.search(r"^EXPOSE (.+)$", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    assert exposed is not None
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert {port.split(":")[2] for port in services["headwater"]["ports"]} <= set(exposed[1].split())


def test_prometheus_finds_the_server_and_its_token(services: dict[str, dict[str, Any]]) -> None:
    (job,) = read("prometheus.yml")["scrape_configs"]
    ((target,),) = [one["targets"] for one in job["static_configs"]]
    host, port = target.split(":")
    assert any(one.endswith(f":{port}") for one in services[host]["ports"])
    (secret,) = services["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert secret in read("compose.yaml")["secrets"]


def test_grafana_finds_prometheus_and_the_dashboard(services: dict[str, dict[str, Any]]) -> None:
    (source,) = read("grafana/datasources/prometheus.yaml")["datasources"]
    assert source["url"].removeprefix("http://").split(":")[0] in services
    (provider,) = read("grafana/dashboards/headwater.yaml")["providers"]
    mounted = dict(one.split(":")[:2] for one in services["grafana"]["volumes"])
    assert Path(mounted["./grafana-headwater.json"]).parent == Path(provider["options"]["path"])
    assert source["isDefault"] is True
    dashboard = json.loads((DEPLOY / "grafana-headwater.json").read_text())
    assert source["type"] in {
        one.get("query") for one in dashboard["templating"]["list"] if one["type"] == "datasource"
    }
