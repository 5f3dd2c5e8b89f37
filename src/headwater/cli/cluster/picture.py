"""How nodes are shown, and what is wrong with them in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from headwater.cli.output import Columns, clock_time, console, iso, named, number, safe, table
from headwater.clock import to_datetime
from headwater.cluster.overview import Overview

STYLES = {"leading": "bold green", "following": "", "joining": "yellow", "gone": "red"}


def role_of(found: Overview, node: str) -> str:
    """What a node is, as far as it answers."""
    report = found.reports.get(node)
    return report.role if report is not None else "gone"


def address_of(found: Overview, node: str) -> str:
    """Where it is found natively."""
    report, member = found.reports.get(node), found.members.get(node)
    said = report.doors.native if report is not None else ""
    return said or (member.address if member is not None else "")


def show_nodes(found: Overview) -> None:
    """A row for each node."""
    newest = max((report.position.number for report in found.reports.values()), default=0)

    def record(node: str) -> Text:
        report = found.reports.get(node)
        return Text("–", style="dim") if report is None else number(report.position.number)

    def behind(node: str) -> Text:
        report = found.reports.get(node)
        return Text("–", style="dim") if report is None else number(newest - report.position.number, "yellow")

    def time_of(node: str) -> str:
        report = found.reports.get(node)
        return clock_time(to_datetime(report.position.time_us)) if report is not None and report.position.number else ""

    def on_disk(node: str) -> str:
        report = found.reports.get(node)
        return f"{report.synced.number:,}" if report is not None else "–"

    columns: Columns[str] = {
        "node": named,
        "role": lambda node: Text(role_of(found, node), style=STYLES[role_of(found, node)]),
        "address": lambda node: safe(address_of(found, node)),
        ">record": record,
        ">behind": behind,
        ">on disk": on_disk,
        "newest of": time_of,
    }
    console().print(table(found.names, columns))


def problems(found: Overview) -> list[str]:
    """What is wrong, a sentence each."""
    wrong = []
    if found.why:
        wrong.append(f"the NATS servers cannot tell which nodes there are: {found.why}")
    for node in found.names:
        report = found.reports.get(node)
        if report is None:
            wrong.append(
                f"{safe(node)} does not answer; start it, or if it is lost: headwater cluster remove {safe(node)}"
            )
        elif report.trouble:
            held = report.position
            wrong.append(f"{safe(node)}, which has all up to record {held.number}: {safe(report.trouble)}")
        elif report.role == "joining":
            wrong.append(f"{safe(node)} is about to follow: it reads on, or takes a copy")
    if found.leader is None:
        wrong.append(f"nobody leads, so that nothing can be stored{_majority(found)}")
    cut_off = any(report.is_cut_off for report in found.reports.values())
    if cut_off and found.leader is None:
        wrong.append("the NATS servers have lost what nodes have applied: headwater cluster rebuild makes a new stream")
    return wrong


def _majority(found: Overview) -> str:
    """What is missing for somebody to lead, if it is that."""
    there, all_of_them = len(set(found.members) & set(found.reports)), len(found.members)
    if not all_of_them or 2 * there > all_of_them:
        return ""
    return f": {all_of_them // 2 + 1} of {all_of_them} nodes have to be there; start one, or remove what is lost"


def node_object(found: Overview, node: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """A node for machines."""
    report = found.reports.get(node)
    made: dict[str, Any] = {"name": node, "role": role_of(found, node), "address": address_of(found, node)}
    if report is not None:
        at = report.position
        made.update(
            record=at.number,
            sequence=at.sequence,
            epoch=at.epoch,
            time=iso(to_datetime(at.time_us)) if at.number else None,
            synced=report.synced.number,
            trouble=report.trouble,
            version=report.version,
        )
    return {name: value for name, value in made.items() if name in only} if only else made
