"""`headwater pipeline erase`: what there is of a key, in a bus and in its lake; found first, and removed with --yes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from headwater.cli.options import At
from headwater.cli.output import counted, emit, remark, safe, say
from headwater.errors import Malformed

if TYPE_CHECKING:
    from headwater.lake.lake import Lake
    from headwater.message import Erased


def erase(
    at: At,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key of the messages, as text.")],
    topics: Annotated[str, typer.Option("--topics", metavar="FILTER", help="Which topics.")] = "#",
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="Also in this lake: a folder, or catalog:NAME.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, it is only said what there is.")] = False,
) -> None:
    """Remove what there is of a key, as of a person: in the log, retained, dead letters, delayed, and in the lake.

    Nobody is handed any of it once this has ended. The bytes in the lake go when its archive runs, within
    erase_within_s; those in the log with their segments, by retention.

    With --json: an object with messages (by root), retained, dead_letters, delayed, states, lake (by root), carried_out
    (messages that were written out of the lake, by root) and done.
    """
    named = key.encode()
    with at.own() as bus:
        opened = None if lake is None else _lake_of(lake, bus.id)
        archived = {} if opened is None else _in_lake(opened, named, topics)
        found = bus.erase(named, topics, dry_run=not yes)
        purges = bus.purges(topics) if yes else []
    carried: dict[str, int] = {}
    if opened is not None and yes:
        from headwater.lake.erasure import carry_out
        from headwater.log.purges import Purge

        for root in archived:
            known = tuple(Purge(one.filter, one.upto, key=one.key) for one in purges if one.root == root)
            done = carry_out(opened.table(root), root, known)
            carried[root] = 0 if done is None else done.rows
    if at.json:
        emit({**asdict(found), "lake": archived, "carried_out": carried, "done": yes})
        return
    _show(found, archived, carried)
    if not yes:
        remark("nothing was removed: --yes does it")


def _lake_of(where: str, bus_id: str) -> Lake:
    try:
        from headwater.lake.lake import existing_lake
    except ImportError as error:
        raise Malformed(f"a lake is read with {error.name}: pip install 'headwater[lake]'") from None
    found = existing_lake(where)
    found.check(bus_id)
    return found


def _in_lake(lake: Lake, key: bytes, topics: str) -> dict[str, int]:
    """How many messages of a key the lake has of each root."""
    from headwater.lake.erasure import purged_in
    from headwater.log.purges import Purge, Purges

    counts = {
        root: sum(purged_in(file, Purges((Purge(topics, archived.upto, key=key),))) for file in archived.files)
        for root, archived in lake.archived(topics).items()
        if archived.upto
    }
    return {root: count for root, count in counts.items() if count}


def _show(found: Erased, archived: dict[str, int], carried: dict[str, int]) -> None:
    for root, count in found.messages.items():
        say("log      ", (safe(root), "cyan"), f"  {counted(count, 'message')}")
    for what, count in (
        ("retained values", found.retained),
        ("dead letters", found.dead_letters),
        ("delayed messages", found.delayed),
        ("messages that subscriptions try again", found.states),
    ):
        say("state    ", f"{what}: {count:,}")
    for root, count in archived.items():
        done = "" if not carried else f", {counted(carried[root], 'message')} written out of it"
        say("lake     ", (safe(root), "cyan"), f"  {counted(count, 'message')}{done}")
