"""The overview: what all nodes of a cluster say of themselves, as a command sees them.

Works also where the engine has lost its rows, or has no majority: nodes are asked all at once, and whoever is there
answers.
"""

from __future__ import annotations

import msgspec

from headwater.cluster.engine import Engine
from headwater.cluster.members import REPORT, Member, Members, Report
from headwater.errors import HeadwaterError, Unavailable

ASK_S = 1.5
"""How long nodes have to answer; whoever stands still is not waited for."""
ENOUGH = 64
"""Nodes that are waited for where it is not known how many there are."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, as of a moment."""

    members: dict[str, Member]
    """Nodes that belong to it, by name; empty if the engine cannot tell."""
    reports: dict[str, Report]
    """What those say that answer."""
    why: str = ""
    """Why the engine cannot tell who belongs to it; empty if it can."""

    @property
    def names(self) -> list[str]:
        """All nodes that are known of."""
        return sorted({*self.members, *self.reports})

    @property
    def missing(self) -> list[str]:
        """Those that belong to the cluster and do not answer."""
        return sorted(set(self.members) - set(self.reports))

    @property
    def leader(self) -> Report | None:
        """The node that leads; None if none does. Of two that say so, the one of the later epoch."""
        leading = [report for report in self.reports.values() if report.role == "leading"]
        return max(leading, key=lambda report: report.position.epoch, default=None)

    @property
    def furthest(self) -> list[Report]:
        """Those that have applied the most."""
        most = max((report.position.number for report in self.reports.values()), default=0)
        return [report for _, report in sorted(self.reports.items()) if report.position.number == most]

    def is_well(self) -> bool:
        """Whether one node leads, and all others follow."""
        roles = [report.role for report in self.reports.values() if not report.trouble]
        is_all_there = not self.missing and not self.why and len(roles) == len(self.reports)
        return is_all_there and sorted(set(roles) - {"following"}) == ["leading"] and roles.count("leading") == 1


def look(engine: Engine, timeout_s: float = ASK_S) -> Overview:
    """Ask the engine who belongs to the cluster, and all nodes how they are; raises `Unavailable` if no server of the
    engine is there."""
    members: dict[str, Member] = {}
    why = ""
    try:
        members = Members(engine).all()
    except HeadwaterError as error:
        why = str(error.args[0])
    reports: dict[str, Report] = {}
    for data in engine.ask_all(REPORT, b"", timeout_s, len(members) or ENOUGH):
        try:
            report = msgspec.msgpack.decode(data, type=Report)
        except msgspec.MsgspecError as error:
            raise Unavailable(
                f"what a node says of itself cannot be read: {error}; is it of another version?"
            ) from None
        reports[report.node] = report
    return Overview(members=members, reports=reports, why=why)
