"""Subscribing, step by step as the notes say it: rights, making or finding the subscriber, and what becomes of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headwater.delivery.subscriber import Subscriber as Durable
from headwater.errors import Failed, Malformed
from headwater.wire import requests
from headwater.wire.batches import read_ranges
from headwater.wire.frame import Kind, pack
from server.harness import Running, code


def test_a_client_that_may_subscribe_gets_an_ack_and_then_what_is_published():
    with Running() as running:
        peer = running.peer()
        answer = peer.subscribe(1, "home/+/temp", kind="named", id="s")
        assert (answer.number, answer.id, answer.filter, answer.kind, answer.existed) == (
            1,
            "s",
            "home/+/temp",
            "named",
            False,
        )
        running.bus.publish_many([("home/x/temp", b"1"), ("home/x/door", b"-"), ("home/y/temp", b"2")])
        assert peer.payloads(1, 2) == [b"1", b"2"]


def test_the_ack_comes_whether_the_subscriber_existed_or_was_made():
    with Running() as running:
        ann, bob = running.peer("ann"), running.peer("bob")
        assert not ann.subscribe(1, "a", kind="named", id="s").existed
        assert bob.subscribe(5, "a", kind="named", id="s").existed
        again = ann.subscribe(9, "a", kind="named", id="s")
        assert (again.existed, again.number) == (True, 1)


def test_a_subscription_of_a_topic_that_does_not_exist_yet_makes_no_topic_and_gets_it_once_it_is_there():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "new/topic", kind="session")
        assert running.bus.topics() == []
        running.bus.publish("new/topic", b"1")
        assert peer.payloads(1, 1) == [b"1"]


def test_a_client_without_the_right_gets_403_with_the_missing_rule_in_the_text_and_nothing_is_made():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        peer = running.peer("ann")
        for kind in ("live", "named", "session", "replay", "follow"):
            with code(403, 'client "ann" may not subscribe to "other/#"', "headwater acl allow ann subscribe"):
                peer.subscribe(1, "other/#", kind=kind, id="s")
        assert running.bus.subscriptions() == []
        peer.subscribe(1, "home/x", kind="session")


def test_a_session_without_a_listener_waits_for_it_to_come_back():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="session")
        peer.close()
        running.until(lambda: running.session_of(peer).connection is None)
        for number in range(20):
            running.bus.publish("a", b"%d" % number)
        back = running.peer("ann", session=peer.session)
        assert back.payloads(1, 20) == [b"%d" % number for number in range(20)]


def test_a_subscriber_that_crashes_is_started_again_from_its_stored_state(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        running.bus.publish_many([("a", b"1"), ("a", b"2")])
        peer.ack(1, peer.take(1, 2)[:1])
        real, failures = Durable.hand, [RuntimeError("a bug")]

        def hand(self, *arguments):
            if failures:
                raise failures.pop()
            return real(self, *arguments)

        monkeypatch.setattr(Durable, "hand", hand)
        running.bus.publish("a", b"3")
        assert peer.payloads(1, 2) == [b"2", b"3"]
        peer.ping()


def test_what_a_crashed_subscriber_had_handed_out_is_recalled_before_it_comes_again(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        running.bus.publish_many([("a", b"1"), ("a", b"2")])
        held = peer.take(1, 2)
        real, failures = Durable.hand, [RuntimeError("a bug")]

        def hand(self, *arguments):
            if failures:
                raise failures.pop()
            return real(self, *arguments)

        monkeypatch.setattr(Durable, "hand", hand)
        running.bus.publish("a", b"3")
        assert read_ranges(peer.frame(Kind.RECALL, 1))[1] == [(held[0].lease, 1, 2)]
        assert peer.payloads(1, 3) == [b"1", b"2", b"3"]


def test_a_subscriber_that_cannot_be_started_again_has_its_client_told_to_resubscribe_and_the_session_lives(
    monkeypatch: pytest.MonkeyPatch,
):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        peer.subscribe(2, "b", kind="named", id="other")

        def hand(self, *arguments):
            if self.options.id == "s":
                raise RuntimeError("a bug")
            return real(self, *arguments)

        real = Durable.hand
        monkeypatch.setattr(Durable, "hand", hand)
        running.bus.publish("a", b"1")
        notice = peer.notice(1)
        assert notice.what == "ended"
        assert notice.problem is not None
        assert "subscribe again" in notice.problem.text
        running.bus.publish("b", b"2")
        assert peer.payloads(2, 1) == [b"2"]
        monkeypatch.undo()
        assert peer.subscribe(1, "a", kind="named", id="s").existed
        assert peer.payloads(1, 1) == [b"1"]


def test_a_subscriber_that_cannot_read_its_disk_disturbs_no_other(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        bad, good = running.peer("bad"), running.peer("good")
        bad.subscribe(1, "a", kind="named", id="bad")
        good.subscribe(1, "a", kind="named", id="good")
        real = Durable.hand

        def hand(self, *arguments):
            if self.options.id == "bad":
                raise Failed("the disk is bad")
            return real(self, *arguments)

        monkeypatch.setattr(Durable, "hand", hand)
        for number in range(5):
            running.bus.publish("a", b"%d" % number)
        assert good.payloads(1, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert bad.notice(1).what == "ended"
        bad.ping()


def test_a_live_subscriber_that_crashes_ends_and_its_client_is_told(monkeypatch: pytest.MonkeyPatch):
    from headwater.delivery.live import Live

    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a")
        monkeypatch.setattr(Live, "take", lambda _: 1 / 0)
        running.bus.publish("a", b"1")
        assert peer.notice(1).what == "ended"
        monkeypatch.undo()
        peer.subscribe(1, "a")
        running.bus.publish("a", b"2")
        assert peer.payloads(1, 1) == [b"2"]


def test_a_subscription_that_is_deleted_by_somebody_ends_for_those_who_read_it():
    with Running() as running:
        ann, bob = running.peer("ann"), running.peer("bob")
        ann.subscribe(1, "a", kind="named", id="s")
        bob.ask(requests.Unsubscribe(id="s"))
        assert ann.notice(1).what == "ended"
        assert running.bus.subscriptions() == []
        with code(404):
            bob.ask(requests.Unsubscribe(id="s"))


def test_a_client_that_resumes_and_subscribes_again_at_once_is_served_once():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="named", id="s")
        for number in (1, 2):
            peer.close()
            back = running.connect()
            back.shake("ann")
            back.register(peer.session)
            answer = back.subscribe(number, "a", kind="named", id="s")
            assert (answer.number, answer.existed) == (1, True)
            running.bus.publish("a", b"%d" % number)
            got = back.take(1, 1)
            assert [one.payload for one in got] == [b"%d" % number]
            back.ack(1, got)
            assert len(running.session_of(back).pumps) == 1
            assert running.session_of(back).pumps[1].durable.consumers.count == 1
            peer = back


def test_the_same_subscription_asked_for_many_times_at_once_is_made_once():
    with Running() as running:
        peer = running.peer("ann")
        asked = [
            peer.begin(requests.Subscribe(number=n, filter="a", kind="session", credit_messages=9, credit_bytes=999))
            for n in range(1, 20)
        ]
        answers = [peer.finish(number, requests.Subscribe) for number in asked]
        assert {answer.number for answer in answers} == {1}
        running.bus.publish("a", b"1")
        assert peer.payloads(1, 1) == [b"1"]
        peer.quiet()


def test_a_number_that_is_in_use_is_refused_and_may_be_used_again_once_it_is_free():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        with code(409, "another number"):
            peer.subscribe(1, "b")
        peer.ask(requests.Leave(number=1))
        peer.subscribe(1, "b")
        running.bus.publish("b", b"1")
        running.bus.publish("a", b"-")
        assert peer.payloads(1, 1) == [b"1"]
        peer.quiet()


@pytest.mark.parametrize("number", [0, -1, 1 << 32, (1 << 63)])
def test_a_number_that_is_none_is_refused(number: int):
    with Running() as running:
        peer = running.peer()
        with code(422):
            peer.subscribe(number, "a")
        peer.ping()


@pytest.mark.parametrize("filter", ["", "a/*", "a//#/b", "\0", "a/#/b", "x" * 2000, "+a"])
def test_a_filter_that_is_none_is_refused(filter: str):
    with Running() as running:
        peer = running.peer()
        for kind in ("live", "session", "replay", "follow"):
            with code(422):
                peer.subscribe(1, filter, kind=kind)
        peer.ping()


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": "many"},
        {"max_in_flight": 0},
        {"max_in_flight": 1 << 62},
        {"ack_timeout_s": -1.0},
        {"ack_timeout_s": float("nan")},
        {"order": "random"},
        {"no_such": 1},
        {"retry_delay_s": [1]},
        {"expire_after_s": "x"},
        {"on_gap": "jump"},
        {"order": {"a": [1, 2, {}]}},
    ],
)
def test_options_that_are_none_are_refused_and_nothing_is_made(options: dict[str, object]):
    with Running() as running:
        peer = running.peer()
        with code(422):
            peer.subscribe(1, "a", kind="named", id="s", options=options)
        assert running.bus.subscriptions() == []
        peer.subscribe(1, "a", kind="named", id="s")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("live", {"when_full": "explode"}),
        ("named", {}),
        ("named", {"id": ""}),
        ("named", {"id": "x" * 2000}),
        ("named", {"id": "s", "start": -1}),
        ("named", {"id": "s", "start_us": -1}),
        ("named", {"id": "s", "start_us": 1 << 62}),
        ("replay", {"after": -1}),
        ("replay", {"since_us": 1 << 62}),
        ("follow", {"after": 1, "since_us": 5}),
        ("live", {"credit": -1}),
    ],
)
def test_what_cannot_be_subscribed_to_is_refused_and_the_session_goes_on(kind: str, fields: dict[str, object]):
    with Running() as running:
        running.bus.publish("a", b"1")
        peer = running.peer()
        with code(422):
            peer.subscribe(1, "a", kind=kind, **fields)  # type: ignore[arg-type]
        peer.subscribe(1, "a", kind="session")


def test_one_subscription_more_than_a_session_may_have_gets_429():
    with Running(subscriptions_per_session_max=2) as running:
        peer = running.peer()
        peer.subscribe(1, "a")
        peer.subscribe(2, "b", kind="session")
        with code(429, "subscriptions_per_session_max"):
            peer.subscribe(3, "c")
        peer.ask(requests.Leave(number=1))
        peer.subscribe(3, "c")


def test_a_session_with_hundreds_of_subscriptions_comes_goes_and_ends_like_any_other():
    with Running(requests_in_flight_max=16) as running:
        peer = running.peer("ann")
        asked = [
            peer.begin(
                requests.Subscribe(
                    number=n, filter=f"a/{n}", kind="session" if n % 2 else "live", credit_messages=9, credit_bytes=999
                )
            )
            for n in range(1, 101)
        ]
        for number in asked:
            peer.finish(number, requests.Subscribe)
        peer.close()
        running.until(lambda: running.server.sessions.waits(peer.session))
        running.until(lambda: not running.bus.core.live, "that live subscriptions are gone")
        running.bus.publish_many([(f"a/{n}", b"x") for n in range(1, 101)])
        back = running.peer("ann", session=peer.session)
        for n in range(1, 101, 2):
            back.take(n, 1)
        back.send(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye(end_session=True))))
        running.until(lambda: not running.bus.subscriptions())


def test_another_sessions_own_subscription_can_neither_be_taken_nor_deleted():
    with Running() as running:
        ann, bob = running.peer("ann"), running.peer("bob")
        ann.subscribe(1, "a", kind="session")
        with code(403):
            bob.subscribe(1, "a", kind="named", id=f"{ann.session}:a")
        with code(403):
            bob.ask(requests.Unsubscribe(id=f"{ann.session}:a"))
        running.bus.publish("a", b"1")
        assert ann.payloads(1, 1) == [b"1"]


def test_leaving_a_named_subscription_keeps_its_place_and_the_session_forgets_it():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="named", id="s")
        running.bus.publish("a", b"1")
        peer.ack(1, peer.take(1, 1))
        peer.ask(requests.Leave(number=1))
        running.bus.publish("a", b"2")
        peer.quiet(0.05)
        peer.close()
        back = running.connect()
        back.shake("ann")
        assert back.register(peer.session).subscriptions == ()
        assert back.subscribe(4, "a", kind="named", id="s").existed
        assert back.payloads(4, 1) == [b"2"]


def test_a_connection_that_goes_while_its_subscription_is_made_leaves_nobody_attached(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        dispatcher = running.bus.core.dispatcher
        real, inside, go_on = dispatcher.attach, threading.Event(), threading.Event()

        def attach(*arguments, **options):
            inside.set()
            go_on.wait(60)
            return real(*arguments, **options)

        monkeypatch.setattr(dispatcher, "attach", attach)
        peer = running.peer("ann")
        peer.begin(requests.Subscribe(number=1, filter="a", kind="named", id="s", credit_messages=5, credit_bytes=999))
        assert inside.wait(60)
        peer.close()
        running.until(lambda: running.session_of(peer).connection is None)
        go_on.set()
        running.until(lambda: dispatcher.served("s") is None and dispatcher.row("s") is not None)
        other = running.peer("bob")
        other.subscribe(1, "a", kind="named", id="s")
        running.bus.publish("a", b"1")
        assert other.payloads(1, 1) == [b"1"]


def test_a_crash_between_the_subscription_and_the_session_that_has_it_leaves_no_orphan(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer("ann", expire_after_s=0.3)
        peer.subscribe(1, "a", kind="session")
        # As if the process had died after the subscription was made, before its session was written.
        session = running.session_of(peer)
        running.call(lambda: session._drop_row(f"{peer.session}:a"))
    with Running(tmp_path) as running:
        running.until(lambda: not running.bus.subscriptions())
    with Running(tmp_path) as running:
        assert running.call(lambda: len(running.server.sessions)) == 0


def test_a_subscribe_takes_effect_before_its_ack():
    with Running() as running:
        peer = running.peer()
        for number in range(1, 20):
            peer.subscribe(number, "a")
            running.bus.publish("a", b"%d" % number)
            assert peer.payloads(number, 1) == [b"%d" % number]


def test_a_request_that_is_none_is_refused_and_the_session_goes_on():
    with Running() as running:
        peer = running.peer()
        for payload in (b"", b"\xc1", b"\x81\xa2do\xa7Nothing", requests.encode({"do": "Leave"}), b"\x90" * 100):
            number = peer.next_id()
            peer.send(pack(Kind.REQUEST, number, payload))
            with code(422):
                peer.finish(number, requests.Leave)
        with code(404):
            peer.ask(requests.Leave(number=3))
        for request in (requests.Seek(number=9), requests.Pause(number=9, paused=True)):
            with code(404):
                peer.ask(request)


def test_seek_and_pause_are_for_durable_subscriptions():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a")
        with code(422, "not durable"):
            peer.ask(requests.Seek(number=1, to="earliest"))
        with code(422, "not durable"):
            peer.ask(requests.Pause(number=1, paused=True))
        with pytest.raises(Malformed):
            peer.ask(requests.Nack(number=1, lease=1, offset=1))


def test_a_paused_subscription_hands_out_nothing_until_it_goes_on():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        peer.ask(requests.Pause(number=1, paused=True))
        running.bus.publish("a", b"1")
        peer.quiet()
        peer.ask(requests.Pause(number=1, paused=False))
        assert peer.payloads(1, 1) == [b"1"]


def test_a_seek_takes_back_what_was_handed_out_and_goes_on_from_there():
    with Running() as running:
        running.bus.publish_many([("a", b"%d" % n) for n in range(5)])
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", start="earliest")
        peer.ack(1, peer.take(1, 5)[:3])
        peer.ask(requests.Seek(number=1, to="earliest"))
        peer.frame(Kind.RECALL, 1)
        assert peer.payloads(1, 5) == [b"0", b"1", b"2", b"3", b"4"]
        with code(422):
            peer.ask(requests.Seek(number=1, to=-5))
        with code(422):
            peer.ask(requests.Seek(number=1, to_us=-5))
        peer.ask(requests.Seek(number=1, to_us=time.time_ns() // 1000))
