"""MQTT over WebSocket, at /mqtt: the bytes of a WebSocket, passed on to the server as they are, and its bytes back.

Nothing is read here that the other side does not take: each direction waits for what it has passed on, so a tunnel
holds a few pieces at most. Whoever ends, a WebSocket is closed as its client expects, with a close frame, also while
it goes on sending. Who may come in, and what for, the server decides by what the client says in MQTT; that a
page of another site may not even ask is the guard's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from headwater.admin.gate import address_of, is_local
from headwater.admin.websocket_protocol import OPEN, TUNNEL_PATH
from headwater.mqtt.kinds import Kind
from headwater.mqtt.tunnel import preamble
from headwater.serving.outside import Outside

SUBPROTOCOL = "mqtt"
CONNACK = Kind.CONNACK << 4
PIECE_BYTES = 64 * 1024
UNSENT_BYTES_MAX = 16 * 1024
"""What waits here for the server to take it; beyond it nothing more is taken from the client."""
CLOSE_S = 5.0
DONE = 1000
NO_MQTT = 1002
NO_TEXT = 1003
GOING = 1001
REFUSED = 1008

router = APIRouter()


@router.websocket(TUNNEL_PATH)
async def tunnel(websocket: WebSocket) -> None:
    """Pass on what an MQTT client sends, and what it is sent, until either side ends."""
    outside: Outside = websocket.app.state.outside
    path = outside.mqtt_path
    if outside.is_open and not is_local(websocket):  # where nobody is asked, somebody else's proxy is not let in
        await websocket.close(REFUSED)
        return
    if SUBPROTOCOL not in websocket.scope.get("subprotocols", ()) or not path:
        await websocket.close(NO_MQTT)
        return
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=PIECE_BYTES)
    except OSError:  # the server ends
        await websocket.close(GOING)
        return
    writer.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
    writer.write(preamble(address_of(websocket)))
    await websocket.accept(SUBPROTOCOL)
    inward = asyncio.create_task(_inward(websocket, writer))
    outward = asyncio.create_task(_outward(reader, websocket))
    try:
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
    finally:
        inward.cancel()
        outward.cancel()
        (code, _) = await asyncio.gather(inward, outward, return_exceptions=True)
        writer.close()
        if WebSocketState.DISCONNECTED not in (websocket.client_state, websocket.application_state):
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):  # it may end just now
                async with asyncio.timeout(CLOSE_S):  # a client that reads nothing does not hear of it
                    await websocket.close(code if isinstance(code, int) else DONE)


async def _inward(websocket: WebSocket, writer: asyncio.StreamWriter) -> int:
    """Until the client ends, or says what is no MQTT, or the server has gone; returns the code to close with."""
    with contextlib.suppress(ConnectionError):
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            if data is None:
                return NO_TEXT
            writer.write(data)
            await writer.drain()
    return DONE


async def _outward(reader: asyncio.StreamReader, websocket: WebSocket) -> None:
    """Until the server ends, or the client has gone. The first piece that begins with a CONNACK lets the client in, or
    is the last: until then it is asked for a proof, and answers."""
    lift: Callable[[], None] | None = websocket.scope["extensions"].get(OPEN)
    with contextlib.suppress(WebSocketDisconnect, ConnectionError, RuntimeError):  # it may end between two pieces
        while data := await reader.read(PIECE_BYTES):
            if lift is not None and data[0] == CONNACK:
                lift()
                lift = None
            await websocket.send_bytes(data)
