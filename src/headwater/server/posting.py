"""Posting: one HTTP/1.1 connection to a destination, kept open between requests.

Promises: only the address that was checked is connected to, and no redirect is followed; an answer is read up to its
limits and no further, and in the time there is; whatever the other side sends, what comes out is a `Response`, or one
of the two errors below, which tell whether it may have got the request. Of what it says beyond the status nothing is
shown to anybody: who may name a destination is not to read what only this machine can reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h11
import msgspec

from headwater.errors import Disconnected, TimedOut

HEAD_BYTES_MAX = 16 * 1024
"""Of the status line and headers of an answer."""
READ_BYTES = 64 * 1024


class Unreachable(Disconnected):
    """Nobody is there: the request was not sent."""


class Unanswered(TimedOut):
    """The request was sent, and no answer that can be read came."""


class Response(msgspec.Struct, frozen=True):
    """What the destination says."""

    status: int
    retry_after: str = ""
    location: str = ""


class Poster:
    """Posts to one destination, one request after another."""

    def __init__(self, host: str, port: int, connect_s: float, answer_bytes_max: int) -> None:
        named = f"[{host}]" if ":" in host else host
        self._host = f"{named}:{port}"
        self._port = port
        self._connect_s = connect_s
        self._answer_bytes_max = answer_bytes_max
        self._connection: h11.Connection | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def post(
        self, address: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, within_s: float | None
    ) -> Response:
        """Send a request to the destination's address, and read its answer."""
        is_kept = self._connection is not None
        if not is_kept:
            await self._connect(address)
        try:
            return await self._exchange(path, headers, body, within_s)
        except EOFError:
            if not is_kept:
                raise Unanswered(f"{self._host} closed the connection without an answer") from None
        # A connection that was kept open may be closed by the other side just when it is used: that is no failure yet.
        await self._connect(address)
        try:
            return await self._exchange(path, headers, body, within_s)
        except EOFError:
            raise Unanswered(f"{self._host} closed the connection without an answer") from None

    async def _connect(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                self._reader, self._writer = await asyncio.open_connection(address, self._port, limit=READ_BYTES)
        except TimeoutError:
            raise Unreachable(
                f"{self._host} took no connection within {self._connect_s:g} s (channel_connect_s)"
            ) from None
        except OSError as error:
            raise Unreachable(f"{self._host} cannot be reached: {error.strerror or error}") from None
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def _exchange(
        self, path: str, headers: Sequence[tuple[str, str]], body: bytes, within_s: float | None
    ) -> Response:
        """EOFError if the connection was lost before anything came back."""
        connection = self._connection
        assert connection is not None
        try:
            async with asyncio.timeout(within_s):
                await self._send(connection, path, headers, body)
                return await self._read(connection)
        except TimeoutError:
            raise Unanswered(f"{self._host} did not answer within {within_s:g} s") from None
        except h11.RemoteProtocolError:
            raise Unanswered(f"{self._host} does not speak HTTP") from None
        except OSError as error:
            raise EOFError from error
        finally:
            if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
                connection.start_next_cycle()
            else:
                self.close()

    async def _send(
        self, connection: h11.Connection, path: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> None:
        given = [("host", self._host), ("content-length", str(len(body))), *headers]
        head = connection.send(h11.Request(method="POST", target=path, headers=given))
        data = connection.send(h11.Data(data=body)) if body else b""
        connection.send(h11.EndOfMessage())
        self._writer.writelines((head or b"", data or b""))
        await self._writer.drain()

    async def _read(self, connection: h11.Connection) -> Response:
        answer: Response | None = None
        received = 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if received > HEAD_BYTES_MAX + self._answer_bytes_max:
                    if answer is None:
                        raise Unanswered(f"{self._host} sends without end and gives no status")
                    return answer
                more = await self._reader.read(READ_BYTES)
                if not more and not received:
                    raise EOFError
                received += len(more)
                connection.receive_data(more)
            elif isinstance(event, h11.Response):
                found = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                answer = Response(event.status_code, found.get("retry-after", ""), found.get("location", ""))
            elif answer is not None and not isinstance(event, h11.InformationalResponse | h11.Data):
                return answer

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection = None
            self._writer.close()
