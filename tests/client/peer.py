"""A scripted server: real sockets and the wire package, and a test that decides what it says."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from headwater.errors import HeadwaterError
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches, requests
from headwater.wire.contents import Publish
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import Challenge, Hello, Limits, Welcome
from headwater.wire.operations import read_request
from headwater.wire.reader import FrameReader

WAIT_S = 60.0

LIMITS = Limits(
    frame_bytes_max=20_000_000,
    batch_bytes_max=16_000_000,
    message_bytes_max=8_000_000,
    key_bytes_max=1024,
    headers_max=64,
    header_bytes_max=8192,
    topic_bytes_max=1024,
    topic_levels_max=32,
    root_bytes_max=100,
    producer_bytes_max=256,
    producer_window=64,
    max_in_flight_max=100_000,
    publishes_in_flight_max=64,
    subscriptions_per_session_max=1000,
    session_expire_after_s_max=1000.0,
    keepalive_s=30.0,
)


class Talk:
    """One connection of a client, as the peer has it."""

    def __init__(self, peer: Peer, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.frames: queue.Queue[Frame | None] = queue.Queue()
        self.hello: Hello | None = None
        self.credit = 0
        """Messages that the client has given credit for, after its first."""
        self.register: requests.Register | None = None

    def send(self, *pieces: bytes) -> None:
        self.sock.sendall(b"".join(pieces))

    def read(self) -> None:
        reader = FrameReader(1 << 28)
        try:
            while data := self.sock.recv(65536):
                for frame in reader.feed(data):
                    self.take(frame)
        except OSError:
            pass
        self.frames.put(None)

    def take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.HELLO:
                self.hello = requests.decode(frame.payload, Hello)
                self.send(pack(Kind.CHALLENGE, 0, requests.encode(self.peer.challenge)))
            case Kind.RESPONSE:
                welcome = Welcome(user="me", client_id="c1", limits=self.peer.limits)
                self.send(pack(Kind.OK, 0, requests.encode(welcome)))
            case Kind.OK:
                pass
            case Kind.PING:
                if self.peer.answers_pings:
                    self.send(pack(Kind.PONG))
            case Kind.REQUEST if isinstance(request := read_request(frame), requests.Register):
                self.register = request
                self.peer.on_register(self, frame.id, request)
            case _:
                if frame.kind == Kind.CREDIT:
                    self.credit += batches.read_credit(frame)[0]
                self.frames.put(frame)

    # What tests say and expect

    def next(self, kind: Kind | None = None, timeout_s: float = WAIT_S) -> Frame:
        """The next frame, which has to be of a kind; credit and taken are passed over unless asked for."""
        while True:
            frame = self.frames.get(timeout=timeout_s)
            assert frame is not None, "the client hung up"
            if kind in (Kind.CREDIT, Kind.TAKEN, None) or frame.kind not in (Kind.CREDIT, Kind.TAKEN):
                assert kind is None or frame.kind == kind, f"{Kind(frame.kind).name} came, not {kind.name}"
                return frame

    def request(self, type: Any) -> tuple[int, Any]:
        frame = self.next(Kind.REQUEST)
        request = read_request(frame)
        assert isinstance(request, type), request
        return frame.id, request

    def publish(self) -> tuple[int, Publish]:
        frame = self.next(Kind.PUBLISH)
        return frame.id, batches.read_publish(frame)

    def is_quiet(self, seconds: float = 0.15) -> bool:
        try:
            frame = self.frames.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"{frame} came")

    def reply(self, id: int, value: object = None) -> None:
        self.send(pack(Kind.REPLY, id, requests.encode(value)))

    def refuse(self, id: int, error: HeadwaterError) -> None:
        self.send(requests.pack_error(id, error))

    def published(self, *done: tuple[int, int], repeat: bool = False) -> None:
        self.send(batches.pack_published([(id, repeat, first, 1000) for id, first in done]))

    def subscribed(self, type: Any = requests.Subscribe) -> requests.Subscribe:
        """Answer the next request to subscribe."""
        id, request = self.request(type)
        self.reply(
            id,
            requests.Subscribed(number=request.number, id=request.id, filter=request.filter, kind=request.kind),
        )
        asked: requests.Subscribe = request
        return asked

    def deliver(
        self,
        number: int,
        first: int,
        payloads: list[bytes],
        *,
        topic: str = "a/b",
        lease: int = 0,
        attempt: int = 1,
        deltas: list[int] | None = None,
        flags: int = 0,
        crc: int | None = None,
        expiries: list[int] | None = None,
    ) -> None:
        body = encode_body([topic] * len(payloads), payloads, 5_000_000, expiries=expiries)
        head = batches.pack_deliver(
            number,
            lease,
            topic.partition("/")[0].encode(),
            first,
            len(payloads),
            checksum(body) if crc is None else crc,
            len(body),
            attempt,
            deltas,
            flags,
        )
        self.send(head, body)

    def notice(self, number: int, what: Any, error: HeadwaterError | None = None, count: int = 0) -> None:
        problem = requests.problem_of(error) if error is not None else None
        said = requests.Notice(what=what, problem=problem, count=count)
        self.send(pack(Kind.NOTICE, number, requests.encode(said)))

    def recall(self, number: int, *ranges: batches.Range) -> None:
        self.send(batches.pack_ranges(Kind.RECALL, number, 0, ranges))

    def goodbye(self, error: HeadwaterError | None = None, reconnect: bool = False) -> None:
        problem = requests.problem_of(error) if error is not None else None
        self.send(pack(Kind.GOODBYE, 0, requests.encode(requests.Goodbye(problem=problem, reconnect=reconnect))))

    def cut(self) -> None:
        """Lose the connection."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is gone already
        self.sock.close()


class Peer:
    """Accepts connections, shakes hands and registers; the rest is the test's."""

    def __init__(self) -> None:
        self.limits = LIMITS
        self.challenge = Challenge(version=1, software="peer")
        self.answers_pings = True
        self.sessions: set[str] = set()
        self.listed: tuple[requests.Subscribed, ...] = ()
        self.refuses: list[HeadwaterError] = []
        """What the next registrations are refused with."""
        self.on_register: Callable[[Talk, int, requests.Register], None] = self._register
        self._talks: queue.Queue[Talk] = queue.Queue()
        self._all: list[Talk] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"headwater://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = Talk(self, sock)
            self._all.append(talk)
            threading.Thread(target=talk.read, daemon=True).start()

    def _register(self, talk: Talk, id: int, request: requests.Register) -> None:
        if self.refuses:
            talk.refuse(id, self.refuses.pop(0))
            return
        resumed = request.session is not None and request.session in self.sessions
        session = request.session if resumed and request.session else f"s{len(self.sessions) + 1}"
        self.sessions.add(session)
        listed = self.listed if resumed else ()
        talk.reply(
            id, requests.Registered(session=session, resumed=resumed, expire_after_s=300.0, subscriptions=listed)
        )
        self._talks.put(talk)

    def talk(self, timeout_s: float = WAIT_S) -> Talk:
        """The next connection that has registered."""
        return self._talks.get(timeout=timeout_s)

    def is_left_alone(self, seconds: float = 0.3) -> bool:
        try:
            self._talks.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        if self._listening.fileno() < 0:
            return
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WAIT_S)
        for talk in self._all:
            talk.cut()
