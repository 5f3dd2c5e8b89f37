"""The guard in front of everything that HTTP serves: who asks, sites, sizes, times, and what browsers are told.

Nothing of the API is reached by those who may not come in. Whatever comes after it, the API and the dashboard alike: a
request of another site's page changes nothing, a body is at most `http_body_bytes_max` long and there in time, and no
page of ours is shown within another's.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.admin.api.problem import of_error
from headwater.admin.gate import Gate
from headwater.errors import HeadwaterError, TimedOut, TooLarge
from headwater.serving.outside import Outside

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
API = "/v1"
GUARDED = (f"{API}/", "/metrics")
"""What those who may not come in do not reach."""
STALLED_S = 60.0
"""Who takes nothing of an answer for so long is cut off."""


class TooSlow(TimedOut):
    """A body did not come, or an answer was not taken, in time."""

    code = 408


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, gate: Gate, outside: Outside) -> None:
        self._app = app
        self._gate = gate
        self._bytes_max = outside.body_bytes_max
        self._body_s = outside.body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            send = _with_headers(send, scope["path"].startswith(f"{API}/"))
            scope = _by_segments(scope)
        connection = HTTPConnection(scope)
        try:
            # A WebSocket carries changes, whatever its first request is called.
            self._gate.check_site(connection, scope.get("method", "WEBSOCKET"))
            self._check_length(connection)
            if scope["path"].startswith(GUARDED):
                # Here, so that strangers have no body read, and no route is open because it was forgotten.
                connection.state.caller = await self._gate.admit(connection)
        except HeadwaterError as error:
            await _refuse(scope, receive, send, error)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    def _check_length(self, connection: HTTPConnection) -> None:
        length = connection.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._bytes_max:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body is over the limit of {self._bytes_max} bytes (http_body_bytes_max); send it in parts"
        )

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is counted as it comes."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._body_s
        size = 0
        is_whole = has_answered = False

        async def take() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until_s):
                    message = await receive()
            except TimeoutError:
                raise TooSlow(
                    f"the body was not whole within {self._body_s:g} s (http_body_s); send it faster, or in parts"
                ) from None
            size += len(message.get("body", b""))
            if size > self._bytes_max:
                raise self._too_large()
            is_whole = not message.get("more_body", False)
            return message

        async def tell(message: Message) -> None:
            nonlocal has_answered
            has_answered = True
            try:
                async with asyncio.timeout(STALLED_S):
                    await send(message)
            except TimeoutError:
                raise TooSlow(f"nothing of the answer was taken for {STALLED_S:g} s") from None

        try:
            await self._app(scope, take, tell)
        except (TooLarge, TooSlow) as error:
            if not has_answered:
                await _refuse(scope, receive, send, error)


def _by_segments(scope: Scope) -> Scope:
    """The API finds its way by the path as it was sent: an id is one segment of it, and may hold an encoded slash."""
    raw = scope.get("raw_path")
    if raw is None or not scope["path"].startswith(f"{API}/"):
        return scope
    return {**scope, "path": raw.decode("latin-1")}


def _with_headers(send: Send, is_api: bool) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if is_api:
                headers.setdefault("Content-Security-Policy", API_POLICY)
                headers.setdefault("Cache-Control", "no-store")
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return tell


async def _refuse(scope: Scope, receive: Receive, send: Send, error: HeadwaterError) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    refusal = of_error(error)
    refusal.headers["Connection"] = "close"  # the body, if there is one, stays unread
    await refusal(scope, receive, send)
