"""Eight pumps that report over MQTT, a reading every ten seconds of their time; some wear out.

    pip install paho-mqtt
    python examples/pumps/devices.py --minutes 60 --worn pump1=20,pump3=35 --port 1883

Ten minutes before a worn pump fails it begins to shake and to warm up; a message on its topic `fault` says when it
failed, and it is mended. Their clocks go as fast as messages can be published, so an hour takes a second.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

import paho.mqtt.client as mqtt

PUMPS = 8
EVERY_S = 10
WEARS_FOR_S = 600


def messages(start, minutes, worn, seed=7):
    """Topics and payloads, in the order of their times; `worn` says in which minute a pump fails."""
    drawn = random.Random(seed)
    for second in range(0, minutes * 60, EVERY_S):
        at = (start + timedelta(seconds=second)).isoformat()
        for pump in (f"pump{number}" for number in range(PUMPS)):
            left_s = worn.get(pump, minutes * 1000) * 60 - second
            wear = 1 - left_s / WEARS_FOR_S if 0 <= left_s < WEARS_FOR_S else 0
            reading = {
                "at": at,
                "celsius": round(50 + 15 * wear + drawn.gauss(0, 1.5), 2),
                "vibration": round(1 + 3 * wear + drawn.gauss(0, 0.2), 3),
            }
            yield f"plant/{pump}/state", json.dumps(reading)
            if left_s == 0:
                yield f"plant/{pump}/fault", json.dumps({"at": at, "part": "bearing"})


def publish(host, port, found):
    """Publish with QoS 1, and wait until all of it is on the broker's disk."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="plant", protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.connect(host, port)
    client.loop_start()
    sent = [client.publish(topic, payload, qos=1) for topic, payload in found]
    for one in sent:
        one.wait_for_publish()
    client.disconnect()
    client.loop_stop()
    return len(sent)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=1883)
    options.add_argument("--minutes", type=int, default=60)
    options.add_argument("--worn", default="pump1=20,pump3=35", help="in which minute a pump fails")
    given = options.parse_args()
    worn = {pump: int(minute) for pump, minute in (one.split("=") for one in given.worn.split(","))}
    start = datetime.now(UTC) - timedelta(minutes=given.minutes)
    print(publish(given.host, given.port, messages(start, given.minutes, worn)), "messages")


if __name__ == "__main__":
    main()
