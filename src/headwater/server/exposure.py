"""Who could reach the port: without authentication, nobody but this machine may."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

from headwater.config import Serving
from headwater.errors import Malformed

ADVICE = (
    "turn authentication on with --auth scram (headwater init adds the first administrator), or listen on loopback: "
    "--host 127.0.0.1"
)


def check_exposure(serving: Serving) -> None:
    """Malformed if the settings would let strangers in: listening beyond loopback, without authentication.

    Loopback is 127.0.0.0/8 and ::1, however it is written, and names all of whose addresses are that. The Unix socket
    is guarded by the permissions of its folder.
    """
    if serving.methods:
        return
    _check_host(serving.host)
    if serving.http and serving.http_host:
        _check_host(serving.http_host)
    if serving.mqtt and serving.mqtt_host:
        _check_host(serving.mqtt_host)


def _check_host(host: str) -> None:
    if not host:
        raise Malformed(f'host "" is every address of this machine, and auth is "none"; {ADVICE}')
    outside = [address for address in addresses(host) if not is_loopback(address)]
    if outside:
        where = f'"{host}"' + ("" if outside[0] == host else f" ({outside[0]})")
        raise Malformed(f'host {where} can be reached from other machines, and auth is "none"; {ADVICE}')


def addresses(host: str) -> list[str]:
    """The addresses that listening on a host would listen on."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise Malformed(
            f'host "{host}" has no address: {why}; use 127.0.0.1, or a name that this machine has'
        ) from None
    return sorted({str(place[0]) for *_, place in found})


def plain_mqtt_host(serving: Serving) -> str:
    """Where MQTT without TLS is listened for: passwords do not travel in the open, unless somebody says that they may,
    by saying where."""
    if serving.tls_certificate and not serving.mqtt_host and not is_loopback(serving.host):
        return "127.0.0.1"
    return serving.mqtt_host or serving.host


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback
