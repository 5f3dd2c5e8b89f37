"""Destinations: the hosts that channels may push to.

A broker that connects to wherever it is told could be used to reach what only it can reach. Invariants:

- Only addresses that the setting `channel_hosts` names are ever connected to: within one of its networks, or of a host
  that it names.
- A name that the list could not allow, whatever it means, is not looked up.
- A host's name is looked up once; what is connected to from then on are the addresses that were found and checked, so a
  name that later means something else changes nothing.
- A name in the list stands for public and private addresses, never for loopback, link-local or other special ones:
  those are listed as networks, or not at all.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headwater.access.name import quoted
from headwater.errors import Malformed, NotAllowed

LOOPBACK = ("127.0.0.0/8", "::1")
LOOPBACK_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")
HOST_CHARS_MAX = 253
ADDRESSES_MAX = 8
"""Of one name; more are left out."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")

Address = IPv4Address | IPv6Address


class Destinations:
    """The list of hosts that may be pushed to."""

    def __init__(self, hosts: Sequence[str] = LOOPBACK) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: set[str] = set()
        for host in hosts:
            try:
                self._networks.append(ip_network(host))
            except ValueError:
                if not _NAME.fullmatch(host) or re.fullmatch(r"[\d./:]*", host):
                    raise Malformed(
                        f"setting channel_hosts has {quoted(host)}; use networks such as 10.0.0.0/8, addresses or names"
                    ) from None
                self._names.add(_plain(host))

    def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses of a destination, IPv4 first; NotAllowed (403) if one of them may not be pushed to.

        Looks a name up, which may take a while, if the list could allow it at all.
        """
        check_host(host)
        check_port(port)
        written = _written(host)
        if written is None and not self._could_allow(host):
            raise NotAllowed(
                f"channels may not push to {quoted(host)}; an administrator of the server may add it to channel_hosts"
            )
        found = _addresses(host) if written is None else [written]
        for address in found:
            if not self._allows(host, address):
                where = quoted(host) if str(address) == host else f"{quoted(host)} ({address})"
                raise NotAllowed(
                    f"channels may not push to {where}; an administrator of the server may add it to channel_hosts"
                )
        return tuple(map(str, found))

    def _could_allow(self, host: str) -> bool:
        """Whether a name may turn out to be allowed: it is on the list, or may be within a network that is. Of the
        names of others none is loopback's, so that a list with nothing else has none looked up."""
        if _plain(host) in self._names:
            return True
        return any(not network.is_loopback or _plain(host) in LOOPBACK_NAMES for network in self._networks)

    def _allows(self, host: str, address: Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        return _plain(host) in self._names and not _is_special(address)


def check_host(host: str) -> None:
    """Malformed (422) unless this can be a host: a name or an address."""
    try:
        ip_address(host)
    except ValueError:
        if len(host) > HOST_CHARS_MAX or not _NAME.fullmatch(host):
            raise Malformed(f"{quoted(host)} is no host; use a name or an address, such as 127.0.0.1") from None


def check_port(port: int) -> None:
    """Malformed (422) unless somebody can listen there."""
    if not 1 <= port <= 65_535:
        raise Malformed(f"destination_port is {port}; use 1 to 65535")


def _written(host: str) -> Address | None:
    """The address that is written there, in whatever way a system reads one (127.1, 0x7f000001); None for a name, and
    for one of an interface (%eth0), which the system has to know."""
    if "%" in host:
        return None
    try:
        return _unmapped(ip_address(host))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _addresses(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise Malformed(f"host {quoted(host)} has no address: {why}") from None
    addresses = {_unmapped(ip_address(str(place[0]))): None for *_, place in found}
    return sorted(addresses, key=lambda address: address.version)[:ADDRESSES_MAX]


def _unmapped(address: Address) -> Address:
    """An IPv4 address that is written as IPv6 is what it is."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_special(address: Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (isinstance(address, IPv4Address) and address.is_reserved)
    )


def _plain(host: str) -> str:
    return host.rstrip(".").lower()
