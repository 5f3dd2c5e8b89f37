"""Registration, step by step as the notes say it: sessions that are new, resumed, refused, taken over and reclaimed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError, TimedOut
from headwater.server.sessions import Sessions
from headwater.wire import requests
from headwater.wire.frame import Kind, pack
from server.harness import Ended, Running, code


def subscription_ids(running: Running) -> list[str]:
    return [one.id for one in running.bus.subscriptions()]


def test_a_client_that_registers_without_an_id_gets_a_new_session_with_an_id_of_its_own():
    with Running() as running:
        one, two = running.connect(), running.connect()
        for peer in (one, two):
            peer.shake("ann")
        first, second = one.register(), two.register()
        assert first.session != second.session
        assert not first.resumed
        assert first.subscriptions == ()
        assert first.expire_after_s == running.server.serving.session_expire_after_s


def test_a_client_that_gives_its_session_id_resumes_it_with_undelivered_messages_first_and_in_order():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(7, "home/#", kind="named", id="s")
        running.bus.publish_many([("home/x", b"%d" % n) for n in range(5)])
        got = peer.take(7, 5)
        peer.ack(7, got[:2])
        peer.close()
        running.until(lambda: running.session_of(peer).connection is None)
        running.bus.publish("home/x", b"5")

        back = running.connect()
        back.shake("ann")
        registered = back.register(peer.session)
        assert registered.resumed
        assert [(one.number, one.id, one.kind, one.existed) for one in registered.subscriptions] == [
            (7, "s", "named", True)
        ]
        running.bus.publish("home/x", b"6")
        assert back.done_with(7, 5) == [b"2", b"3", b"4", b"5", b"6"]


def test_a_disconnect_is_not_an_attempt():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="session")
        running.bus.publish("a", b"1")
        (got,) = peer.take(1, 1)
        peer.taken(1, [got])
        peer.ping()
        peer.close()
        back = running.peer("ann", session=peer.session)
        (again,) = back.take(1, 1)
        assert (again.offset, again.attempt) == (got.offset, 1)
        assert again.lease != got.lease
        with code(409):
            back.nack(1, got)
        back.ack(1, [again])


def test_a_wrong_session_id_gets_404_and_the_client_may_register_anew_on_the_same_connection():
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        with code(404, "register without one"):
            peer.register("no-such-session")
        assert not peer.register().resumed
        peer.ping()


@pytest.mark.parametrize("wrong", ["", "\0", "x" * 5000, "../../etc", "ß"])
def test_strange_session_ids_are_wrong_ones(wrong: str):
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        with code(404):
            peer.register(wrong)


def test_the_session_of_another_user_gets_403_and_is_left_alone():
    with Running() as running:
        ann = running.peer("ann")
        ann.subscribe(1, "a", kind="session")
        bob = running.connect()
        bob.shake("bob")
        with code(403, "bob"):
            bob.register(ann.session)
        running.bus.publish("a", b"1")
        assert ann.payloads(1, 1) == [b"1"]
        assert not bob.register().resumed


def test_a_takeover_tells_the_old_connection_why_and_closes_it():
    with Running() as running:
        old = running.peer("ann")
        old.subscribe(1, "a", kind="session")
        running.bus.publish("a", b"1")
        old.take(1, 1)
        new = running.connect()
        new.shake("ann")
        assert new.register(old.session).resumed
        said = old.ends()
        assert said is not None
        assert said.code == 409
        assert "taken this session over" in str(said)
        assert new.payloads(1, 1) == [b"1"]


def test_what_the_old_connection_still_sends_after_a_takeover_changes_nothing():
    with Running() as running:
        old = running.peer("ann")
        old.subscribe(1, "a", kind="session")
        running.bus.publish("a", b"1")
        (got,) = old.take(1, 1)
        new = running.peer("ann", session=old.session)
        (again,) = new.take(1, 1)
        new.ack(1, [again])
        try:
            old.ack_soon(1, (got.lease, 1, 1))
            old.publish_soon("a", b"ghost")
        except OSError:
            pass
        new.ping()
        running.bus.publish("a", b"2")
        assert new.payloads(1, 1) == [b"2"]


def test_many_takeovers_in_a_row_leave_one_connection_and_lose_nothing():
    with Running() as running:
        first = running.peer("ann")
        first.subscribe(1, "a", kind="named", id="s")
        peers = [running.connect() for _ in range(8)]
        for peer in peers:
            peer.shake("ann")

        def register(peer):
            try:
                peer.register(first.session)
            except (Ended, HeadwaterError, OSError):
                pass  # another has taken the session over meanwhile

        threads = [threading.Thread(target=register, args=(peer,)) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.until(lambda: len(running.server.listener.connections) == 1)
        last = running.peer("ann", session=first.session)
        running.bus.publish("a", b"1")
        assert last.payloads(1, 1) == [b"1"]
        running.until(lambda: running.session_of(last).pumps[1].durable.consumers.count == 1)


def test_the_cleanup_timer_starts_at_the_disconnect_and_stops_at_the_resume():
    with Running() as running:
        sessions = running.server.sessions
        peer = running.peer("ann")
        assert running.call(lambda: not sessions.waits(peer.session))
        peer.close()
        running.until(lambda: sessions.waits(peer.session))
        back = running.peer("ann", session=peer.session)
        assert running.call(lambda: not sessions.waits(peer.session))
        back.ping()


def test_after_the_timer_the_session_and_its_own_subscriptions_are_gone_and_named_ones_stay():
    with Running() as running:
        peer = running.peer("ann", expire_after_s=0.1)
        peer.subscribe(1, "a", kind="session")
        peer.subscribe(2, "b", kind="named", id="named")
        assert sorted(subscription_ids(running)) == sorted(["named", f"{peer.session}:a"])
        peer.close()
        running.until(lambda: len(running.server.sessions) == 0)
        running.until(lambda: subscription_ids(running) == ["named"])
        late = running.connect()
        late.shake("ann")
        with code(404):
            late.register(peer.session)


def test_a_session_that_is_resumed_in_time_is_not_reclaimed_by_the_timer_that_ran_before():
    with Running() as running:
        peer = running.peer("ann", expire_after_s=1.0)
        peer.close()
        running.until(lambda: running.server.sessions.waits(peer.session))
        back = running.peer("ann", session=peer.session)
        back.quiet(1.2)
        assert running.session_of(back) is not None


def test_a_resume_that_is_refused_for_its_expiry_leaves_the_timer_running():
    with Running() as running:
        back = running.connect()
        back.shake("ann")
        peer = running.peer("ann", expire_after_s=0.5)
        peer.close()
        running.until(lambda: running.server.sessions.waits(peer.session))
        with code(422):
            back.register(peer.session, -1.0)
        running.until(lambda: len(running.server.sessions) == 0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), float("-inf")])
def test_an_expiry_that_is_none_is_refused(seconds: float):
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        with code(422):
            peer.register(expire_after_s=seconds)
        assert running.call(lambda: len(running.server.sessions)) == 0


def test_a_longer_expiry_than_there_may_be_is_cut():
    with Running(session_expire_after_s_max=60.0) as running:
        peer = running.connect()
        peer.shake("ann")
        assert peer.register(expire_after_s=1e9).expire_after_s == 60.0


def test_a_goodbye_that_ends_the_session_ends_it_now():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="session")
        peer.subscribe(2, "b", kind="named", id="named")
        peer.send(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye(end_session=True))))
        peer.ends()
        running.until(lambda: len(running.server.sessions) == 0)
        running.until(lambda: subscription_ids(running) == ["named"])


def test_a_goodbye_alone_keeps_the_session():
    with Running() as running:
        peer = running.peer("ann")
        peer.send(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye())))
        peer.ends()
        assert running.peer("ann", session=peer.session).session == peer.session


def test_sessions_survive_a_restart_of_the_server(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer("ann")
        peer.subscribe(3, "home/#", kind="session")
        running.bus.publish_many([("home/x", b"%d" % n) for n in range(3)])
        peer.ack(3, peer.take(3, 3)[:1])
    with Running(tmp_path) as running:
        back = running.connect()
        back.shake("ann")
        registered = back.register(peer.session)
        assert registered.resumed
        assert [one.number for one in registered.subscriptions] == [3]
        assert back.done_with(3, 2) == [b"1", b"2"]


def test_a_session_that_nobody_resumes_after_a_restart_is_reclaimed(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer("ann", expire_after_s=0.2)
        peer.subscribe(1, "a", kind="session")
    with Running(tmp_path) as running:
        running.until(lambda: len(running.server.sessions) == 0)
        running.until(lambda: not subscription_ids(running))


def test_one_session_more_than_there_may_be_gets_429():
    with Running(sessions_max=1) as running:
        running.peer("ann")
        bob = running.connect()
        bob.shake("bob")
        with code(429, "sessions_max"):
            bob.register()


def test_one_client_cannot_take_all_sessions_there_may_be():
    with Running(sessions_per_client_max=2) as running:
        first = running.peer("ann")
        running.peer("ann").close()
        more = running.connect()
        more.shake("ann")
        with code(429, "sessions_per_client_max"):
            more.register()
        running.peer("bob")
        first.send(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye(end_session=True))))
        first.ends()
        more.register()
        shares = running.call(lambda: dict(running.server.sessions._by_share))
        assert shares == {"127.0.0.1/ann": 2, "127.0.0.1/bob": 1}


def test_a_session_that_cannot_be_stored_is_not_there():
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        keep = Sessions.keep

        def fail(self, row, then=None, more=None):
            then(None, OSError("disk"))

        try:
            Sessions.keep = fail  # type: ignore[method-assign]
            with code(500):
                peer.register()
        finally:
            Sessions.keep = keep  # type: ignore[method-assign]
        assert running.call(lambda: len(running.server.sessions)) == 0
        assert not peer.register().resumed
        peer.subscribe(1, "a", kind="session")
        assert running.call(lambda: len(running.server.sessions)) == 1


def test_what_is_sent_together_with_a_registration_waits_for_nothing_and_is_refused():
    with Running() as running:
        peer = running.connect()
        peer.shake("ann")
        subscribe = requests.Subscribe(number=1, filter="a", kind="session")
        peer.send(requests.pack_request(1, requests.Register()), requests.pack_request(2, subscribe))
        said = peer.ends()
        assert said is not None
        assert said.code == 422


def test_a_second_registration_gets_422_and_changes_nothing():
    with Running() as running:
        peer = running.peer("ann")
        with code(422, "session already"):
            peer.register()
        peer.ping()


def test_what_was_being_made_for_a_connection_does_not_stand_in_the_way_of_the_next() -> None:
    with Running() as running:
        lost = running.peer()
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            let_go.wait()

        holder = threading.Thread(target=lambda: running.bus.core.roots.commit.run(hold))
        holder.start()
        held.wait()
        lost.begin(requests.Subscribe(number=1, filter="home/#", kind="follow"))
        lost.ping()
        peer = running.peer(session=lost.session)
        number = peer.begin(
            requests.Subscribe(number=1, filter="home/#", kind="follow", credit_messages=1, credit_bytes=1)
        )
        peer.ping()
        let_go.set()
        holder.join()
        assert peer.finish(number, requests.Subscribe).number == 1
        running.bus.publish("home/x", b"1")
        assert peer.payloads(1, 1) == [b"1"]


def test_a_registration_that_cannot_be_stored_in_time_is_answered_504_and_the_connection_closed() -> None:
    with Running(call_s=0.05) as running:
        let_go = threading.Event()
        held = threading.Event()

        def hold() -> None:
            held.set()
            let_go.wait()

        holder = threading.Thread(target=lambda: running.bus.core.rows.run(hold))
        holder.start()
        held.wait()
        peer = running.connect()
        peer.shake("ann")
        with pytest.raises(TimedOut):
            peer.register()
        assert peer.ends() is None
        let_go.set()
        holder.join()
