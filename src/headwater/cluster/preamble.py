"""The preamble: what a node states of a client before it passes the client's bytes on to the leader.

PROXY protocol, version 2, with one TLV of a kind that the protocol leaves to its users:

    0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A       signature
    21                                        version 2, PROXY
    11 | 21                                   TCP over IPv4 | IPv6
    u16 length                                of what follows; all numbers are big-endian
    address of the client | of the node       4 + 4 | 16 + 16 bytes
    u16 port of the client | u16 of the node
    E0 | u16 56                               our TLV
        u64 time                              microseconds since 1970
        16 bytes                              drawn for this connection
        32 bytes                              HMAC-SHA256 of everything before them

The key of the HMAC is made of the cluster's secret, the door's name and the name of the node that it is for, so what is
meant for one door counts at no other. Promises: nobody without the secret is believed; what was said once is not
believed again, nor what is older than `TOLERANCE_S`; a connection that begins with anything else is an ordinary one,
and none of its bytes are lost.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address

from headwater.clock import SECOND_US, Clock
from headwater.errors import Malformed, NotAllowed, QuotaExceeded
from headwater.server.accepting import Peer
from headwater.server.peek import peek

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HEAD = struct.Struct("!12sBBH")
VERSION_AND_COMMAND = 0x21
TCP4, TCP6 = 0x11, 0x21
PLACES = {TCP4: struct.Struct("!4s4sHH"), TCP6: struct.Struct("!16s16sHH")}
TLV = struct.Struct("!BHQ16s32s")
TLV_KIND = 0xE0
TLV_BYTES = TLV.size - 3
MAC_BYTES = 32
NONCE_BYTES = 16
TOLERANCE_S = 30.0
"""How far the clocks of two nodes may be apart, together with the way between them."""
REMEMBERED_MAX = 1 << 16
"""Preambles that are remembered, so that none is believed twice; beyond it none is believed at all for a moment."""
OUTSIDE = (str(IPv4Address(0)), 0)
"""Stands for an address that is none of IP."""


def _key(secret: bytes, door: str, node: str) -> bytes:
    return hmac.digest(secret, f"headwater preamble\0{door}\0{node}".encode(), "sha256")


class Preambles:
    """What is said to one door of one node, and believed by it."""

    def __init__(self, secret: bytes, door: str, node: str, clock: Clock) -> None:
        """`door` is "native", "mqtt", "mqtts" or "http"; `node` has it."""
        self._key = _key(secret, door, node)
        self._clock = clock
        self._said: OrderedDict[bytes, int] = OrderedDict()
        """What was drawn for each connection that was believed of late, and until when that is remembered."""

    # On the way out

    def pack(self, client: Peer, node: Peer = OUTSIDE) -> bytes:
        """What is sent before a client's bytes: where the client comes from, and where it came to."""
        came, to = _address(client[0]), _address(node[0])
        if came.version == 4 and to.version == 4:
            family, packed = TCP4, (came.packed, to.packed)
        else:
            family, packed = TCP6, (_wide(came).packed, _wide(to).packed)
        places = PLACES[family].pack(*packed, client[1], node[1])
        head = HEAD.pack(SIGNATURE, VERSION_AND_COMMAND, family, len(places) + TLV.size)
        nonce = secrets.token_bytes(NONCE_BYTES)
        said = head + places + TLV.pack(TLV_KIND, TLV_BYTES, self._clock.now_us(), nonce, b"")[:-MAC_BYTES]
        return said + hmac.digest(self._key, said, "sha256")

    # On the way in

    async def read(self, loop: asyncio.AbstractEventLoop, made: socket.socket) -> Peer | None:
        """Whom a connection that begins is of, as a preamble states it; None without one.

        Takes the preamble off, and nothing else. NotAllowed (403), Malformed (422) and the like: refuse it.
        """
        if not await _begins_with(loop, made, SIGNATURE):
            return None
        length = HEAD.unpack(await peek(loop, made, HEAD.size))[3]
        size = HEAD.size + length
        if size > HEAD.size + PLACES[TCP6].size + TLV.size:
            raise Malformed("a preamble is longer than those of nodes; no other proxy may state whom it speaks for")
        await peek(loop, made, size)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return self.believe(made.recv(size))

    def believe(self, said: bytes) -> Peer:
        """Whom a preamble is about; NotAllowed (403) if it does not count, Malformed (422) if it is none."""
        signature, command, family, length = HEAD.unpack_from(said)
        places = PLACES.get(family)
        if signature != SIGNATURE or command != VERSION_AND_COMMAND or places is None:
            raise Malformed("a preamble is of PROXY protocol version 2, for a connection over TCP")
        if length != places.size + TLV.size or len(said) != HEAD.size + length:
            raise Malformed("a preamble has an address and the proof of a node, and nothing else")
        kind, proof_bytes, time_us, nonce, proof = TLV.unpack_from(said, HEAD.size + places.size)
        if kind != TLV_KIND or proof_bytes != TLV_BYTES:
            raise NotAllowed("a preamble has no proof of a node; no other proxy may state whom it speaks for")
        if not hmac.compare_digest(hmac.digest(self._key, said[:-MAC_BYTES], "sha256"), proof):
            raise NotAllowed("a preamble is of nobody who knows the cluster's secret, or meant for another node")
        self._remember(nonce, time_us)
        packed, _, port, _ = places.unpack_from(said, HEAD.size)
        return str(_narrow(ip_address(packed))), port

    def _remember(self, nonce: bytes, time_us: int) -> None:
        (now_us, since_us), apart_us = self._clock.read(), round(TOLERANCE_S * SECOND_US)
        if abs(now_us - time_us) > apart_us:
            raise NotAllowed(
                f"a preamble is {(now_us - time_us) / SECOND_US:.1f} s old; have the clocks of all nodes set by NTP"
            )
        said = self._said
        while said and next(iter(said.values())) < since_us:
            said.popitem(last=False)
        if nonce in said:
            raise NotAllowed("a preamble was said before; it counts once")
        if len(said) >= REMEMBERED_MAX:
            raise QuotaExceeded(f"{REMEMBERED_MAX} connections were passed on within a moment; try again in a while")
        said[nonce] = since_us + 2 * apart_us  # one that is as far ahead as may be counts that long


def _address(host: str) -> IPv4Address | IPv6Address:
    try:
        return _narrow(ip_address(host.partition("%")[0]))
    except ValueError:
        return IPv4Address(0)


def _narrow(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An address of IPv4 as that, however it is written."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _wide(address: IPv4Address | IPv6Address) -> IPv6Address:
    return address if isinstance(address, IPv6Address) else IPv6Address(f"::ffff:{address}")


async def _begins_with(loop: asyncio.AbstractEventLoop, made: socket.socket, prefix: bytes) -> bool:
    """Whether what comes begins so; as soon as that is known, without taking anything."""
    seen = 1
    while True:
        found = await peek(loop, made, seen, len(prefix))
        if not prefix.startswith(found):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return False
        if found == prefix:
            return True
        seen = len(found) + 1
