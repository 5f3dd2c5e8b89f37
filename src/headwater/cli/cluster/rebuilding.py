"""What has to be so before a new stream is made: a node that alone has something is not passed over unsaid."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headwater.cluster.engine import Engine
from headwater.cluster.members import Report
from headwater.cluster.overview import Overview
from headwater.cluster.rebuild import REBUILD
from headwater.errors import Conflict, NotFound, Unavailable

ASK_S = 30.0


def check(found: Overview, wanted: str, without: Collection[str]) -> Report:
    """The node whose folder counts; Conflict (409) if there is nothing to be made anew, or it is not certain what."""
    reports = found.reports
    leader = found.leader
    if leader is not None and not leader.trouble:
        apart = [report for report in reports.values() if report.is_cut_off]
        if apart:
            raise Conflict(
                f"{leader.node} leads, and {apart[0].node} does not fit with it: {apart[0].trouble}. To have it follow "
                "again, stop it, put its folder aside, and start it: it takes a copy"
            )
        raise Conflict(f"{leader.node} leads, and all is stored: nothing is to be made anew")
    unknown = [node for node in (*without, wanted) if node and node not in found.names]
    if unknown:
        raise NotFound(f'there is no node "{unknown[0]}"; there are {", ".join(found.names)}')
    missing = [node for node in found.missing if node not in without]
    if missing:
        raise Unavailable(
            f"{', '.join(missing)} does not answer, and may have more than the others: start it, or say --without "
            f"{missing[0]} if it is lost"
        )
    if len({report.bus_id for report in reports.values() if report.bus_id}) > 1:
        raise Conflict("not all of these nodes have the same bus; take those away that are not of it")
    cut_off = [report for report in reports.values() if report.is_cut_off]
    if not cut_off:
        why = next((report.trouble for report in reports.values() if report.trouble), "see: headwater cluster status")
        raise Conflict(f"no node misses anything in the stream, so none is to be made: {why}")
    return _source(found, wanted)


def _source(found: Overview, wanted: str) -> Report:
    most = found.furthest
    if wanted:
        chosen = found.reports.get(wanted)
        if chosen is None:
            raise Unavailable(f"{wanted} does not answer; start it")
        if chosen not in most:
            raise Conflict(
                f"{wanted} has applied record {chosen.position.number}, and {most[0].node} {most[0].position.number}: "
                f"what lies between would be lost; leave out --from, or stop {most[0].node} and say --without"
            )
    else:
        if len({report.position for report in most}) > 1:
            names = ", ".join(report.node for report in most)
            raise Conflict(f"{names} have different records {most[0].position.number}; say which counts, with --from")
        # Of those, one that is ready, and has most of what came after it: a crash leaves a part of that.
        chosen = max(most, key=lambda report: (report.is_cut_off, report.written.number))
    if not chosen.is_cut_off:
        raise Conflict(f"{chosen.node} is the furthest, and goes on with the stream that there is: {chosen.trouble}")
    return chosen


def ask_to_rebuild(engine: Engine, source: Report) -> None:
    """Have a node make a stream that goes on from what it has."""
    engine.ask(source.node, REBUILD, msgspec.msgpack.encode(source.position), ASK_S)
