"""Destinations of channels for tests: an HTTP server that says what it is told to, and a receiver frame by frame."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headwater.wire import batches, requests
from headwater.wire.channel import ChannelHello, ChannelWelcome
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.reader import FrameReader
from headwater.wire.requests import encode
from server.harness import PATIENCE_S, Got, messages_of


def until(test: Callable[[], Any], what: str = "it") -> Any:
    """Look again and again until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not (found := test()):
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
    return found


class Listening(ABC):
    """A socket that listens, with a thread for each who connects."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.connections: list[socket.socket] = []
        self._is_open = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.settimeout(PATIENCE_S)
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            self.serve(connection)

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """What one that listens does with who has connected."""

    def close(self) -> None:
        self._is_open = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE_S)
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# HTTP


@dataclass
class Posted:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        """The CloudEvents in it, as JSON has them."""
        if self.headers["content-type"] == "application/cloudevents-batch+json":
            found: list[dict[str, Any]] = json.loads(self.body)
            return found
        named = {name[3:]: value for name, value in self.headers.items() if name.startswith("ce-")}
        return [{**named, "data_base64": base64.b64encode(self.body).decode()}]

    @property
    def payloads(self) -> list[bytes]:
        return [base64.b64decode(event.get("data_base64", "")) for event in self.events]

    def is_signed_with(self, secret: str) -> bool:
        """What docs/guide/channels.md tells receivers to do."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return hmac.compare_digest(wanted, self.headers["webhook-signature"])


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """An answer."""
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {code} X", f"content-length: {len(body)}", *headers))
    return head.encode() + b"\r\n" + body


OK = status(204)


class Site(Listening):
    """Answers what `answer` gives: bytes, which are sent as they are, or None to close."""

    def __init__(self, answer: Callable[[Posted], bytes | None] | None = None, port: int = 0) -> None:
        self.answer = answer or (lambda _: OK)
        self.posted: list[Posted] = []
        super().__init__(port)

    def serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while (line := stream.readline()) != b"":
            head: dict[str, str] = {}
            while (field := stream.readline().strip()) != b"":
                name, _, value = field.decode().partition(":")
                head[name.lower()] = value.strip()
            posted = Posted(line.decode().split()[1], head, stream.read(int(head["content-length"])))
            self.posted.append(posted)
            answer = self.answer(posted)
            if answer is None:
                return
            connection.sendall(answer)

    @property
    def payloads(self) -> list[bytes]:
        """Of all that came, answered well or not."""
        return [payload for posted in tuple(self.posted) for payload in posted.payloads]


# TCP


class Teller:
    """One connection of a broker, frame by frame."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = FrameReader(1 << 30)
        self._inbox: list[Frame] = []
        self._id = 0

    def frame(self, *kinds: int) -> Frame:
        """The next frame, or the next of these kinds; EOFError at the end."""
        while True:
            for place, frame in enumerate(self._inbox):
                if not kinds or frame.kind in kinds:
                    return self._inbox.pop(place)
            received = self.socket.recv(1 << 16)
            if not received:
                raise EOFError
            self._inbox += self._reader.feed(received)

    def hello(self) -> ChannelHello:
        found: ChannelHello = requests.decode(self.frame(Kind.HELLO).payload, ChannelHello)
        return found

    def welcome(self, messages: int = 1000, size: int = 1 << 20, version: int = 1) -> None:
        said = ChannelWelcome(version=version, credit_messages=messages, credit_bytes=size)
        self.send(pack(Kind.OK, 0, encode(said)))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def delivered(self) -> list[Got]:
        return messages_of(self.frame(Kind.DELIVER))

    def ack(self, *ranges: batches.Range, number: int = 1) -> Frame:
        self._id += 1
        self.send(batches.pack_ranges(Kind.ACK, self._id, number, ranges))
        return self.frame(Kind.REPLY, Kind.ERROR)

    def ack_all(self, messages: Sequence[Got]) -> None:
        assert self.ack(*[(one.lease, one.offset, one.offset) for one in messages]).kind == Kind.REPLY


class Scripted(Listening):
    """A receiver that does as the script says, with each who connects."""

    def __init__(self, script: Callable[[Teller], object], port: int = 0) -> None:
        self._script = script
        self.served = 0
        self.troubles: list[BaseException] = []
        super().__init__(port)

    def serve(self, connection: socket.socket) -> None:
        self.served += 1
        try:
            self._script(Teller(connection))
        except (EOFError, OSError):
            return
        except BaseException as error:
            self.troubles.append(error)
            raise


@contextmanager
def free_port() -> Iterator[int]:
    """A port where nobody listens but who is told to: it is held, so that the system gives it to nobody else."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
