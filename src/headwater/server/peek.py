"""Looks at the first bytes of a connection without taking them, before anybody speaks a protocol with it."""

from __future__ import annotations

import asyncio
import socket


async def peek(loop: asyncio.AbstractEventLoop, made: socket.socket, size: int, more: int = 0) -> bytes:
    """What has come, at least so many bytes of it, which stays where it is; ConnectionError if the end came first."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    while True:
        try:
            found = made.recv(max(size, more), socket.MSG_PEEK)
        except BlockingIOError:
            found = b""
        else:
            if not found:
                raise ConnectionResetError("it went before it said anything")
        if len(found) >= size:
            return found
        await _readable(loop, made)
        if found and made.recv(size, socket.MSG_PEEK) == found:
            raise ConnectionResetError("it went before it had said all")


async def _readable(loop: asyncio.AbstractEventLoop, made: socket.socket) -> None:
    come = loop.create_future()

    def tell() -> None:
        if not come.done():
            come.set_result(None)

    loop.add_reader(made, tell)
    try:
        await come
    finally:
        loop.remove_reader(made)
