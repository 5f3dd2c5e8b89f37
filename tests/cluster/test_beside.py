"""The folder of a node that follows is read beside it, as any other: never beyond what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from cluster.nodes import Leader, Node, another, first
from headwater.cluster.replica import Replica

SENT = 20


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Leader, Node, Replica]]:
    """A leader, and another node that follows it."""
    one = first(tmp_path / "n1")
    two = another(one, tmp_path / "n2")
    leader, replica = one.lead(1), two.follow()
    yield leader, two, replica
    replica.close()
    leader.close()


def publish(leader: Leader, count: int) -> None:
    leader.bus.publish_many([("home/a", b"%d" % number) for number in range(count)])
    leader.bus.publish("home/b", b"last", retain=True)
    leader.settle()


def test_what_a_follower_has_applied_is_read_beside_it_and_nothing_else(pair: tuple[Leader, Node, Replica]):
    leader, two, replica = pair
    publish(leader, SENT)
    with headwater.open(two.path, read_only=True) as beside:
        assert list(beside.replay("home/#")) == []
        two.catch_up(replica)
        beside.refresh()
        assert [message.payload for message in beside.replay("home/a")] == [b"%d" % number for number in range(SENT)]
        assert beside.retained("home/#")["home/b"].payload == b"last"
        publish(leader, SENT)
        beside.refresh()
        assert len(list(beside.replay("home/#"))) == SENT + 1
        two.catch_up(replica)
        beside.refresh()
        assert len(list(beside.replay("home/#"))) == 2 * (SENT + 1)
        assert [(info.topic, info.messages) for info in beside.topics("home/#")] == [
            ("home/a", 2 * SENT),
            ("home/b", 2),
        ]


def test_columns_and_sql_are_read_beside_a_follower(pair: tuple[Leader, Node, Replica]):
    pytest.importorskip("duckdb")
    leader, two, replica = pair
    publish(leader, SENT)
    two.catch_up(replica)
    with headwater.open(two.path, read_only=True) as beside:
        assert beside.arrow("home/#").read_all().num_rows == SENT + 1
        counted = list(beside.sql("select topic, count(*) from 'home/#' group by topic order by topic"))
        assert counted == [("home/a", SENT), ("home/b", 1)]
