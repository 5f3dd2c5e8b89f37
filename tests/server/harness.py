"""A server in a thread and peers that speak the protocol frame by frame, so that a test can say exactly what it means.

with Running(auth="scram") as running:
    running.client("ann", allow=("subscribe home/#",))
    peer = running.peer("ann")              # through its handshake and registered
    peer.subscribe(1, "home/#", kind="named", id="s")
    running.bus.publish("home/x", b"1")
    peer.take(1, 1)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import uvloop

import headwater
from headwater.access.scram import ClientLogin
from headwater.bus import Bus
from headwater.config import Config, Serving
from headwater.errors import HeadwaterError
from headwater.message import Headers
from headwater.server.extension import Extension
from headwater.server.server import Server
from headwater.serving.composition import server_of
from headwater.store.batch import checksum
from headwater.store.body import Body, encode_body
from headwater.wire import batches, requests
from headwater.wire.contents import Published
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import Challenge, Hello, Response, Welcome
from headwater.wire.operations import REPLIES
from headwater.wire.reader import FrameReader
from headwater.wire.request import Request
from headwater.wire.requests import Goodbye, Notice, Problem, Registered, Subscribed, encode, error_of

T = TypeVar("T")
PATIENCE_S = 60.0
"""What should happen may take that long on a machine that is slow and busy; nobody waits for it in vain."""
PLENTY = 1 << 20
SECRET = "a secret of a test"


class Got(msgspec.Struct, frozen=True):
    """A message as a peer received it."""

    topic: str
    offset: int
    payload: bytes
    lease: int
    attempt: int
    retained: bool
    key: bytes | None = None


class Ended(Exception):
    """The server closed the connection; what it said last is in `peer.inbox`."""


class Running:
    """A server that runs."""

    def __init__(
        self,
        folder: object = ":memory:",
        config: Config | None = None,
        *,
        bus: Bus | None = None,
        others: Sequence[Callable[[Server], Extension]] = (),
        loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        **serving: Any,
    ) -> None:
        self.bus = bus or headwater.open(str(folder), config)
        self._owns_bus = bus is None
        serving = {"port": 0, "scram_iterations": 4096, "drain_s": 1.0, "sys_every_s": 0.0, **serving}
        self.server = server_of(self.bus.core, Serving(**serving), None, *others)
        self.loop = loop()
        self.troubles: list[dict[str, Any]] = []
        """What the loop complains about: exceptions that nobody caught."""
        self.loop.set_exception_handler(lambda _, context: self.troubles.append(context))
        self._peers: list[Peer] = []
        self._thread = threading.Thread(target=self._run, name="server-of-a-test")
        self._is_stopped = False

    def __enter__(self) -> Running:
        self._thread.start()
        try:
            self.run(self.server.start())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.troubles, self.troubles

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Any) -> Any:
        """Await something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the server's loop."""
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(do)
        return done.result(PATIENCE_S)

    def until(self, test: Callable[[], object], what: str = "it") -> None:
        """Look on the loop, again and again, until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not self.call(test):
            assert time.monotonic() < end, f"{what} did not happen"
            time.sleep(0.005)

    def stop(self) -> None:
        """End the server, and the bus with it."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for peer in self._peers:
            peer.close()
        try:
            self.run(self.server.stop())
            self.run(asyncio.sleep(0.01))  # sockets that were aborted are closed in the next turns of the loop
        finally:
            self._end_loop()
            if self._owns_bus:
                self.bus.close()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    # Clients

    def client(self, name: str, allow: Sequence[str] = (), deny: Sequence[str] = (), admin: bool = False) -> Running:
        """Add a client with rules such as "publish home/#"."""
        self.bus.clients.add(name, SECRET)
        self.rules(name, allow, deny)
        if admin:
            self.bus.acl.allow(name, "admin", "#")
        return self

    def rules(self, name: str, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        """More rules about a client."""
        for words, put in ((allow, self.bus.acl.allow), (deny, self.bus.acl.deny)):
            for word in words:
                action, _, filter = word.partition(" ")
                put(name, action, filter)  # type: ignore[arg-type]  # one of the actions

    def connect(self, **options: Any) -> Peer:
        """Somebody who has connected, and said nothing yet."""
        peer = Peer(self.server.port, **options)
        self._peers.append(peer)
        return peer

    def peer(self, user: str = "", *, session: str | None = None, **options: Any) -> Peer:
        """Somebody who is in a session; with SCRAM if the server asks for it."""
        expire_after_s = options.pop("expire_after_s", None)
        peer = self.connect(**options)
        peer.shake(user, SECRET if self.server.serving.auth == "scram" else None)
        peer.register(session, expire_after_s)
        return peer

    def session_of(self, peer: Peer) -> Any:
        """The session as the server has it."""
        return self.server.sessions.get(peer.session)


class Peer:
    """A client, frame by frame."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, receive_bytes: int = 0, host: str = "127.0.0.1"
    ) -> None:
        plain = socket.socket()
        if receive_bytes:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.settimeout(PATIENCE_S)
        plain.connect((host, port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket: socket.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise
        self.inbox: list[Frame] = []
        self.session = ""
        self.welcome: Welcome | None = None
        self._reader = FrameReader(1 << 30)
        self._id = 0

    def close(self) -> None:
        """Go without a word."""
        self.socket.close()

    def goodbye(self) -> None:
        """Go in order."""
        self.send(pack(Kind.GOODBYE, 0, encode(Goodbye())))
        self.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Frames

    def send(self, *pieces: bytes) -> None:
        """Bytes, as they are."""
        self.socket.sendall(b"".join(pieces))

    def more(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for bytes; Ended if there will be none."""
        self.socket.settimeout(timeout_s)
        try:
            received = self.socket.recv(1 << 18)
        except (ConnectionError, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLError) and "timed out" in str(error):
                raise TimeoutError from None
            raise Ended from None
        if not received:
            raise Ended
        self.inbox += self._reader.feed(received)

    def wait(self, test: Callable[[Frame], bool], timeout_s: float = PATIENCE_S) -> Frame:
        """The first frame that is the one, taken out of the inbox."""
        end = time.monotonic() + timeout_s
        seen = 0
        while True:
            for place in range(seen, len(self.inbox)):
                if test(self.inbox[place]):
                    return self.inbox.pop(place)
            seen = len(self.inbox)
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no such frame; there were {[(Kind(f.kind).name, f.id) for f in self.inbox]}")
            self.more(left)

    def frame(self, kind: Kind, id: int | None = None, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame of a kind."""
        return self.wait(lambda frame: frame.kind == kind and (id is None or frame.id == id), timeout_s)

    def ends(self, timeout_s: float = PATIENCE_S) -> HeadwaterError | None:
        """Wait until the server closes; why it said that it does."""
        end = time.monotonic() + timeout_s
        try:
            while True:
                self.more(max(0.001, end - time.monotonic()))
        except Ended:
            pass
        for frame in self.inbox:
            if frame.kind == Kind.ERROR and frame.id == 0:
                return error_of(requests.decode(frame.payload, Problem))
            if frame.kind == Kind.GOODBYE:
                goodbye = requests.decode(frame.payload, Goodbye)
                return None if goodbye.problem is None else error_of(goodbye.problem)
        return None

    def quiet(self, seconds: float = 0.1, kind: Kind = Kind.DELIVER) -> None:
        """Nothing of a kind comes, as far as one can tell; a ping goes there and back first."""
        self.ping()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.more(left)
            except TimeoutError:
                break
        found = [frame for frame in self.inbox if frame.kind == kind]
        assert not found, found

    def ping(self, payload: bytes = b"ping") -> None:
        """There and back."""
        self.send(pack(Kind.PING, 0, payload))
        self.wait(lambda frame: frame.kind == Kind.PONG and frame.payload == payload)

    def answer_pings(self) -> None:
        """Answer what the server asked so far."""
        for frame in [frame for frame in self.inbox if frame.kind == Kind.PING]:
            self.inbox.remove(frame)
            self.send(pack(Kind.PONG, 0, frame.payload))

    # Handshake

    def hello(self, **fields: Any) -> Challenge:
        """HELLO, and what comes back."""
        self.send(pack(Kind.HELLO, 0, encode(Hello(**fields))))
        found: Challenge = requests.decode(self._answer(Kind.CHALLENGE).payload, Challenge)
        return found

    def respond(self, final: bytes = b"") -> Welcome:
        """RESPONSE, and what comes back."""
        self.send(pack(Kind.RESPONSE, 0, encode(Response(final=final))))
        found: Welcome = requests.decode(self._answer(Kind.OK).payload, Welcome)
        self.welcome = found
        return found

    def _answer(self, kind: Kind, id: int = 0) -> Frame:
        frame = self.wait(
            lambda frame: (frame.id == id and frame.kind == kind) or (frame.kind == Kind.ERROR and frame.id in (0, id))
        )
        if frame.kind == Kind.ERROR:
            raise error_of(requests.decode(frame.payload, Problem))
        return frame

    def shake(self, user: str = "", secret: str | None = None, mechanism: str | None = None) -> Welcome:
        """The whole handshake."""
        if secret is None:
            self.hello(user=user, mechanism=mechanism or "none")
            welcome = self.respond()
        else:
            login = ClientLogin(user, secret)
            challenge = self.hello(mechanism="scram-sha-256", first=login.first())
            welcome = self.respond(login.respond(challenge.first))
            login.verify(welcome.final)
        self.send(pack(Kind.OK))
        return welcome

    def register(self, session: str | None = None, expire_after_s: float | None = None) -> Registered:
        """A session."""
        registered: Registered = self.ask(requests.Register(session=session, expire_after_s=expire_after_s))
        self.session = registered.session
        return registered

    # Requests

    def next_id(self) -> int:
        """A number for a request."""
        self._id += 1
        return self._id

    def begin(self, request: Request[Any]) -> int:
        """Ask, without waiting for the answer."""
        number = self.next_id()
        self.send(requests.pack_request(number, request))
        return number

    def finish(self, number: int, request: type[Request[Any]]) -> Any:
        """The answer to a request; raises the error that was sent instead."""
        return requests.decode(self._answer(Kind.REPLY, number).payload, REPLIES[request])

    def ask(self, request: Request[Any]) -> Any:
        """Ask, and wait for the answer."""
        return self.finish(self.begin(request), type(request))

    def subscribe(
        self, number: int, filter: str, *, kind: str = "live", credit: int = PLENTY, bytes: int = PLENTY, **fields: Any
    ) -> Subscribed:
        """A subscription."""
        request = requests.Subscribe(
            number=number,
            filter=filter,
            kind=kind,  # type: ignore[arg-type]  # one of the kinds, or wrong on purpose
            credit_messages=credit,
            credit_bytes=bytes,
            **fields,
        )
        found: Subscribed = self.ask(request)
        return found

    # Publishing

    def publish_soon(
        self,
        topics: str | Sequence[str],
        payloads: bytes | Sequence[bytes] = b"x",
        *,
        producer: str | None = None,
        sequence: int = 0,
        flags: int = 0,
        root: str | None = None,
        **columns: Any,
    ) -> int:
        """A PUBLISH frame; its number."""
        names = [topics] if isinstance(topics, str) else list(topics)
        data = [payloads] * len(names) if isinstance(payloads, bytes) else list(payloads)
        body = make_body(names, data, **columns)
        number = self.next_id()
        where = names[0].partition("/")[0] if root is None else root
        self.send(*batches.pack_publish(number, where, len(names), checksum(body), body, producer, sequence, flags))
        return number

    def published(self, number: int) -> Published:
        """The answer to a publish; raises the error that was sent instead."""
        while True:
            for frame in self.inbox:
                if frame.kind == Kind.ERROR and frame.id == number:
                    self.inbox.remove(frame)
                    raise error_of(requests.decode(frame.payload, Problem))
                if frame.kind == Kind.PUBLISHED:
                    for one in batches.read_published(frame):
                        if one.id == number:
                            return one
            self.more()

    def publish(self, topics: str | Sequence[str], payloads: bytes | Sequence[bytes] = b"x", **options: Any) -> int:
        """Publish, and wait; the first offset."""
        return self.published(self.publish_soon(topics, payloads, **options)).first_offset

    # Deliveries

    def deliveries(self, number: int) -> list[Got]:
        """What has arrived for a subscription, taken out of the inbox."""
        found: list[Got] = []
        for frame in [frame for frame in self.inbox if frame.kind == Kind.DELIVER and frame.id == number]:
            self.inbox.remove(frame)
            found += messages_of(frame)
        return found

    def take(self, number: int, count: int, timeout_s: float = PATIENCE_S) -> list[Got]:
        """Messages of a subscription; at least so many, in the order in which they came."""
        found = self.deliveries(number)
        end = time.monotonic() + timeout_s
        while len(found) < count:
            try:
                self.more(max(0.001, end - time.monotonic()))
            except TimeoutError:
                raise AssertionError(f"{len(found)} of {count} messages came: {found}") from None
            found += self.deliveries(number)
        return found

    def done_with(self, number: int, count: int) -> list[bytes]:
        """The payloads of the next messages, which are acked as they come: what was with a consumer that went without a
        word comes one at a time."""
        found: list[bytes] = []
        while len(found) < count:
            got = self.take(number, 1)
            self.ack(number, got)
            found += [one.payload for one in got]
        return found

    def payloads(self, number: int, count: int) -> list[bytes]:
        """The same, payloads alone."""
        return [one.payload for one in self.take(number, count)]

    def ranges(self, kind: Kind, id: int, subscription: int, *ranges: batches.Range) -> None:
        """An ACK or TAKEN frame."""
        self.send(batches.pack_ranges(kind, id, subscription, ranges))

    def ack_soon(self, number: int, *ranges: batches.Range) -> int:
        """An ACK frame; its number."""
        request = self.next_id()
        self.ranges(Kind.ACK, request, number, *ranges)
        return request

    def acked(self, request: int) -> None:
        """Wait for the answer to an ack."""
        self._answer(Kind.REPLY, request)

    def ack(self, number: int, messages: Sequence[Got]) -> None:
        """Ack these, and wait."""
        self.acked(self.ack_soon(number, *[(one.lease, one.offset, one.offset) for one in messages]))

    def taken(self, number: int, messages: Sequence[Got]) -> None:
        """Say that the application has these."""
        self.ranges(Kind.TAKEN, number, 0, *[(one.lease, one.offset, one.offset) for one in messages])

    def credit(self, number: int, messages: int = PLENTY, bytes: int = PLENTY) -> Peer:
        """Take more."""
        self.send(batches.pack_credit(number, messages, bytes))
        return self

    def nack(self, number: int, message: Got, error: str = "no", delay_s: float | None = 0.0) -> None:
        """Give a message back."""
        self.ask(requests.Nack(number=number, lease=message.lease, offset=message.offset, error=error, delay_s=delay_s))

    def notice(self, number: int) -> Notice:
        """The next notice about a subscription."""
        found: Notice = requests.decode(self.frame(Kind.NOTICE, number).payload, Notice)
        return found


def make_body(topics: Sequence[str], payloads: Sequence[bytes], **columns: Any) -> bytes:
    """A body as a publisher encodes it."""
    time_us = columns.pop("time_us", None)
    return encode_body(topics, payloads, time.time_ns() // 1000 if time_us is None else time_us, **columns)


def messages_of(frame: Frame) -> list[Got]:
    """The messages of a DELIVER frame, whose checksum has to be right."""
    deliver = batches.read_deliver(frame)
    assert checksum(deliver.body) == deliver.crc
    body = Body(deliver.body)
    assert body.count == deliver.count
    deltas = range(deliver.count) if deliver.deltas is None else deliver.deltas
    return [
        Got(
            body.topics[place],
            deliver.first_offset + delta,
            body.payload(place),
            deliver.lease,
            deliver.attempt,
            deliver.is_retained,
            body.keys[place] if body.keys is not None else None,
        )
        for place, delta in enumerate(deltas)
    ]


HEADERS: Headers = (("unit", "C"),)


@contextmanager
def code(number: int, *words: str) -> Iterator[None]:
    """An error of this code, whose text has these words, is what comes."""
    try:
        yield
    except HeadwaterError as error:
        assert error.code == number, repr(error)
        for word in words:
            assert word in str(error), str(error)
    else:
        raise AssertionError(f"no error came; {number} was to")


@contextmanager
def nothing_is_committed(bus: Bus) -> Iterator[None]:
    """While somebody else has the committing role."""
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)

    holder = threading.Thread(target=lambda: bus.core.roots.commit.run(hold))
    holder.start()
    assert inside.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()
        holder.join(PATIENCE_S)
