"""Nodes and NATS servers as processes of their own: what clients see when one of each is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from cluster.conftest import runs_nats
from cluster.rig import PATIENCE_S, Rig, retried
from headwater.cluster.node import STEP_DOWN
from headwater.errors import HeadwaterError

LEASE_S = 1.5
WRONG_CLOCK = Path(__file__).with_name("wrong_clock.py")
ANSWER_S = 10.0

pytestmark = pytest.mark.xdist_group("nats")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    runs_nats()
    with Rig(tmp_path_factory.mktemp("rig"), lease_s=LEASE_S) as made:
        yield made


def published(rig: Rig, topic: str, count: int) -> list[int]:
    """Offsets of so many messages."""
    return [rig.bus.publish(topic, b"%d" % number).offset for number in range(count)]


def stored(rig: Rig, topic: str) -> list[int]:
    return [int(message.payload) for message in rig.bus.replay(topic)]


def refusal(bus: headwater.Bus, topic: str) -> int | None:
    """The code that a publish is refused with; None if it waits."""
    future = bus.publish_soon(topic, b"refused, or not")
    try:
        future.result(1)
    except TimeoutError:
        return None
    except HeadwaterError as error:
        return error.code if error.retryable else 0
    return None


def over_http(rig: Rig, port: int, path: str) -> Any:
    """What is answered, once the process for HTTP is there."""
    found: list[Any] = []

    def ask() -> bool:
        try:
            found.append(httpx.get(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_S).raise_for_status().json())
        except httpx.HTTPError:
            return False
        return True

    rig.wait(f"{path} at port {port}", ask)
    return found[-1]


def check_equal(rig: Rig) -> None:
    """All nodes have the same, to the byte."""
    rig.wait("all three nodes", rig.is_whole)
    one, *others = rig.digests()
    for other in others:
        assert other.rows == one.rows
        assert other.segments == one.segments


def test_any_node_takes_clients_of_any_kind(rig: Rig):
    for place, port in enumerate(rig.ports):
        with headwater.connect(f"headwater://127.0.0.1:{port}") as bus:
            bus.publish(f"any/{place}", b"x", retain=True)
    for port in rig.http_ports:
        found = over_http(rig, port, "/v1/topics?parent=any")
        assert len(found["levels"]) == len(rig.ports)
    roles = sorted(over_http(rig, port, "/readyz")["role"] for port in rig.http_ports)
    assert roles == ["following", "following", "leading"]


def test_those_who_only_read_are_served_by_each_node_itself(rig: Rig):
    published(rig, "reads/a", 5)
    for place, port in enumerate(rig.ports):
        with headwater.connect(f"headwater://127.0.0.1:{port}?read=any") as bus:
            rig.wait("all of it", lambda bus=bus: len(list(bus.replay("reads/a"))) == 5)  # type: ignore[misc]
            with bus.subscribe("reads/#") as live:
                rig.bus.publish("reads/b", b"%d" % place)
                message = live.next(timeout_s=PATIENCE_S)
                assert message is not None
                assert message.payload == b"%d" % place
            with pytest.raises(HeadwaterError, match="only reads"):
                bus.publish("reads/a", b"6")


def test_a_leader_that_is_killed_loses_nothing_and_consumers_go_on(rig: Rig):
    consumer = rig.bus.subscribe("kill/+", id="killed", start="earliest", ack_timeout_s=30)
    published(rig, "kill/a", 20)
    for message in consumer.batch(10, timeout_s=PATIENCE_S):
        message.ack()
    leader = rig.leader()
    under_way = [rig.bus.publish_soon("kill/b", b"%d" % number) for number in range(500)]
    rig.kill_node(leader)
    offsets = [future.result(PATIENCE_S).offset for future in under_way]
    assert offsets == sorted(set(offsets))
    assert published(rig, "kill/c", 5)
    assert rig.leader() != leader
    assert stored(rig, "kill/b") == list(range(500))
    rest: list[int] = []
    while len(rest) < 515:
        taken = consumer.batch(100, timeout_s=PATIENCE_S)
        assert taken, len(rest)
        retried(partial(consumer.ack, taken))
        rest += [message.offset for message in taken]
    assert rest == list(range(11, 526))
    consumer.close()
    rig.start_node(leader)
    check_equal(rig)


def test_a_leader_that_stood_still_stores_nothing_and_hands_out_nothing_more(rig: Rig):
    consumer = rig.bus.subscribe("still/+", id="still", start="earliest")
    published(rig, "still/a", 4)
    leader = rig.leader()
    near = headwater.connect(f"headwater://127.0.0.1:{rig.ports[leader]}")
    near_consumer = near.subscribe("still/+", id="still")  # stands by at the node that will stand still
    rig.pause_node(leader, True)
    try:
        rig.wait("another leader", lambda: (found := rig.leads()) is not None and found != leader)
        assert published(rig, "still/b", 3)
        taken = consumer.batch(7, timeout_s=PATIENCE_S)
        while len(taken) < 7:
            taken += consumer.batch(7, timeout_s=PATIENCE_S)
        retried(lambda: consumer.ack(taken))
    finally:
        rig.pause_node(leader, False)
    assert near_consumer.next(timeout_s=1) is None
    near_consumer.close()
    near.close()
    consumer.close()
    assert stored(rig, "still/b") == [0, 1, 2]
    check_equal(rig)


def test_a_node_that_is_asked_to_steps_down_within_a_moment(rig: Rig):
    rig.wait("all three nodes", rig.is_whole)
    before = published(rig, "down/a", 3)
    leader = rig.leader()
    chosen = rig.engine.ask(rig.name(leader), "step-down", b"", 10.0).decode()
    after = published(rig, "down/a", 3)
    assert after == [offset + 3 for offset in before]
    assert chosen != rig.name(leader)
    rig.wait("the one that was chosen", lambda: (found := rig.leads()) is not None and rig.name(found) == chosen)
    check_equal(rig)


def test_a_node_that_ends_in_order_has_another_lead_first(rig: Rig):
    rig.wait("all three nodes", rig.is_whole)
    leader = rig.leader()
    begun = time.monotonic()
    assert rig.end_node(leader) == 0
    published(rig, "ends/a", 1)
    assert time.monotonic() - begun < PATIENCE_S
    assert rig.leader() != leader
    rig.start_node(leader)
    check_equal(rig)


def test_the_leader_of_the_engine_is_killed(rig: Rig):
    published(rig, "engine/a", 3)
    place = rig.stream_place()
    rig.servers.kill(place)
    try:
        for number in range(3, 6):
            retried(partial(rig.bus.publish, "engine/a", b"%d" % number))
    finally:
        rig.servers.start([place])
    assert stored(rig, "engine/a") == list(range(6))
    check_equal(rig)


def test_without_a_majority_of_the_engine_nothing_is_acked_and_reads_go_on(rig: Rig):
    published(rig, "quorum/a", 3)
    other = headwater.connect(rig.url)  # with a session from before: a new one cannot be stored, either
    places = [0, 1]
    for place in places:
        rig.servers.kill(place)
    try:
        waiting = rig.bus.publish_soon("quorum/a", b"3")  # it is sent before anybody knows, and waits for its fate
        rig.wait("word of it", lambda: any(report.trouble for report in rig.reports().values()))
        refused = rig.wait("a refusal", lambda: refusal(other, "quorum/b"))
        assert refused == 503
        assert not waiting.done()
        assert stored(rig, "quorum/a") == [0, 1, 2]
    finally:
        rig.servers.start(places)
        other.close()
    assert waiting.result(PATIENCE_S).offset == 4
    retried(lambda: rig.bus.publish("quorum/a", b"4"))
    assert stored(rig, "quorum/a") == [0, 1, 2, 3, 4]
    check_equal(rig)


@pytest.mark.parametrize(("root", "is_led"), [("bada", False), ("badb", True)], ids=["read there", "led by it"])
def test_what_went_bad_on_one_node_is_no_gap_as_another_has_it(rig: Rig, root: str, is_led: bool):
    rig.wait("all three nodes", rig.is_whole)
    published(rig, f"{root}/a", 50)
    place = (rig.leader() + 1) % 3
    rig.wait("all of it", lambda: len({report.position for report in rig.reports().values()}) == 1)
    rig.end_node(place)
    (path,) = (rig.folder / rig.name(place) / "streams").glob(f"*-{root}/*.log")
    with path.open("r+b") as file:
        data = file.read().rstrip(b"\0")
        at = len(data) // 2
        file.seek(at)
        file.write(bytes([data[at] ^ 0xFF]))
    logged = len(rig.log(place))
    rig.start_node(place)
    rig.wait("all three nodes", rig.is_whole)
    if is_led:
        retried(lambda: rig.engine.ask(rig.name(rig.leader()), STEP_DOWN, rig.name(place).encode(), 10.0))
        rig.wait("its turn", lambda: "leading" in rig.log(place)[logged:])  # whether it came to that or not
        assert retried(lambda: stored(rig, f"{root}/a")) == list(range(50))
        assert rig.leader() != place
    else:
        with headwater.connect(f"headwater://127.0.0.1:{rig.ports[place]}?read=any") as near:
            seen = retried(lambda: [int(message.payload) for message in near.replay(f"{root}/a")])
            assert seen == list(range(50))
    rig.wait("a copy", lambda: path.exists() and path.read_bytes()[: len(data)] == data)
    check_equal(rig)


def test_a_node_whose_clock_is_off_leads_no_more_and_not_again(rig: Rig, tmp_path: Path):
    rig.wait("all three nodes", rig.is_whole)
    place = (rig.leader() + 1) % 3
    rig.end_node(place)
    logged = len(rig.log(place))
    rig.start_node(place, program=(str(WRONG_CLOCK), str(tmp_path / "off")))
    rig.wait("all three nodes", rig.is_whole)
    retried(lambda: rig.engine.ask(rig.name(rig.leader()), STEP_DOWN, rig.name(place).encode(), 10.0))
    rig.wait("it leads", lambda: rig.leads() == place)
    rig.wait("all three nodes", rig.is_whole)
    (tmp_path / "off").touch()
    rig.wait("another leads", lambda: (found := rig.leads()) is not None and found != place)
    assert "clock-off" in rig.log(place)[logged:]
    rig.wait("all three nodes", rig.is_whole)
    retried(lambda: rig.engine.ask(rig.name(rig.leader()), STEP_DOWN, rig.name(place).encode(), 10.0))
    rig.wait("its turn", lambda: "not-to-lead" in rig.log(place)[logged:])
    rig.wait("another leads", lambda: (found := rig.leads()) is not None and found != place)
    published(rig, "clock/a", 1)
    rig.end_node(place)
    rig.start_node(place)
    check_equal(rig)


def test_two_nodes_of_one_name_are_refused(rig: Rig, tmp_path: Path):
    second = [sys.executable, "-m", "headwater", "serve", "--data", str(tmp_path / "second"), "--port", "0"]
    second += ["--cluster", ",".join(rig.servers.urls), "--node", rig.name(0)]
    ended = subprocess.run(second, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2
    assert f'there is a node "n1" already, at 127.0.0.1:{rig.ports[0]}' in ended.stderr
    assert "--node" in ended.stderr
    assert not (tmp_path / "second" / "VERSION").exists()
    rig.wait("all three nodes", rig.is_whole)


def test_a_node_that_lost_its_folder_takes_a_copy(rig: Rig, tmp_path: Path):
    rig.wait("all three nodes", rig.is_whole)
    leader = rig.leader()
    place = (leader + 1) % 3
    published(rig, "copy/a", 50)
    rig.kill_node(place)
    (rig.folder / rig.name(place)).rename(tmp_path / "lost")
    rig.start_node(place)
    check_equal(rig)
