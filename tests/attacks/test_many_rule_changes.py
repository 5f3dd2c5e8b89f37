"""Rules change all the time while there are many sessions: those alone are looked at whom a change concerns, changes of
a moment share one look, no turn of the loop is long, and a right that was taken away is of no use meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.errors import NotAllowed
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.reasons import Reason
from headwater.server import rechecks
from headwater.server.broker import Broker
from headwater.server.rechecks import Rechecks
from headwater.server.session import Session
from headwater.wire import administration
from mqtt.peer import Served
from server.harness import SECRET, Running, code

SESSIONS = 20
CHANGES = 50


@pytest.fixture
def running() -> Iterator[Served]:
    with Served(auth="scram") as made:
        made.client("ann", allow=["subscribe home/#", "publish home/#", "create home/#"])
        made.client("bob", allow=["subscribe home/#"]).client("root", admin=True)
        yield made


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a session was looked at, by its user."""
    counts: Counter[str] = Counter()
    real = Session.recheck

    def counted(self: Session) -> Iterator[None]:
        counts[self.row.user] += 1
        return real(self)

    monkeypatch.setattr(Session, "recheck", counted)
    return counts


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is looked at, as when there are many before it."""
    monkeypatch.setattr(Rechecks, "_begin", lambda self: None)


def settled(running: Running) -> None:
    """Wait until everything was looked at."""
    found = running.server.rechecks
    running.until(lambda: not (found._asked or found._users or found._steps or found._timer))


def test_a_change_about_one_user_has_nobody_elses_sessions_looked_at(running: Served, looked_at: Counter[str]) -> None:
    for user in ("ann", "bob"):
        for _ in range(SESSIONS):
            running.peer(user).subscribe(1, "home/#")
    settled(running)
    looked_at.clear()
    for number in range(5):
        running.bus.acl.deny("ann", "subscribe", f"home/{number}/x")
        settled(running)
    assert looked_at.keys() == {"ann"}
    looked_at.clear()
    running.bus.clients.rotate("bob", "another secret of a test")
    settled(running)
    assert looked_at == {"bob": SESSIONS}


def test_changes_of_a_moment_share_one_look(running: Served, looked_at: Counter[str]) -> None:
    for _ in range(SESSIONS):
        running.peer("ann").subscribe(1, "home/#")
    settled(running)
    looked_at.clear()

    def change() -> None:
        for number in range(CHANGES):
            running.bus.acl.deny("*", "subscribe", f"hall/{number}")

    running.call(change)
    settled(running)
    assert looked_at == {"ann": SESSIONS}


def test_a_turn_of_the_loop_looks_at_so_many_subscriptions_and_no_more(
    running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = running.peer("ann")
    for number in range(50):
        peer.subscribe(number + 1, f"home/{number}/#", kind="session")
    settled(running)
    monkeypatch.setattr(rechecks, "CHECKS_IN_TURN", 8)
    asked: list[int] = []
    turn, may = Rechecks._turn, Broker.may_subscribe

    def turned(self: Rechecks) -> None:
        asked.append(0)
        turn(self)
        asked.append(0)

    def may_subscribe(self: Broker, *given: Any) -> bool:
        asked[-1] += 1
        return may(self, *given)

    monkeypatch.setattr(Rechecks, "_turn", turned)
    monkeypatch.setattr(Broker, "may_subscribe", may_subscribe)
    running.bus.acl.deny("*", "subscribe", "hall/x")
    settled(running)
    assert 50 <= sum(asked) <= 150
    assert max(asked) <= 8


@pytest.mark.parametrize("kind", ["live", "session", "named", "follow"])
@pytest.mark.usefixtures("held")
def test_nothing_is_delivered_by_a_right_that_was_taken_away_and_not_looked_at(running: Served, kind: str) -> None:
    ann, bob = running.peer("ann"), running.peer("bob")
    for peer in (ann, bob):
        name = f"of {peer.session}" if kind == "named" else None
        peer.subscribe(1, "home/#", kind=kind, id=name)
    running.bus.publish("home/x", b"1")
    for peer in (ann, bob):
        assert [message.payload for message in peer.take(1, 1)] == [b"1"]
    running.bus.acl.remove("ann", "subscribe", "home/#")
    running.bus.publish("home/x", b"2")
    assert [message.payload for message in bob.take(1, 1)] == [b"2"]
    ann.quiet(0.05)


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.usefixtures("held")
def test_nor_to_an_mqtt_client(running: Served, version: int, qos: int) -> None:
    running.client("tom", allow=["publish home/#", "create home/#"])
    ann, bob, tom = (running.mqtt(name, version, user=name) for name in ("ann", "bob", "tom"))
    for peer in (ann, bob):
        assert peer.subscribe("home/#", qos=qos) == (qos,)
    tom.publish("home/x", b"1")  # of QoS 0: shown before it is on disk
    for peer in (ann, bob):
        assert peer.got().payload == b"1"
    running.bus.acl.deny("ann", "subscribe", "home/x")
    tom.publish("home/x", b"2")
    assert bob.got().payload == b"2"
    ann.quiet()


def removed(running: Served) -> None:
    running.bus.clients.remove("ann")


def rotated(running: Served) -> None:
    running.bus.clients.rotate("ann", "another secret of a test")


@pytest.mark.parametrize("change", [removed, rotated])
@pytest.mark.usefixtures("held")
def test_a_client_that_was_removed_or_has_another_secret_can_do_nothing_though_nobody_has_told_it(
    running: Served, change: Callable[[Served], None]
) -> None:
    running.rules("ann", allow=["admin #"])
    ann, phone = running.peer("ann"), running.mqtt("phone", user="ann")
    ann.subscribe(1, "home/#")
    assert phone.publish("home/x", b"1", qos=1).reason == 0
    assert len(ann.take(1, 1)) == 1
    change(running)
    with code(403):
        ann.ask(administration.AddClient(name="eve", secret=SECRET))
    with code(403):
        ann.publish("home/x", b"2")
    assert phone.publish("home/x", b"3", qos=1).reason == Reason.NOT_AUTHORIZED
    running.bus.publish("home/x", b"4")
    ann.quiet(0.05)
    assert [message.payload for message in running.bus.replay("home/#")] == [b"1", b"4"]
    assert running.bus.clients.get("eve") is None


def test_what_was_taken_away_and_given_back_within_a_moment_goes_on(running: Served) -> None:
    peer = running.peer("ann")
    peer.subscribe(1, "home/#", kind="session")

    def change() -> None:
        running.bus.acl.remove("ann", "subscribe", "home/#")
        running.bus.acl.allow("ann", "subscribe", "home/#")

    running.call(change)
    settled(running)
    running.bus.publish("home/x", b"1")
    assert [message.payload for message in peer.take(1, 1)] == [b"1"]


def test_one_session_that_fails_keeps_nobody_from_being_looked_at(
    running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [running.peer("ann") for _ in range(3)]
    for peer in peers:
        peer.subscribe(1, "home/#")
    real = Session.on_ended

    def on_ended(self: Session, *given: Any) -> None:
        if self.row.id == peers[0].session:
            raise RuntimeError("a fault of a test")
        real(self, *given)

    monkeypatch.setattr(Session, "on_ended", on_ended)
    running.bus.acl.remove("ann", "subscribe", "home/#")
    for peer in peers[1:]:
        notice = peer.notice(1)
        assert notice.problem is not None
        assert notice.problem.code == NotAllowed.code
