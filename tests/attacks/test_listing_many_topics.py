"""Topics are listed that nobody asked for, or that the asker may not see: no look is at more than a few of them, others
have their turn in between, and where there is nothing to see nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headwater
from headwater import Outgoing, core
from headwater.bus import Bus
from headwater.core import Core
from headwater.log.roots import Roots
from headwater.server import server
from headwater.store.state import MemoryState
from headwater.wire import requests
from mqtt.peer import Served

TOPICS = 500
AT_ONCE = 20


class Looks:
    """How many rows of topics and retained messages were read, by each look, and how often somebody had a turn."""

    def __init__(self, bus: Bus, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        state = bus.core.state
        assert isinstance(state, MemoryState)
        real_scan, real_look = state.scan, Roots.look_at

        def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
            for row in real_scan(*args):
                if row[0][:1] in (b"T", b"R") and self.rows:
                    self.rows[-1] += 1
                yield row

        def look_at(roots: Roots, read: Callable[[], Any]) -> Any:
            self.rows.append(0)
            return real_look(roots, read)

        patch.setattr(state, "scan", scan)
        patch.setattr(Roots, "look_at", look_at)
        patch.setattr(core, "TOPICS_LOOKED_AT", AT_ONCE)


@pytest.fixture
def served() -> Iterator[Served]:
    with headwater.open(":memory:") as bus, Served(bus=bus, auth="scram") as made:
        topics = [f"home/{number:03}/x" for number in range(TOPICS)] + ["hall/1/x", "home"]
        made.bus.publish_many([Outgoing(topic=topic, payload=b"1", retain=True) for topic in topics])
        made.bus.core.roots.commit.run(made.bus.core.roots.checkpoints.make_all)
        made.bus.publish("home/499/y", b"", retain=False)
        made.client("ann", allow=["subscribe #"]).client("bob", allow=["subscribe hall/#"])
        made.client("tom", allow=["subscribe home/499/#", "subscribe home/500"])
        yield made


@pytest.mark.parametrize(
    ("user", "filter", "found"),
    [
        ("ann", "home/+/none", []),
        ("ann", "home/+/y", ["home/499/y"]),
        ("ann", "home/499/#", ["home/499/x", "home/499/y"]),
        ("tom", "#", ["home/499/x", "home/499/y"]),
        ("tom", "home/#", ["home/499/x", "home/499/y"]),
        ("bob", "#", ["hall/1/x"]),
        ("bob", "home/#", []),
    ],
)
def test_no_look_is_at_many_and_each_finds_what_there_is(
    served: Served, monkeypatch: pytest.MonkeyPatch, user: str, filter: str, found: list[str]
) -> None:
    peer = served.peer(user)
    looks = Looks(served.bus, monkeypatch)
    assert [one.topic for one in peer.ask(requests.Topics(filter=filter))] == found
    assert max(looks.rows) <= AT_ONCE + 1
    if user == "bob" or filter == "home/499/#":
        assert sum(looks.rows) <= 5


def test_nor_is_one_at_retained_messages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = served.peer("ann")
    looks = Looks(served.bus, monkeypatch)
    assert peer.ask(requests.Retained(filter="home/+/none")) == []
    assert len(looks.rows) >= TOPICS // AT_ONCE
    assert [one.topic for one in peer.ask(requests.Retained(filter="home/+/x", limit=3))] == [
        f"home/{number:03}/x" for number in range(3)
    ]
    assert max(looks.rows) <= AT_ONCE + 1


def test_others_have_their_turn_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WORKERS", 1)
    monkeypatch.setattr(server, "WORKERS_APART", 0)
    monkeypatch.setattr(core, "TOPICS_LOOKED_AT", AT_ONCE)
    with Served() as served:
        served.bus.publish_many([Outgoing(topic=f"home/{number:03}/x", payload=b"1") for number in range(TOPICS)])
        walker, other = served.peer(), served.peer()
        looks: list[str] = []
        real = Core.topics_after

        def topics_after(self: Core, filter: str, *rest: Any) -> Any:
            looks.append(filter)
            if len(looks) == 2:
                other.begin(requests.Topics(filter="home/7/x"))
                served.until(lambda: bool(served.server.executor._waiting))
            return real(self, filter, *rest)

        monkeypatch.setattr(Core, "topics_after", topics_after)
        assert walker.ask(requests.Topics(filter="home/+/none")) == []
        assert len(looks) > TOPICS // AT_ONCE
        assert looks.index("home/7/x") == 2


def test_a_walk_ends_with_who_asked_for_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "TOPICS_LOOKED_AT", 1)
    looks = [0]
    walker = served.peer("ann")
    real = Roots.look_at

    def look_at(roots: Roots, read: Callable[[], Any]) -> Any:
        looks[0] += 1
        if looks[0] == 3:
            walker.close()
            served.until(lambda: served.session_of(walker).connection is None)
        return real(roots, read)

    session = served.session_of(walker)
    monkeypatch.setattr(Roots, "look_at", look_at)
    walker.begin(requests.Topics(filter="home/+/none"))
    served.until(lambda: session.connection is None)
    served.until(lambda: not session._is_asked)
    assert looks[0] < TOPICS // 2


def test_pages_leave_no_root_out_whose_name_goes_on_with_what_sorts_before_a_slash(served: Served) -> None:
    topics = ["home!/a", "home/zz", "home0/a"]
    for topic in topics:
        served.bus.publish(topic, b"", retain=False)
    peer = served.peer("ann")
    found, last = [], "home/499"
    while page := peer.ask(requests.Topics(after=last, limit=1)):
        found += [one.topic for one in page]
        last = found[-1]
    assert found == ["home/499/x", "home/499/y", "home/zz", "home!/a", "home0/a"]
