"""Noisy neighbours: each is a function that does what it does to a broker until it is ended. `@neighbour` names it.

This module is also their process: `python -m headwater.cli.bench.fair.neighbours NAME PORT MQTT_PORT …` gets ready,
says so, and is loud until its input ends, or until it has what it wanted, and says how much that was.
"""

from __future__ import annotations

import functools
import hashlib
import select
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from types import TracebackType
from typing import TypeVar

import headwater
from headwater import threads
from headwater.access.scram import ClientLogin
from headwater.cli.bench.load import BATCH, MESSAGE_BYTES, messages
from headwater.cli.bench.served.broker import SECRET, USER, Broker, raise_files_max
from headwater.cli.bench.served.raw import (
    READ_BYTES,
    Address,
    Greeting,
    Raw,
    check,
    publish_frame,
    subscription,
    url_of,
)
from headwater.clock import SECOND_US, SystemClock
from headwater.errors import Failed, HeadwaterError
from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packets import Ack, Connect, Publish, Run, Suback, Subscribe, Subscription
from headwater.mqtt.properties import Properties
from headwater.mqtt.reader import PacketReader
from headwater.wire import batches
from headwater.wire.frame import Kind as FrameKind
from headwater.wire.reader import FrameReader
from headwater.wire.requests import Registered, decode, pack_request

STRANGERS = 1000
GUESSES_PER_S = 1000
CLIENTS = 1000
PUBLISHERS = 4
HOSTS = 4
"""Addresses that a neighbour comes from: one alone would meet the limits of an address."""
HELLO_BYTES = 16 * 1024
LIVE = 20_000
"""Live subscriptions to one topic,"""
LIVE_CONNECTIONS = 4
"""of so many clients."""
DEVICES = 8000
"""Durable subscribers, with a topic each."""
DEVICES_TOGETHER = 64
"""Those that subscribe at once."""
LIMITS = Limits(packet_bytes_max=1 << 20, connect_bytes_max=1 << 20, properties_max=100, subscriptions_max=100)
SILENCE_S = 10.0
"""After which one who wants something gives up."""
BULK_BYTES = 8_000_000
"""What the messages of a large batch carry;"""
BULK_TOPICS = 1
"""to so many topics,"""
BULK_IN_FLIGHT = 2
"""and so many batches at a time."""
CLIENT_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"
"""How one of 16 KiB begins."""
RETRY_S = 0.2
"""How long a client that was refused waits before it comes again."""

nothing = threads.Condition()
"""It never happens."""

Loud = Iterator[None]
"""Is ready with its first step; after that, each is a piece of noise."""
Gathering = Generator[None, None, int]
"""The same, of one who wants something; at the end, how much it got."""

NEIGHBOURS: dict[str, Callable[..., Loud]] = {}
L = TypeVar("L", bound=Callable[..., Loud])


def neighbour(loud: L) -> L:
    """Name a function; it gets where the broker listens natively, and for MQTT, and what else it is told."""
    NEIGHBOURS[loud.__name__] = loud
    return loud


@neighbour
def strangers(native: Address, mqtt: Address) -> Loud:
    """Connections that nobody knows: each sends as much as it can, and nothing that would end it."""
    kinds = (
        (mqtt, announced(), b"\xf0\xfb\x7f"),  # a proof that does not end
        (mqtt, b"", b"\x10\xfb\x7f\x00\x04MQTT\x05"),  # a CONNECT that does not
        (mqtt, encode(guess_of("nobody"), V5), b"\x30\xff\xff\xff\x03"),  # a message behind a password
        (native, b"", (HELLO_BYTES - 5).to_bytes(4, "little") + b"\x01"),  # a HELLO that does not end
    )
    yield
    held = []
    for number in range(STRANGERS):
        address, first, rest = kinds[number % len(kinds)]
        made = come(address, number)
        held.append(made)
        made.sendall(first)
        if number % len(kinds) == 0:
            made.recv(4096)  # it is asked for the proof
        made.sendall(rest + bytes(HELLO_BYTES - 100 - len(rest)))
        yield
    while True:
        pause(0.05)
        yield


