"""A group: what is committed together, root by root, as it gets its places on the way to disk.

Promises: what comes to a root keeps its order; single messages of a root that come one after another are one batch, if
they are alike: one header, one checksum and one index entry for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headwater.log.publish import MESSAGE_WEIGHT, Part, Publish
from headwater.log.root import Root
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.store.log import Write

SHOWN_BYTES_MAX = 256 * 1024
"""How much of what came one by one and was shown goes to disk as one batch."""


class Placement(msgspec.Struct, eq=False, gc=False):
    """A batch on its way: what it carries, and for whom."""

    write: Write
    topics: Sequence[str]
    owner: Publish | None
    part: Part | None
    singles: Sequence[Publish] = ()
    is_shown: bool = False


class Singles(msgspec.Struct, eq=False):
    """Messages of one root that came one by one and go as one batch."""

    flags: int
    is_shown: bool
    weight: int = 0
    """Of what was shown."""
    items: list[Publish] = []
    parts: list[Part] = []

    def options(self) -> dict[str, list[Any]]:
        """The optional columns, as far as any of them has something in one."""
        columns: dict[str, list[Any]] = {}
        if not any(part.retain or part.keys or part.headers or part.expiries for part in self.parts):
            return columns
        for name, missing in (("retain", False), ("keys", None), ("headers", ()), ("expiries", 0)):
            values = [getattr(part, name) for part in self.parts]
            if any(values):
                columns[name] = [missing if value is None else value[0] for value in values]
        return columns


class CommitGroup(msgspec.Struct, eq=False):
    """What is committed together."""

    now_us: int
    """When it began to be, by which its messages are stamped;"""
    begun_us: int
    """and on the monotonic clock."""
    promised: list[Root] = []
    """Roots that count on topics or retained messages of this group."""
    places: dict[Root, list[Placement]] = {}
    singles: dict[Root, Singles] = {}
    """Those that have no place yet, as more may come."""
    coming: dict[tuple[str, str], dict[int, tuple[Publish, Part]]] = {}
    """Idempotent publishes of this group, by root and producer, then sequence."""
    echoes: list[tuple[Publish, Part, Publish, Part]] = []
    """Repeats of a publish in this same group, with the first of them."""
    partly: list[Publish] = []
    """Calls of which some roots' messages are admitted, and others' refused."""
    finish: Callable[[Publish], None] | None = None
    """Finishes what is not with all of its subscribers yet; no thread of this process waits for that."""
    admitted: list[Publish] = []
    """Calls that are finished when it is on disk;"""
    repeats: list[Publish] = []
    """of them, those of which everything was stored before."""
    waits: list[Publish] = []
    """Calls that come again once roots of them are made;"""
    closed: set[str] = set()
    """and all their roots: what comes to one of these comes after them."""

    def put_off(self, item: Publish) -> None:
        """A call comes again, and so does what comes behind it."""
        self.waits.append(item)
        self.closed.update(item.roots)

    def others(self, items: list[Publish]) -> list[Publish]:
        """All of these but those that come again."""
        if not self.waits:
            return items
        put_off = set(self.waits)
        return [item for item in items if item not in put_off]

    def add_single(self, root: Root, item: Publish, part: Part, *, is_shown: bool = False) -> None:
        """Bring a single message, which more may join."""
        singles = self.singles.get(root)
        if singles is None or (
            singles.flags != item.flags or singles.is_shown is not is_shown or singles.weight > SHOWN_BYTES_MAX
        ):
            singles = self.next_singles(root, item.flags, is_shown)
        singles.parts.append(part)
        if is_shown:  # nobody waits for it
            singles.weight += len(part.payloads[0]) + MESSAGE_WEIGHT
        else:
            singles.items.append(item)

    def next_singles(self, root: Root, flags: int, is_shown: bool = False) -> Singles:
        """Those that come from now on, behind those that came before them."""
        if root in self.singles:
            self.gather(root, self.singles.pop(root))
        singles = self.singles[root] = Singles(flags, is_shown)
        return singles

    def add_batch(self, root: Root, item: Publish, part: Part, *, is_shown: bool = False) -> None:
        """Bring what one call has for a root as a batch, after what came before it."""
        if root in self.singles:
            self.gather(root, self.singles.pop(root))
        if part.body is None:
            part.encode(part.time_us if part.time_us >= 0 else self.now_us)
        assert part.body is not None
        producer = item.producer.encode() if item.producer is not None else None
        write = Write(part.body, part.crc, len(part.topics), producer, item.sequence, item.flags, part.columns)
        self.places.setdefault(root, []).append(Placement(write, part.topics, item, part, (), is_shown))

    def gather(self, root: Root, singles: Singles) -> None:
        """Give single messages their place as one batch; one that is alone and was encoded elsewhere stays as it is."""
        parts, now_us = singles.parts, self.now_us
        topics: Sequence[str]
        if len(parts) == 1:
            part = parts[0]
            topics, body, crc = part.topics, part.body, part.crc
            if body is None:
                time_us = now_us if part.time_us < 0 else part.time_us
                options = part.expiries, part.retain, part.keys, part.headers
                body = encode_body(topics, part.payloads, time_us, *options)
                crc = checksum(body)
            write = Write(body, crc, 1, None, 0, singles.flags, part.columns)
        else:
            topics, times = [part.topics[0] for part in parts], [part.time_us for part in parts]
            body = encode_body(
                topics,
                [part.payloads[0] for part in parts],
                now_us if max(times) < 0 else [now_us if time_us < 0 else time_us for time_us in times],
                **singles.options(),
            )
            write = Write(body, checksum(body), len(topics), flags=singles.flags)
        place = Placement(write, topics, None, None, singles.items, singles.is_shown)
        self.places.setdefault(root, []).append(place)
