"""Packets as values: what each kind says, the same for MQTT 3.1.1 and 5.

What only MQTT 5 knows has the default that 3.1.1 implies. Reasons are those of MQTT 5: a CONNACK or SUBACK of 3.1.1
is turned into them and back (mqtt/reasons.py). `Run` and `Acks` are many packets in one value: what a reader makes of
those that come most.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import Reason
from headwater.topics.name import root_of


class Will(msgspec.Struct, frozen=True):
    """What is to be published when a client is gone without saying so."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NONE


class Connect(msgspec.Struct, frozen=True):
    """A client's first packet."""

    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NONE


class Connack(msgspec.Struct, frozen=True):
    """The answer to a CONNECT."""

    session_present: bool = False
    reason: int = Reason.SUCCESS
    properties: Properties = NONE


class Publish(msgspec.Struct, frozen=True):
    """One message."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    """0 with QoS 0, which has none."""
    properties: Properties = NONE


class Ack(msgspec.Struct, frozen=True):
    """A step after a PUBLISH: its kind is PUBACK, PUBREC, PUBREL or PUBCOMP, which look the same."""

    kind: Kind
    packet_id: int
    reason: int = Reason.SUCCESS
    properties: Properties = NONE


class Subscription(msgspec.Struct, frozen=True):
    """One filter of a SUBSCRIBE, and how its messages are wanted."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """Whether retained messages come at once: 0 always, 1 if the subscription is new, 2 never."""


class Subscribe(msgspec.Struct, frozen=True):
    """A wish for the messages of some filters."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NONE


class Suback(msgspec.Struct, frozen=True):
    """The answer to a SUBSCRIBE: a reason for each filter."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NONE


class Unsubscribe(msgspec.Struct, frozen=True):
    """The end of some subscriptions."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NONE


class Unsuback(msgspec.Struct, frozen=True):
    """The answer to an UNSUBSCRIBE: a reason for each filter, none in 3.1.1."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NONE


class Pingreq(msgspec.Struct, frozen=True):
    """A client shows that it is there."""


class Pingresp(msgspec.Struct, frozen=True):
    """A server shows that it is there."""


class Disconnect(msgspec.Struct, frozen=True):
    """The last packet."""

    reason: int = Reason.SUCCESS
    properties: Properties = NONE


class Auth(msgspec.Struct, frozen=True):
    """A step of an authentication that takes several."""

    reason: int = Reason.SUCCESS
    properties: Properties = NONE


Packet = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)


class Run(msgspec.Struct, frozen=True):
    """PUBLISH packets that arrived one after the other, alike but for topic, number and payload, without properties.

    The lists are as long as there are messages, in the order of arrival; `packet_ids` is empty with QoS 0.
    """

    qos: int
    retain: bool
    dup: bool
    topics: list[str]
    payloads: list[bytes]
    packet_ids: list[int]
    data: bytes = b""
    """The packets as they came, where they may go out as they are: with QoS 0, and without the retain flag."""
    longest_bytes: int = 0
    """No packet of it is longer."""
    places: list[int] = []
    """Of a part with a QoS: where its messages stood in the whole."""
    names: list[str] = []
    """Its topics, each at least once, as they were met one after another; empty where nobody has noted them."""

    def by_root(self) -> dict[str, Run]:
        """The messages of each root, which become one batch; the order within a root is kept."""
        names = self.names or self.topics
        if len(names) == 1:
            return {root_of(names[0]): self}
        roots = {topic: root_of(topic) for topic in set(names)}
        first = roots[self.topics[0]]
        if len(roots) == 1 or all(root == first for root in roots.values()):
            return {first: self}
        found: dict[str, Run] = {}
        for place, topic in enumerate(self.topics):
            root = roots[topic]
            run = found.get(root)
            if run is None:
                run = found[root] = Run(self.qos, self.retain, self.dup, [], [], [], b"", self.longest_bytes, [])
            run.topics.append(topic)
            run.payloads.append(self.payloads[place])
            if self.qos:
                run.packet_ids.append(self.packet_ids[place])
                run.places.append(place)
        return found

    def before(self, place: int) -> Run:
        """What of this part stood before a place of the whole."""
        count = bisect_left(self.places, place)
        return Run(
            self.qos,
            self.retain,
            self.dup,
            self.topics[:count],
            self.payloads[:count],
            self.packet_ids[:count],
            b"",
            self.longest_bytes,
            self.places[:count],
        )

    def publishes(self) -> list[Publish]:
        """The same messages one by one."""
        numbers = self.packet_ids or [0] * len(self.topics)
        return [
            Publish(topic, payload, self.qos, self.retain, self.dup, number)
            for topic, payload, number in zip(self.topics, self.payloads, numbers, strict=True)
        ]


class Acks(msgspec.Struct, frozen=True):
    """Packets of one kind, PUBACK to PUBCOMP, that arrived one after the other and say no more than success."""

    kind: Kind
    packet_ids: list[int]

    def each(self) -> list[Ack]:
        """The same packets one by one."""
        return [Ack(self.kind, number) for number in self.packet_ids]


Received = Packet | Run | Acks
