"""Packets as the specifications print them, or as follows from what they print, beside what they say."""

from __future__ import annotations

from typing import Any

from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason

VECTORS: list[tuple[str, int, Any, str]] = [
    # MQTT 3.1.1, figure 3.6: the variable header of a CONNECT with every flag but will retain; client "a", level 4.
    (
        "connect of 3.1.1",
        V4,
        Connect("a", V4, True, 10, Will("w", b"m", 1), "u", b"p"),
        "10 19 0004 4d515454 04 ce 000a 0001 61 0001 77 0001 6d 0001 75 0001 70",
    ),
    # MQTT 5, figure 3-6: the same with a session expiry interval of 10 s.
    (
        "connect of 5",
        V5,
        Connect("a", V5, True, 10, None, "u", b"p", Properties(session_expiry_interval=10)),
        "10 19 0004 4d515454 05 c2 000a 05 11 0000000a 0001 61 0001 75 0001 70",
    ),
    ("connack of 3.1.1", V4, Connack(True), "20 02 01 00"),
    ("a refusal in 3.1.1", V4, Connack(False, Reason.NOT_AUTHORIZED), "20 02 00 05"),
    ("a refusal in 5", V5, Connack(False, Reason.NOT_AUTHORIZED), "20 03 00 87 00"),
    # Figure 3.11 (3.1.1) and 3-9 (5): topic a/b, number 10.
    ("publish of 3.1.1", V4, Publish("a/b", b"", 1, packet_id=10), "32 07 0003 612f62 000a"),
    ("publish of 5", V5, Publish("a/b", b"", 1, packet_id=10), "32 08 0003 612f62 000a 00"),
    ("publish with everything", V4, Publish("a/b", b"x", 2, True, True, 10), "3d 08 0003 612f62 000a 78"),
    ("puback", V4, Ack(Kind.PUBACK, 10), "40 02 000a"),
    ("puback with a reason", V5, Ack(Kind.PUBACK, 10, 0x10), "40 03 000a 10"),
    ("pubrec", V5, Ack(Kind.PUBREC, 10), "50 02 000a"),
    ("pubrel", V5, Ack(Kind.PUBREL, 10), "62 02 000a"),
    ("pubcomp", V5, Ack(Kind.PUBCOMP, 10, 0x92), "70 03 000a 92"),
    # Figure 3.23 (3.1.1) and 3-22 (5): a/b with QoS 1, c/d with QoS 2.
    (
        "subscribe of 3.1.1",
        V4,
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
        "82 0e 000a 0003 612f62 01 0003 632f64 02",
    ),
    (
        "subscribe of 5",
        V5,
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2, True, True, 2))),
        "82 0f 000a 00 0003 612f62 01 0003 632f64 2e",
    ),
    # Figure 3.26 (3.1.1): QoS 0, QoS 2, failure.
    ("suback of 3.1.1", V4, Suback(10, (0, 2, 0x80)), "90 05 000a 00 02 80"),
    ("suback of 5", V5, Suback(10, (0, 2, 0x80)), "90 06 000a 00 00 02 80"),
    # Figure 3.30 (3.1.1) and 3-32 (5).
    ("unsubscribe of 3.1.1", V4, Unsubscribe(10, ("a/b", "c/d")), "a2 0c 000a 0003 612f62 0003 632f64"),
    ("unsubscribe of 5", V5, Unsubscribe(10, ("a/b", "c/d")), "a2 0d 000a 00 0003 612f62 0003 632f64"),
    ("unsuback of 3.1.1", V4, Unsuback(10), "b0 02 000a"),
    ("unsuback of 5", V5, Unsuback(10, (0, 0x11)), "b0 05 000a 00 00 11"),
    ("pingreq", V4, Pingreq(), "c0 00"),
    ("pingresp", V4, Pingresp(), "d0 00"),
    ("disconnect", V4, Disconnect(), "e0 00"),
    ("disconnect of 5", V5, Disconnect(), "e0 00"),
    ("disconnect with will", V5, Disconnect(4), "e0 01 04"),
    ("session taken over", V5, Disconnect(0x8E, Properties(reason_string="x")), "e0 06 8e 04 1f 0001 78"),
]
"""Name, version, packet, and its bytes in hex."""
