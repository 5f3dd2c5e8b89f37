"""A protocol plugs in: one that speaks lines, beside the native one, on a socket of its own.

PUB topic payload     published: OK, once it is on disk
SUB filter            from now on each message that matches comes as a line: MSG topic payload
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

import headwater
from headwater.delivery.selection import Selection
from headwater.errors import HeadwaterError, Malformed
from headwater.server.connection import Connection, Elsewhere
from headwater.server.entry import Served
from headwater.server.extension import Extension
from headwater.server.live_pump import LivePump
from headwater.server.pump import UNBOUNDED, Pump
from headwater.server.session import Session
from headwater.server.session_row import SessionRow
from headwater.topics.name import root_of
from server.harness import PATIENCE_S, SECRET, Running

CLIENT = "line:"
"""What the client ids of its sessions begin with."""


class LineConnection(Connection):
    """A client that speaks lines."""

    def __init__(self, protocol: LineProtocol) -> None:
        super().__init__(protocol.server.listener)
        self._protocol = protocol
        self._rest = b""

    language = "lines"

    def take(self, data: memoryview) -> None:
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if self.session is None:
            self._protocol.greet(self)
        assert self.session is not None
        self.session.tell(lines)

    def say(self, error: BaseException | None) -> None:
        """Say what came of a line."""
        self.write(_said(error))

    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        self.say(error)
        self.close()

    def say_goodbye(
        self, error: HeadwaterError | None = None, reconnect: bool = False, elsewhere: Elsewhere | None = None
    ) -> None:
        self.close()

    def answers(self, items: Sequence[Served]) -> bytes:
        return b"".join(_said(item.error) for item in items)

    def look_after(self, now_s: float) -> None:
        """Lines may be as rare as they like."""


def _said(error: BaseException | None) -> bytes:
    return b"OK\n" if error is None else f"ERR {getattr(error, 'code', 500)}\n".encode()


class LineSession(Session):
    """Such a client's session."""

    room = share_max = 1 << 30

    def receive(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                self._take(cast(LineConnection, self.connection), line.decode())
            except HeadwaterError as error:
                cast(LineConnection, self.connection).refuse(error)

    def _take(self, connection: LineConnection, line: str) -> None:
        broker, row = self.sessions.broker, self.row
        core = broker.core
        match line.split(" ", 2):
            case ["PUB", topic, payload]:
                part = core.checks.singles(root_of(topic), (topic,), (payload.encode(),))
                broker.check_publish(row.user, row.id, part)
                self.sessions.entry.take(connection, None, part, 0)
            case ["SUB", filter]:
                number = len(self.pumps) + 1
                self._open(number, filter, lambda: core.listen(filter), self._serve, connection.say)
            case _:
                raise Malformed(f"{line!r} is no line of this protocol")

    def _serve(self, live: Any) -> LivePump:
        return LivePump(self, len(self.pumps) + 1, live, UNBOUNDED)

    def deliver(self, subscriber: Pump, selection: Selection) -> int:
        assert self.connection is not None
        data = b"".join(f"MSG {one.topic} ".encode() + one.payload + b"\n" for one in selection.taken())
        self.connection.write(data)
        return len(data)

    def recall(self, subscriber: Pump, ranges: object) -> None: ...

    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None: ...

    def answer_when(self, id: int, future: Future[object]) -> None: ...


class LineProtocol(Extension):
    """Speaks lines, on a port of its own."""

    port = 0

    def session_of(self, row: SessionRow) -> Session | None:
        return LineSession(self.server.sessions, row) if (row.client or "").startswith(CLIENT) else None

    async def start(self) -> None:
        self.port = await self.server.listen("lines", lambda: LineConnection(self), "127.0.0.1", 0)

    def greet(self, connection: LineConnection) -> None:
        """Everybody is let in, as a user of this protocol."""
        connection.user, id = "liner", secrets.token_hex(8)
        row = SessionRow(id=id, user="liner", expire_after_s=0.0, client=CLIENT + id)
        self.server.sessions.open(row, connection, lambda *_: None)
        self.server.listener.on_registered(connection)


@contextmanager
def client(running: Running) -> Iterator[Any]:
    """Somebody who speaks lines: a file to read and write them."""
    port = running.server.extension(LineProtocol).port
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line, line.makefile("rw") as file:
        yield file


def say(file: Any, text: str) -> str:
    """Send a line, and read one."""
    file.write(f"{text}\n")
    file.flush()
    return str(file.readline())


def test_a_protocol_of_lines_is_served_beside_the_native_one():
    with (
        Running(others=(LineProtocol,)) as running,
        client(running) as line,
        headwater.connect(running.server.url) as bus,
        bus.subscribe("home/#") as live,
    ):
        assert say(line, "SUB home/#") == "OK\n"
        assert {say(line, "PUB home/a from a line"), line.readline()} == {"OK\n", "MSG home/a from a line\n"}
        assert live.next(PATIENCE_S).payload == b"from a line"  # type: ignore[union-attr]
        bus.publish_many([("home/b", b"1"), ("garden/x", b"2"), ("home/c", b"3")])
        assert [line.readline() for _ in range(2)] == ["MSG home/b 1\n", "MSG home/c 3\n"]


def test_its_clients_have_the_rights_that_rules_give_them_and_what_is_no_line_is_refused():
    with Running(auth="scram", others=(LineProtocol,)) as running:
        running.bus.clients.add("liner", SECRET)
        running.bus.acl.allow("liner", "publish", "home/#")
        running.bus.acl.allow("liner", "create", "home/#")
        with client(running) as line:
            assert say(line, "PUB home/a x") == "OK\n"
            assert say(line, "PUB garden/a x") == "ERR 403\n"
        with client(running) as line:
            assert say(line, "nonsense") == "ERR 422\n"
        assert [one.topic for one in running.bus.replay("#") if one.root != "$sys"] == ["home/a"]


def test_its_stored_sessions_are_its_own_after_a_restart(tmp_path: Path):
    with Running(tmp_path, others=(LineProtocol,)) as running, client(running) as line:
        assert say(line, "PUB home/a x") == "OK\n"
        (session,) = running.server.sessions.all()
        row = session.row = msgspec.structs.replace(session.row, expire_after_s=3600.0)
        running.run(_stored(running, row))
    with Running(tmp_path, others=(LineProtocol,)) as running:
        assert [type(session) for session in running.server.sessions.all()] == [LineSession]


async def _stored(running: Running, row: SessionRow) -> None:
    stored = asyncio.Event()
    running.server.sessions.keep(row, lambda *_: stored.set())
    await stored.wait()
