"""Reads at a node that follows: what was asked for with `?read=any` is served there, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from cluster.nodes import Leader, another, first
from cluster.readers import Follower
from headwater.cluster import reading
from headwater.cluster.reading import Overlay
from headwater.errors import Malformed, ReadOnly
from headwater.store.state import MemoryState
from server.harness import PATIENCE_S, Running

SENT = 20


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Leader, Follower]]:
    one = first(tmp_path / "n1")
    two = another(one, tmp_path / "n2")
    leader, follower = one.lead(1), Follower(two)
    yield leader, follower
    follower.close()
    leader.close()


def publish(leader: Leader, count: int = SENT, topic: str = "home/a") -> list[bytes]:
    payloads = [b"%s %d" % (topic.encode(), number) for number in range(count)]
    leader.bus.publish_many([(topic, payload) for payload in payloads])
    return payloads


def test_live_subscriptions_hear_what_is_applied_in_order_and_once(pair: tuple[Leader, Follower]):
    leader, follower = pair
    before = publish(leader)
    follower.apply(leader)
    with follower.connect() as bus, bus.subscribe("#") as live:
        expected = []
        for round_ in range(5):
            expected += publish(leader, 7, f"home/{round_}")
            leader.core.roots.commit.run(leader.core.roots.checkpoints.make_in_time)  # with rows about the roots
            expected += publish(leader, 3, f"new{round_}/a")
            follower.apply(leader)
        heard = [live.next(timeout_s=PATIENCE_S) for _ in expected]
        assert sorted(message.payload for message in heard if message is not None) == sorted(expected)
        assert [message.payload for message in bus.replay("home/a")] == before


def test_readings_end_where_this_node_stands_and_following_goes_on(pair: tuple[Leader, Follower]):
    leader, follower = pair
    expected = publish(leader)
    follower.apply(leader)
    with follower.connect() as bus, bus.follow("home/#", after=0) as reading:
        late = publish(leader)
        leader.settle()
        assert [message.payload for message in bus.replay("home/#")] == expected
        follower.apply(leader)
        found = [reading.next(timeout_s=PATIENCE_S) for _ in (*expected, *late)]
        assert [message.payload for message in found if message is not None] == expected + late
        assert bus.topics("home/#")[0].messages == 2 * SENT


def test_columns_are_read_there(pair: tuple[Leader, Follower]):
    pytest.importorskip("pyarrow")
    leader, follower = pair
    publish(leader)
    follower.apply(leader)
    with follower.connect() as bus:
        assert bus.arrow("home/#").read_all().num_rows == SENT


@pytest.mark.parametrize(
    "change",
    [
        lambda bus: bus.publish("home/a", b"x"),
        lambda bus: bus.publish_many([("home/a", bytes(300_000))] * 3),
        lambda bus: bus.subscribe("home/#", id="worker"),
        lambda bus: bus.purge("home/#"),
        lambda bus: bus.unsubscribe("worker"),
        lambda bus: bus.schedule("home/nightly", b"x", cron="0 3 * * *"),
        lambda bus: bus.stage("p", 1, [("home/a", b"x")]),
        lambda bus: bus.acl.list(),
    ],
)
def test_whatever_else_is_asked_for_is_refused_and_changes_nothing(
    pair: tuple[Leader, Follower], change: Callable[[headwater.Bus], object]
):
    leader, follower = pair
    publish(leader)
    follower.apply(leader)
    with follower.connect() as bus:
        with pytest.raises(ReadOnly, match="only reads"):
            change(bus)
        assert len(list(bus.replay("home/#"))) == SENT


def test_a_leader_refuses_the_same():
    with Running() as running, headwater.connect(f"headwater://127.0.0.1:{running.server.port}?read=any") as bus:
        running.bus.publish("home/a", b"x")
        assert [message.payload for message in bus.replay("home/#")] == [b"x"]
        with pytest.raises(ReadOnly, match="only reads"):
            bus.publish("home/a", b"y")


def test_a_follower_serves_those_who_read_and_passes_everybody_else_on(pair: tuple[Leader, Follower]):
    leader, follower = pair
    publish(leader)
    follower.apply(leader)
    with follower.connect() as bus:
        assert len(list(bus.replay("home/#"))) == SENT
    assert follower.doors.doors.passages <= 1


def test_what_clients_may_is_what_they_may_everywhere(tmp_path: Path):
    one = first(tmp_path / "n1")
    two = another(one, tmp_path / "n2")
    leader = one.lead(1)
    leader.core.clients.add("ann", secret="a secret")
    follower = Follower(two)
    try:
        follower.apply(leader)
        with follower.connect() as bus:  # auth is none here: rules hold nobody back
            assert list(bus.replay("home/#")) == []
        assert [row.name for row in follower.reading.core.clients.list()] == ["ann"]
    finally:
        follower.close()
        leader.close()


@pytest.mark.parametrize(
    "url", ["headwater://h?read=some", "headwater://h?read=any&read=any", "headwater://h?reads=any"]
)
def test_an_address_that_says_it_wrongly_is_refused(url: str):
    with pytest.raises(Malformed):
        headwater.connect(url)


def test_rows_of_ones_own_lie_over_those_of_the_node_and_change_none_of_them(monkeypatch: pytest.MonkeyPatch):
    below = MemoryState()
    below.write({b"a1": b"1", b"a2": b"2", b"b1": b"3"})
    over = Overlay(below)
    over.write({b"a2": None, b"a3": b"own", b"b1": b"changed", b"none": None})
    assert list(over.scan(b"a")) == [(b"a1", b"1"), (b"a3", b"own")]
    assert list(over.scan(b"a", b"a2")) == [(b"a3", b"own")]
    assert [over.get(key) for key in (b"a1", b"a2", b"b1", b"none")] == [b"1", None, b"changed", None]
    below.write({b"a4": b"later"})
    assert list(over.scan(b"a"))[-1] == (b"a4", b"later")
    assert list(below.scan(b"")) == [(b"a1", b"1"), (b"a2", b"2"), (b"a4", b"later"), (b"b1", b"3")]
    monkeypatch.setattr(reading, "OVER_BYTES_MAX", 100)
    with pytest.raises(ReadOnly, match="takes more than 100 bytes"):
        over.write({b"c": bytes(100)})
    over.write({b"c": None})
    over.write({b"c": b"small"})
