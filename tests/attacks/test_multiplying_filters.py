"""A client subscribes to `a` or `+` at each of many levels: as many filters as there are combinations, none of which
needs to match what others publish. What a look-up of their topics costs is limited, and so is what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import headwater
from headwater.client.bus import Bus
from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.mqtt import overlap
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Subscription
from headwater.mqtt.reasons import Reason
from headwater.topics.branch import Branch
from mqtt.peer import Served
from server.harness import SECRET

LEVELS = 9
FILTERS = ["/".join(("x", *levels, "z")) for levels in product("a+", repeat=LEVELS)]
TOPIC = "x/" + "/".join("a" * LEVELS) + "/y"
"""Which none of them matches."""
PATTERNS = 16
"""That a client may have in these tests."""
CONFIG = Config(filter_patterns_per_client_max=PATTERNS, filter_patterns_max=2 * PATTERNS)
MOST = PATTERNS * (LEVELS + 3)
"""Branches that one look-up visits for the filters of one client."""


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the tree of filters, by each look-up."""
    counts: list[int] = []
    collect, find = Branch._collect, Branch.find

    def counted(self: Branch, levels: list[str], depth: int, found: list[str]) -> None:
        counts[-1] += 1
        collect(self, levels, depth, found)

    def looked_up(self: Branch, levels: list[str]) -> list[str]:
        counts.append(0)
        return find(self, levels)

    monkeypatch.setattr(Branch, "_collect", counted)
    monkeypatch.setattr(Branch, "find", looked_up)
    return counts


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with house(tmp_path) as made:
        yield made


def house(folder: Path) -> Served:
    return Served(folder / "data", CONFIG, auth="scram")


def introduce(served: Served) -> None:
    for name in ("greedy", "other", "third"):
        served.client(name, ("publish #", "subscribe #", "create #"))


def connect(served: Served, name: str = "greedy") -> Bus:
    return headwater.connect(f"headwater://{name}:{SECRET.replace(' ', '%20')}@127.0.0.1:{served.server.port}")


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_look_up_visits_few_branches_however_many_such_filters_an_mqtt_client_asks_for(
    served: Served, visited: list[int], version: int, qos: int
) -> None:
    introduce(served)
    greedy = served.mqtt("greedy", version, user="greedy")
    wanted = [Subscription(filter, qos) for filter in FILTERS]
    for first in range(0, len(wanted), 100):
        granted = greedy.subscribe(*wanted[first : first + 100])
        kept = [reason for reason in granted if reason == qos]
        refused = Reason.QUOTA_EXCEEDED if version == V5 else 0x80
        assert set(granted) <= {qos, refused}
        assert len(kept) == (PATTERNS + 1 if not first else 0)  # and one without +, which is no pattern
    del visited[:]
    served.bus.publish(TOPIC, b"")
    assert visited
    assert max(visited) <= MOST


def test_and_so_does_one_over_any_number_of_sessions_live_readings_and_names(
    served: Served, visited: list[int]
) -> None:
    introduce(served)
    kinds = ["live", "named", "follow"]
    made: list[Bus] = []
    kept: list[object] = []
    for number, filter in enumerate(FILTERS[1 : 10 * PATTERNS]):
        if not number % PATTERNS:
            bus = connect(served)
            made.append(bus)
        try:
            match kinds[number % 3]:
                case "live":
                    kept.append(bus.subscribe(filter))
                case "named":
                    bus.subscribe(filter, id=f"n{number}").close()
                case _:
                    kept.append(bus.follow(filter))
        except QuotaExceeded as error:
            assert number >= PATTERNS
            assert "greedy" in str(error)
            assert "filter_patterns_per_client_max" in str(error)
        else:
            assert number < PATTERNS
    del visited[:]
    served.bus.publish(TOPIC, b"")
    assert max(visited) <= MOST
    for bus in made:
        bus.close()


def test_what_others_subscribe_to_is_not_refused_and_of_all_together_there_is_a_limit(served: Served) -> None:
    introduce(served)
    with connect(served) as greedy, connect(served, "other") as other, connect(served, "third") as third:
        kept = [greedy.subscribe(filter) for filter in FILTERS[1 : PATTERNS + 1]]
        with pytest.raises(QuotaExceeded, match="filter_patterns_per_client_max"):
            greedy.subscribe(FILTERS[-1])
        kept += [other.subscribe(filter) for filter in FILTERS[PATTERNS + 1 : 2 * PATTERNS + 1]]
        with pytest.raises(QuotaExceeded, match="filter_patterns_max"):
            third.subscribe(FILTERS[-1])
        third.subscribe(FILTERS[1].replace("a", "b"))  # of a pattern that is there: it costs nobody more
        third.subscribe("x/a/#")
        kept += [greedy.subscribe(FILTERS[1].replace("a", str(device))) for device in range(100)]


def test_what_a_client_gives_up_it_may_have_again_and_what_is_stored_counts_after_a_restart(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        introduce(served)
        with connect(served) as greedy:
            for number, filter in enumerate(FILTERS[1 : PATTERNS + 1]):
                greedy.subscribe(filter, id=f"n{number}").close()
    with house(tmp_path) as served, connect(served) as greedy:
        with pytest.raises(QuotaExceeded):
            greedy.subscribe(FILTERS[-1])
        greedy.unsubscribe("n0")
        for _ in range(3):
            with greedy.subscribe(FILTERS[-1]), pytest.raises(QuotaExceeded):
                greedy.subscribe(FILTERS[-2])
        with greedy.follow(FILTERS[-2]), pytest.raises(QuotaExceeded):
            greedy.subscribe(FILTERS[-1], id="one more")
        greedy.subscribe(FILTERS[-1], id="one more").close()


def test_a_refused_subscription_changes_nothing(served: Served) -> None:
    introduce(served)
    with connect(served) as greedy:
        kept = [greedy.subscribe(filter) for filter in FILTERS[1 : PATTERNS + 1]]
        with pytest.raises(QuotaExceeded):
            greedy.subscribe(FILTERS[-1], id="refused")
        assert len(kept) == PATTERNS
        assert greedy.subscriptions() == []


def test_what_an_embedded_bus_subscribes_to_is_its_own_affair() -> None:
    with headwater.open(":memory:", CONFIG) as bus:
        readers = [bus.subscribe(filter) for filter in FILTERS[: 4 * PATTERNS]]
        bus.publish("x/" + "/".join("a" * LEVELS) + "/z", b"1")
        assert [len(reader.batch(10, timeout_s=0)) for reader in readers] == [1] * len(readers)


def test_which_filters_of_a_session_meet_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MEETINGS_MAX", 8)
    monkeypatch.setattr(overlap, "MEETING_NUMBERS_MAX", 20)
    with Served() as served:
        peer = served.mqtt("phone")
        peer.subscribe("home/#")
        for number in range(30):
            peer.subscribe(f"home/{number}/#")
        for number in range(30):
            served.bus.publish(f"home/{number}/x", b"")
            assert peer.got().topic == f"home/{number}/x"
        overlaps = served.mqtt_session("phone").overlaps
        assert 0 < len(overlaps._meetings.known) <= 8
