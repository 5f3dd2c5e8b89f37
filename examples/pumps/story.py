"""The whole story: devices, MQTT, a typed lake, features, a model, alerts, a handler that fails, and what mends it.

    make demo-long                        # or, with paho-mqtt installed: python examples/pumps/story.py

Each step is a command that you could type. It ends with an error if anything is missing or twice.
"""

import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import headwater

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import devices  # noqa: E402  # beside this file

HEADWATER = [sys.executable, "-m", "headwater"]
WAIT_S = 60


def command(*words):
    print("$ headwater", *words, flush=True)
    subprocess.run([*HEADWATER, *words], check=True)  # noqa: S603  # our own words


@contextmanager
def process(*words, **where):
    running = subprocess.Popen(  # noqa: S603  # our own words
        [*HEADWATER, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **where
    )
    try:
        yield running
    finally:
        running.terminate()
        running.communicate(timeout=WAIT_S)


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def until(is_so, what):
    for _ in range(WAIT_S * 10):
        if is_so():
            return
        time.sleep(0.1)
    raise SystemExit(f"{what} did not come true within {WAIT_S} s")


def tell(folder, pipeline=lambda *words: command("pipeline", *words), minutes=60):
    """The story in a folder; answers how many tickets there are. `pipeline` runs a `headwater pipeline …`."""
    port, mqtt_port = free_ports(2)
    url = f"headwater://127.0.0.1:{port}"
    os.environ["HEADWATER_URL"] = url
    serve = ("serve", "--data", f"{folder}/data", "--port", str(port), "--mqtt-port", str(mqtt_port), "--no-http")
    with process(*serve) as server:
        assert server.stdout.readline()
        until(lambda: is_open(mqtt_port), "that the server listens for MQTT")
        with headwater.connect(url) as bus:
            return steps(folder, bus, url, mqtt_port, pipeline, minutes)


def steps(folder, bus, url, mqtt_port, pipeline, minutes):
    lake, model = f"{folder}/lake", f"{folder}/wear"
    start = datetime.now(UTC) - timedelta(hours=3)

    # Yesterday: what the pumps said, and which of them failed.
    worn = {"pump1": minutes // 3, "pump3": minutes // 2, "pump6": minutes - 5}
    count = devices.publish("127.0.0.1", mqtt_port, devices.messages(start, minutes, worn))
    print(f"{count:,} messages over MQTT")

    # What payloads say becomes columns: of the lake, and of reads.
    for topics in ("plant/+/state", "plant/+/fault"):
        command("pipeline", "infer", topics, "--yes", "--url", url)
    pipeline("archive", "--url", url, "--lake", lake, "--topics", "plant/#")

    # A model of wear, trained on the lake.
    wear = (
        "run",
        str(HERE / "wear.py"),
        "--once",
        "--url",
        url,
        "--lake",
        lake,
        "--checkpoints",
        f"{folder}/places",
        "--set",
        f"model={model}",
    )
    pipeline(*wear, "--set", "do=train")

    # Today: pump2 and pump5 wear out. The stream is scored, minute by minute.
    now = datetime.now(UTC).isoformat()
    devices.publish(
        "127.0.0.1",
        mqtt_port,
        devices.messages(start + timedelta(minutes=minutes), 20, {"pump2": 15, "pump5": 17}, seed=8),
    )
    pipeline(*wear, "--set", f"since={now}")
    alerts = [message.json() for message in bus.replay("alerts/#")]
    print(f"{len(alerts)} alerts, of {sorted({alert['pump'] for alert in alerts})}")
    assert {"pump2", "pump5"} <= {alert["pump"] for alert in alerts}
    assert len({(alert["pump"], alert["at"]) for alert in alerts}) == len(alerts), "an alert is there twice"

    # The desk opens tickets, and fails at a pump that it does not know.
    unknown = sum(alert["pump"] == "pump5" for alert in alerts)
    with process("work", "desk:bus", cwd=HERE):
        until(lambda: bus.subscriptions() and bus.subscriptions()[0].dead == unknown, "that alerts of pump5 die")
        until(lambda: tickets(bus) == len(alerts) - unknown, "a ticket for each other alert")
        print(f"{unknown} alerts died at the desk: {bus.dead_letters('desk')[0].errors[-1].splitlines()[0]}")
        # Mended in a notebook, they come again.
        runpy.run_path(str(HERE / "mend.py"))
        until(lambda: tickets(bus) == len(alerts), "a ticket for each alert")
    left = bus.dead_letters("desk")
    assert not left, left
    print(f"{len(alerts)} alerts, {tickets(bus)} tickets: {', '.join(one.topic for one in bus.topics('tickets/#'))}")
    return tickets(bus)


def tickets(bus):
    return sum(one.messages for one in bus.topics("tickets/#"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headwater-pumps-") as temporary:
        tell(temporary)
