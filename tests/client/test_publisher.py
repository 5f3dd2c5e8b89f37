"""Publishing over a connection: gathered, in order, each message once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

import headwater
import headwater.aio
from client.conftest import Connect
from client.peer import LIMITS, Peer, Talk
from client.served import Served
from headwater import (
    Config,
    Conflict,
    Disconnected,
    DiskFull,
    HeadwaterError,
    Malformed,
    NotAllowed,
    Outgoing,
    PartlyStored,
    QuotaExceeded,
    TooLarge,
)
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
    assert (message.topic, message.payload, message.key, message.header_pairs) == ("a/b", b"x", b"k", (("n", "v"),))
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


def test_when_one_root_of_a_call_fails_its_caller_is_told_what_was_stored(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_many_soon([("a/1", b"0"), ("b/1", b"1")])
    for id, publish in (talk.publish(), talk.publish()):
        if publish.root == "a":
            talk.refuse(id, QuotaExceeded("too many"))
        else:
            talk.published((id, 1))
    with pytest.raises(PartlyStored, match=r'those of "b", and those of "a" were not: .*too many'):
        future.result(WAIT_S)


def test_nobody_knows_about_a_root_whose_answer_the_connection_took_along(connect: Connect) -> None:
    bus, talk = connect()
    future = bus.publish_many_soon([("a/1", b"0"), ("b/1", b"1")])
    for id, publish in (talk.publish(), talk.publish()):
        if publish.root == "a":
            talk.published((id, 1))
    talk.goodbye(NotAllowed("removed"))
    with pytest.raises(PartlyStored, match=r'those of "b" perhaps not: NotAllowed\(403\)') as raised:
        future.result(WAIT_S)
    assert not raised.value.retryable


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


# The same call on every shell: some roots of it may be refused


class Shell:
    """`publish_many` of one of the four shells, and the bus that stores."""

    def __init__(self, kind: str, config: Config, closing: ExitStack) -> None:
        self.kind = kind
        self._loop = closing.enter_context(asyncio.Runner())
        if kind.startswith("served"):
            server = closing.enter_context(Served(":memory:", config, mqtt_port=0, sys_every_s=0.0))
            self.inside = server.bus
            connect = {"served": headwater.connect, "served aio": headwater.aio.connect}[kind]
            bus = self.awaited(connect(server.url))
        else:
            bus = self.awaited(
                {"embedded": headwater.open, "embedded aio": headwater.aio.open}[kind](":memory:", config)
            )
            self.inside = bus if kind == "embedded" else bus.threads
        self.bus: Any = bus
        closing.callback(lambda: self.awaited(bus.close()))

    def awaited(self, value: Any) -> Any:
        async def wait() -> Any:
            return await value

        return self._loop.run(wait()) if inspect.isawaitable(value) else value

    def publish(self, *messages: tuple[str, bytes] | Outgoing, **options: Any) -> Any:
        return self.awaited(self.bus.publish_many(list(messages), **options))

    def stored(self) -> list[str]:
        return [f"{one.topic}={one.payload.decode()}" for one in self.inside.replay("#") if one.root != "$sys"]


@pytest.fixture(params=["embedded", "embedded aio", "served", "served aio"])
def shell(request: pytest.FixtureRequest) -> Iterator[Callable[..., Shell]]:
    with ExitStack() as closing:
        yield lambda **settings: Shell(request.param, Config(**settings), closing)


def refused(shell: Shell, *messages: tuple[str, bytes] | Outgoing, **options: Any) -> HeadwaterError:
    with pytest.raises(HeadwaterError) as raised:
        shell.publish(*messages, **options)
    return raised.value


def offsets(error: HeadwaterError) -> list[int | None]:
    assert isinstance(error, PartlyStored)
    return [None if receipt is None else receipt.offset for receipt in error.receipts]


MIXED = (("a/1", b"x"), ("b/1", b"x"), ("c/1", b"x"), ("a/2", b"y"), ("b/2", b"y"))


def test_roots_whose_limit_is_reached_refuse_theirs_and_the_others_are_stored(shell: Callable[..., Shell]) -> None:
    one = shell(topics_per_root_max=2)
    one.publish(("b/0", b"x"))
    error = refused(one, *MIXED)
    assert str(error) == (
        'PartlyStored(409): 3 of 5 messages were stored, those of "a", "c", and those of "b" were not: '
        'QuotaExceeded(429): root "b" has 1 topics, and topics_per_root_max is 2; publish to topics that exist, or '
        "raise the setting; publish what has no receipt (None in receipts)"
    )
    assert offsets(error) == [1, None, 1, 2, None]
    assert isinstance(error, PartlyStored)
    assert [type(one) for one in error.refused.values()] == [QuotaExceeded]
    assert list(error.refused) == ["b"]
    assert not error.retryable
    assert sorted(one.stored()) == ["a/1=x", "a/2=y", "b/0=x", "c/1=x"]


def test_a_root_too_many_is_refused_and_those_before_it_are_stored(shell: Callable[..., Shell]) -> None:
    one = shell(roots_max=2)
    error = refused(one, *MIXED)
    assert 'those of "c" were not: QuotaExceeded(429): there are 2 roots' in str(error)
    assert offsets(error) == [1, 1, None, 2, 2]


def test_what_a_root_may_retain_no_more_is_refused(shell: Callable[..., Shell]) -> None:
    one = shell(retained_bytes_per_root_max=3)
    error = refused(one, Outgoing("a/1", b"four", retain=True), Outgoing("b/1", b"one", retain=True))
    assert offsets(error) == [None, 1]
    assert one.stored() == ["b/1=one"]


def test_a_stream_that_takes_no_messages_refuses_its_own(shell: Callable[..., Shell]) -> None:
    one = shell()
    one.publish(*MIXED)
    root = one.inside.core.roots.get("c")
    assert root is not None
    root.stream.fail("a sync failed")
    error = refused(one, *MIXED)
    assert 'those of "c" were not: ReadOnly(503)' in str(error)
    assert offsets(error) == [3, 3, None, 4, 4]


def test_a_sequence_that_one_root_cannot_take_is_refused_there(shell: Callable[..., Shell]) -> None:
    one = shell()
    one.publish(("b/1", b"x"), producer="p", sequence=7)
    error = refused(one, *MIXED, producer="p", sequence=3)
    assert 'those of "b" were not: Conflict(409): sequence 3' in str(error)
    assert offsets(error) == [1, None, 1, 2, None]
    assert not error.retryable


def test_with_a_producer_the_same_call_again_stores_the_rest(shell: Callable[..., Shell]) -> None:
    one = shell(topics_per_root_max=2)
    one.publish(("b/0", b"x"))
    error = refused(one, *MIXED, producer="p", sequence=1)
    assert error.retryable
    assert "or all of it with the same producer and sequence" in str(error)
    again = refused(one, *MIXED, producer="p", sequence=1)
    assert offsets(again) == offsets(error)
    assert isinstance(again, PartlyStored)
    assert all(receipt.duplicate for receipt in again.receipts if receipt is not None)
    one.inside.purge("b/0")
    assert [receipt.duplicate for receipt in one.publish(*MIXED, producer="p", sequence=1)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert sorted(one.stored()) == ["a/1=x", "a/2=y", "b/1=x", "b/2=y", "c/1=x"]


def test_where_every_root_refuses_the_first_says_why(shell: Callable[..., Shell]) -> None:
    one = shell(topics_per_root_max=1)
    error = refused(one, ("b/1", b"x"), ("a/1", b"x"), ("b/2", b"x"), ("a/2", b"x"))
    assert type(error) is QuotaExceeded
    assert 'root "b"' in str(error)
    assert one.stored() == []


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (("b/+", b"x"), Malformed),
        (("b/1", bytes(101)), TooLarge),
        (("$sys/mine", b"x"), NotAllowed),
        (Outgoing("b/1", b"x", headers={"n": "v" * 200}), TooLarge),
        (Outgoing("b/1", b"x", ttl_s=-1.0), Malformed),
    ],
)
def test_what_can_be_told_before_anything_is_stored_refuses_the_whole_call(
    shell: Callable[..., Shell], bad: tuple[str, bytes] | Outgoing, kind: type[HeadwaterError]
) -> None:
    one = shell(message_bytes_max=100, header_bytes_max=100)
    assert type(refused(one, ("a/1", b"x"), bad)) is kind
    assert one.stored() == []


def test_a_root_without_a_right_is_refused_and_the_others_are_stored() -> None:
    with Served(":memory:", auth="scram", mqtt_port=0, sys_every_s=0.0) as server:
        server.bus.clients.add("ann", secret="a secret of hers")
        server.bus.acl.allow("ann", "publish", "a/#")
        server.bus.acl.allow("ann", "create", "#")
        with headwater.connect(server.url.replace("//", "//ann:a%20secret%20of%20hers@")) as bus:
            with pytest.raises(PartlyStored, match=r"NotAllowed\(403\): client \"ann\" may not publish") as raised:
                bus.publish_many(MIXED[:2])
            assert offsets(raised.value) == [1, None]
