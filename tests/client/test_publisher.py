"""Publishing over a connection: gathered, in order, each message once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from client.conftest import Connect
from client.peer import LIMITS, Peer, Talk
from headwater import Conflict, Disconnected, DiskFull, HeadwaterError, NotAllowed, Outgoing, QuotaExceeded, TooLarge
from headwater.store.batch import checksum
from headwater.store.body import Body
from headwater.wire.contents import Publish

WAIT_S = 60.0


def payloads(publish: Publish) -> list[bytes]:
    assert checksum(publish.body) == publish.crc
    body = Body(publish.body)
    assert body.count == publish.count
    return [body.payload(place) for place in range(body.count)]


def known(bus: Any, talk: Talk, topic: str = "a/b") -> None:
    """Have a topic accepted, so that single messages of it may go ahead of answers."""
    future = bus.publish_soon(topic, b"first")
    id, _ = talk.publish()
    talk.published((id, 1))
    future.result(WAIT_S)


def test_a_single_publish_goes_out_at_once_and_returns_its_receipt(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_soon("a/b", b"x", retain=True, key=b"k", headers={"n": "v"}, ttl_s=5)
    id, publish = talk.publish()
    assert (publish.root, publish.count) == ("a", 1)
    (message,) = Body(publish.body).messages(1)
    assert (message.topic, message.payload, message.key, message.headers) == ("a/b", b"x", b"k", (("n", "v"),))
    assert not future.done()
    talk.published((id, 7))
    receipt = future.result(WAIT_S)
    assert (receipt.topic, receipt.offset, receipt.time_us, receipt.duplicate) == ("a/b", 7, 1000, False)


def test_the_producer_is_random_for_each_client_and_its_sequence_grows(connect: Connect) -> None:
    (one, one_talk), (other, other_talk) = connect(), connect()
    names = set()
    for bus, talk in ((one, one_talk), (other, other_talk)):
        for sequence in (1, 2):
            future = bus.publish_soon("a/b", b"x")
            id, publish = talk.publish()
            names.add(publish.producer)
            assert publish.sequence == sequence
            talk.published((id, sequence))
            future.result(WAIT_S)
    assert len(names) == 2


def test_messages_that_arrive_while_frames_are_under_way_go_together(connect: Connect) -> None:
    bus, talk = connect()
    known(bus, talk)
    futures = [bus.publish_soon("a/b", b"0")]
    first, _ = talk.publish()
    futures.append(bus.publish_soon("a/b", b"1"))
    second, _ = talk.publish()
    futures += [bus.publish_soon("a/b", b"%d" % n) for n in range(2, 12)]
    assert talk.is_quiet()
    talk.published((first, 2))
    third, publish = talk.publish()
    assert payloads(publish) == [b"%d" % n for n in range(2, 12)]
    talk.published((second, 3), (third, 4))
    assert [future.result(WAIT_S).offset for future in futures] == list(range(2, 14))


def test_a_gathered_batch_keeps_to_its_limits(connect: Connect) -> None:
    bus, talk = connect(publish_gather_messages_max=4)
    known(bus, talk)
    gate = threading.Event()
    bus._loop.call_soon_threadsafe(gate.wait, WAIT_S)
    for n in range(10):
        bus.publish_soon("a/b", b"%d" % n)
    gate.set()
    sizes: list[int] = []
    while sum(sizes) < 10:
        id, publish = talk.publish()
        sizes.append(publish.count)
        talk.published((id, 2 + sum(sizes) - publish.count))
    assert max(sizes) == 4


def test_topics_that_were_not_accepted_before_are_not_overtaken(connect: Connect) -> None:
    """A frame of several callers may be refused for one of them; the others are sent again, in their place."""
    bus, talk = connect()
    known(bus, talk)
    gate = threading.Event()
    bus._loop.call_soon_threadsafe(gate.wait, WAIT_S)
    good, bad = bus.publish_soon("a/b", b"good"), bus.publish_soon("a/secret", b"bad")
    gate.set()
    trial, publish = talk.publish()
    assert payloads(publish) == [b"good", b"bad"]
    later = bus.publish_soon("a/b", b"later")
    assert talk.is_quiet()
    talk.refuse(trial, NotAllowed("no"))
    seen = []
    for offset in (2, 3):
        id, publish = talk.publish()
        if payloads(publish) == [b"bad"]:
            talk.refuse(id, NotAllowed("no"))
            id, publish = talk.publish()
        seen += payloads(publish)
        talk.published((id, offset))
    assert seen == [b"good", b"later"]
    assert (good.result(WAIT_S).offset, later.result(WAIT_S).offset) == (2, 3)
    with pytest.raises(NotAllowed):
        bad.result(WAIT_S)


def test_publish_many_sends_a_frame_for_each_root_and_answers_in_the_order_of_the_call(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_many_soon([("a/1", b"0"), Outgoing("b/1", b"1", key=b"k"), ("a/2", b"2")])
    frames = {publish.root: (id, publish) for id, publish in (talk.publish(), talk.publish())}
    assert payloads(frames["a"][1]) == [b"0", b"2"]
    assert payloads(frames["b"][1]) == [b"1"]
    talk.published((frames["b"][0], 40))
    talk.published((frames["a"][0], 10))
    assert [(one.topic, one.offset) for one in future.result(WAIT_S)] == [("a/1", 10), ("b/1", 40), ("a/2", 11)]


def test_publish_many_of_nothing_asks_nobody(connect: Connect) -> None:
    bus, talk = connect()
    assert list(bus.publish_many([])) == []
    assert talk.is_quiet()


def test_when_one_root_of_a_call_fails_its_caller_gets_that_error(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_many_soon([("a/1", b"0"), ("b/1", b"1")])
    for id, publish in (talk.publish(), talk.publish()):
        if publish.root == "a":
            talk.refuse(id, QuotaExceeded("too many"))
        else:
            talk.published((id, 1))
    with pytest.raises(QuotaExceeded):
        future.result(WAIT_S)


def test_no_more_frames_of_a_root_than_the_servers_window_are_unanswered(peer: Peer, connect: Connect) -> None:
    peer.limits = msgspec.structs.replace(LIMITS, producer_window=3)
    bus, talk = connect()
    for n in range(5):
        bus.publish_many_soon([("a/b", b"%d" % n)])
    ids = [talk.publish()[0] for _ in range(3)]
    assert talk.is_quiet()
    talk.published((ids[1], 2))  # not the first: the window does not move
    assert talk.is_quiet()
    talk.published((ids[0], 1))
    talk.publish()
    talk.publish()


def test_no_more_frames_than_the_connection_may_have_are_unanswered(peer: Peer, connect: Connect) -> None:
    peer.limits = msgspec.structs.replace(LIMITS, publishes_in_flight_max=2)
    bus, talk = connect()
    for n in range(4):
        bus.publish_many_soon([(f"r{n}/b", b"x")])
    (id, _), _ = talk.publish(), talk.publish()
    assert talk.is_quiet()
    talk.published((id, 1))
    talk.publish()


def test_frames_in_flight_are_sent_again_under_the_same_sequence_and_in_order(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    futures: list[Future[Any]] = [bus.publish_many_soon([("a/b", b"%d" % n)]) for n in range(5)]
    before = [talk.publish() for _ in range(5)]
    talk.published((before[0][0], 1))
    futures[0].result(WAIT_S)
    talk.cut()
    again = peer.talk()
    after = [again.publish() for _ in range(4)]
    assert [publish for _, publish in after] == [publish for _, publish in before[1:]]
    again.published((after[0][0], 2), repeat=True)
    again.published(*((id, 3 + n) for n, (id, _) in enumerate(after[1:])))
    receipts = [future.result(WAIT_S)[0] for future in futures]
    assert [receipt.offset for receipt in receipts] == [1, 2, 3, 4, 5]
    assert not any(receipt.duplicate for receipt in receipts)


def test_what_is_published_without_a_connection_waits_for_one(peer: Peer, connect: Connect) -> None:
    bus, talk = connect(reconnect_delay_s=0.2, reconnect_delay_s_max=0.2)
    talk.cut()
    future = bus.publish_soon("a/b", b"x")
    again = peer.talk()
    id, _ = again.publish()
    again.published((id, 1))
    assert future.result(WAIT_S).offset == 1


@pytest.mark.parametrize("error", [QuotaExceeded("much"), DiskFull("full"), HeadwaterError("failed")])
def test_frames_behind_a_refused_one_go_again_under_the_next_name(connect: Connect, error: HeadwaterError) -> None:
    bus, talk = connect()
    futures = [bus.publish_many_soon([("a/b", b"%d" % n)]) for n in range(4)]
    ids = [talk.publish() for _ in range(4)]
    talk.published((ids[0][0], 1))
    talk.refuse(ids[1][0], error)
    talk.refuse(ids[2][0], Conflict("sequence 2 failed"))
    late = bus.publish_many_soon([("a/b", b"4")])
    assert talk.is_quiet()  # until everything of the old name is answered
    talk.refuse(ids[3][0], Conflict("sequence 2 failed"))
    again = [talk.publish() for _ in range(3)]
    assert [payloads(publish) for _, publish in again] == [[b"2"], [b"3"], [b"4"]]
    assert len({publish.producer for _, publish in again}) == 1
    assert again[0][1].producer != ids[0][1].producer
    assert str(again[0][1].producer).endswith("/2")
    sequences = [publish.sequence for _, publish in again]
    assert sequences == sorted(set(sequences))
    talk.published(*((id, 2 + n) for n, (id, _) in enumerate(again)))
    with pytest.raises(type(error)):
        futures[1].result(WAIT_S)
    assert [future.result(WAIT_S)[0].offset for future in (*futures[2:], late)] == [2, 3, 4]


def test_a_refusal_that_overtakes_earlier_answers_breaks_no_order(connect: Connect) -> None:
    bus, talk = connect()
    futures = [bus.publish_many_soon([("a/b", b"%d" % n)]) for n in range(3)]
    ids = [talk.publish()[0] for _ in range(3)]
    talk.refuse(ids[1], DiskFull("full"))
    talk.refuse(ids[2], Conflict("2 failed"))
    assert talk.is_quiet()
    talk.published((ids[0], 1))
    id, publish = talk.publish()
    assert payloads(publish) == [b"2"]
    talk.published((id, 2))
    assert [futures[n].result(WAIT_S)[0].offset for n in (0, 2)] == [1, 2]


def test_a_conflict_out_of_the_blue_is_the_callers(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_soon("a/b", b"x")
    talk.refuse(talk.publish()[0], Conflict("odd"))
    with pytest.raises(Conflict):
        future.result(WAIT_S)


def test_a_users_producer_and_sequence_are_passed_on_as_they_are(peer: Peer, connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_soon("a/b", b"x", producer="importer", sequence=7)
    _, publish = talk.publish()
    assert (publish.producer, publish.sequence) == ("importer", 7)
    talk.cut()
    again = peer.talk()
    id, publish = again.publish()
    assert (publish.producer, publish.sequence) == ("importer", 7)
    again.published((id, 3), repeat=True)
    assert future.result(WAIT_S).duplicate
    refused = bus.publish_many_soon([("a/b", b"x")], producer="importer", sequence=3)
    id, publish = again.publish()
    assert (publish.producer, publish.sequence) == ("importer", 3)
    again.refuse(id, Conflict("long ago"))
    with pytest.raises(Conflict):
        refused.result(WAIT_S)


def test_a_publisher_waits_when_too_much_is_in_flight(connect: Connect) -> None:
    bus, talk = connect(publish_bytes_in_flight_max=1000)
    first = bus.publish_soon("a/b", b"x" * 900)
    id, _ = talk.publish()
    done = threading.Event()

    def more() -> None:
        bus.publish_soon("a/b", b"y" * 900)
        done.set()

    thread = threading.Thread(target=more)
    thread.start()
    assert not done.wait(0.2)
    talk.published((id, 1))
    first.result(WAIT_S)
    assert done.wait(WAIT_S)
    thread.join()
    talk.publish()


def test_who_waits_for_room_is_told_when_the_client_is_closed(connect: Connect) -> None:
    bus, _ = connect(publish_bytes_in_flight_max=1000, request_timeout_s=0.2)
    first = bus.publish_soon("a/b", b"x" * 900)
    raised: list[BaseException] = []

    def more() -> None:
        try:
            bus.publish("a/b", b"y" * 900)
        except HeadwaterError as error:
            raised.append(error)

    thread = threading.Thread(target=more)
    thread.start()
    bus.close()
    thread.join(WAIT_S)
    assert [error.code for error in raised] == [503]  # type: ignore[attr-defined]
    with pytest.raises(HeadwaterError):
        first.result(WAIT_S)


def test_one_publish_larger_than_the_limit_goes_alone(connect: Connect) -> None:
    bus, talk = connect(publish_bytes_in_flight_max=1000)
    bus.publish_soon("a/b", b"x" * 5000)
    talk.publish()


def test_what_is_too_large_for_the_server_is_not_sent(peer: Peer, connect: Connect) -> None:
    peer.limits = msgspec.structs.replace(LIMITS, message_bytes_max=10)
    bus, talk = connect()
    with pytest.raises(TooLarge):
        bus.publish("a/b", b"x" * 11)
    assert talk.is_quiet()


def test_publishes_are_given_up_with_the_client(peer: Peer, connect: Connect) -> None:
    bus, talk = connect(reconnect_s_max=0.1)
    future = bus.publish_soon("a/b", b"x")
    talk.publish()
    peer.close()
    with pytest.raises(Disconnected, match="reconnect_s_max"):
        future.result(WAIT_S)
    with pytest.raises(Disconnected, match="reconnect_s_max"):
        bus.publish("a/b", b"y")


def test_times_are_the_servers(peer: Peer, connect: Connect) -> None:
    import time

    ahead_us = 3_600_000_000
    now_us = time.time_ns() // 1000
    peer.challenge = msgspec.structs.replace(peer.challenge, time_us=now_us + ahead_us)
    bus, talk = connect()
    bus.publish_soon("a/b", b"x")
    (message,) = Body(talk.publish()[1].body).messages(1)
    assert 0 <= message.time_us - now_us - ahead_us < 10_000_000
    assert abs(bus.now.timestamp() * 1e6 - now_us - ahead_us) < 10_000_000
