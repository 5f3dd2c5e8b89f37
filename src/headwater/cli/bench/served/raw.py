"""The protocol as a load speaks it: frames that are made once and sent often, answers that are counted, not read."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from headwater.access.scram import ClientLogin
from headwater.cli.bench.load import Messages
from headwater.errors import Failed, Malformed
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches, handshake, requests
from headwater.wire.frame import HEADER, LENGTH_BYTES, Frame, Kind, pack
from headwater.wire.operations import REPLIES
from headwater.wire.reader import FrameReader
from headwater.wire.request import A, Request

FRAME_BYTES_MAX = 1 << 30
READ_BYTES = 1 << 20
WAIT_S_MAX = 120.0
"""A broker that says nothing for so long is broken, not slow."""
CREDIT_MESSAGES = 1_000_000
CREDIT_BYTES = 256 * 1024 * 1024
HEAD_BYTES = HEADER.size + batches.DELIVER.size

PING = pack(Kind.PING, 0)

Address = tuple[str, int]
Login = tuple[str, str]


def address_of(url: str) -> tuple[Address, Login | None]:
    """Where a URL points, and who is to log in there."""
    parts = urlsplit(url)
    if parts.scheme != "headwater" or not parts.hostname or "," in parts.netloc:
        raise Malformed(f'"{url}" is no address to measure; write headwater://[USER:SECRET@]HOST[:PORT]')
    login = (parts.username, parts.password or "") if parts.username else None
    return (parts.hostname, parts.port or 7411), login


def url_of(address: Address, login: Login | None) -> str:
    """The same the other way round."""
    user = f"{login[0]}:{login[1]}@" if login is not None else ""
    return f"headwater://{user}{address[0]}:{address[1]}"


def connect(address: Address) -> socket.socket:
    """A connection on which nothing was said yet."""
    made = socket.create_connection(address, WAIT_S_MAX)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Raw:
    """One registered client that blocks."""

    def __init__(self, address: Address, login: Login | None = None) -> None:
        self.socket = connect(address)
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._frames: deque[Frame] = deque()
        self._last = 0
        greeting = Greeting(login)
        self.socket.sendall(greeting.hello())
        while (answer := greeting.answer(self.read())) is not None:
            self.socket.sendall(answer)

    def read(self) -> Frame:
        while not self._frames:
            received = self.socket.recv(READ_BYTES)
            if not received:
                raise Failed("the broker has closed the connection")
            self._frames.extend(self._reader.feed(received))
        return self._frames.popleft()

    def next_id(self) -> int:
        """A number for a request."""
        self._last += 1
        return self._last

    def ask(self, request: Request[A]) -> A:
        """Ask, and wait for the answer; what else comes meanwhile is dropped."""
        number = self.next_id()
        self.socket.sendall(requests.pack_request(number, request))
        while True:
            frame = self.read()
            if frame.kind == Kind.REPLY and frame.id == number:
                answer: A = requests.decode(frame.payload, REPLIES[type(request)])
                return answer
            check(frame)

    def subscribe(self, number: int, filter: str, kind: str, **more: Any) -> None:
        """Subscribe, and wait for the answer."""
        self.ask(subscription(number, filter, kind, **more))

    def publish(self, frame: bytes) -> None:
        """Send a PUBLISH frame, and wait until it is on disk."""
        self.socket.sendall(frame)
        while (answer := self.read()).kind != Kind.PUBLISHED:
            check(answer)

    def ping(self) -> None:
        """Have the loop answer, which is all that this takes."""
        self.socket.sendall(PING)
        while (answer := self.read()).kind != Kind.PONG:
            check(answer)

    def close(self) -> None:
        """Leave, and leave nothing behind."""
        try:
            self.socket.sendall(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye(end_session=True))))
        except OSError:
            pass
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Greeting:
    """The client's half of the handshake, without the connection."""

    def __init__(
        self, login: Login | None = None, expire_after_s: float | None = None, session: str | None = None
    ) -> None:
        self._login = ClientLogin(*login) if login is not None else None
        self._expire_after_s = expire_after_s
        self._session = session

    def hello(self) -> bytes:
        """What is said first."""
        first = self._login.first() if self._login is not None else b""
        mechanism: handshake.Mechanism = "scram-sha-256" if self._login is not None else "none"
        return pack(Kind.HELLO, 0, requests.encode(handshake.Hello(mechanism=mechanism, first=first)))

    def answer(self, frame: Frame) -> bytes | None:
        """What is said next; None once the session is there."""
        if frame.kind == Kind.CHALLENGE:
            challenge = requests.decode(frame.payload, handshake.Challenge)
            final = self._login.respond(challenge.first) if self._login is not None else b""
            return pack(Kind.RESPONSE, 0, requests.encode(handshake.Response(final=final)))
        if frame.kind == Kind.OK:
            if self._login is not None:
                self._login.verify(requests.decode(frame.payload, handshake.Welcome).final)
            register = requests.Register(session=self._session, expire_after_s=self._expire_after_s)
            return pack(Kind.OK, 0) + requests.pack_request(1, register)
        if frame.kind == Kind.REPLY:
            return None
        check(frame)
        return b""


def subscription(number: int, filter: str, kind: Any, **more: Any) -> requests.Subscribe:
    """A subscription with as much credit as there is."""
    credit: dict[str, Any] = {"credit_messages": CREDIT_MESSAGES, "credit_bytes": CREDIT_BYTES}
    return requests.Subscribe(number=number, filter=filter, kind=kind, **credit, **more)


def check(frame: Frame) -> None:
    """Raise what a frame says went wrong."""
    if frame.kind == Kind.ERROR:
        raise requests.error_of(requests.decode(frame.payload, requests.Problem))
    if frame.kind == Kind.GOODBYE:
        problem = requests.decode(frame.payload, requests.Goodbye).problem
        raise requests.error_of(problem) if problem is not None else Failed("the broker has said goodbye")


def publish_frame(messages: Messages, time_us: int, id: int = 1, flags: int = 0) -> bytes:
    """A PUBLISH frame of messages of one root."""
    topics = [topic for topic, _ in messages]
    body = encode_body(topics, [payload for _, payload in messages], time_us)
    root = topics[0].partition("/")[0]
    return b"".join(batches.pack_publish(id, root, len(messages), checksum(body), body, flags=flags))


class Tally:
    """Walks over what is received, frame by frame, and looks at their heads alone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._skip = 0
        self.bytes = 0
        """All that was received."""

    def receive(self) -> list[tuple[int, int, int, bytes]]:
        """Wait for bytes; the frames that begin in them: kind, id, payload's length, and the start of the payload."""
        received = self._connection.recv_into(self._view[self._filled :])
        if not received:
            raise Failed("the broker has closed the connection")
        self.bytes += received
        end, at = self._filled + received, 0
        if self._skip >= end:
            self._skip -= end
            self._filled = 0
            return []
        at, self._skip = self._skip, 0
        found = []
        while end - at >= HEADER.size:
            length, kind, _, _, number = HEADER.unpack_from(self._buffer, at)
            whole = LENGTH_BYTES + length
            if end - at < min(whole, HEAD_BYTES):
                break
            found.append((kind, number, whole - HEADER.size, bytes(self._view[at + HEADER.size : at + HEAD_BYTES])))
            at += whole
            if at > end:
                self._skip, at = at - end, end
                break
        left = end - at
        self._buffer[:left] = self._buffer[at:end]
        self._filled = left
        return found
