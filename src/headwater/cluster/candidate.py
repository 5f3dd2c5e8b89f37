"""Who may lead: what a candidate that has read to the stream's end compares itself with, before it begins an epoch.

No clock and no I/O. Promise: a node is fit only if a majority of the members, itself included, has answered, none of
them has applied a record that the stream does not have or another one in its place, and neither has this node; and if
its clock is about that of the engine and of the newest record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headwater.clock import SECOND_US
from headwater.cluster.members import Report
from headwater.cluster.record import Position

REBUILD = "the engine has lost records; see: headwater cluster rebuild"


def unfit(
    node: str,
    ours: Position,
    written: Position,
    last: int,
    members: Collection[str],
    reports: Mapping[str, Report],
    known: Mapping[int, bytes],
) -> str:
    """Why a node may not lead that stands at `ours`, where the stream ends at `last`; empty if it may. `written` is the
    last record that it had applied before, and `known` are digests of records that it has applied, by number."""
    others = [name for name in members if name != node]
    if 2 * (len(reports) + 1) <= len(members):
        missing = ", ".join(name for name in others if name not in reports)
        return (
            f"{len(reports) + 1} of {len(members)} nodes answer, and it takes a majority; start {missing}, or take "
            "those that do not come back out with: headwater cluster remove"
        )
    if written.number > ours.number:
        return (
            f"this node had applied record {written.number} before it stopped, and the engine's stream ends at {last} "
            f"with record {ours.number}: {REBUILD}"
        )
    for name, report in reports.items():
        for theirs in (report.position, report.written):
            if theirs.sequence > last or theirs.number > ours.number:
                return (
                    f'node "{name}" has applied record {theirs.number} at {theirs.sequence}, and the engine\'s stream '
                    f"ends at {last} with record {ours.number}: {REBUILD}"
                )
            digest = ours.digest if theirs.number == ours.number else known.get(theirs.number)
            if theirs.number and digest is not None and digest != theirs.digest:
                return f'node "{name}" has applied another record {theirs.number} than this node; {REBUILD}'
    return ""


def clock_is_off(now_us: int, engine_us: int, newest_us: int, skew_s_max: float) -> str:
    """Why a node whose clock says `now_us` may not lead; empty if it may. Expiry and delays follow the leader's."""
    skew_us = round(skew_s_max * SECOND_US)
    apart_us = now_us - engine_us
    if abs(apart_us) > skew_us:
        return f"its clock is {apart_us / SECOND_US:.1f} s off that of the NATS servers; have both set by NTP"
    if newest_us - now_us > skew_us:
        return f"its clock is {(newest_us - now_us) / SECOND_US:.1f} s behind the newest record; see to NTP"
    return ""
