"""Deliveries: messages as PUBLISH packets, made once for all sessions that want those of a batch alike."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.clock import Clock
from headwater.memo import Memo
from headwater.message import Message, expiry_of
from headwater.mqtt.aliases import Aliases
from headwater.mqtt.kinds import V5
from headwater.mqtt.properties import EMPTY
from headwater.mqtt.publishes import Publishes, quiet_packet
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.translation import block_of
from headwater.store.batch import Batch
from headwater.store.body import Body

Key = tuple[int, tuple[int, ...] | None, int, int, bool, tuple[int, ...]]

KEPT_MAX = 64
BYTES_MAX = 16 * 1024 * 1024
"""Of the batches that they are of; beyond it, remembering starts anew."""


class Deliveries:
    """Packets of batches, remembered while many sessions want the same ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: Memo[Key, tuple[Batch, Publishes]] = Memo(KEPT_MAX, BYTES_MAX)
        self._one: tuple[str, bytes] = ("", b"")
        """The message whose packets were made last, or came last: its topic and payload."""
        self._packets: dict[int, bytes] = {}
        """By version."""
        self._came: tuple[bytes, int, Publishes] = (b"", 0, Publishes((), (), version=V5))
        """The body of the messages that came last, and their packets of that version."""

    def came(self, body: bytes, version: int, packets: Publishes) -> None:
        """Messages of this body came in packets that may go out as they are."""
        self._came = (body, version, packets)

    def one_came(self, topic: str, payload: bytes, version: int, packet: bytes) -> None:
        """A single message came with QoS 0 in a packet that may go out as it is."""
        self._one, self._packets = (topic, payload), {version: packet}

    def get(
        self, batch: Batch, places: Sequence[int] | None, version: int, qos: int, wish: SubscriptionOptions
    ) -> Publishes:
        """The packets of the messages at these places, or of all."""
        came, came_version, packets = self._came
        if not qos and places is None and came_version == version and not wish.identifier and came is batch.data:
            return packets
        identifiers = wish.identifiers if wish.identifier else ()
        which = None if places is None else tuple(places)
        key = (id(batch), which, version, qos, wish.retain_as_published, identifiers)
        kept = self._kept.known.get(key)
        if kept is not None and kept[0] is batch:
            return kept[1]
        body = batch.body
        made = self.make(body, places, version, qos, wish)
        if body.expiries is None:  # what is left of a message's time is another with each second
            self._kept.keep(key, (batch, made), len(body.data))
        return made

    def one(self, batch: Batch, version: int) -> bytes:
        """The packet of a single message with QoS 0, the same for all whose options are plain."""
        topic, payload = batch.topic, batch.payload
        assert topic is not None
        if self._one != (topic, payload):
            self._one, self._packets = (topic, payload), {}
        packet = self._packets.get(version)
        if packet is None:
            packet = self._packets[version] = quiet_packet(topic, payload, version)
        return packet

    def make(
        self,
        body: Body,
        places: Sequence[int] | None,
        version: int,
        qos: int,
        wish: SubscriptionOptions,
        aliases: Aliases | None = None,
    ) -> Publishes:
        """The same, made anew."""
        there: Sequence[int] = range(body.count) if places is None else places
        topics: Sequence[str] = body.topics if len(there) == body.count else body.topics_at(there)
        payloads = body.payloads_at(there)
        as_published = wish.retain_as_published and body.retain is not None
        retain = [bool(body.retain[place]) for place in there] if as_published and body.retain is not None else None
        blocks = self._blocks(body, there, wish.identifiers) if version == V5 else None
        if aliases is not None:
            topics, blocks = aliases.apply(topics, blocks or [EMPTY] * len(topics))
        return Publishes(topics, payloads, version=version, qos=qos, retain=retain, properties=blocks)

    def _blocks(self, body: Body, there: Sequence[int], identifiers: tuple[int, ...]) -> list[bytes] | None:
        headers, keys, expiries = body.headers(), body.keys, body.expiries
        if not headers and keys is None and expiries is None:
            return [block_of((), identifiers=identifiers)] * len(there) if identifiers else None
        now_us = self._clock.now_us()
        return [
            block_of(
                headers[place] if headers else (),
                keys[place] if keys is not None else None,
                expiries[place] if expiries is not None else 0,
                now_us,
                identifiers,
            )
            for place in there
        ]

    def of_messages(
        self,
        messages: Sequence[Message],
        version: int,
        qos: int,
        wish: SubscriptionOptions,
        aliases: Aliases | None = None,
    ) -> Publishes:
        """The packets of messages that come from here and there."""
        topics = [one.topic for one in messages]
        blocks: list[bytes] | None = None
        if version == V5:
            now_us = self._clock.now_us()
            blocks = [
                block_of(
                    one.header_pairs,
                    one.key,
                    expiry_of(one),
                    now_us,
                    wish.identifiers,
                    (one.offset, one.time_us) if wish.is_replay else None,
                )
                for one in messages
            ]
            if aliases is not None:
                topics, blocks = aliases.apply(topics, blocks)
        as_published = wish.retain_as_published
        return Publishes(
            topics,
            [one.payload for one in messages],
            version=version,
            qos=qos,
            retain=[one.retained or (as_published and one.retain) for one in messages],
            properties=blocks,
        )
