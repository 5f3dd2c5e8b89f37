"""The members of a cluster: a row for each node that belongs to it, and what each says of itself when it is asked.

A row stays until the node is removed, whether or not it runs: a majority is one of all members. What changes from one
moment to the next is in no row, but is asked of the nodes themselves, all of them at once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future

import msgspec

from headwater import threads
from headwater.cluster.engine import Engine
from headwater.cluster.leader import Leader
from headwater.cluster.record import Position
from headwater.errors import HeadwaterError, Unavailable
from headwater.server.log import Log
from headwater.wire.administration import NodeRole

MEMBER = "node."
"""How the keys of their rows begin."""
REPORT = "report"
"""What a node is asked for."""
ASK_S = 1.0
ASKED_AT_ONCE = 8

log = Log("headwater.cluster.members")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node that belongs to the cluster."""

    node: str
    address: str = ""
    """Where its native port is found, as host:port."""
    needs_copy: bool = False
    """Whether it is so far behind that nothing is kept for it: it takes a copy of another node's folder."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself."""

    node: str
    role: NodeRole
    position: Position
    """The last record that it has applied,"""
    synced: Position
    """and the last one that it has on disk."""
    written: Position = Position()
    """The last one that it had applied when its folder was opened: more than since, after a crash."""
    time_us: int
    """Its clock."""
    bus_id: str = ""
    """Of its folder."""
    leader: str = ""
    """The node that leads, as far as it knows."""
    doors: Leader = Leader(node="")
    """Where clients find it."""
    trouble: str = ""
    """Why it does not go on; empty if it does."""
    version: str = ""
    is_cut_off: bool = False
    """Whether the engine's stream is not the one that it has applied: it waits for one that is made anew."""


class Members:
    """Those of one cluster, as one node or a command sees them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool: threads.ThreadPoolExecutor | None = None

    def all(self) -> dict[str, Member]:
        """Every member, by name; raises `Unavailable`."""
        found: dict[str, Member] = {}
        for key, row in sorted(self._engine.rows(MEMBER).items()):
            try:
                found[key.removeprefix(MEMBER)] = msgspec.json.decode(row.value, type=Member)
            except msgspec.MsgspecError as error:
                log.warning("member-unreadable", row=key, reason=error)
        return found

    def put(self, member: Member) -> None:
        """Have it belong to the cluster."""
        self._engine.put_row(f"{MEMBER}{member.node}", msgspec.json.encode(member))

    def remove(self, node: str) -> None:
        """It does so no more."""
        self._engine.delete_row(f"{MEMBER}{node}")

    def reports(self, nodes: Collection[str], timeout_s: float = ASK_S) -> dict[str, Report]:
        """What those of these nodes say that answer in time."""
        if not nodes:
            return {}
        self._pool = pool = self._pool or threads.ThreadPoolExecutor(ASKED_AT_ONCE, "headwater-reports")
        asked: dict[str, Future[Report]] = {node: pool.submit(self._report, node, timeout_s) for node in nodes}
        found: dict[str, Report] = {}
        for node, future in asked.items():
            try:
                found[node] = future.result()
            except HeadwaterError as error:
                log.write(logging.DEBUG, "no-report", {"node": node, "reason": error.args[0]})
        return found

    def _report(self, node: str, timeout_s: float) -> Report:
        try:
            return msgspec.msgpack.decode(self._engine.ask(node, REPORT, b"", timeout_s), type=Report)
        except msgspec.MsgspecError as error:
            raise Unavailable(f'what node "{node}" says of itself cannot be read: {error}') from None

    def close(self) -> None:
        """Ask no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
