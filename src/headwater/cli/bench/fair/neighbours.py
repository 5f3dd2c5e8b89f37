"""Noisy neighbours: each is a function that does what it does to a broker until it is ended. `@neighbour` names it.

This module is also their process: `python -m headwater.cli.bench.fair.neighbours NAME PORT MQTT_PORT` gets ready, says
so, and is loud until its input ends.
"""

from __future__ import annotations

import functools
import hashlib
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import TracebackType

from headwater import threads
from headwater.access.scram import ClientLogin
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER, Broker, raise_files_max
from headwater.cli.bench.served.raw import Address, Greeting, Raw, Tally, publish_frame
from headwater.clock import SECOND_US, SystemClock
from headwater.errors import Failed, HeadwaterError
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Connect
from headwater.mqtt.properties import Properties
from headwater.wire.frame import Kind
from headwater.wire.reader import FrameReader
from headwater.wire.requests import Registered, decode

STRANGERS = 1000
GUESSES_PER_S = 1000
CLIENTS = 1000
PUBLISHERS = 4
HOSTS = 4
"""Addresses that a neighbour comes from: one alone would meet the limits of an address."""
HELLO_BYTES = 16 * 1024
CLIENT_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"
"""How one of 16 KiB begins."""
RETRY_S = 0.2
"""How long a client that was refused waits before it comes again."""

nothing = threads.Condition()
"""It never happens."""

Loud = Iterator[None]
"""Is ready with its first step; after that, each is a piece of noise."""

NEIGHBOURS: dict[str, Callable[[Address, Address], Loud]] = {}


def neighbour(loud: Callable[[Address, Address], Loud]) -> Callable[[Address, Address], Loud]:
    """Name a function; it gets where the broker listens natively, and for MQTT."""
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
            reader.subscribe(1, filter, "replay")
            tally, is_over = Tally(reader.socket), False
            while not is_over:
                is_over = any(kind == Kind.NOTICE for kind, _, _, _ in tally.receive())
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

    def __init__(self, name: str, broker: Broker) -> None:
        ports = (str(broker.port), str(broker.mqtt_port))
        command = [sys.executable, "-m", "headwater.cli.bench.fair.neighbours", name, *ports]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  (our own module)

    def __enter__(self) -> Neighbour:
        assert self._process.stdout is not None
        for said in ("ready", "loud"):
            if self._process.stdout.readline().strip() != said:
                self.__exit__(None, None, None)
                raise Failed("a neighbour that was to be loud ended by itself; what it says is above")
        return self

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


def _main(name: str, port: str, mqtt_port: str) -> None:
    raise_files_max()
    is_over = threading.Event()
    loud = NEIGHBOURS[name](("127.0.0.1", int(port)), ("127.0.0.1", int(mqtt_port)))
    next(loud)
    print("ready", flush=True)

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    print("loud", flush=True)
    for _ in loud:
        if is_over.is_set():
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
