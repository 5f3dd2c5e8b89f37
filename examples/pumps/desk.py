"""The maintenance desk: a ticket for each alert, in the building where the pump stands.

    HEADWATER_URL=headwater://127.0.0.1:7411 headwater work examples.pumps.desk:bus

It does not know of pump5, which is new: alerts of it become dead letters, to be mended in `mend.py`.
"""

import os

import headwater

BUILDINGS = {f"pump{number}": "south" if number < 4 else "north" for number in range(8) if number != 5}

bus = headwater.connect(os.environ["HEADWATER_URL"])


@bus.handler("alerts/+", id="desk", start="earliest", max_attempts=1)
def open_ticket(message):
    alert = message.json()
    building = alert.get("building") or BUILDINGS[alert["pump"]]
    bus.publish(f"tickets/{building}/{alert['pump']}", {"at": alert["at"], "risk": alert["risk"]})
