"""The process that serves HTTP: a client of the server on one side, the API and the dashboard on the other.

It learns from its input where to listen and whom to ask, says on its output where it listens, and ends when its input
does, which is when the server ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import sys
from typing import IO

import msgspec
import uvicorn

from headwater import aio
from headwater.admin.api.app import make_app
from headwater.admin.arrivals import HttpServer
from headwater.admin.client import Admin
from headwater.admin.http_protocol import http_of
from headwater.admin.websocket_protocol import websocket_of
from headwater.config import Connecting
from headwater.errors import HeadwaterError
from headwater.server.log import Log, configure
from headwater.serving.outside import Listening, Outside
from headwater.stdout import Stdout

NICENESS = 5
"""Its nice value: where both want the same core, the server goes first."""
SETTINGS_BYTES_MAX = 64 * 1024
CONNECT_S = 30.0
ANSWER_S = 10.0
"""How long the server may take to answer: TimedOut (504)."""
PREFETCH_MESSAGES = 1000
"""As many as a page has; who pages through history throws away what was sent beyond."""
PREFETCH_BYTES = 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
"""Of a request: its line and its headers."""
WEBSOCKET_MESSAGES_MAX = 4
"""Messages of a WebSocket that wait to be taken; beyond it nothing more is read from it."""
END_S = 2
BACKLOG = 128

log = Log("headwater.admin")


def run(settings: IO[bytes] | None = None) -> int:
    """Serve until the input ends; the exit code."""
    source = settings if settings is not None else sys.stdin.buffer
    outside = msgspec.json.decode(source.readline(SETTINGS_BYTES_MAX), type=Outside)
    configure(outside.log_json, outside.log_level)
    # Ctrl-C goes to every process of a terminal; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        door = _listen(outside)
    except OSError as error:
        _say(Listening(error=_unable(outside, error)))
        return 1
    return asyncio.run(_serve(outside, door, source))


async def _serve(outside: Outside, door: socket.socket, source: IO[bytes]) -> int:
    settings = Connecting(
        connect_timeout_s=CONNECT_S,
        request_timeout_s=ANSWER_S,
        session_expire_after_s=0.0,
        prefetch_messages=PREFETCH_MESSAGES,
        prefetch_bytes=PREFETCH_BYTES,
    )
    try:
        bus = await aio.connect(outside.url, settings)
    except HeadwaterError as error:
        _say(Listening(error=str(error)))
        return 1
    scheme = "https" if outside.tls_certificate else "http"
    host, port = door.getsockname()[:2]
    server = HttpServer(
        uvicorn.Config(
            make_app(Admin(bus), outside),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # what a proxy says about others, anybody on this machine could say
            http=http_of(outside),
            ws=websocket_of(outside),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            limit_concurrency=outside.connections_max,
            ssl_certfile=outside.tls_certificate or None,
            ssl_keyfile=outside.tls_key or None,
            timeout_graceful_shutdown=END_S,
            ws_max_size=outside.body_bytes_max,
            ws_max_queue=WEBSOCKET_MESSAGES_MAX,
            ws_per_message_deflate=False,
        ),
        outside,
        door,
    )
    loop = asyncio.get_running_loop()
    loop.add_reader(source.fileno(), _on_input, server, source)
    _say(Listening(url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"))
    try:
        await server.serve()
    finally:
        await bus.close()
    return 0


def _on_input(server: uvicorn.Server, source: IO[bytes]) -> None:
    """The certificate is another, or this is the end."""
    if os.read(source.fileno(), SETTINGS_BYTES_MAX):
        _reload(server.config)
        return
    asyncio.get_running_loop().remove_reader(source.fileno())
    server.should_exit = True


def _reload(config: uvicorn.Config) -> None:
    """Use the files of the certificate as they are now, for new connections; if they are bad, the old ones stay."""
    if not config.loaded or config.ssl is None or config.ssl_certfile is None:
        return  # they are yet to be read
    try:
        # Elsewhere first: a context that has half of a pair is of no use.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config.ssl):
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:
        log.error("certificates-kept", reason=error.strerror or error, certificate=config.ssl_certfile)
    else:
        log.info("certificates-loaded", certificate=config.ssl_certfile)


def _listen(outside: Outside) -> socket.socket:
    family = socket.AF_INET6 if ":" in outside.host else socket.AF_INET
    # With its protocol named, asyncio sends what is written at once; else each answer would wait for an ACK (40 ms).
    door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((outside.host, outside.port))
        door.listen(BACKLOG)  # who is told where it listens may come at once
    except OSError:
        door.close()
        raise
    return door


def _unable(outside: Outside, error: OSError) -> str:
    where = f"port {outside.port} of {outside.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use"
    return f"cannot listen on {where}: {error.strerror or error}"


def _say(said: Listening) -> None:
    try:
        out = Stdout()
        out.write(msgspec.json.encode(said) + b"\n")
        out.flush()
    except BrokenPipeError:  # the server is gone
        os._exit(1)
