from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import headwater
from headwater.client import receiver as module
from headwater.client.receiver import Receiver
from headwater.errors import Closed, Conflict, Gap, Malformed, Recalled
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches, requests
from headwater.wire.channel import ChannelHello, ChannelWelcome
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.reader import FrameReader
from headwater.wire.requests import encode

PATIENCE_S = 60.0


class Broker:
    """A broker, frame by frame."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._reader = FrameReader(1 << 20)
        self._inbox: list[Frame] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self, kind: Kind) -> Frame:
        while True:
            for place, frame in enumerate(self._inbox):
                if frame.kind == kind:
                    return self._inbox.pop(place)
            received = self.socket.recv(1 << 16)
            if not received:
                raise EOFError
            self._inbox += self._reader.feed(received)

    def greet(self, **fields: Any) -> ChannelWelcome:
        hello = ChannelHello(**{"channel": "a", "filter": "home/#", "frame_bytes_max": 1 << 20, **fields})
        self.send(pack(Kind.HELLO, 0, encode(hello)))
        found: ChannelWelcome = requests.decode(self.frame(Kind.OK).payload, ChannelWelcome)
        return found

    def deliver(self, *payloads: bytes, lease: int = 7, first: int = 1, crc: int | None = None) -> None:
        self.send_body(encode_body(["home/x"] * len(payloads), payloads, 1), len(payloads), lease, first, crc)

    def send_body(self, body: bytes, count: int, lease: int = 7, first: int = 1, crc: int | None = None) -> None:
        crc = checksum(body) if crc is None else crc
        self.send(batches.pack_deliver(1, lease, b"home", first, count, crc, len(body)) + body)

    def is_closed(self) -> bool:
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with headwater.receive(0) as made:
        yield made


@pytest.fixture
def broker(receiver: Receiver) -> Iterator[Broker]:
    made = Broker(receiver.port)
    yield made
    made.socket.close()


def answered(broker: Broker, work: Any) -> Any:
    """Do something in a thread, as it waits for an answer; its thread, and what became of it."""
    met: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            met.append(None)
        except BaseException as error:
            met.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, met


def test_an_ack_returns_once_the_broker_has_it_on_disk(receiver: Receiver, broker: Broker):
    assert broker.greet().credit_messages == receiver.settings.prefetch_messages
    broker.deliver(b"1", b"2", b"3")
    found = receiver.batch(10, PATIENCE_S)
    assert [one.payload for one in found] == [b"1", b"2", b"3"]
    thread, met = answered(broker, lambda: receiver.ack(found))
    acked = broker.frame(Kind.ACK)
    assert batches.read_ranges(acked) == (1, [(7, 1, 3)])
    assert met == []
    broker.send(pack(Kind.REPLY, acked.id, encode(None)))
    thread.join(PATIENCE_S)
    assert met == [None]


def test_what_the_broker_refuses_is_raised_and_what_is_lost_is_not(receiver: Receiver, broker: Broker):
    broker.greet()
    broker.deliver(b"1", b"2")
    first, second = receiver.batch(2, PATIENCE_S)
    thread, met = answered(broker, first.ack)
    broker.send(requests.pack_error(broker.frame(Kind.ACK).id, Recalled("too late")))
    thread.join(PATIENCE_S)
    assert isinstance(met[0], Recalled)
    broker.socket.close()
    second.ack()
    with pytest.raises(Recalled, match="comes again"):
        second.nack("no")
    assert receiver.next(0.01) is None


def test_what_is_taken_back_is_not_handed_out(receiver: Receiver, broker: Broker):
    broker.greet()
    broker.deliver(b"1", b"2", b"3")
    assert receiver.batch(1, PATIENCE_S)[0].payload == b"1"
    broker.send(batches.pack_ranges(Kind.RECALL, 1, 0, [(7, 2, 3)]))
    broker.deliver(b"4", lease=8, first=4)
    broker.send(pack(Kind.PING))
    broker.frame(Kind.PONG)
    assert receiver.batch(10, PATIENCE_S)[0].payload == b"4"


def test_a_gap_is_told_once(receiver: Receiver, broker: Broker):
    broker.greet()
    problem = requests.problem_of(Gap("home", 1, 9, "retention"))
    broker.send(pack(Kind.NOTICE, 1, encode(requests.Notice(what="gap", problem=problem))))
    broker.deliver(b"10", first=10)
    with pytest.raises(Gap):
        receiver.next(PATIENCE_S)
    message = receiver.next(PATIENCE_S)
    assert message is not None
    assert message.offset == 10


def test_a_trial_brings_nothing_and_takes_no_place(receiver: Receiver, broker: Broker):
    broker.greet(trial=True)
    broker.send(pack(Kind.GOODBYE, 0, encode(requests.Goodbye())))
    assert broker.is_closed()
    assert receiver._lines == []


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\xff" * 64,
        pack(Kind.PUBLISH, 1, bytes(64)),
        pack(Kind.HELLO, 0, b"\xc1"),
        pack(Kind.HELLO, 0, encode(ChannelHello(channel="a", versions=(99,)))),
    ],
)
def test_who_does_not_greet_as_a_broker_is_sent_away(receiver: Receiver, broker: Broker, said: bytes):
    broker.send(said)
    assert broker.is_closed()
    assert receiver._lines == []


def test_a_batch_that_cannot_be_read_ends_its_connection_and_no_other(receiver: Receiver, broker: Broker):
    other = Broker(receiver.port)
    other.greet(channel="b")
    broker.greet()
    broker.deliver(b"1", crc=1)
    assert broker.is_closed()
    liar = Broker(receiver.port)
    liar.greet()
    liar.send_body(b"\x01\x00\x00\x00" + b"\xff" * 60, 1)
    assert receiver.next(0.05) is None
    assert liar.is_closed()
    liar.socket.close()
    other.deliver(b"2")
    found = receiver.next(PATIENCE_S)
    assert found is not None
    assert (found.payload, receiver.channel_of(found)) == (b"2", "b")
    other.socket.close()


def test_no_more_channels_than_there_is_room_for(receiver: Receiver, broker: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LINES_MAX", 0)
    hello = ChannelHello(channel="a", frame_bytes_max=1 << 20)
    broker.send(pack(Kind.HELLO, 0, encode(hello)))
    goodbye = requests.decode(broker.frame(Kind.GOODBYE).payload, requests.Goodbye)
    assert goodbye.problem.code == 429


def test_a_receiver_that_is_closed_ends_its_loop(receiver: Receiver):
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(receiver))
    thread.start()
    time.sleep(0.02)
    receiver.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    with pytest.raises(Closed):
        receiver.next(0)
    receiver.close()


def test_who_waits_for_an_answer_is_let_go_when_the_receiver_is_closed(receiver: Receiver, broker: Broker):
    broker.greet()
    broker.deliver(b"1", b"2")
    one, two = receiver.batch(2, PATIENCE_S)
    acking, acked = answered(broker, one.ack)
    nacking, nacked = answered(broker, lambda: two.nack("no"))
    broker.frame(Kind.ACK)
    broker.frame(Kind.REQUEST)
    receiver.close()
    acking.join(PATIENCE_S)
    nacking.join(PATIENCE_S)
    assert acked == [None]  # it may be done with, or comes again
    assert [type(error) for error in nacked] == [Recalled]


def test_a_port_that_is_taken_is_a_conflict(receiver: Receiver):
    with pytest.raises(Conflict, match="choose another"):
        headwater.receive(receiver.port)


def test_messages_of_others_are_not_acked_here(receiver: Receiver):
    with headwater.open(":memory:") as bus:
        bus.publish("home/x", b"1")
        with pytest.raises(Malformed):
            receiver.ack(list(bus.replay("home/#")))
