"""A line: the socket of a connection, as threads beside the event loop's read it and write to it.

A request costs as much as its hops from thread to thread. So a caller who has something small to send writes it by
itself where nothing waits to be sent before it, and one who waits for what will come reads by itself until that is
there: it has the *turn* to read, of which there is one. Whenever nobody has it, the loop reads.

Promises: bytes leave in the order of the calls that sent them, whichever thread they came from, and are taken in the
order in which they arrived; nobody holds up the loop longer than it takes to hand on what one read has brought; when
the connection ends, whoever reads is woken.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from headwater import threads

MS_MAX = 60_000
"""A longer wait polls again after so long."""


class Taker(Protocol):
    """Whoever takes what was read."""

    buffer: memoryview
    """Where it is read to."""

    @property
    def is_behind(self) -> bool:
        """Whether the loop has yet to look at something that was read: what a thread waits for may be in that."""

    def take_here(self, size: int) -> None:
        """So much was read, in the loop."""

    def take_elsewhere(self, size: int) -> bool:
        """So much was read, in another thread; False if some of it is for the loop to look at, which knows."""

    def on_cut(self, error: OSError | None) -> None:
        """The other side ended it; in the loop."""


class Line:
    """The socket of one connection; made in the loop, whose transport goes on to send what has to wait."""

    def __init__(self, taker: Taker, transport: asyncio.Transport, descriptor: int) -> None:
        self._taker = taker
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(fileno=os.dup(descriptor))  # its own, so that it stays what it is until `_close`
        self._turn = threads.Lock()
        """Held by whoever reads, also while there is nothing to read."""
        self._taking = threads.Lock()
        """Held while something is read and taken in another thread than the loop's."""
        self._writing = threads.Lock()
        self._rest = b""
        """What a thread could not send of what it had begun, for the loop to send first."""
        self._is_over = False
        self._is_torn = False
        """Whether something was read and not taken, behind which nothing is."""
        # The loop looks at the socket through `_watch`, from which any thread has it look away, and look again.
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._watch = select.epoll()
        except OSError:
            self._socket.close()
            raise
        self._watch.register(self._socket, select.EPOLLIN)
        transport.pause_reading()
        self._loop.add_reader(self._watch.fileno(), self._on_readable)

    # Writing

    def write(self, pieces: Iterable[bytes]) -> None:
        """Have bytes sent; in the loop."""
        with self._writing:
            self._send_rest()
            self._transport.writelines(pieces)

    def write_now(self, data: bytes) -> bool:
        """Send bytes at once, from any thread; False if others wait to be sent before, and nothing was done."""
        with self._writing:
            if self._is_over or self._rest or self._transport.get_write_buffer_size():
                return False
            try:
                sent = self._socket.send(data)
            except OSError:  # no room, or no connection any more, of which the loop hears when it reads
                return False
            if sent < len(data):
                self._rest = data[sent:]
                self._loop.call_soon_threadsafe(self.write, ())
            return True

    def _send_rest(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._transport.write(rest)

    # Reading

    def _on_readable(self) -> None:
        if self._is_over or self._is_torn or not self._turn.acquire(blocking=False):
            return  # it ends, or somebody has just taken the turn
        try:  # the turn lasts until it is taken: a thread that read on before would miss what it waits for
            self._read_here()
        finally:
            self._turn.release()
            if self._is_over:
                self._close()

    def _read_here(self) -> None:
        size, error = 0, None
        try:
            size = self._socket.recv_into(self._taker.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as caught:
            error = caught
        if size:
            self._taker.take_here(size)
        else:
            self._taker.on_cut(error)

    def read_until(self, is_there: Callable[[], bool], timeout_s: float | None) -> None:
        """Read in this thread until something is there, as long as it is this thread's turn and nothing comes that the
        loop has to look at first; whether it is there is for the caller to see."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if not self._look_away():
                return
            try:
                timeout_ms = MS_MAX if timeout_s is None else min(MS_MAX, max(0, round(timeout_s * 1000)))
                while not (self._taker.is_behind or is_there()) and self._poll.poll(timeout_ms) and self._take():
                    pass
            finally:
                self._look_again()
        finally:
            self._turn.release()
            if self._is_over:
                self._close()

    def _take(self) -> bool:
        with self._taking:
            if self._is_over or self._is_torn:
                return False
            try:
                size = self._socket.recv_into(self._taker.buffer)
                return size > 0 and self._taker.take_elsewhere(size)
            except OSError:
                return False  # the loop finds the same
            except BaseException:  # Ctrl-C, say: whatever was read is not taken as it has to be
                self._is_torn = True
                self._loop.call_soon_threadsafe(self._taker.on_cut, None)
                raise

    def _look_away(self) -> bool:
        with self._taking:
            if not self._is_over:
                self._watch.modify(self._socket, 0)
            return not self._is_over

    def _look_again(self) -> None:
        with self._taking:
            if not self._is_over:
                self._watch.modify(self._socket, select.EPOLLIN)

    # The end

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """Read no more, and wake whoever does: nothing is taken once this returns, and no thread writes; in the loop.
        With SHUT_RD the transport still sends what waits."""
        with self._taking, self._writing:
            if self._is_over:
                return
            self._send_rest()
            self._is_over = True
            self._loop.remove_reader(self._watch.fileno())
            self._watch.close()
            with suppress(OSError):  # it is not connected any more
                self._socket.shutdown(how)
        self._close()

    def _close(self) -> None:
        """Give the descriptor back, unless somebody still waits for it: they do then."""
        if self._turn.acquire(blocking=False):
            self._socket.close()
            self._turn.release()
