"""A small TCP proxy that is a bad network: it delays, stalls, cuts and resets, at any byte."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from typing import Literal

READ_BYTES = 65536

Fault = Literal["cut", "reset", "stall"]


class Proxy:
    """Stands between a client and a server on this machine."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self.target = port
        self.delay_s = 0.0
        """How long every piece is held back."""
        self.cuts = 0
        """How many connections were lost by now."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._ended: set[tuple[socket.socket, socket.socket]] = set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._allowed: int | None = None
        """Bytes that still pass, in both directions together, before the fault."""
        self._fault: Fault = "cut"
        self._is_closed = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"headwater://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    # Faults

    def break_after(self, allowed: int, fault: Fault = "cut") -> None:
        """Let so many more bytes pass, and then lose the connection they are on."""
        with self._lock:
            self._allowed, self._fault = allowed, fault

    def cut(self, reset: bool = False) -> None:
        """Lose every connection now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._end(pair, reset)

    def go_on_breaking(self, stop: threading.Event, pause_s: tuple[float, float], bytes_max: int) -> None:
        """Break connections at random bytes until told to stop."""
        while not stop.wait(self._random.uniform(*pause_s)):
            fault: Fault = self._random.choice(["cut", "reset"])
            if self._random.random() < 0.3:
                self.cut(reset=fault == "reset")
            else:
                self.break_after(self._random.randrange(bytes_max), fault)

    # Passing on

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            pair = (client, server)
            for sock in pair:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._is_closed:
                    self._end(pair, reset=False)
                    return
                self._pairs.append(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._pass, args=(source, sink, pair), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        try:
            while data := source.recv(READ_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                passing, is_over = self._share(len(data))
                if passing:
                    sink.sendall(data[:passing])
                if is_over:
                    if self._fault == "stall":
                        return  # half open: nothing passes in this direction, and nobody is told
                    self._end(pair, self._fault == "reset")
                    return
        except OSError:
            pass
        self._end(pair, reset=False)

    def _share(self, count: int) -> tuple[int, bool]:
        with self._lock:
            if self._allowed is None:
                return count, False
            passing = min(count, self._allowed)
            self._allowed -= passing
            if self._allowed > 0:
                return passing, False
            self._allowed = None
            return passing, True

    def _end(self, pair: tuple[socket.socket, socket.socket], reset: bool) -> None:
        """Both directions come here; the first one decides how it ends."""
        with self._ending:
            if pair in self._ended:
                return
            self._ended.add(pair)
            self.cuts += 1
        for sock in pair:
            try:
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Whoever waits in recv keeps the socket open, closed or not: it has to be woken.
                sock.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            except OSError:
                pass  # its other end has gone first
            sock.close()

    def close(self) -> None:
        self._is_closed = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60)
        self.cut()
