"""A network in memory: connections whose bytes stay in order, and everything else may happen to.

Bytes of one direction arrive in order, in pieces that the seed chooses, after delays that it chooses; so connections
overtake one another. A connection can stall, be reset, or go silent without a word, as when a cable is pulled; and new
ones can fail to get through. What a process has not read waits in its machine's buffer, which is small: who writes to
somebody that does not read has to wait, as with real sockets.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.world import SECOND_US, Process, World

if TYPE_CHECKING:
    from sim.loop import Loop

WINDOW_BYTES = 32 * 1024
"""What is on its way or in the receiving machine's buffer, per direction."""
FIN = None
"""Among bytes on their way: there are no more."""


class Server:
    """A port that is listened on, as asyncio's servers are."""

    def __init__(self, network: Network, loop: Loop, factory: Callable[[], Any], port: int) -> None:
        self._network = network
        self.loop = loop
        self.factory = factory
        self.port = port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        """It is closed at once."""

    def is_serving(self) -> bool:
        return self._network.is_listening(self)


class Network:
    """All connections, and what befalls them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connections: dict[int, Connection] = {}
        self.latency_us = (20, 400)
        self._ports: dict[int, Server] = {}
        self._last_port = 40_000
        self._number = 0
        self.cut_off_until_us = 0
        """Until when no connection gets through."""

    # Faults

    def cut_off(self, seconds: float) -> None:
        """For a while nothing gets through: connections go silent for ever, and new ones find nobody."""
        self.cut_off_until_us = self.world.now_us + int(seconds * SECOND_US)
        for connection in tuple(self.connections.values()):
            connection.go_silent()

    # Listening and connecting

    def listen(self, loop: Loop, factory: Callable[[], Any], port: int) -> Server:
        if not port:
            self._last_port += 1
            port = self._last_port
        if port in self._ports:
            raise OSError(errno.EADDRINUSE, "the port is in use")
        server = self._ports[port] = Server(self, loop, factory, port)
        loop.process.on_death.append(server.close)
        return server

    def unlisten(self, server: Server) -> None:
        if self.is_listening(server):
            del self._ports[server.port]

    def is_listening(self, server: Server) -> bool:
        return self._ports.get(server.port) is server

    def latency(self) -> int:
        rng = self.world.rng
        low, high = self.latency_us
        if rng.random() >= 0.95:
            low, high = high, 50 * high
        return low + rng._randbelow(high - low + 1)  # type: ignore[attr-defined, no-any-return]  # what `randint` asks

    async def connect(self, loop: Loop, factory: Callable[[], Any], port: int) -> tuple[Any, Any]:
        world = self.world
        made: asyncio.Future[End | None] = loop.create_future()

        def answer(end: End | None) -> None:
            def tell() -> None:
                if not made.done():
                    made.set_result(end)
                elif end is not None:
                    end.abort()

            loop.post(tell)

        def arrive() -> None:
            if world.now_us < self.cut_off_until_us or loop.process.is_dead:
                return
            server = self._ports.get(port)
            if server is None or server.loop.process.is_dead:
                world.after(self.latency(), lambda: answer(None))
                return
            self._number += 1
            connection = Connection(self, self._number, loop, server.loop)
            world.note(f"connect {connection.number} {loop.process.name} to {server.loop.process.name}")
            server.loop.post(connection.far.begin, server.factory)
            world.after(self.latency(), lambda: answer(connection.near))

        world.after(self.latency(), arrive)
        end = await made
        if end is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        end.begin(factory)
        return end, end.protocol


class Connection:
    """Two ends, and a way in each direction."""

    def __init__(self, network: Network, number: int, near: Loop, far: Loop) -> None:
        self.network = network
        self.number = number
        self.is_silent = False
        self.stalled_until_us = 0
        self.near = End(self, near, number * 2)
        self.far = End(self, far, number * 2 + 1)
        self.near.peer, self.far.peer = self.far, self.near
        network.connections[number] = self

    def go_silent(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self.is_silent = True

    def stall(self, seconds: float) -> None:
        """Nothing arrives for a while, then everything."""
        self.stalled_until_us = self.network.world.now_us + int(seconds * SECOND_US)

    def reset(self) -> None:
        """Both ends are told that the connection is gone; what was under way is."""
        for end in (self.near, self.far):
            end.reset_soon()
        self.is_silent = True

    def forget(self) -> None:
        if self.near.is_lost and self.far.is_lost:
            self.network.connections.pop(self.number, None)


class End(asyncio.Transport):
    """One end of a connection: the transport of a protocol."""

    peer: End

    def __init__(self, connection: Connection, loop: Loop, number: int) -> None:
        super().__init__()
        self.connection = connection
        self.loop = loop
        self.process: Process = loop.process
        self.world: World = loop.world
        self.number = number
        self.protocol: Any = None
        self.is_lost = False
        """Whether its protocol has heard the last of it."""
        self._is_closing = False
        self._is_begun = False
        self._has_fin = False
        self._is_paused = False
        self._is_reading = False
        self._out: deque[bytes | None] = deque()
        self._out_bytes = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = False
        self._way: deque[tuple[int, bytes | None]] = deque()
        """What is on its way to the peer: when it arrives, and what."""
        self._way_bytes = 0
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._is_reset = False
        self.process.ends[self] = None
        self.process.on_death.append(self._die)

    def begin(self, factory: Callable[[], Any]) -> None:
        """Its protocol is told; in the loop's own turn."""
        if self._is_reset:
            self._is_begun = True
            self.protocol = factory()
            self.protocol.connection_made(self)
            self._lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            return
        self._is_begun = True
        self.protocol = factory()
        self.protocol.connection_made(self)
        self._read_soon()

    # What protocols ask for

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return ("127.0.0.1", 50_000 + self.number)
        if name == "sockname":
            return ("127.0.0.1", 7411)
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._check_full()

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write(self, data: Any) -> None:
        if self._is_closing or self.process.is_dead or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._send()
        self._check_full()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._has_fin and not self._is_closing:
            self._has_fin = True
            self._out.append(FIN)
            self._send()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._read_soon()

    def is_reading(self) -> bool:
        return not self._is_paused

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._has_fin:
            self._has_fin = True
            self._out.append(FIN)
            self._send()
        if not self._out:
            self.loop.post(self._lose, None)

    def abort(self) -> None:
        if self.is_lost or self._is_reset:
            return
        self._is_closing = True
        self._out.clear()
        self._out_bytes = 0
        if not self.connection.is_silent:
            self.peer.reset_soon()
        self.loop.post(self._lose, None)

    # The way there

    def _send(self) -> None:
        """Put as much on its way as there is room for."""
        world, peer = self.world, self.peer
        while self._out and self._way_bytes + peer._inbox_bytes < WINDOW_BYTES:
            piece = self._out.popleft()
            if piece is not None:
                room = WINDOW_BYTES - self._way_bytes - peer._inbox_bytes
                size = len(piece)
                if size > 1 and world.rng.random() < 0.05:
                    room = min(room, world.rng.randint(1, size))
                if size > room:
                    self._out.appendleft(piece[room:])
                    piece = piece[:room]
                self._out_bytes -= len(piece)
                self._way_bytes += len(piece)
            arrives_us = world.now_us + self.connection.network.latency()
            if self._way:
                arrives_us = max(arrives_us, self._way[-1][0])
            else:
                world.at(arrives_us, self._arrive)
            self._way.append((arrives_us, piece))

    def _arrive(self) -> None:
        """The first piece on its way reaches the other machine."""
        if not self._way:
            return
        connection, world, peer = self.connection, self.world, self.peer
        if connection.stalled_until_us > world.now_us:
            world.at(connection.stalled_until_us, self._arrive)
            return
        if connection.is_silent:
            self._way.clear()
            return
        while self._way and self._way[0][0] <= world.now_us:
            _, piece = self._way.popleft()
            if piece is not None:
                self._way_bytes -= len(piece)
            if peer.process.is_dead:
                if peer.process.is_powered and piece is not None:
                    self.reset_soon()
            elif peer.is_lost:
                if piece is not None:
                    self.reset_soon()  # nobody reads it any more
            elif not (peer._is_reset or peer._is_closing):
                peer._take(piece)
        if self._way:
            world.at(self._way[0][0], self._arrive)

    def _take(self, piece: bytes | None) -> None:
        if piece is not None:
            self.world.note(f"bytes {self.number} {len(piece)}")
            self._inbox_bytes += len(piece)
            self._inbox.append(piece)
        else:
            self.world.note(f"fin {self.number}")
            self._inbox.append(b"")
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._is_reading and self._inbox and not self._is_paused and self._is_begun:
            self._is_reading = True
            self.loop.post(self._read)

    def _read(self) -> None:
        """In the loop's turn: hand what has arrived to the protocol."""
        self._is_reading = False
        if self._is_paused or self._is_closing or not self._inbox:
            return
        if self._inbox[0] == b"":
            self._inbox.popleft()
            if not self.protocol.eof_received():
                self.close()
            return
        if hasattr(self.protocol, "get_buffer"):
            view = self.protocol.get_buffer(-1)
            size = 0
            while self._inbox and self._inbox[0] and size + len(self._inbox[0]) <= len(view):
                piece = self._inbox.popleft()
                view[size : size + len(piece)] = piece
                size += len(piece)
            if not size:
                piece = self._inbox.popleft()
                size = len(view)
                view[:] = piece[:size]
                self._inbox.appendleft(piece[size:])
            self._inbox_bytes -= size
            self._call(self.protocol.buffer_updated, size)
        else:
            piece = self._inbox.popleft()
            self._inbox_bytes -= len(piece)
            self._call(self.protocol.data_received, piece)
        peer = self.peer
        if peer._out and not peer.process.is_dead:
            peer._send()
            peer._room_soon()
        self._read_soon()

    def _call(self, do: Callable[[Any], None], argument: Any) -> None:
        """A protocol whose method raises loses its connection, as asyncio has it."""
        try:
            do(argument)
        except Exception as error:
            self.world.trouble(self.process, "a protocol failed", error)
            self.abort()

    # Flow

    def _check_full(self) -> None:
        if self._out_bytes > self._high and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def _room_soon(self) -> None:
        if (self._is_full and self._out_bytes <= self._low) or (self._is_closing and not self._out):
            self.loop.post(self._on_room)

    def _on_room(self) -> None:
        if self._is_closing and not self._out:
            self._lose(None)
        elif self._is_full and self._out_bytes <= self._low:
            self._is_full = False
            self.protocol.resume_writing()

    # Ends

    def reset_soon(self) -> None:
        """The machine of this end hears that the connection is gone, after a while."""
        if self.process.is_dead or self._is_reset:
            return
        self._is_reset = True

        def arrive() -> None:
            if self.process.is_dead:
                return
            self.world.note(f"reset {self.number}")
            self._inbox.clear()
            self._inbox_bytes = 0
            self._out.clear()
            self._out_bytes = 0
            self._is_closing = True
            self.loop.post(self._lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))

        self.world.after(self.connection.network.latency(), arrive)

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost or not self._is_begun:
            return
        self.is_lost = True
        self._is_closing = True
        self.process.ends.pop(self, None)
        self.connection.forget()
        self.protocol.connection_lost(error)

    def _die(self) -> None:
        """The process is gone; its machine tells the peer, if it still can."""
        if not self.is_lost:
            self.is_lost = True
            self.connection.forget()
            if self.process.is_powered and not self.connection.is_silent:
                self.peer.reset_soon()
