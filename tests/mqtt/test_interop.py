"""Clients from elsewhere, as they are: paho, aiomqtt, Mosquitto's and MQTT.js."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest

from mqtt.peer import Served
from server.harness import PATIENCE_S

TIMEOUT_S = 60
SCRIPTS = Path(sys.prefix) / "js"
"""Where `make test` puts MQTT.js, if there is npm."""
has_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="no mosquitto_sub; on Debian: apt-get install mosquitto-clients"
)
has_mqtt_js = pytest.mark.skipif(
    shutil.which("node") is None or not (SCRIPTS / "node_modules" / "mqtt").exists(),
    reason="no MQTT.js; with npm: npm install --prefix .venv/js mqtt",
)
VERSIONS = ("311", "5")

ECHO = """
const [url, version] = process.argv.slice(1);
const client = require("mqtt").connect(url, {protocolVersion: Number(version), reconnectPeriod: 0});
const got = [];
client.on("error", error => { console.error(String(error)); process.exit(1); });
client.on("message", (topic, payload, packet) => {
  got.push([topic, payload.length, packet.qos, packet.properties?.userProperties?.unit ?? null]);
  if (got.length === 4) { console.log(JSON.stringify(got)); client.end(); }
});
client.on("connect", () => client.subscribe("js/#", {qos: 2}, error => {
  if (error) throw error;
  const properties = version === "5" ? {userProperties: {unit: "C"}} : undefined;
  for (const qos of [0, 1, 2]) client.publish("js/" + qos, "x", {qos, properties});
  client.publish("js/long", Buffer.alloc(200000), {qos: 1});
}));
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def test_aiomqtt_publishes_and_subscribes(served: Served):
    async def main() -> list[tuple[str, bytes, int]]:
        async with aiomqtt.Client("127.0.0.1", served.protocol.port, timeout=PATIENCE_S) as client:
            await client.subscribe("aio/#", qos=2)
            for qos in (0, 1, 2):
                await client.publish(f"aio/{qos}", b"x", qos=qos)
            found = []
            async for message in client.messages:
                found.append((str(message.topic), bytes(message.payload), message.qos))
                if len(found) == 3:
                    break
            return found

    assert sorted(asyncio.run(main())) == [(f"aio/{qos}", b"x", qos) for qos in (0, 1, 2)]


@pytest.mark.parametrize("version", [4, 5])
def test_paho_publishes_and_subscribes(served: Served, version: int):
    client = served.paho(f"paho-{version}", version)
    client.subscribe(f"paho-{version}/#", 2)
    for qos in (0, 1, 2):
        client.publish(f"paho-{version}/{qos}", b"x", qos)
    got = sorted((message.topic, message.qos) for message in (client.got(), client.got(), client.got()))
    assert got == [(f"paho-{version}/{qos}", qos) for qos in (0, 1, 2)]


# Mosquitto's


def mosquitto(served: Served, program: str, *arguments: object) -> list[str]:
    port = ("-h", "127.0.0.1", "-p", str(served.protocol.port))
    return [f"mosquitto_{program}", *port, *map(str, arguments)]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@has_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mosquitto_pub_reaches_a_native_subscriber(served: Served, version: str, qos: int):
    with served.bus.subscribe(f"mosquitto/{version}/{qos}") as live:
        run(
            mosquitto(
                served, "pub", "-V", version, "-q", qos, "-t", f"mosquitto/{version}/{qos}", "-m", "from a device"
            )
        )
        message = live.next(PATIENCE_S)
    assert message is not None
    assert message.payload == b"from a device"


@has_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_sub_gets_what_is_retained_and_what_comes(served: Served, version: str):
    topic = f"kept/{version}"
    served.bus.publish(topic, b"first", retain=True)
    options = ("-V", version, "-q", 1, "-t", topic, "-C", 2, "-F", "%r %p", "-W", TIMEOUT_S)
    with subprocess.Popen(mosquitto(served, "sub", *options), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1 first\n"
        served.bus.publish(topic, b"second")
        assert process.stdout.readline() == "0 second\n"
        assert process.wait(TIMEOUT_S) == 0


@has_mosquitto
def test_mosquitto_sub_resumes_its_session(served: Served):
    options = ("-c", "-i", "resuming", "-q", 1, "-t", "resuming/x", "-W", TIMEOUT_S)
    run(mosquitto(served, "sub", *options, "-E"))
    served.bus.publish_many([("resuming/x", b"1"), ("resuming/x", b"2")])
    assert run(mosquitto(served, "sub", *options, "-C", 2)) == "1\n2\n"


@has_mosquitto
def test_mosquitto_s_properties_become_headers(served: Served):
    properties = ("-D", "publish", "user-property", "unit", "C", "-D", "publish", "content-type", "text/plain")
    with served.bus.subscribe("properties/x") as live:
        run(mosquitto(served, "pub", "-V", 5, "-q", 1, "-t", "properties/x", "-m", "21", *properties))
        message = live.next(PATIENCE_S)
    assert message is not None
    assert dict(message.headers) == {"unit": "C", "content-type": "text/plain"}


# MQTT.js


def echo(url: str, version: int) -> list[list[object]]:
    done = subprocess.run(
        ["node", "-e", ECHO, url, str(version)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={"NODE_PATH": str(SCRIPTS / "node_modules")},
        executable=shutil.which("node"),
    )
    assert done.returncode == 0, done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


def echoed(version: int) -> list[list[object]]:
    """What MQTT.js gets back of what it published."""
    unit = "C" if version == 5 else None
    return [["js/0", 1, 0, unit], ["js/1", 1, 1, unit], ["js/2", 1, 2, unit], ["js/long", 200_000, 1, None]]


@has_mqtt_js
@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_publishes_and_subscribes(served: Served, version: int):
    assert sorted(echo(f"mqtt://127.0.0.1:{served.protocol.port}", version)) == echoed(version)
