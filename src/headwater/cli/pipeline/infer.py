"""`headwater pipeline infer`: a schema, and so typed columns, out of what was published."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater.cli.options import At
from headwater.cli.output import counted, emit, remark, safe, say
from headwater.errors import Malformed, NotFound
from headwater.schema.inference import infer as inferred
from headwater.topics.name import filters_overlap

if TYPE_CHECKING:
    from headwater import Bus

SAMPLE = 1000
SAMPLE_MAX = 1_000_000
WIDER = 10
"""Where too few of a root's newest messages match, so many times more of them are looked at."""
UNREAD_SHOWN = 3


def infer(
    at: At,
    filter: Annotated[str, typer.Argument(help="Of which topics, such as 'home/+/temp'.")],
    sample: Annotated[int, typer.Option("--sample", metavar="N", help="So many of the newest messages.")] = SAMPLE,
    yes: Annotated[bool, typer.Option("--yes", help="Make it the schema of these topics.")] = False,
) -> None:
    """Say what the payloads of topics have in common, as a schema and as columns; with --yes it is theirs from then on.

    The lake and reads with the option typed then have what payloads say as columns, and what does not fit is refused
    when it is published. Nothing is required: payloads may leave out what they like. To change it before, write it to a
    file (--json), and give that to `headwater schemas add`.

    With --json: an object (filter, schema, columns, seen, unread, made).
    """
    if not 0 < sample <= SAMPLE_MAX:
        raise Malformed(f"--sample is {sample}; use 1 to {SAMPLE_MAX:,}")
    with at.own() if yes else at.look() as bus:
        there = [one.filter for one in bus.schemas() if filters_overlap(one.filter, filter)]
        found = inferred(_newest(bus, filter, sample))
        if found.node is None:
            raise NotFound(f'none of {counted(found.seen, "message")} of "{filter}" is JSON; nothing can be inferred')
        if yes:
            bus.schema(filter, found.node, check="none")  # those that do not fit were shown
    told = {
        "filter": filter,
        "schema": found.node,
        "columns": _columns(found.node),
        "seen": found.seen,
        "unread": len(found.unread),
        "made": yes,
    }
    if at.json:
        emit(told)
        return
    for line in msgspec.json.format(msgspec.json.encode(found.node), indent=2).decode().splitlines():
        say(safe(line))
    for name, kind in told["columns"].items():  # type: ignore[attr-defined]  # a dict
        say("  ", (safe(name), "cyan"), f"  {safe(kind)}")
    remark(f"by {counted(found.seen, 'message')}, of which {len(found.unread)} are no JSON")
    for why in found.unread[:UNREAD_SHOWN]:
        remark(f"no JSON: {safe(why)}")
    for one in there:
        remark(f'there is a schema of "{safe(one)}" already')
    remark(f'it is the schema of "{safe(filter)}" now' if yes else "nothing is changed; --yes makes it their schema")


def _newest(bus: Bus, filter: str, sample: int) -> list[bytes]:
    """Payloads of the newest messages that match, of each root a share."""
    extents = bus.extents(filter)
    share = -(-sample // max(1, len(extents)))
    payloads: list[bytes] = []
    for extent in extents:
        span, found = share, deque[bytes](maxlen=share)
        while extent.end > extent.first:
            after = max(extent.first, extent.end - span) - 1
            looked = bus.replay(filter, after={extent.root: after}, upto={extent.root: extent.end - 1})
            found.extend(message.payload for message in looked)
            if len(found) == share or after < extent.first:
                break
            found.clear()
            span *= WIDER
        payloads += found
    return payloads


def _columns(node: dict[str, Any]) -> dict[str, str]:
    """The fields of the column `value`, where what makes them is installed."""
    try:
        from headwater.lake.values import type_of_node
    except ImportError:
        return {}
    kind = type_of_node(node)
    return {} if kind is None else {field.name: str(field.type) for field in kind}
