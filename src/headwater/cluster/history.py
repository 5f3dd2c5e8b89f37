"""The history: digests of the last records that a node has applied, by which nodes see whether they have had the same.

Promise: where two nodes that know a record of one number have another one each, the one that asks is told.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from headwater.cluster.engine import Engine
from headwater.cluster.follower import Diverged
from headwater.cluster.record import Position
from headwater.errors import HeadwaterError
from headwater.server.log import Log

KNOWN = "known"
"""Asks a node for the digests of these records, by number: of those that it knows."""
ANSWER_S = 1.0
KEPT = 10_000

log = Log("headwater.cluster.history")


class History:
    """That of one node, since its process began."""

    def __init__(self) -> None:
        self.digests: OrderedDict[int, bytes] = OrderedDict()
        """Of the last `KEPT` records, by number."""

    def note(self, position: Position) -> None:
        """One more record was applied."""
        self.digests[position.number] = position.digest
        if len(self.digests) > KEPT:
            self.digests.popitem(last=False)

    def answer(self, data: bytes) -> bytes:
        """What another node is told that asks for `KNOWN`."""
        known = {number: self.digests.get(number) for number in msgspec.msgpack.decode(data, type=list[int])}
        return msgspec.msgpack.encode({number: digest for number, digest in known.items() if digest})


def check(engine: Engine, names: Collection[str], ours: Collection[Position]) -> None:
    """That none of these nodes, as far as they answer, has had another record in the place of one of `ours`; raises
    `Diverged`."""
    asked = msgspec.msgpack.encode([position.number for position in ours])
    for name in names:
        try:
            known = msgspec.msgpack.decode(engine.ask(name, KNOWN, asked, ANSWER_S), type=dict[int, bytes])
        except (HeadwaterError, msgspec.MsgspecError) as error:
            log.write(logging.DEBUG, "not-compared", {"node": name, "reason": error.args[0]})
        else:
            compare(ours, name, known)


def compare(ours: Iterable[Position], node: str, known: Mapping[int, bytes]) -> None:
    """Compare what a folder has with digests that another node knows, by number: before this folder gives way to a
    copy of another's, as then nobody would know any more that the engine has lost what it had."""
    for position in ours:
        if known.get(position.number, position.digest) != position.digest:
            raise Diverged(
                f'this node had applied another record {position.number} than node "{node}": the engine lost records '
                "and took others. Its folder is kept; give this node an empty one once nothing of it is needed"
            )
