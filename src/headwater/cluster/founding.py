"""The founding: which bus a cluster has, which node it began with, and that this node belongs to it.

All of it is in rows that the nodes share. Promises: of several nodes that begin at once one begins the bus; a folder of
another bus is not taken for one of this; while nodes wait that have a bus, none begins as the engine has lost its rows.
"""

from __future__ import annotations

import secrets

import msgspec

from headwater.cluster.engine import Engine
from headwater.cluster.members import REPORT, Member, Members, Report
from headwater.cluster.overview import ENOUGH
from headwater.errors import Conflict, Incompatible, Unavailable

ANSWER_S = 1.0
SECRET_BYTES = 32
BUS, SECRET = "bus", "secret"
"""Keys of rows."""


class Founded(msgspec.Struct, frozen=True, kw_only=True):
    """Which node the bus began with, and its id, once that is known."""

    node: str
    id: str = ""


class Founding:
    """What one node reads and writes of it; everything raises `Unavailable` while the engine does not answer."""

    def __init__(self, engine: Engine, members: Members, bus: str, node: str) -> None:
        self._engine, self._members, self._bus, self._node = engine, members, bus, node

    def founded(self) -> Founded:
        """Which bus there is; nobody having said so, it begins with this node."""
        ours = msgspec.json.encode(Founded(node=self._node))
        try:
            return msgspec.json.decode(self._shared(BUS, ours), type=Founded)
        except msgspec.MsgspecError as error:
            raise Incompatible(f"what the cluster's rows say of its bus cannot be read: {error}") from None

    def is_first(self) -> bool:
        """Whether the bus began with this node."""
        return self.founded().node == self._node

    def belong(self, address: str) -> None:
        """Note that this node belongs to the cluster, and where it is."""
        self._members.put(Member(node=self._node, address=address))

    def secret(self, known: bytes = b"") -> bytes:
        """What all nodes know and nobody else; where no row says it, it is the one that this node knows, or drawn."""
        return self._shared(SECRET, known or secrets.token_bytes(SECRET_BYTES).hex().encode())

    def check_alone(self) -> None:
        """That no bus begins with a new folder while nodes wait that have one: their engine has lost its rows."""
        if self._engine.row(BUS) is not None:
            return
        for data in self._engine.ask_all(REPORT, b"", ANSWER_S, ENOUGH):
            theirs = msgspec.msgpack.decode(data, type=Report)
            if theirs.bus_id and theirs.node != self._node:
                raise Unavailable(
                    f'the NATS servers know of no bus "{self._bus}", and node "{theirs.node}" has one, up '
                    f"to record {theirs.position.number}: they have lost it; see: headwater cluster rebuild"
                )

    def check_bus(self, id: str, path: str) -> None:
        """That a folder is of this cluster's bus; the first one says which that is."""
        founded = self.founded()
        if not founded.id and founded.node == self._node:
            self._say(id)
        elif not founded.id:
            raise Unavailable(f'node "{founded.node}", with which the bus begins, has yet to say which bus that is')
        elif founded.id != id:
            raise Conflict(
                f'"{path}" has another bus than cluster "{self._bus}": name another folder, or another --bus'
            )

    def found_anew(self, id: str, secret: bytes) -> None:
        """Say again what the engine has lost, as this node has it; Conflict (409) if there is another bus by now."""
        self._engine.put_row(SECRET, secret)
        founded = self.founded()
        if founded.id == id:
            return
        if founded.id:
            raise Conflict(
                f'the NATS servers know another bus called "{self._bus}", which node "{founded.node}" '
                "began with: take its nodes away, or give this bus another name with --bus on all of its nodes"
            )
        self._say(id)

    def _say(self, id: str) -> None:
        self._engine.put_row(BUS, msgspec.json.encode(Founded(node=self._node, id=id)))

    def _shared(self, key: str, value: bytes) -> bytes:
        """A row that all nodes share: whoever writes it first has said what it is."""
        row = self._engine.row(key)
        if row is None and self._engine.put_row(key, value, 0) is None:
            row = self._engine.row(key)
            if row is None:  # another's is on its way, and yet to be seen
                raise Unavailable("another node begins at this moment")
        return row.value if row is not None else value
