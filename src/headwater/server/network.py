"""The network that an address counts with: whoever has one address of it has all of them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

PREFIX_BITS = 64
"""What a household, or a rented machine, is given of IPv6."""


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """What shares per address are counted by: an address of IPv4, the first half of one of IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found, PREFIX_BITS), strict=False))
