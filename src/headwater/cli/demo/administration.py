"""The act with the HTTP API: publish by it, have a channel push, kill the process that serves it, read the audit."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import headwater
from headwater.admin import connect
from headwater.cli.demo.served import LIMIT_S, Served
from headwater.cli.demo.stage import Stage
from headwater.cli.demo.thermostat import wait_until
from headwater.errors import HeadwaterError

FILTER = "yard/+/alarm"
CHANNEL = "yard-alarms"
AUDIT = "$sys/audit"


def look_after(stage: Stage, folder: str, count: int) -> None:
    """Look after a server as administrators do."""
    stage.act(
        "Looked after",
        "Beside the server runs a process with the HTTP API, metrics and the dashboard. Messages come in by HTTP, a "
        "channel pushes them to whoever listens, the server is killed in between. Every change is in the audit.",
    )
    server = Served(folder, with_http=True)
    server.start()
    try:
        with headwater.receive(port=0) as receiver:
            _make_channel(server.url, receiver.port)
            _publish(server.http_url, range(count // 2))
            server.kill()
            server.start()
            _publish(server.http_url, range(count // 2, count))
            came: list[int] = []
            wait_until(lambda: _take(receiver, came) == count, LIMIT_S)
        stage.check(
            f"{count} alarms that came in by HTTP were pushed to the channel's receiver, in order, through a kill -9",
            came == list(range(count)),
        )
        metrics = _get(f"{server.http_url}/metrics").decode()
        stage.check("Prometheus finds the figures", "headwater_messages_in_total" in metrics)
        _remove_channel(server.url)
        stage.check("the audit tells who made the channel, and who removed it", _audited(server.url))
    finally:
        server.stop()


def _make_channel(url: str, port: int) -> None:
    with connect(url) as admin:
        admin.channels.add(
            CHANNEL, filter=FILTER, destination_host="127.0.0.1", destination_port=port, id=CHANNEL, start="latest"
        )


def _remove_channel(url: str) -> None:
    with connect(url) as admin:
        admin.channels.remove(CHANNEL, force=True)


def _publish(http_url: str, numbers: range) -> None:
    messages = [{"topic": f"yard/gate{number % 3}/alarm", "payload": str(number)} for number in numbers]
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(  # noqa: S310  (the server that we started)
        f"{http_url}/v1/messages/batch", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S):  # noqa: S310  (the same)
        pass


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:  # noqa: S310  (the server that we started)
        data: bytes = answer.read()
        return data


def _take(receiver: Any, came: list[int]) -> int:
    """What the channel has brought by now; a message that comes again after the kill counts once."""
    messages = receiver.batch(100, timeout_s=0.05)
    for message in messages:
        number = int(message.payload)
        if not came or number > came[-1]:
            came.append(number)
    try:
        receiver.ack(messages)
    except HeadwaterError:
        pass  # the server died before it heard; they come again
    return len(came)


def _audited(url: str) -> bool:
    with headwater.connect(url) as bus:
        entries = [json.loads(message.payload) for message in bus.replay(AUDIT)]
    told = [entry["what"] for entry in entries if entry["target"] == CHANNEL]
    return told == ["channel-added", "channel-removed"] and all(entry["who"] for entry in entries)
