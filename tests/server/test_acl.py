"""Rules over the wire: what each of them lets through, and that losing a right is felt at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headwater import core
from headwater.delivery.own_topics import own_topic
from headwater.errors import HeadwaterError
from headwater.store.batch import checksum
from headwater.wire import administration, requests
from headwater.wire.frame import Kind
from server.harness import Peer, Running, code, make_body

KINDS = ("live", "named", "session", "replay", "follow")


def answer(work) -> int:
    """The code that comes back; 200 if it works."""
    try:
        work()
    except HeadwaterError as error:
        return error.code
    return 200


def stage(peer: Peer, topic: str) -> None:
    body = make_body([topic], [b"1"])
    peer.ask(
        requests.Stage(
            producer="p", epoch=1, part="", root=topic.partition("/")[0], count=1, crc=checksum(body), body=body
        )
    )


ACTIONS = {
    "publish": [
        lambda peer: peer.publish("home/x"),
        lambda peer: peer.publish(["home/x", "home/x"], producer="p", sequence=1),
        lambda peer: peer.ask(requests.Delay(topic="home/x", payload=b"", deliver_at_us=1)),
        lambda peer: stage(peer, "home/x"),
    ],
    "create": [
        lambda peer: peer.publish("home/new"),
        lambda peer: peer.publish(["home/x", "home/newer"]),
        lambda peer: peer.ask(requests.Delay(topic="home/newest", payload=b"", deliver_at_us=1)),
        lambda peer: stage(peer, "home/staged"),
    ],
    "subscribe": [
        *[
            lambda peer, kind=kind, number=number: peer.subscribe(number, "home/x", kind=kind, id="mine")
            for number, kind in enumerate(KINDS, 1)
        ],
        lambda peer: peer.ask(requests.Retained(filter="home/x")),
        lambda peer: peer.ask(requests.Count(filter="home/x", root="home", first=1, last=1, messages=1, bytes=1)),
        lambda peer: peer.ask(requests.States(id="theirs")),
        lambda peer: peer.ask(requests.DeadLetters(id="theirs")),
        lambda peer: peer.ask(requests.Redrive(id="theirs")),
        lambda peer: peer.ask(requests.DropDeadLetters(id="theirs")),
        lambda peer: peer.subscribe(9, "home/x", kind="named", id="theirs"),
        lambda peer: peer.ask(requests.Unsubscribe(id="theirs")),
    ],
    "admin": [
        lambda peer: peer.ask(requests.Events()),
        lambda peer: peer.ask(requests.Purge(filter="nothing/here")),
        lambda peer: peer.ask(administration.ListClients()),
        lambda peer: peer.ask(administration.AddClient(name="made")),
        lambda peer: peer.ask(administration.RotateClient(name="made")),
        lambda peer: peer.ask(administration.RemoveClient(name="made")),
        lambda peer: peer.ask(administration.ListRules()),
        lambda peer: peer.ask(administration.ChangeRule(change="allow", user="made", action="publish", filter="z")),
        lambda peer: peer.ask(administration.ChangeRule(change="remove", user="made", action="publish", filter="z")),
    ],
}


@pytest.mark.parametrize("rule", ["allow", "deny", "none", "allow all but this"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_let_through_if_it_is_allowed_and_not_denied(action: str, rule: str):
    filter = "#" if action == "admin" else "home/#"
    with Running(auth="scram") as running:
        others = [other for other in ACTIONS if other not in (action, "admin")]
        if action == "subscribe":
            others = []
        running.client("ann", allow=[f"{other} home/#" for other in others])
        if rule == "allow":
            running.rules("ann", allow=[f"{action} {filter}"])
        elif rule == "deny":
            running.rules("ann", deny=[f"{action} {filter}"])
        elif rule == "allow all but this":
            if action == "admin":
                running.bus.acl.allow("*", "admin", "#")
                running.rules("ann", deny=["admin #"])
            else:
                running.rules("ann", allow=[f"{action} #"], deny=[f"{action} home/+"])
        running.bus.publish("home/x", b"", retain=False)
        running.bus.subscribe("home/x", id="theirs").close()
        peer = running.peer("ann")
        expected = 200 if rule == "allow" else 403
        assert [answer(lambda do=do: do(peer)) for do in ACTIONS[action]] == [expected] * len(ACTIONS[action])
        peer.ping()


def test_a_backup_is_for_who_may_administer(tmp_path: Path):
    with Running(tmp_path / "data", auth="scram") as running:
        running.client("ann"), running.client("root", admin=True)
        with code(403, "back up"):
            running.peer("ann").ask(requests.Backup(target=str(tmp_path / "stolen")))
        with code(403):
            running.peer("ann").ask(requests.MarkArchived(lake="hers", archived={}))
        assert not (tmp_path / "stolen").exists()
        running.peer("root").ask(requests.Backup(target=str(tmp_path / "backup")))
        assert (tmp_path / "backup").exists()


def test_of_consumers_of_others_one_learns_only_that_they_are():
    with Running(auth="scram") as running:
        for name in ("ann", "ben"):
            running.client(name, allow=["subscribe home/#"])
        running.client("root", allow=["subscribe #"], admin=True)
        ann, ben = running.peer("ann"), running.peer("ben")
        for peer in (ann, ben):
            peer.subscribe(9, "home/x", kind="named", id="shared")
        (info,) = ben.ask(requests.Subscriptions())
        assert [one.user for one in (*info.active, *info.standing_by)] == ["", "ben"]
        assert [one.host for one in (*info.active, *info.standing_by)] == ["", "127.0.0.1"]
        (info,) = running.peer("root").ask(requests.Subscriptions())
        assert [one.user for one in (*info.active, *info.standing_by)] == ["ann", "ben"]


def test_listings_show_what_one_may_see_and_nothing_else():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        for topic in ("home/x", "secret/x"):
            running.bus.publish(topic, b"", retain=True)
            running.bus.subscribe(topic, id=topic).close()
        peer = running.peer("ann")
        assert [one.topic for one in peer.ask(requests.Topics())] == ["home/x"]
        assert [one.id for one in peer.ask(requests.Subscriptions())] == ["home/x"]
        assert peer.ask(requests.Ends()) == {"home": 1}
        with code(403):
            peer.ask(requests.Retained(filter="#"))


def test_percent_u_is_ones_own_name():
    with Running(auth="scram") as running:
        for name in ("ann", "bob"):
            running.client(name)
        running.bus.acl.allow("*", "publish", "to/%u/#")
        running.bus.acl.allow("*", "create", "to/%u/#")
        ann = running.peer("ann")
        ann.publish("to/ann/x")
        with code(403):
            ann.publish("to/bob/x")


@pytest.mark.parametrize("kind", KINDS)
def test_losing_the_right_ends_a_subscription_at_once_and_says_why(kind: str):
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#", "subscribe other/#"])
        peer = running.peer("ann")
        credit = 1 if kind == "replay" else 100
        running.bus.publish_many([("home/x", b"1"), ("home/x", b"2")])
        peer.subscribe(1, "home/#", kind=kind, id="s", credit=credit)
        peer.subscribe(2, "other/#")
        running.bus.acl.remove("ann", "subscribe", "home/#")
        notice = peer.notice(1)
        assert notice.what == "ended"
        assert notice.problem is not None
        assert notice.problem.code == 403
        peer.deliveries(1)
        running.bus.publish("home/x", b"secret")
        peer.credit(1)
        running.bus.publish("other/x", b"seen")
        assert peer.payloads(2, 1) == [b"seen"]
        peer.quiet(0.05)
        with code(403):
            peer.subscribe(3, "home/#", kind=kind, id="s")
        named = [one.id for one in running.bus.subscriptions()]
        assert named == (["s"] if kind == "named" else [])


def test_a_right_that_is_lost_over_the_wire_is_felt_at_once_too():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        running.client("root", admin=True)
        ann, root = running.peer("ann"), running.peer("root")
        ann.subscribe(1, "home/#")
        root.ask(administration.ChangeRule(change="deny", user="ann", action="subscribe", filter="home/door"))
        assert ann.notice(1).what == "ended"
        assert [(one.user, one.allow) for one in root.ask(administration.ListRules()) if one.user == "ann"] == [
            ("ann", True),
            ("ann", False),
        ]


def test_a_right_to_publish_that_is_lost_is_lost_for_the_next_publish():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish a", "create a"])
        peer = running.peer("ann")
        peer.publish("a")
        running.bus.acl.deny("ann", "publish", "a")
        with code(403):
            peer.publish("a")
        running.bus.acl.allow("ann", "publish", "a")
        peer.publish("a")


def test_a_subscription_of_an_absent_session_whose_right_is_lost_is_not_there_when_it_comes_back():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#", "subscribe other/#"])
        peer = running.peer("ann")
        peer.subscribe(1, "home/#", kind="session")
        peer.subscribe(2, "home/x", kind="named", id="named")
        peer.subscribe(3, "other/x", kind="session")
        peer.close()
        running.until(lambda: running.session_of(peer).connection is None)
        running.bus.publish("home/x", b"secret")
        running.bus.acl.remove("ann", "subscribe", "home/#")
        running.until(lambda: len(running.session_of(peer).subscriptions) == 1)
        back = running.connect()
        back.shake("ann", "a secret of a test")
        assert [one.number for one in back.register(peer.session).subscriptions] == [3]
        back.quiet(0.05)
        running.until(
            lambda: (
                sorted(one.id for one in running.bus.subscriptions()) == sorted(["named", f"{peer.session}:other/x"])
            )
        )


def test_a_right_that_was_lost_while_the_server_was_down_is_lost(tmp_path: Path):
    with Running(tmp_path, auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        peer = running.peer("ann")
        peer.subscribe(1, "home/#", kind="session")
    with Running(tmp_path, auth="scram") as running:
        running.bus.acl.on_change = None  # as when another process has changed them
        running.bus.acl.remove("ann", "subscribe", "home/#")
        running.bus.publish("home/x", b"secret")
        back = running.peer("ann", session=peer.session)
        notice = back.notice(1)
        assert notice.problem is not None
        assert notice.problem.code == 403
        back.quiet(0.05)


def test_a_right_that_is_lost_while_a_subscription_is_being_made_is_lost_for_it(monkeypatch: pytest.MonkeyPatch):
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        running.bus.publish("home/x", b"secret", retain=True)
        dispatcher = running.bus.core.dispatcher
        for kind, where, name in (("session", dispatcher, "attach"), ("live", core, "RetainedReading")):
            real, inside, go_on = getattr(where, name), threading.Event(), threading.Event()

            def wait(*arguments, real=real, inside=inside, go_on=go_on, **options):
                inside.set()
                go_on.wait(60)
                return real(*arguments, **options)

            peer = running.peer("ann")
            monkeypatch.setattr(where, name, wait)
            request = requests.Subscribe(number=1, filter="home/#", kind=kind, credit_messages=9, credit_bytes=999)  # type: ignore[arg-type]
            number = peer.begin(request)
            assert inside.wait(60)
            running.call(lambda: None)
            threading.Thread(target=running.bus.acl.deny, args=("ann", "subscribe", "home/x")).start()
            running.until(lambda: not running.bus.acl.may_subscribe("ann", "home/#"))
            go_on.set()
            with code(403):
                peer.finish(number, requests.Subscribe)
            peer.quiet(0.05)
            monkeypatch.undo()
            running.bus.acl.remove("ann", "subscribe", "home/x")


def test_a_client_that_is_removed_is_told_and_closed_and_its_session_is_gone():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe a"]), running.client("root", admin=True)
        ann, root = running.peer("ann"), running.peer("root")
        ann.subscribe(1, "a", kind="session")
        root.ask(administration.RemoveClient(name="ann"))
        said = ann.ends()
        assert said is not None
        assert said.code == 403
        running.until(lambda: not running.bus.subscriptions())
        late = running.connect()
        with code(401):
            late.shake("ann", "a secret of a test")


def test_a_client_whose_secret_was_changed_has_to_know_the_new_one():
    with Running(auth="scram") as running:
        running.client("ann"), running.client("root", admin=True)
        new = running.peer("root").ask(administration.RotateClient(name="ann")).secret
        with code(401):
            running.connect().shake("ann", "a secret of a test")
        running.connect().shake("ann", new)


def test_the_answers_to_ones_own_requests_are_ones_own():
    with Running(auth="scram") as running:
        running.client("ann"), running.client("bob", allow=["subscribe #"])
        ann, bob = running.peer("ann"), running.peer("bob")
        ann.subscribe(1, f"$reply/{ann.session}")
        for filter in (f"$reply/{ann.session}", "$reply/#", "$reply/+"):
            for kind in KINDS:
                with code(403):
                    bob.subscribe(1, filter, kind=kind, id="spy")
        with code(403):
            bob.ask(requests.Retained(filter="$reply/#"))
        assert bob.ask(requests.Topics(filter="$reply/#")) == []


@pytest.mark.parametrize("filter", ["$staged/#", "$delayed/#", "$staged", "$delayed"])
def test_nobody_sees_what_waits_inside_the_broker_without_a_rule_that_names_it(filter: str):
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe #"])
        peer = running.peer("ann")
        for kind in KINDS:
            with code(403):
                peer.subscribe(1, filter, kind=kind, id="spy")


def test_a_dead_letter_of_a_filter_that_one_may_not_see_stays_unseen():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#", "publish home/#"])
        running.client("eve", allow=["subscribe home/+", "publish home/#"])
        ann, eve = running.peer("ann"), running.peer("eve")
        ann.subscribe(1, "home/#", kind="named", id="s")
        running.bus.publish("home/x/y", b"secret")
        (got,) = ann.take(1, 1)
        ann.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
        assert [one.payload for one in ann.ask(requests.DeadLetters(id="s"))] == [b"secret"]
        for request in (
            requests.DeadLetters(id="s"),
            requests.DeadLetters(id="s", offset=1),
            requests.Redrive(id="s"),
            requests.Mend(id="s", write="w", letters=()),
            requests.RedriveMended(id="s", write="w", parts=()),
            requests.DropMended(id="s", write="w"),
            requests.DropDeadLetters(id="s"),
            requests.States(id="s"),
            requests.Unsubscribe(id="s"),
        ):
            with code(403):
                eve.ask(request)
        with code(404):
            eve.ask(requests.DeadLetters(id="no-such"))
        assert ann.ask(requests.Redrive(id="s")) == 1
        assert ann.payloads(1, 1) == [b"secret"]


def test_sessions_of_others_are_not_listed_to_those_who_do_not_administer():
    with Running(auth="scram") as running:
        for name in ("ann", "bob"):
            running.client(name, allow=["subscribe home/#"])
        running.client("root", admin=True, allow=["subscribe #"])
        ann, bob, root = running.peer("ann"), running.peer("bob"), running.peer("root")
        ann.subscribe(1, "home/#", kind="session")
        own = f"{ann.session}:home/#"
        assert [one.id for one in ann.ask(requests.Subscriptions())] == [own]
        assert [one.id for one in root.ask(requests.Subscriptions())] == [own]
        assert bob.ask(requests.Subscriptions()) == []
        for request in (requests.States(id=own), requests.DeadLetters(id=own), requests.DropDeadLetters(id=own)):
            with code(403):
                bob.ask(request)


def test_a_client_frame_never_reaches_the_session_of_another():
    with Running(auth="scram") as running:
        for name in ("ann", "bob"):
            running.client(name, allow=["subscribe home/#"])
        ann, bob = running.peer("ann"), running.peer("bob")
        ann.subscribe(1, "home/#", kind="session")
        running.bus.publish("home/x", b"1")
        (got,) = ann.take(1, 1)
        with code(404):
            bob.ack(1, [got])
        with code(404):
            bob.nack(1, got)
        bob.credit(1).taken(1, [got])
        bob.ping()
        assert Kind.RECALL not in [frame.kind for frame in ann.inbox]
        ann.ack(1, [got])


def test_who_may_look_after_a_subscription_may_read_its_letters_on_their_topic_and_nobody_else():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        running.client("eve", allow=["subscribe home/+", "subscribe #"], deny=["subscribe home/safe"])
        running.client("bob", allow=["subscribe home/#"], deny=["subscribe $dead/s"])
        running.client("auditor", allow=["subscribe $dead/#"])
        ann, eve, bob, auditor = (running.peer(name) for name in ("ann", "eve", "bob", "auditor"))
        ann.subscribe(1, "home/#", kind="named", id="s")
        running.bus.publish("home/safe", b"secret")
        (got,) = ann.take(1, 1)
        ann.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
        ann.subscribe(2, "$dead/s", kind="follow", after=0)
        ann.subscribe(3, "$dead/s", kind="named", id="letters", start="earliest")
        assert ann.payloads(2, 1) == ann.payloads(3, 1) == [b"secret"]
        auditor.subscribe(1, "$dead/#", kind="follow", after=0)
        assert auditor.payloads(1, 1) == [b"secret"]
        for peer, filters in (
            (ann, ["$dead/#", "$dead/+", "$dead/no-such"]),
            (eve, ["$dead/s", "$dead/#"]),
            (bob, ["$dead/s"]),
        ):
            for filter in filters:
                for kind in KINDS:
                    with code(403):
                        peer.subscribe(9, filter, kind=kind, id="spy")
        with code(403):
            ann.publish("$dead/s")


def test_a_sessions_letters_are_for_that_session_alone():
    with Running(auth="scram") as running:
        for name in ("ann", "bob"):
            running.client(name, allow=["subscribe home/#"])
        ann, bob = running.peer("ann"), running.peer("bob")
        ann.subscribe(1, "home/#", kind="session")
        topic = own_topic("$dead", f"{ann.session}:home/#", running.bus.config)
        ann.subscribe(2, topic)
        with code(403):
            bob.subscribe(2, topic)


def test_who_reads_the_letters_of_a_subscription_is_not_told_those_of_the_next_one_of_its_id():
    with Running(auth="scram") as running:
        running.client("eve", allow=["subscribe eve/#"])
        running.client("ann", allow=["subscribe home/#"])
        eve, ann = running.peer("eve"), running.peer("ann")
        eve.subscribe(1, "eve/#", kind="named", id="s")
        eve.subscribe(2, "$dead/s")
        eve.subscribe(3, "$dead/s", kind="named", id="letters")
        eve.ask(requests.Unsubscribe(id="s"))
        ann.subscribe(1, "home/#", kind="named", id="s")
        running.bus.publish("home/x", b"secret")
        (got,) = ann.take(1, 1)
        ann.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
        assert (eve.notice(2).what, eve.notice(3).what) == ("ended", "ended")
        assert Kind.DELIVER not in [frame.kind for frame in eve.inbox]
        with code(403):
            eve.subscribe(4, "$dead/s")


def test_the_letters_of_another_life_of_an_id_are_gone():
    with Running(auth="scram") as running:
        running.client("eve", allow=["subscribe eve/#"])
        running.client("ann", allow=["subscribe home/#"])
        eve, ann = running.peer("eve"), running.peer("ann")
        ann.subscribe(1, "home/#", kind="named", id="s")
        running.bus.publish("home/x", b"secret")
        (got,) = ann.take(1, 1)
        ann.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
        ann.ask(requests.Unsubscribe(id="s"))
        eve.subscribe(1, "eve/#", kind="named", id="s")
        eve.subscribe(2, "$dead/s", kind="replay", after=0)
        assert eve.notice(2).what == "over"
        assert Kind.DELIVER not in [frame.kind for frame in eve.inbox]
