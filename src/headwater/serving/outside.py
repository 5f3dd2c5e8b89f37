"""What the process that serves HTTP is told at its start: one line of JSON on its input, which nobody else can read."""

from __future__ import annotations

import msgspec


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, which server to ask, and what to let in."""

    url: str
    """Of the server, natively."""
    folder: str = ""
    """Of the bus: what whoever is on the server's machine is told to run names it, and searches read it;"""
    lake: str = ""
    """and its lake, if it has one."""
    mqtt_path: str = ""
    """The door of MQTT clients that come over WebSockets: a Unix socket; empty if there is none."""
    host: str = "127.0.0.1"
    port: int = 7480
    is_open: bool = False
    """Whether those on loopback need no token: the server asks nobody who they are."""
    tls_certificate: str = ""
    tls_key: str = ""
    body_bytes_max: int = 8 * 1024 * 1024
    body_s: float = 30.0
    connections_max: int = 1000
    connections_per_address_max: int = 500
    hello_bytes_max: int = 16 * 1024
    """The longest message of a WebSocket whose MQTT client nobody knows yet."""
    followers_max: int = 100
    followers_per_client_max: int = 50
    searches_max: int = 4
    searches_per_client_max: int = 2
    queries_max: int = 2
    query_s: float = 30.0
    query_memory_bytes: int = 512 * 1024 * 1024
    node: str = ""
    """The name of this node in its cluster; empty without one,"""
    secret: bytes = b""
    """and what other nodes prove themselves with when they pass connections on."""
    log_json: bool = False
    log_level: str = "info"


RELOAD = b"reload\n"
"""What it is told later: the files of the certificate are others."""


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """What it answers, as one line of JSON on its output: its URL, or why there is none."""

    url: str = ""
    error: str = ""