@neighbour
def tls_strangers(native: Address, mqtt: Address) -> Loud:
    """Connections that begin TLS and do not get through it, or do and then say nothing that ends; those that are
    refused come again."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    yield
    held: list[socket.socket] = []
    for number in range(STRANGERS):
        try:
            made = come(native, number)
            if number % 2:
                made.sendall(CLIENT_HELLO + bytes(HELLO_BYTES - 400))
            else:
                made = context.wrap_socket(made)
                made.sendall((HELLO_BYTES - 5).to_bytes(4, "little") + b"\x01" + bytes(HELLO_BYTES - 100))
            held.append(made)
        except OSError:
            pass
        yield
    while True:
        pause(0.05)
        yield


@neighbour
def guesses(native: Address, mqtt: Address) -> Loud:
    """Passwords that are guessed, at a steady rate, each for another name; nobody waits for an answer."""
    yield
    begun_s = time.perf_counter()
    for number in count():
        made = come(mqtt, number)
        made.sendall(encode(guess_of(f"nobody-{number}"), V5))
        made.close()
        pause(max(0.0, begun_s + number / GUESSES_PER_S - time.perf_counter()))
        yield


@neighbour
def reconnect(native: Address, mqtt: Address) -> Loud:
    """Clients that are cut off all at once, and come back as fast as they can; those who are refused try again."""
    # What clients compute on machines of their own would be computed on this one.
    hashlib.pbkdf2_hmac = functools.cache(hashlib.pbkdf2_hmac)  # type: ignore[assignment]  # it is called alike
    crowd = Returning(native)
    for _ in crowd.come():
        pass
    yield
    while True:
        crowd.cut()
        yield from crowd.come()


@neighbour
def bulk(native: Address, mqtt: Address) -> Loud:
    """A publisher of large batches to a root of its own, who has the next on its way before the last is answered."""
    batch = messages(BULK_TOPICS, "bulk") * (BULK_BYTES // (BATCH * MESSAGE_BYTES))
    frame = publish_frame(batch, SystemClock().now_us())
    with Raw(native, (USER, SECRET)) as client:
        client.publish(frame)
        yield
        in_flight = 0
        while True:
            while in_flight < BULK_IN_FLIGHT:
                client.socket.sendall(frame)
                in_flight += 1
            answer = client.read()
            check(answer)
            in_flight -= len(batches.read_published(answer)) if answer.kind == FrameKind.PUBLISHED else 0
            yield


@neighbour
def publishers(native: Address, mqtt: Address) -> Loud:
    """Clients that publish single messages, one after another, as fast as they are acked."""
    crowd = [Raw(native, (USER, SECRET)) for _ in range(PUBLISHERS)]
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    yield
    for number in count():
        crowd[number % PUBLISHERS].publish(frame)
        yield


@neighbour
def reader_of_all(native: Address, mqtt: Address) -> Loud:
    """Somebody who reads all there is, again and again."""
    yield from replayed(native, "fair/#")


@neighbour
def reader_of_nothing(native: Address, mqtt: Address) -> Loud:
    """Somebody for whom all there is has to be looked at, and in vain."""
    yield from replayed(native, "fair/+/never")


class Returning:
    """Clients that log in natively, all at the same time; each has a session that it comes back to."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []
        self._sessions: list[str | None] = [None] * CLIENTS

    def cut(self) -> None:
        """All are gone."""
        for made in self._sockets:
            made.close()
        self._sockets = []

    def come(self) -> Iterator[None]:
        """Until all are let in."""
        selector = selectors.DefaultSelector()
        for number in range(CLIENTS):
            self._begin(selector, number)
        missing = CLIENTS
        refused: list[tuple[float, int]] = []
        while missing:
            yield
            while refused and refused[0][0] < time.perf_counter():
                self._begin(selector, refused.pop(0)[1])
            for key, _ in selector.select(0.05):
                number, greeting, reader = key.data
                made = key.fileobj
                assert isinstance(made, socket.socket)
                try:
                    is_in = self._on_bytes(number, made, greeting, reader)
                except (OSError, HeadwaterError):
                    selector.unregister(made)
                    made.close()
                    refused.append((time.perf_counter() + RETRY_S, number))
                    continue
                if is_in:
                    selector.unregister(made)
                    self._sockets.append(made)
                    missing -= 1
        selector.close()

    def _begin(self, selector: selectors.BaseSelector, number: int) -> None:
        made, greeting = come(self._address, number), Greeting((USER, SECRET), session=self._sessions[number])
        made.sendall(greeting.hello())
        selector.register(made, selectors.EVENT_READ, (number, greeting, FrameReader(1 << 20)))

    def _on_bytes(self, number: int, made: socket.socket, greeting: Greeting, reader: FrameReader) -> bool:
        received = made.recv(65536)
        if not received:
            raise ConnectionResetError
        for frame in reader.feed(received):
            answer = greeting.answer(frame)
            if answer is None:
                self._sessions[number] = decode(frame.payload, Registered).session
                return True
            made.sendall(answer)
        return False


