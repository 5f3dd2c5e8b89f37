"""Durable subscriptions, looked after over the wire without taking from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import from_datetime
from headwater.config import Config
from headwater.errors import Conflict, Malformed, NotAllowed, NotFound, QuotaExceeded
from headwater.wire import administration as wire
from headwater.wire import requests
from headwater.wire.frame import Kind, pack
from headwater.wire.request import Request
from headwater.wire.requests import encode
from server.harness import Peer, Running


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(auth="scram") as running:
        running.client("root", allow=("subscribe #",), admin=True)
        running.client("ann", allow=("subscribe home/#",)).client("bob", allow=("subscribe work/#",))
        running.bus.publish_many([("home/x", b"%d" % number) for number in range(1, 6)])
        yield running


def show(peer: Peer, id: str = "mine") -> wire.SubscriptionDetail:
    found: wire.SubscriptionDetail = peer.ask(wire.ShowSubscription(id=id))
    return found


def create(id: str = "mine", filter: str = "home/#", **others: object) -> wire.CreateSubscription:
    return wire.CreateSubscription(id=id, filter=filter, **others)  # type: ignore[arg-type]


# Creating


def test_one_is_made_that_nobody_takes_from_and_keeps_what_comes(running: Running):
    ann = running.peer("ann")
    ann.ask(create(start="earliest", options={"order": "none", "max_attempts": 2}))
    found = show(ann)
    assert (found.info.id, found.info.filter, found.info.order, found.info.lag) == ("mine", "home/#", "none", 5)
    assert (found.options["order"], found.options["max_attempts"], found.options["max_in_flight"]) == ("none", 2, 64)
    assert (found.info.consumers, found.sessions) == (0, ())
    ann.subscribe(1, "home/#", kind="named", id="mine")
    assert ann.payloads(1, 5) == [b"1", b"2", b"3", b"4", b"5"]
    assert show(ann).sessions == (ann.session,)


def test_a_limit_that_is_nil_is_none_and_other_options_that_are_are_left_out(running: Running):
    ann = running.peer("ann")
    unlimited = {"max_attempts": None, "max_deliveries": None, "order": None}
    ann.ask(create(options=unlimited))
    ann.subscribe(1, "home/#", kind="named", id="other", options=unlimited)
    for name in ("mine", "other"):
        found = show(ann, name).options
        assert (found["max_attempts"], found["max_deliveries"], found["order"]) == (0, 0, "strict")


def test_it_begins_where_it_was_told_to(running: Running):
    ann = running.peer("ann")
    ann.ask(create("late"))
    ann.ask(create("place", "home/x", start=4))
    moment_us = from_datetime(running.bus.now)
    running.bus.publish("home/x", b"6")
    ann.ask(create("then", start_us=moment_us))
    assert {name: show(ann, name).info.lag for name in ("late", "place", "then")} == {"late": 1, "place": 3, "then": 1}


def test_the_same_again_is_fine_and_another_of_that_id_is_shown_the_one_that_is(running: Running):
    ann = running.peer("ann")
    ann.ask(create(options={"max_attempts": 2}))
    for same in (create(options={"max_attempts": 2}), create(), create(start="earliest"), create(options={})):
        ann.ask(same)
    for other, unlike in (
        (create(filter="home/x"), 'its filter is "home/#", not "home/x"; choose'),
        (create(options={"max_attempts": 3}), "its max_attempts is 2, not 3; choose"),
        (create(options={"order": "key"}), 'its order is "strict", not "key"; choose'),
        (create(options={"expire_after_s": 60.0}), "its expire_after_s is not set, not 60.0; choose"),
    ):
        with pytest.raises(Conflict, match=unlike):
            ann.ask(other)
    assert show(ann).info.lag == 0


def test_what_cannot_be_is_refused_before_anything_changes(running: Running):
    ann = running.peer("ann")
    running.bus.subscribe("home/#", id="in use").close()
    for wrong in (
        create(filter="home/#/x"),
        create(""),
        create("x" * 10_000),
        create(options={"order": "random"}),
        create(options={"max_in_flight": -1}),
        create(options={"max_attempts": "many"}),
        create(filter="home/+", start=3, options={"ack_timeout_s": -1.0}),
    ):
        with pytest.raises(Malformed):
            ann.ask(wrong)
    for options in ({"id": "other"}, {"filter": "#"}, {"start": "earliest"}, {"nothing": 1}):
        ann.send(
            pack(
                Kind.REQUEST,
                77,
                encode({"do": "CreateSubscription", "id": "a", "filter": "home/#", "options": options}),
            )
        )
        with pytest.raises(Malformed):
            ann.finish(77, wire.CreateSubscription)
    assert [info.id for info in running.bus.subscriptions()] == ["in use"]


def test_there_are_no_more_than_the_limit():
    with Running(config=Config(subscriptions_max=1)) as running:
        peer = running.peer()
        peer.ask(create("one"))
        with pytest.raises(QuotaExceeded):
            peer.ask(create("two"))
        peer.ask(create("one"))


# Seeking and pausing


def test_one_that_nobody_takes_from_is_sought_and_paused_also_over_a_restart(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer()
        running.bus.publish_many([("home/x", b"1"), ("home/x", b"2"), ("work/x", b"3")])
        peer.ask(create(filter="#"))
        peer.ask(wire.SeekSubscription(id="mine", to="earliest"))
        assert show(peer).info.lag == 3
        peer.ask(wire.SeekSubscription(id="mine", to={"home": 2}))
        assert show(peer).info.lag == 2
        peer.ask(wire.SeekSubscription(id="mine", to_us=1))
        assert show(peer).info.lag == 3
        peer.ask(wire.SeekSubscription(id="mine", to="latest"))
        assert show(peer).info.lag == 0
        peer.ask(wire.SeekSubscription(id="mine", to={"home": 2, "nowhere": 7}))
        peer.ask(wire.PauseSubscription(id="mine", paused=True))
    with Running(tmp_path) as running:
        peer = running.peer()
        assert show(peer).info.paused
        assert show(peer).info.lag == 1
        peer.subscribe(1, "#", kind="named", id="mine")
        peer.quiet()
        peer.ask(wire.PauseSubscription(id="mine", paused=False))
        assert peer.payloads(1, 1) == [b"2"]


def test_one_that_is_taken_from_is_sought_and_paused_under_its_consumers(running: Running):
    ann, root = running.peer("ann"), running.peer("root")
    ann.subscribe(1, "home/#", kind="named", id="mine", start="earliest")
    ann.ack(1, ann.take(1, 5))
    root.ask(wire.PauseSubscription(id="mine", paused=True))
    running.bus.publish("home/x", b"6")
    ann.quiet()
    root.ask(wire.SeekSubscription(id="mine", to={"home": 5}))
    root.ask(wire.PauseSubscription(id="mine", paused=False))
    assert ann.payloads(1, 2) == [b"5", b"6"]


def test_an_offset_makes_no_sense_over_several_roots(running: Running):
    root = running.peer("root")
    root.ask(create(filter="#"))
    with pytest.raises(Malformed):
        root.ask(wire.SeekSubscription(id="mine", to=3))
    with pytest.raises(Malformed):
        root.ask(create("other", "#", start=3))


# Deleting


def test_one_that_somebody_takes_from_is_deleted_only_by_force_and_who_took_is_told(running: Running):
    ann, root = running.peer("ann"), running.peer("root")
    ann.subscribe(1, "home/#", kind="named", id="mine", start="earliest")
    ann.take(1, 5)
    with pytest.raises(Conflict, match=r"is in use \(consumers: 1\)"):
        root.ask(wire.DeleteSubscription(id="mine"))
    assert show(ann).info.in_flight == 5
    root.ask(wire.DeleteSubscription(id="mine", force=True))
    assert ann.notice(1).what == "ended"
    with pytest.raises(NotFound):
        show(ann)
    ann.ping()


def test_who_took_is_told_though_it_has_no_credit(running: Running):
    ann, root = running.peer("ann"), running.peer("root")
    ann.subscribe(1, "home/#", kind="named", id="mine", credit=0)
    root.ask(wire.DeleteSubscription(id="mine", force=True))
    assert ann.notice(1).what == "ended"


def test_one_that_was_deleted_is_not_made_again_by_those_who_come_back(running: Running):
    ann, root = running.peer("ann"), running.peer("root")
    ann.subscribe(1, "home/#", kind="named", id="mine")
    ann.subscribe(2, "home/x", kind="named", id="other")
    ann.close()
    running.until(lambda: running.session_of(ann).connection is None)
    running.until(lambda: not show_consumers(running, "mine"))
    root.ask(wire.DeleteSubscription(id="mine"))
    back = running.peer("ann", session=ann.session)
    notice = back.notice(1)
    assert notice.what == "ended"
    assert notice.problem is not None
    assert notice.problem.code == 404
    assert [info.id for info in running.bus.subscriptions()] == ["other"]
    running.until(lambda: [one.id for one in running.session_of(ann).subscriptions.values()] == ["other"])
    back.subscribe(3, "home/#", kind="named", id="mine")  # who wants it anew says so


def show_consumers(running: Running, id: str) -> int:
    return sum(info.consumers or 0 for info in running.bus.subscriptions() if info.id == id)


def test_one_that_nobody_takes_from_is_deleted_with_its_dead_letters(running: Running):
    ann = running.peer("ann")
    ann.ask(create())
    ann.ask(wire.DeleteSubscription(id="mine"))
    assert running.bus.subscriptions() == []
    with pytest.raises(NotFound):
        ann.ask(wire.DeleteSubscription(id="mine"))


# Rights


def about(id: str) -> list[Request[Any]]:
    return [
        wire.ShowSubscription(id=id),
        wire.SeekSubscription(id=id, to="earliest"),
        wire.PauseSubscription(id=id, paused=True),
        wire.DeleteSubscription(id=id, force=True),
    ]


def test_who_may_not_see_what_a_subscription_gets_may_not_look_after_it(running: Running):
    ann, bob = running.peer("ann"), running.peer("bob")
    ann.ask(create())
    for request in (*about("mine"), create("theirs", "home/#"), create("mine", "home/#")):
        with pytest.raises(NotAllowed):
            bob.ask(request)
    for request in about("none"):
        with pytest.raises(NotFound):
            bob.ask(request)
    assert not show(ann).info.paused


def test_a_sessions_own_is_for_its_session_and_administrators(running: Running):
    ann, again, root = running.peer("ann"), running.peer("ann"), running.peer("root")
    ann.subscribe(1, "home/#", kind="session")
    own = f"{ann.session}:home/#"
    for request in (*about(own), create(own)):
        with pytest.raises(NotAllowed):
            again.ask(request)
    assert show(ann, own).sessions == (ann.session,)
    root.ask(wire.SeekSubscription(id=own, to="earliest"))
    assert len(ann.take(1, 5)) == 5
    root.ask(wire.DeleteSubscription(id=own, force=True))
    assert ann.notice(1).what == "ended"


def test_the_sessions_that_take_are_shown_as_far_as_one_may_see_them(running: Running):
    running.client("eve", allow=("subscribe home/#",))
    ann, eve, root = running.peer("ann"), running.peer("eve"), running.peer("root")
    for peer in (ann, eve):
        peer.subscribe(1, "home/#", kind="named", id="shared")
    assert show(ann, "shared").sessions == (ann.session,)
    assert show(root, "shared").sessions == tuple(sorted((ann.session, eve.session)))
    assert show(ann, "shared").info.consumers == 2


def test_nobody_but_an_administrator_speaks_for_others(running: Running):
    ann, root = running.peer("ann"), running.peer("root")
    ann.ask(create())
    changes: list[Request[Any]] = [
        create(by="root"),
        wire.SeekSubscription(id="mine", by="root"),
        wire.PauseSubscription(id="mine", paused=True, by="ann"),  # not even for itself
        wire.DeleteSubscription(id="mine", by=""),
        requests.Unsubscribe(id="mine", by="root"),
        requests.Redrive(id="mine", by="root"),
        requests.RedriveMended(id="mine", write="w", parts=(), by="root"),
        requests.DropDeadLetters(id="mine", by="root"),
        requests.Purge(filter="home/#", by="root"),
        requests.Backup(target="nowhere", by="root"),
        wire.AddClient(name="eve", by="root"),
        wire.EndSession(id=root.session, by="root"),
    ]
    for change in changes:
        with pytest.raises(NotAllowed, match="speak for others"):
            ann.ask(change)
    assert not show(ann).info.paused
    root.ask(wire.PauseSubscription(id="mine", paused=True, by="ann"))
    assert show(ann).info.paused
