"""The audit of a served bus: who wanted a change, and whose connection asked for it; and who may read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.audit import TOPIC
from headwater.errors import NotAllowed, NotFound
from headwater.wire import administration as wire
from headwater.wire import requests
from server.harness import SECRET, Peer, Running


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(auth="scram") as running:
        running.client("root", allow=("subscribe #",), admin=True)
        running.client("ann", allow=("subscribe #", "publish #", "create #"))
        yield running


def entries(running: Running, since: int = 0) -> list[dict[str, Any]]:
    return [json.loads(message.payload) for message in running.bus.replay(TOPIC, after=since)]


def end(running: Running) -> int:
    return running.bus.ends()["$sys"]


def brief(running: Running, since: int) -> list[tuple[str, str, str, str]]:
    return [(one["what"], one["target"], one["who"], one["via"]) for one in entries(running, since)]


def asked(running: Running, peer: Peer, request: Any) -> list[tuple[str, str, str, str]]:
    """What the audit has when a request is answered."""
    since = end(running)
    peer.ask(request)
    return brief(running, since)


def test_it_says_who_wanted_it_and_whose_connection_asked(running: Running):
    root = running.peer("root")
    assert asked(running, root, wire.AddClient(name="eve")) == [("client-added", "eve", "root", "root")]
    assert asked(running, root, wire.RemoveClient(name="eve", by="bob")) == [("client-removed", "eve", "bob", "root")]
    running.bus.clients.add("eve")
    assert [(one["who"], one["via"]) for one in entries(running)][-1] == ("local", "local")


def test_what_each_request_changes_is_in_it_by_the_time_that_it_is_answered(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    running.bus.publish_many([("home/x", b"1"), ("home/x", b"2")])
    with running.bus.subscribe("home/#", id="dead", start="earliest") as consumer:
        for message in consumer.batch(2, 5):
            message.reject("no")
    token = root.ask(wire.AddToken(client="ann", role="reader")).id
    assert brief(running, end(running) - 1) == [("token-added", token, "root", "root")]
    for request, what, target in (
        (wire.ChangeRule(change="allow", user="ann", action="subscribe", filter="$sys/#"), "rule-allowed", "ann"),
        (wire.RemoveToken(id=token), "token-removed", token),
        (wire.CreateSubscription(id="s", filter="home/#"), "subscription-created", "s"),
        (wire.SeekSubscription(id="s", to="earliest"), "subscription-sought", "s"),
        (wire.PauseSubscription(id="s", paused=True), "subscription-paused", "s"),
        (wire.PauseSubscription(id="s", paused=False), "subscription-resumed", "s"),
        (wire.DeleteSubscription(id="s"), "subscription-deleted", "s"),
        (requests.Redrive(id="dead", offsets=(1,)), "dead-letters-redriven", "dead"),
        (requests.DropDeadLetters(id="dead"), "dead-letters-dropped", "dead"),
        (requests.Unsubscribe(id="dead"), "subscription-deleted", "dead"),
        (requests.Purge(filter="home/#"), "purged", "home/#"),
        (wire.EndSession(id=ann.session), "session-disconnected", ann.session),
        (wire.EndSession(id=ann.session, for_good=True), "session-ended", ann.session),
        (wire.RotateClient(name="ann", secret=SECRET), "client-rotated", "ann"),
    ):
        assert asked(running, root, request) == [(what, target, "root", "root")]


def test_a_backup_and_what_was_mended_are_in_it(tmp_path: Path):
    with Running(tmp_path / "data") as running:
        peer = running.peer("ann")
        running.bus.publish("home/x", b"1")
        with running.bus.subscribe("home/#", id="dead", start="earliest") as consumer:
            consumer.batch(1, 5)[0].reject("no")
        (letter,) = peer.ask(requests.DeadLetters(id="dead"))
        peer.ask(requests.Mend(id="dead", write="w", letters=(letter.mend(payload=b"2"),)))
        for request, what, target in (
            (requests.RedriveMended(id="dead", write="w", parts=("",)), "dead-letters-mended", "dead"),
            (requests.Backup(target=str(tmp_path / "copy")), "backed-up", str(tmp_path / "copy")),
        ):
            since = running.bus.ends().get("$sys", 0)
            peer.ask(request)
            assert brief(running, since) == [(what, target, "ann", "ann")]


def test_what_sessions_do_for_themselves_is_not_in_it(running: Running):
    ann = running.peer("ann")
    since = end(running)
    ann.subscribe(1, "home/#", kind="session")
    ann.subscribe(2, "home/#", kind="named", id="s", start="earliest")
    ann.ask(requests.Seek(number=2, to="latest"))
    ann.ask(requests.Pause(number=2, paused=True))
    ann.ask(requests.Unsubscribe(id=f"{ann.session}:home/#"))
    ann.subscribe(3, "home/#", kind="session")
    running.call(lambda: running.server.sessions.end(running.session_of(ann)))  # as its timer does
    running.until(lambda: [info.id for info in running.bus.subscriptions()] == ["s"])
    assert brief(running, since) == []


def test_what_was_refused_is_not_in_it(running: Running):
    root, ann = running.peer("root"), running.peer("ann")
    since = end(running)
    for peer, request, error in (
        (ann, wire.AddClient(name="eve"), NotAllowed),
        (ann, wire.EndSession(id=root.session), NotAllowed),
        (root, wire.EndSession(id="none", for_good=True), NotFound),
        (root, wire.RemoveToken(id="none"), NotFound),
        (root, wire.SeekSubscription(id="none"), NotFound),
    ):
        with pytest.raises(error):
            peer.ask(request)
    assert brief(running, since) == []


def test_nobody_reads_it_without_a_rule_of_its_own_and_nobody_writes_it(running: Running):
    ann = running.peer("ann")  # who may read and write everything that # matches
    for number, kind in enumerate(("live", "named", "session", "replay", "follow"), 1):
        with pytest.raises(NotAllowed):
            ann.subscribe(number, "$sys/#", kind=kind, id="s")
        with pytest.raises(NotAllowed):
            ann.subscribe(number, TOPIC, kind=kind, id="s")
    ann.subscribe(10, "#", kind="live")
    ann.subscribe(11, "#", kind="follow")
    ann.subscribe(12, "+/audit", kind="replay")
    running.bus.clients.add("eve")
    ann.publish("home/x")
    assert [got.topic for got in ann.take(10, 1)] == ["home/x"]
    assert [got.topic for got in ann.take(11, 1)] == ["home/x"]
    ann.quiet()
    assert [info.topic for info in ann.ask(requests.Topics())] == ["home/x"]
    assert ann.ask(requests.Topics(filter="$sys/#")) == []
    assert "$sys" not in ann.ask(requests.Ends())
    with pytest.raises(NotAllowed):
        ann.ask(requests.Retained(filter="$sys/#"))
    running.bus.acl.allow("ann", "subscribe", "$sys/audit")
    running.bus.acl.allow("ann", "publish", "$sys/#")
    running.bus.acl.allow("ann", "create", "$sys/#")
    ann.subscribe(20, TOPIC, kind="replay", after=0)
    assert json.loads(ann.take(20, 1)[0].payload)["what"] == "client-added"
    with pytest.raises(NotAllowed):
        ann.publish(TOPIC, b"{}")
    with pytest.raises(NotAllowed):
        ann.ask(requests.Delay(topic=TOPIC, payload=b"{}", deliver_at_us=1))
