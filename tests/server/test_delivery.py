"""Delivery over the wire: credit, order, retries, recalls, history that joins what comes, and what was given up on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headwater.config import KIB, Config, Retention
from headwater.errors import HeadwaterError, Recalled
from headwater.server import bell
from headwater.wire import requests
from headwater.wire.batches import Range, pack_ranges, read_ranges
from headwater.wire.frame import Kind
from server.harness import PATIENCE_S, Got, Peer, Running, code


def publish(running: Running, count: int, topic: str = "a", start: int = 0) -> None:
    running.bus.publish_many([(topic, b"%d" % n) for n in range(start, start + count)])


def payloads(got: list[Got]) -> list[bytes]:
    return [one.payload for one in got]


def recalled(peer: Peer, number: int) -> list[Range]:
    return read_ranges(peer.frame(Kind.RECALL, number))[1]


# Credit


@pytest.mark.parametrize("kind", ["live", "named", "session", "replay", "follow"])
def test_never_more_than_the_credit_is_sent(kind: str):
    with Running() as running:
        peer = running.peer()
        if kind in ("replay", "follow"):
            publish(running, 100)
        peer.subscribe(1, "a", kind=kind, id="s", credit=0)
        if kind not in ("replay", "follow"):
            publish(running, 100)
        peer.quiet(0.05)
        seen: list[Got] = []
        for credit in (1, 2, 7, 30):
            peer.credit(1, credit)
            got = peer.take(1, credit)
            peer.quiet(0.03)
            assert len(got) == credit
            seen += got
        assert payloads(seen) == [b"%d" % n for n in range(40)]
        peer.credit(1, 1000)
        rest = peer.take(1, 24 if kind in ("named", "session") else 60)
        assert payloads(seen + rest) == [b"%d" % n for n in range(len(seen + rest))]


def test_a_credit_of_bytes_is_gone_over_by_the_last_batch_alone():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", bytes=1)
        for number in range(5):
            running.bus.publish("a", b"%d" % number)
        assert len(peer.take(1, 1)) == 1
        peer.quiet(0.05)
        peer.credit(1, 0, 1 << 20)
        assert len(peer.take(1, 4)) == 4


def test_a_retained_message_takes_credit_too():
    with Running() as running:
        for number in range(5):
            running.bus.publish(f"a/{number}", b"r", retain=True)
        peer = running.peer()
        peer.subscribe(1, "a/#", credit=2)
        assert len(peer.take(1, 2)) == 2
        peer.quiet(0.05)
        peer.credit(1, 100)
        assert len(peer.take(1, 3)) == 3


def test_no_more_than_max_in_flight_is_handed_out_whatever_the_credit():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"max_in_flight": 3})
        publish(running, 10)
        got = peer.take(1, 3)
        peer.quiet(0.05)
        peer.ack(1, got[:1])
        assert payloads(peer.take(1, 1)) == [b"3"]


# Acks, nacks, timeouts


def test_acks_are_on_disk_when_they_are_answered_and_the_rest_comes_again_in_order(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 10)
        got = peer.take(1, 10)
        peer.ack(1, [got[0], got[1], got[4]])
    with Running(tmp_path) as running:
        peer = running.peer()
        assert peer.subscribe(1, "a", kind="named", id="s").existed
        for payload in (b"2", b"3", b"5", b"6", b"7", b"8", b"9"):  # one may have killed the consumer: each alone
            (again,) = peer.take(1, 1)
            assert (again.payload, again.attempt) == (payload, 1)
            peer.ack(1, [again])


def test_a_nack_in_strict_order_recalls_what_was_prefetched_and_all_comes_again_in_order():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 6)
        got = peer.take(1, 6)
        peer.ack(1, got[:1])
        peer.nack(1, got[2], "not now")
        ((lease, first, last),) = recalled(peer, 1)
        assert (lease, last) == (got[0].lease, 6)
        assert first in (3, 4)
        with pytest.raises(Recalled):
            peer.ack(1, got[3:4])
        peer.ack(1, got[1:2])
        (again,) = peer.take(1, 1)
        assert (again.payload, again.attempt) == (b"2", 2)
        peer.quiet(0.05)
        peer.ack(1, [again])
        rest = peer.take(1, 3)
        assert [(one.payload, one.attempt) for one in rest] == [(b"3", 1), (b"4", 1), (b"5", 1)]
        assert all(one.lease != got[0].lease for one in (again, *rest))
        peer.ack(1, rest)


def test_what_a_nack_recalls_is_told_before_the_nack_is_answered(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 3)
        got = peer.take(1, 3)
        with monkeypatch.context() as busy:
            busy.setattr(bell, "WAKES_IN_TURN", 0)  # others are woken, and it is nobody's turn
            peer.nack(1, got[0])
            assert [read_ranges(frame)[1] for frame in peer.inbox if frame.kind == Kind.RECALL] == [
                [(got[0].lease, 1, 3)]
            ]
        assert payloads(peer.take(1, 1)) == [b"0"]


def test_nothing_after_a_failed_message_is_handed_out_before_it_is_acked_or_dead():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 3)
        got = peer.take(1, 3)
        peer.nack(1, got[0], delay_s=0.2)
        publish(running, 3, start=3)
        again = peer.take(1, 1)
        peer.quiet(0.05)
        assert payloads(again) == [b"0"]
        peer.ack(1, again)
        assert payloads(again + peer.take(1, 5)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_an_ack_of_an_older_generation_gets_409_and_acks_nothing():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 2)
        old = peer.take(1, 2)
        peer.nack(1, old[0])
        new = peer.take(1, 1)
        for one in old:
            with code(409):
                peer.ack(1, [one])
        with code(409):
            peer.nack(1, old[1])
        assert [one.in_flight for one in running.bus.subscriptions()] == [1]
        peer.ack(1, new)
        peer.ack(1, peer.take(1, 1))
        assert [one.lag for one in running.bus.subscriptions()] == [0]


def test_the_ack_timeout_starts_when_the_application_takes_a_message_and_not_before():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(
            1, "a", kind="named", id="s", options={"ack_timeout_s": 0.2, "retry_delay_s": 0.0, "max_attempts": 0}
        )
        publish(running, 1)
        got = peer.take(1, 1)
        peer.quiet(0.5)
        peer.taken(1, got)
        (again,) = peer.take(1, 1)
        assert (again.payload, again.attempt) == (b"0", 2)
        with code(409):
            peer.ack(1, got)
        peer.quiet(0.4)
        peer.ack(1, [again])


def test_extend_gives_a_message_more_time():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"ack_timeout_s": 0.5, "retry_delay_s": 0.0})
        publish(running, 1)
        got = peer.take(1, 1)
        extend = requests.Extend(number=1, lease=got[0].lease, offset=1, seconds=30.0)
        number = peer.next_id()
        taken = pack_ranges(Kind.TAKEN, 1, 0, [(got[0].lease, 1, 1)])
        peer.send(taken, requests.pack_request(number, extend))  # together: the time that it has is short
        peer.finish(number, requests.Extend)
        peer.quiet(0.8)
        peer.ack(1, got)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e10])
def test_an_extension_that_is_none_is_refused(seconds: float):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 1)
        got = peer.take(1, 1)
        with code(422):
            peer.ask(requests.Extend(number=1, lease=got[0].lease, offset=1, seconds=seconds))
        with code(422):
            peer.nack(1, got[0], delay_s=-1.0)
        peer.ack(1, got)


def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_errors_and_can_be_driven_again():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"max_attempts": 2})
        publish(running, 2)
        got = peer.take(1, 2)
        peer.nack(1, got[0], "first")
        again = peer.take(1, 1)
        peer.nack(1, again[0], "second")
        rest = peer.take(1, 1)
        assert payloads(rest) == [b"1"]
        peer.ack(1, rest)
        (dead,) = peer.ask(requests.DeadLetters(id="s"))
        assert (dead.payload, dead.attempts, [str(error) for error in dead.errors]) == (b"0", 2, ["first", "second"])
        assert [one.payload for one in peer.ask(requests.DeadLetters(id="s", offset=1))] == [b"0"]
        assert peer.ask(requests.Redrive(id="s")) == 1
        driven = peer.take(1, 1)
        assert payloads(driven) == [b"0"]
        peer.ack(1, driven)
        assert peer.ask(requests.DeadLetters(id="s")) == []


def test_a_message_that_is_rejected_is_dead_at_once_and_can_be_dropped():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s")
        publish(running, 1)
        (got,) = peer.take(1, 1)
        peer.ask(requests.Reject(number=1, lease=got.lease, offset=1, error="never"))
        assert len(peer.ask(requests.DeadLetters(id="s"))) == 1
        assert peer.ask(requests.DropDeadLetters(id="s", offsets=(1,))) == 1
        assert peer.ask(requests.DeadLetters(id="s")) == []
        with code(404):
            peer.ask(requests.DeadLetters(id="s", offset=1))


def test_pipelined_acks_are_each_answered():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"max_in_flight": 1000})
        publish(running, 500)
        asked = [peer.ack_soon(1, (one.lease, one.offset, one.offset)) for one in peer.take(1, 500)]
        for number in asked:
            peer.acked(number)
        assert [one.lag for one in running.bus.subscriptions()] == [0]


# Order


def test_order_is_kept_across_reconnects_nacks_and_takeovers():
    with Running() as running:
        peer = running.peer("ann")
        peer.subscribe(1, "a", kind="named", id="s", options={"max_attempts": 0, "retry_delay_s": 0.0})
        done: list[bytes] = []
        publisher = threading.Thread(target=lambda: [running.bus.publish("a", b"%d" % n) for n in range(200)])
        publisher.start()
        step = 0
        while len(done) < 200:
            step += 1
            got = peer.take(1, 1)
            for place, one in enumerate(got[:7]):
                if step % 5 == 0 and place == 2:
                    try:
                        peer.nack(1, one)
                    except HeadwaterError as error:
                        assert error.code == 409
                    break
                try:
                    peer.ack(1, [one])
                except HeadwaterError as error:
                    assert error.code == 409
                    break
                done.append(one.payload)
            else:
                if step % 3 == 0:
                    if step % 2:
                        peer.close()
                    peer = running.peer("ann", session=peer.session)
                    continue
            # Everything that is still prefetched is given up with the connection.
            peer = running.peer("ann", session=peer.session)
        publisher.join()
        assert done == [b"%d" % n for n in range(200)]


def test_with_several_consumers_in_strict_order_one_is_active_and_the_next_takes_over_when_it_goes():
    with Running() as running:
        one, two = running.peer("one"), running.peer("two")
        one.subscribe(1, "a", kind="named", id="s")
        two.subscribe(1, "a", kind="named", id="s")
        publish(running, 4)
        got = one.take(1, 4)
        two.quiet(0.05)
        one.ack(1, got[:2])
        one.goodbye()
        assert payloads(two.take(1, 2)) == [b"2", b"3"]


def test_without_order_several_consumers_share_and_a_failed_message_holds_nobody_up():
    with Running() as running:
        one, two = running.peer("one"), running.peer("two")
        for peer in (one, two):
            peer.subscribe(1, "a", kind="named", id="s", credit=5, options={"order": "none"})
        publish(running, 10)
        first, second = one.take(1, 5), two.take(1, 5)
        assert sorted(payloads(first + second)) == [b"%d" % n for n in range(10)]
        one.nack(1, first[0], delay_s=60.0)
        one.ack(1, first[1:])
        two.ack(1, second)
        publish(running, 1, start=10)
        for peer in (one, two):
            peer.credit(1, 5)
        end = time.monotonic() + PATIENCE_S
        came: list[Got] = []
        while not came and time.monotonic() < end:
            for peer in (one, two):
                try:
                    peer.more(0.05)
                except TimeoutError:
                    pass
                came += peer.deliveries(1)
        assert payloads(came) == [b"10"]


def test_in_order_of_keys_a_failed_message_holds_up_its_key_alone():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"order": "key"})
        for number in range(6):
            running.bus.publish("a", b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
        got = peer.take(1, 6)
        assert got[0].key == b"even"
        peer.nack(1, got[0], delay_s=0.3)
        peer.ack(1, [one for one in got if one.key == b"odd"])
        with code(409):
            peer.ack(1, [got[2]])
        for expected in (b"0", b"2", b"4"):
            got = peer.take(1, 1)
            assert payloads(got[:1]) == [expected]
            peer.ack(1, got[:1])
            if len(got) > 1:
                assert payloads(got) == [b"2", b"4"]
                peer.ack(1, got[1:])
                break


# Retained


@pytest.mark.parametrize("kind", ["live", "session"])
def test_retained_messages_come_first_and_say_that_they_are(kind: str):
    with Running() as running:
        running.bus.publish("a/x", b"old", retain=True)
        running.bus.publish("a/x", b"kept", retain=True)
        running.bus.publish("a/y", b"not kept")
        peer = running.peer()
        peer.subscribe(1, "a/#", kind=kind)
        running.bus.publish("a/x", b"new", retain=True)
        got = peer.take(1, 2)
        assert [(one.payload, one.retained) for one in got] == [(b"kept", True), (b"new", False)]
        if kind == "session":
            peer.ack(1, got)


def test_retained_messages_are_listed():
    with Running() as running:
        running.bus.publish("a/x", b"1", retain=True, key=b"k", headers={"unit": "C"})
        peer = running.peer()
        (one,) = peer.ask(requests.Retained(filter="a/#"))
        assert (one.topic, one.offset, one.payload, one.key, one.headers) == ("a/x", 1, b"1", b"k", (("unit", "C"),))


# History


def test_a_replay_is_history_alone_and_says_when_it_is_over():
    with Running() as running:
        publish(running, 5)
        peer = running.peer()
        peer.subscribe(1, "a", kind="replay", after=2)
        assert payloads(peer.take(1, 3)) == [b"2", b"3", b"4"]
        assert peer.notice(1).what == "over"
        publish(running, 1)
        peer.quiet(0.05)
        peer.subscribe(1, "a", kind="replay")
        assert len(peer.take(1, 6)) == 6


def test_a_replay_over_several_roots_takes_a_place_in_each():
    with Running() as running:
        for root in ("a", "b"):
            publish(running, 3, f"{root}/x")
        peer = running.peer()
        with code(422):
            peer.subscribe(1, "#", kind="replay", after=2)
        peer.subscribe(1, "#", kind="replay", after={"a": 2, "b": 1})
        assert sorted(payloads(peer.take(1, 3))) == [b"1", b"2", b"2"]


def test_a_follow_reads_history_and_goes_on_without_gap_or_repeat_while_others_publish():
    with Running() as running:
        publish(running, 200)
        is_over = threading.Event()
        count = [200]

        def work() -> None:
            while not is_over.is_set():
                publish(running, 3, start=count[0])
                count[0] += 3

        thread = threading.Thread(target=work)
        thread.start()
        try:
            peers = [running.peer(f"p{n}") for n in range(3)]
            seen: list[list[Got]] = [[], [], []]
            for place, peer in enumerate(peers):
                peer.subscribe(1, "a", kind="follow", after=50 * place, credit=40)
            for _ in range(20):
                for place, peer in enumerate(peers):
                    got = peer.take(1, 1)
                    seen[place] += got
                    peer.credit(1, len(got), 1 << 20)
        finally:
            is_over.set()
            thread.join()
        for place, peer in enumerate(peers):
            while seen[place][-1].offset < count[0]:
                got = peer.take(1, 1)
                seen[place] += got
                peer.credit(1, len(got), 1 << 20)
            assert [one.offset for one in seen[place]] == list(range(50 * place + 1, count[0] + 1))


def test_messages_that_are_gone_are_a_gap_that_is_told_once_and_passed():
    config = Config(
        segment_bytes=64 * KIB, retention=Retention(hard_bytes=100_000), disk_free_bytes_min=0, tail_bytes=0
    )
    with Running(config=config) as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", credit=0)
        for number in range(40):
            running.bus.publish("a", b"%d" % number + bytes(20_000))
        running.bus.core.upkeep.go_round()
        peer.credit(1)
        notice = peer.notice(1)
        assert notice.what == "gap"
        assert notice.problem is not None
        assert notice.problem.gap is not None
        root, first, last, _ = notice.problem.gap
        assert (root, first) == ("a", 1)
        got = peer.take(1, 1)
        assert got[0].offset == last + 1
        peer.ping()
        assert not [frame for frame in peer.inbox if frame.kind == Kind.NOTICE]


def test_a_message_whose_time_is_over_is_not_delivered():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", credit=0)
        peer.subscribe(2, "a", credit=0)
        running.bus.publish("a", b"short", ttl_s=0.05)
        running.bus.publish("a", b"long")
        time.sleep(0.1)
        for number in (1, 2):
            peer.credit(number)
            assert payloads(peer.take(number, 1)) == [b"long"]


def test_fan_out_to_many_gives_each_the_same_in_order():
    with Running() as running:
        peers = [running.peer(f"p{n}") for n in range(20)]
        for place, peer in enumerate(peers):
            peer.subscribe(1, "a/#" if place % 2 else "a/1")
        for number in range(30):
            running.bus.publish_many([(f"a/{n}", b"%d" % number) for n in range(4)])
        for place, peer in enumerate(peers):
            got = peer.take(1, 120 if place % 2 else 30)
            assert [one.offset for one in got] == (list(range(1, 121)) if place % 2 else list(range(2, 121, 4)))


def test_one_session_has_many_subscriptions_that_do_not_mix():
    with Running() as running:
        peer = running.peer()
        for number in range(1, 21):
            peer.subscribe(number, f"a/{number}", kind=("live", "session", "follow")[number % 3])
        for number in range(1, 21):
            running.bus.publish(f"a/{number}", b"%d" % number)
        for number in range(1, 21):
            assert payloads(peer.take(number, 1)) == [b"%d" % number]
        peer.quiet(0.05)


@pytest.mark.parametrize("order", ["none", "key", "strict"])
def test_messages_that_the_application_never_took_do_not_time_out_with_those_that_it_took(order: str):
    with Running() as running:
        peer = running.peer()
        peer.subscribe(
            1,
            "a",
            kind="named",
            id="s",
            options={"ack_timeout_s": 0.15, "retry_delay_s": 0.0, "max_attempts": 2, "order": order},
        )
        for number in range(3):
            running.bus.publish("a", b"%d" % number, key=b"%d" % number)
        got = peer.take(1, 3)
        peer.taken(1, got[:1])
        (again,) = peer.take(1, 1)
        assert (again.payload, again.attempt) == (b"0", 2)
        peer.ack(1, [again])
        if order == "strict":
            rest = peer.take(1, 2)
        else:
            peer.quiet(0.4)
            rest = got[1:]
        assert [(one.payload, one.attempt) for one in rest] == [(b"1", 1), (b"2", 1)]
        peer.ack(1, rest)
        assert peer.ask(requests.DeadLetters(id="s")) == []


def test_taken_for_what_was_never_handed_out_starts_no_time():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a", kind="named", id="s", options={"ack_timeout_s": 0.1, "retry_delay_s": 0.0})
        publish(running, 2)
        got = peer.take(1, 2)
        lease = got[0].lease
        peer.ranges(Kind.TAKEN, 1, 0, (lease, 50, 2**64 - 1), (lease + 7, 1, 2), (lease, 0, 0))
        peer.quiet(0.3)
        peer.ack(1, got)