@neighbour
def live(native: Address, mqtt: Address) -> Loud:
    """A topic with very many live subscriptions, to which is published as fast as the broker answers."""
    readers = [Raw(native) for _ in range(LIVE_CONNECTIONS)]
    for reader in readers:
        _subscribe_live(reader, LIVE // LIVE_CONNECTIONS)
        threads.Thread(target=_read_all, args=(reader,), daemon=True).start()
    publisher = Raw(native)
    frame = publish_frame([("live/all", bytes(100))], SystemClock().now_us())
    publisher.publish(frame)
    yield
    while True:
        publisher.publish(frame)
        yield


def _subscribe_live(client: Raw, count: int) -> None:
    asked = [pack_request(client.next_id(), subscription(number, "live/#", "live")) for number in range(1, count + 1)]
    threads.Thread(target=client.socket.sendall, args=(b"".join(asked),), daemon=True).start()
    while count:
        count -= client.read().kind == FrameKind.REPLY


def _read_all(client: Raw) -> None:
    """Take what comes, without a look at it."""
    buffer = bytearray(READ_BYTES)
    while client.socket.recv_into(buffer):
        pass


@neighbour
def devices(native: Address, mqtt: Address) -> Loud:
    """Very many durable subscribers over MQTT with a topic each, and one publish to all of these, again and again."""
    crowd = Devices(mqtt)
    crowd.come(DEVICES)
    publisher = Raw(native)
    frame = crowd.publish_frame(DEVICES)
    yield
    while True:
        publisher.socket.sendall(frame)
        crowd.take(DEVICES)
        while publisher.read().kind != FrameKind.PUBLISHED:
            pass
        pause(0.1)
        yield


class Devices:
    """Clients of MQTT 5, each with a durable subscription to a topic of its own, which acknowledge what comes."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._selector = selectors.DefaultSelector()

    def topic(self, number: int) -> str:
        """What a device is subscribed to."""
        return f"devices/{number}/set"

    def publish_frame(self, count: int) -> bytes:
        """One publish with a message for each of so many."""
        return publish_frame([(self.topic(number), bytes(100)) for number in range(count)], SystemClock().now_us())

    def come(self, count: int) -> None:
        """Have so many come."""
        for first in range(0, count, DEVICES_TOGETHER):
            self._subscribe(range(first, min(first + DEVICES_TOGETHER, count)))

    def leave(self) -> None:
        """Have all go."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _subscribe(self, numbers: range) -> None:
        for number in numbers:
            made = come(self._address, number)
            said = Properties(session_expiry_interval=3600)
            wish = Subscribe(1, (Subscription(self.topic(number), 1),))
            connect = Connect(f"device-{number}", V5, clean_start=False, properties=said)
            made.sendall(encode(connect, V5) + encode(wish, V5))
            self._selector.register(made, selectors.EVENT_READ, PacketReader(LIMITS, is_server=False, version=V5))
        self._until(len(numbers), 0)

    def take(self, count: int) -> None:
        """Until so many messages have come."""
        self._until(0, count)

    def _until(self, answers: int, messages: int) -> None:
        while answers > 0 or messages > 0:
            for key, _ in self._selector.select():
                made = key.fileobj
                assert isinstance(made, socket.socket)
                received = made.recv(65536)
                if not received:
                    raise Failed("the broker has closed a connection")
                for packet in key.data.feed(received):
                    answers -= isinstance(packet, Suback)
                    if isinstance(packet, Run):
                        messages -= len(packet.packet_ids)
                        made.sendall(b"".join(encode(Ack(Kind.PUBACK, one), V5) for one in packet.packet_ids))


@neighbour
def retained(native: Address, mqtt: Address, wanted: str) -> Gathering:
    """Somebody who subscribes to everything with our client, and wants so many retained messages."""
    with headwater.connect(url_of(native, (USER, SECRET))) as bus:
        yield
        found = 0
        with bus.subscribe("#") as live:
            while found < int(wanted) and (some := live.batch(1000, timeout_s=SILENCE_S)):
                found += sum(one.retained for one in some)
                yield
    return found


@neighbour
def retained_mqtt(native: Address, mqtt: Address, wanted: str, qos: str) -> Gathering:
    """The same with MQTT, of a QoS."""
    made, reader = come(mqtt, 0), PacketReader(LIMITS, is_server=False, version=V5)
    made.settimeout(SILENCE_S)
    made.sendall(encode(Connect("", V5, user_name=USER, password=SECRET.encode()), V5))
    made.recv(4096)
    yield
    made.sendall(encode(Subscribe(1, (Subscription("#", int(qos)),)), V5))
    found = 0
    while found < int(wanted):
        yield
        try:
            received = made.recv(1 << 18)
        except TimeoutError:
            break
        if not received:
            break
        packets = [one for packet in reader.feed(received) for one in _publishes(packet)]
        found += sum(one.retain for one in packets)
        if int(qos):
            made.sendall(b"".join(encode(Ack(Kind.PUBACK, one.packet_id), V5) for one in packets))
    made.close()
    return found


def _publishes(packet: object) -> Sequence[Publish]:
    if isinstance(packet, Run):
        return packet.publishes()
    return (packet,) if isinstance(packet, Publish) else ()


# What neighbours share


def pause(seconds: float) -> None:
    """Do nothing for a while."""
    with nothing:
        SystemClock().wait(nothing, max(1, round(seconds * SECOND_US)))


def come(address: Address, number: int) -> socket.socket:
    """A connection from one of the addresses that a neighbour has."""
    made = socket.socket()
    made.settimeout(10.0)
    made.bind((f"127.0.0.{2 + number % HOSTS}", 0))
    made.connect(address)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def replayed(native: Address, filter: str) -> Loud:
    """Read what matches from the beginning; a new connection each time."""
    yield
    while True:
        with Raw(native, (USER, SECRET)) as reader:
            reader.socket.sendall(pack_request(reader.next_id(), subscription(1, filter, "replay")))
            while (frame := reader.read()).kind != FrameKind.NOTICE:  # which may come before the answer
                check(frame)
                yield


def guess_of(name: str) -> Connect:
    """A CONNECT with a password that is wrong."""
    return Connect("", V5, user_name=name, password=b"a guess")


def announced() -> bytes:
    """A CONNECT that announces a proof."""
    first = ClientLogin("nobody", "a secret").first()
    said = Properties(authentication_method="SCRAM-SHA-256", authentication_data=first)
    return encode(Connect("", V5, properties=said), V5)


class Neighbour:
    """A neighbour in a process of its own, loud within `with`."""

    def __init__(self, name: str, broker: Broker, *told: object) -> None:
        words = map(str, (broker.port, broker.mqtt_port, *told))
        command = [sys.executable, "-m", "headwater.cli.bench.fair.neighbours", name, *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  (our own module)

    def __enter__(self) -> Neighbour:
        assert self._process.stdout is not None
        for said in ("ready", "loud"):
            if self._process.stdout.readline().strip() != said:
                self.__exit__(None, None, None)
                raise Failed("a neighbour that was to be loud ended by itself; what it says is above")
        return self

    @property
    def is_over(self) -> bool:
        """Whether it has what it wanted, or has given up."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def got(self) -> int:
        """How much of what it wanted it has got, once it is over."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline() or 0)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _main(name: str, port: str, mqtt_port: str, *told: str) -> None:
    raise_files_max()
    is_over = threading.Event()
    loud = NEIGHBOURS[name](("127.0.0.1", int(port)), ("127.0.0.1", int(mqtt_port)), *told)
    next(loud)
    print("ready", flush=True)

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    print("loud", flush=True)
    while not is_over.is_set():
        try:
            next(loud)
        except StopIteration as ended:
            print(ended.value, flush=True)
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
