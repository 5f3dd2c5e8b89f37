"""`headwater cluster try`: a cluster on this machine until Ctrl-C, and what happens to it."""

from __future__ import annotations

import signal
from types import FrameType

from headwater.cli.cluster.trial import Trial
from headwater.cli.following import pause
from headwater.cli.output import emit, remark, say, side
from headwater.cli.temporary import temporary_folder, temporary_place
from headwater.cluster.overview import look
from headwater.errors import Unavailable

EVERY_S = 0.5


def have_a_look(nodes: int, free_ports: bool, as_json: bool) -> None:
    """Start it, tell where it is and what happens, and end it with Ctrl-C, SIGTERM, or its terminal."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with (
            temporary_folder(temporary_place(), "headwater-cluster") as folder,
            Trial(folder, nodes, usual_ports=not free_ports) as trial,
        ):
            with side().status(f"starting 3 NATS servers and {nodes} nodes"):
                found = trial.start()
            if not free_ports and not trial.has_usual_ports:
                remark("ports of the defaults are taken by others, so these are others")
            _introduce(trial, as_json)
            try:
                _watch(trial, found.leader.node if found.leader is not None else "", as_json)
            except KeyboardInterrupt:
                side().print("ending all of it")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _introduce(trial: Trial, as_json: bool) -> None:
    """Where everything is."""
    servers = [
        {"nats": f"nats{place + 1}", "pid": trial.servers.process(place).pid, "url": url}
        for place, url in enumerate(trial.servers.urls)
    ]
    nodes = [
        {
            "node": name,
            "pid": trial.pid(name),
            "data": trial.data(name),
            "url": f"headwater://127.0.0.1:{ports.native}",
            "mqtt": f"mqtt://127.0.0.1:{ports.mqtt}",
            "http": f"http://127.0.0.1:{ports.http}" if trial.has_http else "",
        }
        for name, ports in zip(trial.names, trial.ports, strict=True)
    ]
    if as_json:
        for one in (*servers, *nodes):
            emit(one)
        emit({"url": trial.url, "cluster": trial.nats_urls})
        return
    for server in servers:
        say((f"{server['nats']}  ", "cyan"), f"{server['url']}", (f"  pid {server['pid']}", "dim"))
    for node in nodes:
        doors = f"{node['url']}  {node['mqtt']}  {node['http']}"
        say((f"{node['node']}     ", "cyan"), doors, (f"  pid {node['pid']}", "dim"))
    say("")
    say("  headwater sub --url ", trial.url, " 'home/#'")
    say("  headwater pub --url ", trial.url, " home/kitchen/temp 21.5")
    say("  headwater cluster status --cluster ", trial.nats_urls)
    say("  kill -9 PID      of any of the six: nothing that was acknowledged is lost")
    say("")
    say(("Ctrl-C ends all of it, and leaves nothing behind", "dim"))


def _watch(trial: Trial, leader: str, as_json: bool) -> None:
    """Tell what happens, until Ctrl-C."""
    _tell("leads", leader, as_json)
    gone: set[str] = set()
    is_silent = False
    while True:
        pause(EVERY_S)
        for name in set(trial.ended()) - gone:
            _tell("ended", name, as_json)
            if not as_json:
                say(("  to start it again:  " + " ".join(trial.command(name)), "dim"))
        gone = set(trial.ended())
        try:
            found = look(trial.engine, EVERY_S)
        except Unavailable as error:
            if not is_silent:
                remark(str(error.args[0]))
            is_silent = True
            continue
        is_silent = False
        led = found.leader.node if found.leader is not None else ""
        if led and led != leader:
            leader = led
            _tell("leads", led, as_json)


def _tell(event: str, node: str, as_json: bool) -> None:
    if as_json:
        emit({"event": event, "node": node})
    else:
        say((node, "cyan"), f" {event}")
