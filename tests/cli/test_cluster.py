"""`headwater cluster`, on nodes and NATS servers that `headwater cluster try` has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from cli.command import ENVIRONMENT, command, here, objects_here, one_sentence, run
from cluster.conftest import runs_nats
from headwater.cluster.nats_engine import NatsEngine
from headwater.config import Clustering
from headwater.errors import Conflict

PATIENCE_S = 90.0

pytestmark = pytest.mark.xdist_group("nats")


class Tried:
    """A cluster that `headwater cluster try` runs, as its lines of JSON tell of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._log = (place / "errors").open("wb")
        self.process = subprocess.Popen(
            command("cluster", "try", "--free-ports", "--json"),
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**ENVIRONMENT, "TMPDIR": str(place)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done there)
        )
        self.servers: list[dict[str, Any]] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "nats" in said:
                self.servers.append(said)
            elif "pid" in said:
                self.nodes[said["node"]] = said
            elif "cluster" in said:
                self.url, self.cluster = said["url"], said["cluster"]
            else:
                assert said["event"] == "leads"
                break
        else:
            self.end()
            pytest.fail((place / "errors").read_text())

    def end(self) -> int:
        """As Ctrl-C does; its exit code."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self._log.close()
        return code

    def ask(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """A command's answer."""
        (found,) = objects_here("cluster", *arguments, "--cluster", self.cluster, code=code)
        return found

    def refusal(self, *arguments: str) -> str:
        """The sentence that a command ends with."""
        result = here("cluster", *arguments, "--cluster", self.cluster, code=2)
        said = " ".join(result.stderr.split())
        assert "Traceback" not in said
        return said

    def leader(self) -> str:
        return str(self.ask("leader")["node"])

    def status(self) -> dict[str, Any]:
        result = here("cluster", "status", "--cluster", self.cluster, "--json", code=None)
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == (0 if found["well"] else 1)
        return found

    def wait(self, what: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """How the cluster is, once something is so."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = self.status()
            if is_so(found):
                return found
            time.sleep(0.1)
        raise AssertionError(f"{what}: {found}")

    def start_again(self, name: str) -> subprocess.Popen[bytes]:
        """As the line that `try` prints says."""
        node = self.nodes[name]
        ports = {door: node[door].rpartition(":")[2] for door in ("url", "mqtt", "http")}
        return subprocess.Popen(
            command(
                *("serve", "--data", node["data"], "--cluster", self.cluster, "--node", name, "--port", ports["url"]),
                *("--mqtt-port", ports["mqtt"], "--http-port", ports["http"]),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    runs_nats()
    made = Tried(tmp_path_factory.mktemp("tried"))
    try:
        yield made
    finally:
        pids = [one["pid"] for one in (*made.servers, *made.nodes.values())]
        assert made.end() == 0
        assert list(made.place.glob("headwater-*")) == []
        assert not any(map(is_there, pids))


def test_try_prints_addresses_that_work(tried: Tried):
    assert (len(tried.servers), sorted(tried.nodes)) == (3, ["n1", "n2", "n3"])
    for node in tried.nodes.values():
        with headwater.connect(node["url"]) as bus:
            bus.publish("any/where", node["node"].encode())
    with headwater.connect(tried.url) as bus:
        assert [message.payload for message in bus.replay("any/#")] == [b"n1", b"n2", b"n3"]
    roles = [httpx.get(f"{node['http']}/readyz", timeout=30).json()["role"] for node in tried.nodes.values()]
    assert sorted(roles) == ["following", "following", "leading"]


def test_status_shows_who_leads_and_how_far_each_node_is(tried: Tried):
    found = tried.wait("all is well", lambda found: found["well"])
    assert found["leader"] == tried.leader()
    assert [node["name"] for node in found["nodes"]] == ["n1", "n2", "n3"]
    assert sorted(node["role"] for node in found["nodes"]) == ["following", "following", "leading"]
    assert all(node["record"] > 0 and node["trouble"] == "" for node in found["nodes"])
    assert found["stream"]["last"] >= found["stream"]["first"]
    shown = here("cluster", "status", "--cluster", tried.cluster).stdout
    assert f"led by {found['leader']}" in shown
    assert "following" in shown


def test_all_nodes_have_the_same(tried: Tried):
    found = tried.ask("verify")
    assert (found["same"], found["nodes"], found["missing"]) == (True, ["n1", "n2", "n3"], [])
    assert found["rows"] == ["n1", "n2", "n3"]
    assert "same" in here("cluster", "verify", "--cluster", tried.cluster).stdout


def test_a_copy_of_a_node_that_follows_is_an_ordinary_folder(tried: Tried, tmp_path: Path):
    leader = tried.leader()
    done = tried.ask("backup", str(tmp_path / "copy"))
    assert done["from"] in set(tried.nodes) - {leader}
    assert done["record"] > 0
    with headwater.open(tmp_path / "copy") as bus:
        assert len(list(bus.replay("any/#"))) == len(tried.nodes)
    assert "is not empty" in tried.refusal("backup", str(tmp_path / "copy"))
    data = tried.nodes[leader]["data"]
    assert here("verify", "--data", data).exit_code == 0
    follower = tried.nodes[done["from"]]["data"]
    refused = here("pub", "--data", follower, "any/where", "x", code=2).stderr
    assert "headwater cluster leader" in " ".join(refused.split())


def test_a_node_that_is_named_leads_next(tried: Tried):
    before = tried.leader()
    chosen = next(name for name in tried.nodes if name != before)
    done = tried.ask("step-down", chosen)
    assert (done["from"], done["to"]) == (before, chosen)
    assert tried.leader() == chosen
    assert "leads already" in tried.refusal("step-down", chosen)
    assert 'there is no node "n9"; there are n1, n2, n3' in tried.refusal("step-down", "n9")


def test_what_cannot_be_done_is_said_in_a_sentence(tried: Tried):
    follower = next(name for name in tried.nodes if name != tried.leader())
    assert "stop it first" in tried.refusal("remove", follower)
    assert 'there is no node "n9"' in tried.refusal("remove", "n9")
    assert "nothing is to be made anew" in tried.refusal("rebuild", "--yes")
    assert 'no node of bus "others" answers' in tried.refusal("status", "--bus", "others")
    nowhere = run("cluster", "status", code=2).stderr
    assert "--cluster nats://" in nowhere
    assert one_sentence(nowhere)
    assert "no NATS server can be used" in run("cluster", "leader", "--cluster", "nats://127.0.0.1:1", code=2).stderr


def test_a_node_that_is_lost_is_told_of_removed_and_belongs_to_it_again_when_it_starts(tried: Tried):
    name = next(name for name in tried.nodes if name != tried.leader())
    os.kill(tried.nodes[name]["pid"], signal.SIGKILL)
    found = tried.wait("it is gone", lambda found: not found["well"])
    assert {node["name"]: node["role"] for node in found["nodes"]}[name] == "gone"
    assert found["problems"] == [f"{name} does not answer; start it, or if it is lost: headwater cluster remove {name}"]
    assert tried.ask("verify", code=1)["missing"] == [name]
    with pytest.raises(Conflict, match=f"headwater cluster leave --data {tried.nodes[name]['data']}"):
        headwater.open(tried.nodes[name]["data"])
    assert tried.ask("remove", name) == {"id": name, "done": "removed"}
    assert [node["name"] for node in tried.status()["nodes"]] == sorted(set(tried.nodes) - {name})
    again = tried.start_again(name)
    try:
        tried.wait("three nodes", lambda found: found["well"] and len(found["nodes"]) == len(tried.nodes))
    finally:
        again.terminate()
        again.wait(PATIENCE_S)
    assert here("cluster", "leave", "--data", tried.nodes[name]["data"], "--yes").exit_code == 0
    with headwater.open(tried.nodes[name]["data"]) as bus:
        assert len(list(bus.replay("any/#"))) == len(tried.nodes)
        assert bus.publish("any/where", b"alone").offset == len(tried.nodes) + 1
    tried.ask("remove", name)


def test_a_stream_that_was_lost_is_made_anew_from_the_node_that_is_furthest(tried: Tried):
    with headwater.connect(tried.url) as bus:
        stored = [bus.publish("kept/a", b"%d" % number).offset for number in range(20)]
    engine = NatsEngine(Clustering(cluster=tuple(tried.cluster.split(","))), "test")
    engine.unmake()
    engine.close()
    lost = tried.wait("that it stops", lambda found: found["leader"] is None and all(_held(found)))
    assert any("headwater cluster rebuild" in problem for problem in lost["problems"])
    done = tried.ask("rebuild", "--yes")
    assert done["record"] == max(_held(lost))
    tried.wait("all is well", lambda found: found["well"])
    with headwater.connect(tried.url) as bus:
        assert [message.offset for message in bus.replay("kept/#")] == stored
        assert bus.publish("kept/a", b"more").offset == len(stored) + 1
    assert tried.ask("verify")["same"]


def _held(found: dict[str, Any]) -> list[int]:
    """How far each node is that says that it has more than the stream."""
    nodes = [node for node in found["nodes"] if node["role"] != "gone"]
    return [node["record"] if "rebuild" in node["trouble"] else 0 for node in nodes]


def test_a_folder_is_adopted_refused_as_an_ordinary_one_and_leaves(tmp_path: Path):
    folder = tmp_path / "data"
    assert "there is no folder" in here("cluster", "adopt", "--data", folder, code=2).stderr
    with headwater.open(folder) as bus:
        bus.publish("home/a", b"1")
        assert "Owned" in here("cluster", "adopt", "--data", folder, code=2).stderr
    (done,) = objects_here("cluster", "adopt", "--data", folder, "--bus", "orders")
    assert done == {"data": str(folder), "bus": "orders"}
    with pytest.raises(Conflict, match="headwater cluster leave"):
        headwater.open(folder)
    assert "--yes" in here("cluster", "leave", "--data", folder, code=2).stderr
    (done,) = objects_here("cluster", "leave", "--data", folder, "--yes")
    assert done["bus"] == "orders"
    with headwater.open(folder) as bus:
        assert bus.publish("home/a", b"2").offset == 2
    assert "no folder of a cluster's node" in here("cluster", "leave", "--data", folder, "--yes", code=2).stderr
