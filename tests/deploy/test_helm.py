"""The Helm chart: what it makes is what Kubernetes takes, and what Headwater understands."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from deploy.chart import about, check, rendered, values
from headwater.settings import known
from headwater.version import __version__

KUBERNETES = "1.31"
EVERYTHING: dict[str, Any] = {
    "tls": {"secretName": "certificate"},
    "persistence": {"enabled": False},
    "monitoring": {"enabled": True},
    "image": {"tag": "1", "pullSecrets": [{"name": "registry"}]},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "settings": {"roots_max": 1_000_000, "loop_lag_s_max": 0.5, "log_json": True},
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"c": "d"},
}
CLUSTER: dict[str, Any] = {"cluster": {"nats": ["nats://a:4222", "nats://b:4222"], "nodes": 5, "bus": "shop"}}
OTHERS: tuple[dict[str, Any], ...] = (
    {},
    EVERYTHING,
    {"persistence": {"storageClass": "fast"}},
    {"settings": {"auth": "certificate"}},
    CLUSTER,
)


def container(over: dict[str, Any]) -> dict[str, Any]:
    (found,) = rendered(over)["statefulset.yaml"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(over: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(over)["env"] if "value" in one}


@pytest.mark.parametrize("over", OTHERS, ids=["as it is", "everything", "a storage class", "certificates", "a cluster"])
def test_what_is_made_is_what_kubernetes_takes(over: dict[str, Any]) -> None:
    made = rendered(over)
    for name in ("statefulset.yaml", "service.yaml"):
        kubernetes_validate.validate(made[name], KUBERNETES, strict=True)
    assert ("servicemonitor.yaml" in made) is (over is EVERYTHING)


def test_what_kubernetes_does_not_take_is_noticed() -> None:
    made = rendered()["statefulset.yaml"]
    made["spec"]["replicas"] = "one"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, KUBERNETES, strict=True)


@pytest.mark.parametrize("over", OTHERS)
def test_volumes_ports_and_labels_fit_together(over: dict[str, Any]) -> None:
    made = rendered(over)
    service, workload = made["service.yaml"]["spec"], made["statefulset.yaml"]["spec"]
    pod = workload["template"]
    mounted = {one["name"] for one in container(over)["volumeMounts"]}
    there = {one["name"] for one in pod["spec"].get("volumes", ())}
    there |= {one["metadata"]["name"] for one in workload.get("volumeClaimTemplates", ())}
    assert mounted == there
    opened = {one["name"]: one["containerPort"] for one in container(over)["ports"]}
    assert {one["targetPort"]: one["port"] for one in service["ports"]} == opened
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert workload["selector"]["matchLabels"] == service["selector"]
    assert workload["serviceName"] == made.get("nodes.yaml", made["service.yaml"])["metadata"]["name"]


@pytest.mark.parametrize("over", OTHERS)
def test_the_environment_has_settings_that_there_are(over: dict[str, Any]) -> None:
    for name in environment(over):
        assert name.removeprefix("HEADWATER_").lower() in known()


def test_numbers_reach_the_server_as_they_are_written() -> None:
    found = environment(EVERYTHING)
    settings = ("HEADWATER_ROOTS_MAX", "HEADWATER_LOOP_LAG_S_MAX", "HEADWATER_LOG_JSON")
    assert [found[name] for name in settings] == ["1000000", "0.5", "true"]


def test_the_chart_installs_this_version() -> None:
    assert about()["version"] == about()["appVersion"] == __version__
    assert container({})["image"] == f"headwater:{__version__}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"imagee": {}},
        {"settings": {"auth": "none"}},
        {"settings": {"auth": "scram", "port": 1}},
        {"settings": {"auth": "scram", "roots_max": [1]}},
        {"persistence": {"size": "much"}},
        {"service": {"type": "Door"}},
        {"monitoring": {"interval": 30}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(values(wrong))


def test_the_notes_name_a_command_that_there_is() -> None:
    notes = rendered()["NOTES.txt"]
    assert re.search(r"kubectl exec -n here mine-0 -- headwater init\b", notes)


def test_nodes_of_a_cluster_have_names_by_which_the_others_find_them() -> None:
    made = rendered(CLUSTER)
    assert made["statefulset.yaml"]["spec"]["replicas"] == 5
    assert made["statefulset.yaml"]["spec"]["serviceName"] == made["nodes.yaml"]["metadata"]["name"]
    assert made["nodes.yaml"]["spec"]["clusterIP"] == "None"
    found = environment(CLUSTER)
    assert found["HEADWATER_CLUSTER"] == "nats://a:4222,nats://b:4222"
    assert found["HEADWATER_ADVERTISE"] == f"$(HEADWATER_NODE).{made['nodes.yaml']['metadata']['name']}:7411"
    assert found["HEADWATER_BUS"] == "shop"
    names = [one["name"] for one in container(CLUSTER)["env"]]
    assert names.index("HEADWATER_NODE") < names.index("HEADWATER_ADVERTISE")
    for name in ("nodes.yaml", "disruption.yaml"):
        kubernetes_validate.validate(made[name], KUBERNETES, strict=True)


def test_without_servers_there_is_one_node_by_itself() -> None:
    made = rendered()
    assert made["statefulset.yaml"]["spec"]["replicas"] == 1
    assert not {"nodes.yaml", "disruption.yaml"} & made.keys()
