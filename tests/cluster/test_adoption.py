"""An ordinary folder becomes that of a cluster's first node, and a node's an ordinary one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import headwater
from cluster.memory_engine import Bed
from cluster.nodes import BUS, SMALL, Node, another, first, rows, segments
from headwater.cluster.adoption import adopt, bus_of, leave
from headwater.cluster.replica import Replica
from headwater.errors import Conflict, Damaged, Malformed, NotFound, Owned


def test_a_folder_is_adopted_with_all_it_has_and_others_join_it(tmp_path: Path) -> None:
    path = str(tmp_path / "1")
    with headwater.open(path, SMALL) as bus:
        bus.publish_many([("home/a", b"%d" % number * 900) for number in range(100)])
        bus.publish("gone/a", b"1")
        bus.remove_root("gone")
        bus.publish("home/a", b"kept", retain=True)
        with bus.subscribe("home/#", id="s", start="earliest") as consumer:
            consumer.batch(10)[4].ack()
    before = segments(path)
    adopt(path, BUS, SMALL)
    assert bus_of(path) == BUS
    one = Node(path, Bed())
    two = another(one, tmp_path / "2")
    assert segments(path) == segments(two.path) == before
    leader = two.lead(1)
    assert leader.bus.publish("home/a", b"more").offset == 102
    assert leader.bus.publish("gone/a", b"again").offset == 2
    assert leader.bus.retained("home/a")["home/a"].payload == b"kept"
    leader.close()
    one.followed().close()
    two.followed().close()
    assert segments(path) == segments(two.path)
    assert rows(path) == rows(two.path)


def test_a_node_leaves_with_all_that_the_cluster_had(tmp_path: Path) -> None:
    one = first(tmp_path / "1")
    two = another(one, tmp_path / "2")
    leader = one.lead(1)
    leader.bus.publish_many([("home/a", b"%d" % number * 900) for number in range(200)])
    leader.close()
    two.followed().close()
    leave(two.path)
    assert bus_of(two.path) == ""
    with headwater.open(two.path, SMALL) as bus:
        assert len(list(bus.replay("home/#"))) == 200
        assert bus.publish("home/a", b"alone").offset == 201
        assert not [event for event in bus.events() if event.kind == "damage"]
    with pytest.raises(NotFound):
        leave(two.path)
    with pytest.raises(Conflict, match="adopt"):
        Replica(two.path)


def test_a_node_that_lacks_what_it_had_before_a_crash_does_not_leave(tmp_path: Path) -> None:
    one = first(tmp_path / "1")
    two = another(one, tmp_path / "2")
    leader = one.lead(1)
    leader.bus.publish("home/a", b"1")
    leader.close()
    two.followed().abandon()  # as a kill would
    with pytest.raises(Conflict, match="until it has caught up"):
        leave(two.path)
    two.followed().close()
    leave(two.path)
    with headwater.open(two.path, SMALL) as bus:
        assert [message.payload for message in bus.replay("home/#")] == [b"1"]


def test_a_leader_that_was_killed_does_not_leave_without_what_it_had_acknowledged(tmp_path: Path) -> None:
    """Also where all of that is messages, and no row."""
    one = first(tmp_path / "1")
    leader = one.lead(1)
    leader.bus.publish("home/a", b"1")
    leader.settle()
    leader.replication.checkpoint()
    leader.bus.publish("home/a", b"2")
    leader.drop()  # as a kill would
    with pytest.raises(Conflict, match="until it has caught up"):
        leave(one.path)
    one.followed().close()
    leave(one.path)
    with headwater.open(one.path, SMALL) as bus:
        assert [message.payload for message in bus.replay("home/#")] == [b"1", b"2"]


def test_what_cannot_be_adopted_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "1")
    with headwater.open(path) as bus:
        bus.publish("home/a", b"1")
        with pytest.raises(Owned):
            adopt(path, BUS)
    for name in ("", "a b", "a/b", "ü", "x" * 65, "a.b", "*"):
        with pytest.raises(Malformed, match="letters, digits"):
            adopt(path, name)
    assert bus_of(path) == ""
    adopt(path, BUS)
    with pytest.raises(Conflict, match="already"):
        adopt(path, "another")


def test_a_folder_that_lacks_what_it_had_on_disk_says_so_and_is_left_alone(tmp_path: Path) -> None:
    one = first(tmp_path / "1")
    leader = one.lead(1)
    leader.bus.publish_many([("home/a", b"%d" % number * 900) for number in range(100)])
    leader.close()
    found = sorted(Path(one.path).glob("streams/*/*.log"))
    data = found[-1].read_bytes()
    found[-1].write_bytes(data[:-8])
    for _ in range(2):
        with pytest.raises(Damaged, match="lacks what it had on disk"):
            one.follow()
    found[-1].write_bytes(data)
    one.followed().close()
    found[0].unlink()
    with pytest.raises(Damaged, match="lacks what it had on disk, from message 1 on"):
        one.follow()


def test_a_joining_node_has_the_settings_of_the_bus_and_none_of_its_own(tmp_path: Path) -> None:
    one = first(tmp_path / "1")
    two = another(one, tmp_path / "2")
    assert (tmp_path / "1/VERSION").read_bytes() == (tmp_path / "2/VERSION").read_bytes()
    assert (tmp_path / "1/channels.key").read_bytes() == (tmp_path / "2/channels.key").read_bytes()
    replica = two.follow()
    other = one.follow()
    assert replica.id == other.id != ""
    assert replica.bus == other.bus == BUS
    replica.close()
    other.close()
    assert msgspec.json.decode((tmp_path / "1/VERSION").read_bytes())["cluster"] == BUS
