"""Subscriptions over a connection: prefetch and credit, acks, recalls, notices, and reconnects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from client.conftest import Connect
from client.peer import Peer, Talk
from client.test_link import in_thread
from headwater import Closed, Failed, Gap, HeadwaterError, Malformed, NotAllowed, NotFound, QuotaExceeded, Recalled
from headwater.client.feed import joined
from headwater.wire import requests as wire
from headwater.wire.batches import RETAINED, read_credit, read_ranges
from headwater.wire.frame import Kind
from server.site import until

WAIT_S = 60.0


def subscribe(bus: Any, talk: Talk, filter: str = "a/#", **options: Any) -> tuple[Any, wire.Subscribe]:
    making = in_thread(lambda: bus.subscribe(filter, **options))
    request = talk.subscribed()
    return making(), request


def read(bus: Any, talk: Talk, verb: str, filter: str = "a/#", **options: Any) -> tuple[Any, wire.Subscribe]:
    making = in_thread(lambda: getattr(bus, verb)(filter, **options))
    request = talk.subscribed()
    return making(), request


def settle(bus: Any, talk: Talk) -> None:
    """Wait until the client has taken in what was sent before."""
    asking = in_thread(bus.ends)
    id, _ = talk.request(wire.Ends)
    talk.reply(id, {})
    asking()


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


def acked(talk: Talk, expected: list[tuple[int, int, int]]) -> int:
    frame = talk.next(Kind.ACK)
    _, ranges = read_ranges(frame)
    assert ranges == expected
    return frame.id


# What is asked for


def test_a_durable_subscription_is_asked_for_with_what_was_stated(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=7, prefetch_bytes=999)
    sub, request = subscribe(bus, talk, "a/+", id="x", start="earliest", order="key", max_in_flight=5)
    assert (request.kind, request.id, request.filter, request.start) == ("named", "x", "a/+", "earliest")
    assert request.options == {"order": "key", "max_in_flight": 5}
    assert (request.credit_messages, request.credit_bytes) == (7, 999)
    assert (sub.id, sub.filter) == ("x", "a/+")


def test_a_moment_to_start_at_is_sent_as_one(connect: Connect) -> None:
    bus, talk = connect()
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    _, request = subscribe(bus, talk, id="x", start=moment)
    assert request.start_us == round(moment.timestamp() * 1e6)
    _, request = read(bus, talk, "replay", since=moment)
    assert request.since_us == round(moment.timestamp() * 1e6)


@pytest.mark.parametrize(
    ("filter", "options"),
    [
        ("a/#/b", {}),
        ("a/b", {"order": "strict"}),
        ("a/b", {"start": "earliest"}),
        ("a/b", {"when_full": "explode"}),
        ("#", {"id": "x", "start": 4}),
        ("a/b", {"id": "x", "start": "middle"}),
        ("a/b", {"id": 7}),
    ],
)
def test_what_cannot_be_right_is_told_before_anything_is_sent(
    connect: Connect, filter: str, options: dict[str, Any]
) -> None:
    bus, talk = connect()
    with pytest.raises(Malformed):
        bus.subscribe(filter, **options)
    with pytest.raises(Malformed):
        bus.follow("#", after=3)
    assert talk.is_quiet()


def test_a_refused_subscription_is_raised(connect: Connect) -> None:
    bus, talk = connect()
    making = in_thread(lambda: bus.subscribe("a/#"))
    id, _ = talk.request(wire.Subscribe)
    talk.refuse(id, NotAllowed("no rule"))
    with pytest.raises(NotAllowed):
        making()


# Messages


def test_messages_come_out_as_they_were_sent(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 5, [b"0", b"1"], lease=9)
    talk.deliver(request.number, 10, [b"2", b"3"], lease=10, deltas=[0, 4], attempt=3)
    found = sub.batch(10, WAIT_S)
    while len(found) < 4:
        found += sub.batch(10, WAIT_S)
    assert [(m.offset, m.payload, m.attempt, m.topic) for m in found] == [
        (5, b"0", 1, "a/b"),
        (6, b"1", 1, "a/b"),
        (10, b"2", 3, "a/b"),
        (14, b"3", 3, "a/b"),
    ]


def test_a_batch_crosses_what_arrived_apart_and_never_has_more_than_asked(connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    for n in range(5):
        talk.deliver(request.number, 1 + 2 * n, [b"%d" % (2 * n), b"%d" % (2 * n + 1)])
    settle(bus, talk)
    assert payloads(live.batch(3, WAIT_S)) == [b"0", b"1", b"2"]
    assert payloads(live.batch(100, WAIT_S)) == [b"%d" % n for n in range(3, 10)]
    assert live.batch(100, 0) == []
    assert live.next(0.01) is None
    with pytest.raises(Malformed):
        live.batch(0)


def test_retained_messages_say_so(connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 3, [b"r"], deltas=[0], flags=RETAINED)
    assert live.next(WAIT_S).retained


def test_expired_messages_are_left_out_of_a_live_subscription(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=4)
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 1, [b"old", b"new"], expiries=[5, 0])
    assert payloads(live.batch(10, WAIT_S)) == [b"new"]
    assert read_credit(talk.next(Kind.CREDIT))[0] == 2


def test_a_damaged_batch_ends_the_connection_and_comes_again(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    follow, request = read(bus, talk, "follow")
    talk.deliver(request.number, 1, [b"good"])
    assert follow.next(WAIT_S).payload == b"good"
    talk.deliver(request.number, 2, [b"bad"], crc=1)
    again = peer.talk()
    request = again.subscribed()
    assert request.after == {"a": 1}


def test_credit_is_given_back_half_a_window_at_a_time(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=10, prefetch_bytes=10_000_000)
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 1, [b"x"] * 10)
    live.batch(4, WAIT_S)
    assert talk.is_quiet()
    live.batch(1, WAIT_S)
    assert read_credit(talk.next(Kind.CREDIT)) == (5, 0)
    live.batch(5, WAIT_S)
    messages, size = read_credit(talk.next(Kind.CREDIT))
    assert messages == 5
    assert size > 10


def test_credit_in_bytes_counts_too(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=1000, prefetch_bytes=10_000)
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 1, [b"x" * 6000])
    talk.deliver(request.number, 2, [b"x" * 100])
    live.next(WAIT_S)
    messages, size = read_credit(talk.next(Kind.CREDIT))
    assert messages == 1
    assert size > 6000


def test_a_reader_that_has_taken_all_gives_all_credit_back(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=160)
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 1, [b"x"] * 9)
    live.batch(9, WAIT_S)
    assert talk.is_quiet(), "most of the window is left"
    talk.deliver(request.number, 10, [b"x"])
    live.next(WAIT_S)
    assert read_credit(talk.next(Kind.CREDIT))[0] == 10


# Acks


def test_taking_starts_the_timer_and_acks_are_ranges_of_their_lease(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 5, [b"x"] * 6, lease=9)
    found = sub.batch(4, WAIT_S)
    taken = talk.next(Kind.TAKEN)
    assert taken.id == request.number
    assert read_ranges(taken) == (0, [(9, 5, 8)])
    acking = in_thread(lambda: sub.ack(found))
    id = acked(talk, [(9, 5, 8)])
    talk.reply(id)
    acking()


def test_an_ack_waits_until_it_is_on_disk_unless_told(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 1, [b"x"] * 3, lease=1)
    one, two, three = sub.batch(3, WAIT_S)
    one.ack(wait=False)
    two.ack(wait=False)
    acked(talk, [(1, 1, 1)])
    acked(talk, [(1, 2, 2)])
    acking = in_thread(three.ack)
    id = acked(talk, [(1, 3, 3)])
    with pytest.raises(AssertionError, match="still waits"):
        _still(acking)
    talk.reply(id)
    acking()


def _still(result: Any) -> None:
    import client.test_link as link

    before, link.WAIT_S = link.WAIT_S, 0.1
    try:
        result()
    finally:
        link.WAIT_S = before


def test_acks_over_several_leases_are_one_frame_with_neighbours_merged(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x", order="none")
    talk.deliver(request.number, 1, [b"x"] * 4, lease=1)
    talk.deliver(request.number, 10, [b"x"] * 4, lease=2, deltas=[0, 3, 6, 9])
    found: list[Any] = []
    while len(found) < 8:
        found += sub.batch(8, WAIT_S)
    sub.ack([found[2], found[0], found[1], *found[4:8]], wait=False)
    acked(talk, [(1, 1, 3), (2, 10, 19)])
    sub.ack([found[4], found[6]], wait=False)
    acked(talk, [(2, 10, 10), (2, 16, 16)])


def test_ranges_that_meet_are_one() -> None:
    assert joined([(1, 3, 3), (1, 1, 2), (2, 4, 4), (1, 2, 2), (1, 5, 5)]) == [(1, 1, 3), (1, 5, 5), (2, 4, 4)]


def test_a_message_of_another_subscription_cannot_be_acked_here(connect: Connect) -> None:
    bus, talk = connect()
    one, asked_one = subscribe(bus, talk, id="one")
    other, _ = subscribe(bus, talk, id="other")
    talk.deliver(asked_one.number, 1, [b"x"], lease=1)
    message = one.next(WAIT_S)
    with pytest.raises(Malformed, match="did not come from"):
        other.ack([message])


def test_nack_reject_and_extend_are_said_of_the_lease(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 1, [b"x"] * 3, lease=4)
    one, two, three = sub.batch(3, WAIT_S)
    for work, type, fields in (
        (lambda: one.nack(ValueError("bad"), delay_s=2.5), wire.Nack, {"error": "ValueError: bad", "delay_s": 2.5}),
        (lambda: two.reject("never"), wire.Reject, {"error": "never"}),
        (lambda: three.extend(60), wire.Extend, {"seconds": 60.0}),
    ):
        doing = in_thread(work)
        id, said = talk.request(type)
        assert (said.number, said.lease) == (request.number, 4)
        assert {name: getattr(said, name) for name in fields} == fields
        talk.reply(id)
        doing()


def test_a_recalled_message_is_told_to_who_acks_it(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 1, [b"x"], lease=1)
    acking = in_thread(sub.next(WAIT_S).ack)
    talk.refuse(acked(talk, [(1, 1, 1)]), Recalled("taken back"))
    with pytest.raises(Recalled):
        acking()


def test_what_is_recalled_is_not_handed_out_and_its_credit_comes_back(connect: Connect) -> None:
    bus, talk = connect(prefetch_messages=8)
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 1, [b"%d" % n for n in range(4)], lease=1)
    talk.deliver(request.number, 5, [b"%d" % n for n in range(4, 8)], lease=2)
    assert sub.next(WAIT_S).payload == b"0"
    talk.recall(request.number, (1, 3, 4), (2, 5, 8))
    talk.deliver(request.number, 3, [b"again"], lease=3, attempt=2)
    settle(bus, talk)
    assert sub.next(WAIT_S).payload == b"1"
    message = sub.next(WAIT_S)
    assert (message.payload, message.attempt) == (b"again", 2)
    until(lambda: talk.credit == 9, "the return of all credit")


def test_messages_that_know_no_ack_say_so(connect: Connect) -> None:
    bus, talk = connect()
    live, asked = subscribe(bus, talk)
    talk.deliver(asked.number, 1, [b"x"])
    message = live.next(WAIT_S)
    message.ack()  # nothing to note
    for verb in (message.nack, message.reject, lambda: message.extend(1)):
        with pytest.raises(Malformed):
            verb()
    history, asked = read(bus, talk, "replay")
    talk.deliver(asked.number, 1, [b"x"])
    message = history.next(WAIT_S)
    for verb in (message.ack, message.nack, message.reject, lambda: message.extend(1)):
        with pytest.raises(Malformed):
            verb()


# Reconnects


def test_what_was_handed_out_before_a_reconnect_is_recalled(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    talk.deliver(request.number, 1, [b"0", b"1", b"2"], lease=1)
    one, two = sub.batch(2, WAIT_S)
    acking = in_thread(one.ack)
    acked(talk, [(1, 1, 1)])
    peer.listed = (wire.Subscribed(number=request.number, id="x", filter="a/#", kind="named", existed=True),)
    talk.cut()
    with pytest.raises(Recalled, match="comes again, unless"):
        acking()
    again = peer.talk()
    with pytest.raises(Recalled):
        two.ack()
    with pytest.raises(Recalled):
        two.nack("no")
    two.ack(wait=False)
    assert again.is_quiet()  # the session goes on by itself, with a whole window
    again.deliver(request.number, 2, [b"1 again"], lease=1)
    message = sub.next(WAIT_S)
    assert message.payload == b"1 again"  # and not b"2", which was prefetched
    acking = in_thread(message.ack)
    again.reply(acked(again, [(1, 2, 2)]))
    acking()


def test_a_durable_subscription_is_made_again_in_a_new_session(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x", start="earliest", order="none")
    peer.refuses.append(NotFound("gone"))
    talk.cut()
    again = peer.talk()
    assert again.subscribed() == request
    again.deliver(request.number, 1, [b"x"], lease=1)
    assert sub.next(WAIT_S).payload == b"x"


def test_a_live_subscription_is_made_again_and_keeps_what_has_arrived(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    talk.deliver(request.number, 1, [b"before"])
    settle(bus, talk)
    talk.cut()
    again = peer.talk()
    assert again.subscribed() == request
    again.deliver(request.number, 5, [b"after"])
    assert [live.next(WAIT_S).payload for _ in range(2)] == [b"before", b"after"]


def test_a_subscription_that_was_left_is_not_made_again(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    leaving = in_thread(live.close)
    id, said = talk.request(wire.Leave)
    assert said.number == request.number
    talk.reply(id)
    leaving()
    talk.cut()
    assert peer.talk().is_quiet()


def test_what_the_session_has_and_we_do_not_is_left(peer: Peer, connect: Connect) -> None:
    _, talk = connect()
    peer.listed = (wire.Subscribed(number=77, id="x", filter="a/#", kind="named"),)
    talk.cut()
    _, said = peer.talk().request(wire.Leave)
    assert said.number == 77


def test_a_subscribe_whose_answer_was_lost_is_taken_from_the_resumed_session(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    making = in_thread(lambda: bus.subscribe("a/#", id="x"))
    _, request = talk.request(wire.Subscribe)
    peer.listed = (wire.Subscribed(number=request.number, id="x", filter="a/#", kind="named"),)
    talk.cut()
    again = peer.talk()
    sub = making()
    assert again.is_quiet()
    again.deliver(request.number, 1, [b"x"], lease=1)
    assert sub.next(WAIT_S).payload == b"x"


@pytest.mark.parametrize(
    ("filter", "given", "asked_again"),
    [
        ("a/#", {}, {"a": 4}),
        ("a/#", {"after": 1}, 4),
        ("#", {"after": {"a": 1, "z": 9}}, {"a": 4, "z": 9}),
        ("#", {"since": datetime(2026, 1, 1, tzinfo=UTC)}, {"a": 4}),
    ],
)
@pytest.mark.parametrize("verb", ["follow", "replay"])
def test_history_goes_on_from_where_it_got_to(
    peer: Peer, connect: Connect, verb: str, filter: str, given: dict[str, Any], asked_again: Any
) -> None:
    bus, talk = connect()
    reading, request = read(bus, talk, verb, filter, **given)
    talk.deliver(request.number, 2, [b"2", b"3", b"4"])
    assert reading.next(WAIT_S).payload == b"2"  # the others wait here
    talk.cut()
    again = peer.talk()
    further = again.subscribed()
    assert further.after == asked_again
    assert further.since_us == request.since_us
    again.deliver(request.number, 5, [b"5"])
    found: list[Any] = []
    while len(found) < 3:
        found += reading.batch(10, WAIT_S)
    assert payloads(found) == [b"3", b"4", b"5"]


def test_a_subscription_that_may_not_be_made_again_tells_its_reader(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, _ = subscribe(bus, talk)
    talk.cut()
    again = peer.talk()
    id, _ = again.request(wire.Subscribe)
    again.refuse(id, NotAllowed("revoked"))
    for _ in range(2):
        with pytest.raises(NotAllowed):
            live.next(WAIT_S)


def test_a_server_without_room_yet_is_asked_again_for_a_subscription(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    talk.cut()
    again = peer.talk()
    id, _ = again.request(wire.Subscribe)
    again.refuse(id, QuotaExceeded("too many"))
    again.subscribed()
    again.deliver(request.number, 1, [b"x"])
    assert live.next(WAIT_S).payload == b"x"


# Notices


def test_a_gap_is_raised_once_in_its_place(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    follow, request = read(bus, talk, "follow")
    talk.deliver(request.number, 1, [b"1"])
    talk.notice(request.number, "gap", Gap("a", 2, 6, "retention"))
    talk.deliver(request.number, 7, [b"7"])
    assert follow.next(WAIT_S).payload == b"1"
    with pytest.raises(Gap) as caught:
        follow.next(WAIT_S)
    assert (caught.value.first, caught.value.last) == (2, 6)
    assert follow.next(WAIT_S).payload == b"7"


def test_a_gap_is_not_met_again_after_a_reconnect(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    follow, request = read(bus, talk, "follow")
    talk.notice(request.number, "gap", Gap("a", 2, 6, "retention"))
    with pytest.raises(Gap):
        follow.next(WAIT_S)
    talk.cut()
    assert peer.talk().subscribed().after == {"a": 6}


@pytest.mark.parametrize("error", [NotAllowed("revoked"), Closed("gone"), Failed("broken")])
def test_the_end_of_a_subscription_is_raised_at_the_next_read(
    peer: Peer, connect: Connect, error: HeadwaterError
) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    waiting = in_thread(lambda: sub.batch(1))
    talk.notice(request.number, "ended", error)
    with pytest.raises(type(error)):
        waiting()
    with pytest.raises(type(error)):
        sub.next(0)
    talk.cut()
    assert peer.talk().is_quiet()


def test_a_subscription_that_the_server_asks_for_again_is_made_again_once(connect: Connect) -> None:
    bus, talk = connect()
    sub, request = subscribe(bus, talk, id="x")
    again = Failed('the subscriber of "a/#" failed; subscribe again')
    talk.notice(request.number, "ended", again)
    assert talk.subscribed() == request
    talk.deliver(request.number, 1, [b"x"], lease=1)
    assert sub.next(WAIT_S).payload == b"x"
    talk.notice(request.number, "ended", again)  # it had brought something: once more
    assert talk.subscribed() == request
    talk.notice(request.number, "ended", again)
    with pytest.raises(Failed):
        sub.next(WAIT_S)


def test_what_a_live_subscription_dropped_is_counted_over_reconnects(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    live, request = subscribe(bus, talk)
    talk.notice(request.number, "dropped", count=3)
    talk.notice(request.number, "dropped", count=5)
    talk.cut()
    again = peer.talk()
    again.subscribed()
    again.notice(request.number, "dropped", count=2)
    again.deliver(request.number, 1, [b"x"])
    live.next(WAIT_S)
    assert live.dropped == 7


def test_history_ends(connect: Connect) -> None:
    bus, talk = connect()
    history, request = read(bus, talk, "replay")
    talk.deliver(request.number, 1, [b"1", b"2"])
    talk.notice(request.number, "over")
    assert payloads(list(history)) == [b"1", b"2"]
    assert history.batch() == []
    assert history.next(1) is None
    assert history.is_over
    history.close()
    assert talk.is_quiet()


# Closing


def test_a_closed_consumer_says_so_and_its_iteration_ends(connect: Connect) -> None:
    bus, talk = connect()
    sub, _ = subscribe(bus, talk, id="x")
    iterating = in_thread(lambda: list(sub))
    leaving = in_thread(sub.close)
    id, _ = talk.request(wire.Leave)
    talk.reply(id)
    leaving()
    assert iterating() == []
    with pytest.raises(Closed, match="subscribe again"):
        sub.next(0)


def test_closing_the_bus_ends_whoever_reads(connect: Connect) -> None:
    bus, talk = connect()
    sub, _ = subscribe(bus, talk, id="x")
    live, _ = subscribe(bus, talk)
    follow, _ = read(bus, talk, "follow")
    waiting = [in_thread(lambda reader=reader: list(reader)) for reader in (sub, live, follow)]
    bus.close()
    assert [result() for result in waiting] == [[], [], []]
    with pytest.raises(Closed):
        live.next(0)


def test_deleting_a_subscription_ends_its_consumers_here(connect: Connect) -> None:
    bus, talk = connect()
    sub, _ = subscribe(bus, talk, id="x")
    waiting = in_thread(lambda: sub.next(WAIT_S))
    deleting = in_thread(lambda: bus.unsubscribe("x"))
    id, _ = talk.request(wire.Unsubscribe)
    talk.reply(id)
    deleting()
    with pytest.raises(Closed):
        waiting()


def test_a_second_consumer_of_the_same_subscription_shares_what_arrives(connect: Connect) -> None:
    bus, talk = connect()
    one, request = subscribe(bus, talk, id="x")
    making = in_thread(lambda: bus.subscribe("a/#", id="x"))
    id, _ = talk.request(wire.Subscribe)
    talk.reply(id, wire.Subscribed(number=request.number, id="x", filter="a/#", kind="named", existed=True))
    other = making()
    one.close()  # the other one still takes
    assert talk.is_quiet()
    talk.deliver(request.number, 1, [b"x"], lease=1)
    assert other.next(WAIT_S).payload == b"x"
    with pytest.raises(Closed):
        one.next(0)
    leaving = in_thread(other.close)
    talk.next(Kind.TAKEN)
    talk.reply(talk.request(wire.Leave)[0])
    leaving()


# Request and reply


def test_answers_come_back_on_the_sessions_topic(connect: Connect) -> None:
    bus, talk = connect()
    asking = in_thread(lambda: bus.request("rpc/x", b"?", headers={"a": "b"}))
    request = talk.subscribed()
    assert (request.kind, request.filter) == ("live", "$reply/s1")
    id, publish = talk.publish()
    from headwater.store.body import Body

    (asked,) = Body(publish.body).messages(1)
    headers = dict(asked.headers)
    assert headers["reply-to"] == "$reply/s1"
    talk.published((id, 1))
    talk.send(_answer(request.number, headers["correlation-id"]))
    assert asking().payload == b"!"
    asking = in_thread(lambda: bus.request("rpc/x", b"?", timeout_s=0.1))
    talk.published((talk.publish()[0], 2))
    with pytest.raises(HeadwaterError, match="nobody answered"):
        asking()


def _answer(number: int, correlation: str) -> bytes:
    from headwater.store.batch import checksum
    from headwater.store.body import encode_body
    from headwater.wire.batches import pack_deliver

    body = encode_body(["$reply/s1"], [b"!"], 5, headers=[(("correlation-id", correlation),)])
    return pack_deliver(number, 0, b"$reply", 1, 1, checksum(body), len(body)) + body


def test_in_a_new_session_answers_are_awaited_on_its_topic(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    asking = in_thread(lambda: bus.request("rpc/x", b"?"))
    talk.subscribed()
    talk.published((talk.publish()[0], 1))
    peer.refuses.append(NotFound("gone"))
    talk.cut()
    with pytest.raises(Closed):
        asking()
    again = peer.talk()
    asking = in_thread(lambda: bus.request("rpc/x", b"?", timeout_s=0.1))
    assert again.subscribed().filter == "$reply/s2"
    again.published((again.publish()[0], 2))
    with pytest.raises(HeadwaterError, match="nobody answered"):
        asking()
