"""A thermostat as a handler: it heats rooms that are cold, and sets aside what is no reading.

    headwater serve &
    headwater work examples.handlers:bus --workers 4 --reload
    headwater pub home/kitchen/temp '{"celsius": 17.5}' --url headwater://127.0.0.1:7411
    headwater pub home/hall/temp 'E07' --url headwater://127.0.0.1:7411
    headwater dead list thermostat --url headwater://127.0.0.1:7411

Kill it at any moment and start it again: each reading is handled, those of a room in their order.
"""

import os
from dataclasses import dataclass

import headwater

bus = headwater.connect(os.environ.get("HEADWATER_URL", "headwater://127.0.0.1:7411"))


@dataclass
class Reading:
    """What a thermometer says."""

    celsius: float


@bus.handler("home/+/temp", id="thermostat", start="earliest", order="key")
def regulate(message):
    try:
        reading = message.json(Reading)
    except headwater.Malformed as error:
        raise headwater.Reject(str(error)) from error  # it will never be one
    if reading.celsius < 18:
        room = message.topic.split("/")[1]
        bus.publish(f"heating/{room}", b"on", retain=True)
