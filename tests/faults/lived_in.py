"""A folder in which a bus has lived: everything that can be in one is in it, and what a visitor sees of that.

    image = live_in("…/folder")             # three lives, the last ended by a kill; the files, in memory
    image.put("…/elsewhere")                # the same folder again, as often as you like
    seen = visit(open_bus("…/elsewhere"))   # reads everything, takes from every subscription, publishes to every root

In it: closed and active segments, a root whose oldest messages retention deleted, one whose name is quoted, batches
that are in the journal alone, a gap with its quarantine, retained messages, subscriptions with acks out of order,
retries and dead letters, delayed and staged messages, clients, rules, tokens, a channel, sessions, producers, a lake's
mark.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headwater.bus import Bus
from headwater.cli.verify import _set_apart, _walk
from headwater.clock import SECOND_US, ManualClock, to_datetime
from headwater.config import KIB, Config
from headwater.delivery.consumer import Consumer
from headwater.delivery.replay import Reading
from headwater.errors import Gap, HeadwaterError
from headwater.message import Message, Outgoing
from headwater.server.session_row import SessionRow
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.folder import check
from headwater.store.segment import whole_batches

CONFIG = Config(
    segment_bytes=64 * KIB,
    journal_bytes=16 * KIB,
    checkpoint_bytes=1 << 30,
    checkpoint_batches=40,
    preallocate_bytes=4 * KIB,
    tail_bytes=0,
    tails_bytes=0,
    disk_free_bytes_min=0,
    open_files_max=64,
)
"""Nothing is kept in memory: what is read is what is on disk."""

STARTED_US = 1_700_000_000 * SECOND_US
ROOTS = ("home", "plant", "büro 1")
SECRET = "correct horse battery staple"
RETRY_S = 400.0
LAKE = "lake-1"

Place = tuple[str, int]
"""Root and offset."""


class Drawn(DiskFiles):
    """A disk whose secrets are the same from run to run."""

    def __init__(self) -> None:
        self._rng = random.Random(7)

    def secret(self, length: int) -> bytes:
        return self._rng.randbytes(length)


def open_bus(folder: str, *, read_only: bool = False) -> Bus:
    """A bus on the folder, at a time at which nothing that waits in it is due."""
    return Bus(folder, CONFIG, read_only=read_only, files=Drawn(), clock=ManualClock(STARTED_US + 3600 * SECOND_US))


@dataclass
class Image:
    """The files of a folder."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: str) -> Image:
        image = cls()
        for path, folders, names in os.walk(folder):
            within = os.path.relpath(path, folder)
            image.folders += [os.path.normpath(os.path.join(within, name)) for name in sorted(folders)]
            for name in sorted(names):
                with open(os.path.join(path, name), "rb") as file:
                    image.files[os.path.normpath(os.path.join(within, name))] = file.read()
        return image

    def put(self, folder: str) -> None:
        """Make the folder."""
        os.makedirs(folder)
        for within in self.folders:
            os.makedirs(os.path.join(folder, within), exist_ok=True)
        for within, data in self.files.items():
            with open(os.path.join(folder, within), "wb") as file:
                file.write(data)


# Three lives


def payload(topic: str, number: int, size: int = 0) -> bytes:
    """Told from all others, and long enough to fill something."""
    return f"{number} of {topic} ".encode() + bytes((number * 31 + index) % 251 for index in range(size))


def live_in(folder: str) -> Image:
    """Make the folder, live in it, and be killed."""
    with open_bus(folder) as bus:
        _move_in(bus)
    _spoil(folder)
    with open_bus(folder) as bus:
        _settle_down(bus)
    with open_bus(folder) as bus:  # what was in RocksDB's log is in tables now
        _go_on(bus)
        image = Image.of(folder)
    _lose_what_the_journal_has(image, folder)
    return image


def _publish(bus: Bus, topic: str, numbers: Iterable[int], size: int = 200, **options: Any) -> None:
    for number in numbers:
        bus.publish(topic, payload(topic, number, size), **options)


def _move_in(bus: Bus) -> None:
    for number in range(12):
        if number % 4 == 3:
            bus.core.roots.commit.run(bus.core.data.streams.seal)
        _publish(bus, "home/door", [number], 300)
        _publish(bus, "home/window", [number], 150)
        _publish(bus, "plant/line", [number], 700)
        _publish(bus, "büro 1/licht", [number], 100)
    _publish(bus, "home/kept", range(3), 40, retain=True)
    _publish(bus, "plant/kept", range(2), 400, retain=True)
    bus.publish_many([Outgoing(f"home/device/{number}", payload("many", number, 30)) for number in range(20)])
    _publish(bus, "home/once", [1, 2], 20, producer="meter", sequence=1)
    plant = bus.core.roots.get("plant")
    assert plant is not None
    upto = plant.stream.first_offset + 8
    bus.core.roots.commit.run(lambda: plant.stream.trim(upto))
    assert plant.stream.first_offset > 1


def _spoil(folder: str) -> None:
    """Have a gap in a closed segment, known and set apart."""
    files = DiskFiles()
    path = f"{folder}/streams/{_folder_of(folder, 'home')}"
    second = sorted(name for name in os.listdir(path) if name.endswith(".log"))[1]
    file = files.open(f"{path}/{second}")
    at = [place for place, _, _ in whole_batches(check(files, folder), file, 0, None)][2]
    bad = file.pread(1, at + 100)
    file.pwritev([bytes([bad[0] ^ 255])], at + 100)
    file.close()
    report = _walk(files, folder)
    assert not report.is_whole
    _set_apart(files, folder, report)
    assert _walk(files, folder).is_whole


def _folder_of(folder: str, root: str) -> str:
    return next(name for name in os.listdir(f"{folder}/streams") if name.endswith(f"-{root}"))


def _settle_down(bus: Bus) -> None:
    with bus.subscribe("#", id="all", start="earliest", on_gap="skip") as consumer:
        taken = consumer.batch(30, timeout_s=0)
        consumer.ack(taken[:20])
    with bus.subscribe("home/#", id="free", start="earliest", order="none", on_gap="skip") as consumer:
        taken = [message for _ in range(3) for message in consumer.batch(10, timeout_s=0)]
        consumer.ack([*taken[2:9], taken[12], *taken[15:18]])
        taken[0].reject("never")
        taken[10].nack("not now", delay_s=60)
    with bus.subscribe("plant/#", id="keyed", order="key", on_gap="skip") as consumer:
        consumer.ack(consumer.batch(1, timeout_s=0))
    bus.clients.add("sensor", SECRET)
    bus.clients.add("board", SECRET)
    bus.acl.allow("sensor", "publish", "home/#")
    bus.acl.deny("sensor", "publish", "home/secret")
    bus.acl.allow("board", "subscribe", "#")
    bus.tokens.add("board", "reader")
    bus.channels.add("wall", "home/#", "127.0.0.1", 9)
    for name in ("one", "two"):
        row = SessionRow(id=name, user="sensor", expire_after_s=1e9)
        bus.core.rows.write({rows.SESSION + name.encode(): rows.pack(row)})
    for day in (1, 2):
        at = to_datetime(STARTED_US + 86_400 * day * SECOND_US)
        bus.publish("home/later", payload("later", day), deliver_at=at)
    bus.stage("sink", 1, [("plant/staged", payload("staged", number, 50)) for number in range(4)])
    bus.mark_archived(LAKE, {"home": 20, "plant": 10})


def _go_on(bus: Bus) -> None:
    _publish(bus, "home/door", range(100, 104), 300)
    _publish(bus, "home/once", [3], 20, producer="meter", sequence=3)
    bus.core.roots.checkpoints.make()
    with bus.subscribe("büro 1/#", id="late", start="earliest", order="none") as consumer:
        taken = consumer.batch(10, timeout_s=0)
        consumer.ack(taken[3:6])
        taken[0].reject("never")
    bus.clients.add("lamp", SECRET)
    _publish(bus, "plant/line", range(100, 103), 300)
    for number in range(5):
        bus.publish_many([(f"{root}/wide", payload(f"{root}/wide", number, 120)) for root in ROOTS])
    bus.core.data.streams._cells.sync()  # type: ignore[union-attr]


def _lose_what_the_journal_has(image: Image, folder: str) -> None:
    """As a power loss does: the last batches of two roots are in the journal alone."""
    seed, files = check(DiskFiles(), folder), DiskFiles()
    for root in ("home", "plant"):
        within = f"streams/{_folder_of(folder, root)}"
        active = max(path for path in image.files if path.startswith(within) and path.endswith(".log"))
        file = files.open(f"{folder}/{active}", write=False)
        places = [place for place, _, _ in whole_batches(seed, file, 0, root)]
        file.close()
        data = image.files[active]
        image.files[active] = data[: places[-2]] + bytes(len(data) - places[-2])


# What a visitor sees


@dataclass
class Seen:
    """All that there is to see."""

    messages: dict[Place, tuple[str, bytes]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    topics: dict[str, tuple[int, int]] = field(default_factory=dict)
    retained: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    pending: dict[str, list[Place]] = field(default_factory=dict)
    """What each subscription was given."""
    missed: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """The gaps that each subscription was told of."""
    letters: dict[str, dict[Place, bytes]] = field(default_factory=dict)
    repeats: dict[int, tuple[bool, int]] = field(default_factory=dict)
    """Whether a producer's publish is known, by sequence, and where it is."""
    committed: object = None
    """Where what was staged came to stand, or why it did not."""
    others: dict[str, object] = field(default_factory=dict)
    """What is kept besides: who may do what, what waits, what is marked."""
    published: dict[str, int] = field(default_factory=dict)
    """Offsets that the next messages were given."""
    events: list[tuple[str, str]] = field(default_factory=list)

    def has_gap(self, place: Place) -> bool:
        root, offset = place
        return any(first <= offset <= last for first, last in self.gaps.get(root, ()))


def visit(bus: Bus) -> Seen:
    """See everything, then go on living there."""
    seen = look(bus)
    clock = bus.core.clock._clock
    assert isinstance(clock, ManualClock)
    for info in bus.subscriptions():
        if not info.id.startswith("channel:"):
            letters = bus.dead_letters(info.id)
            seen.letters[info.id] = {(_root(letter.topic), letter.offset): letter.payload for letter in letters}
            with bus.subscribe(info.filter, id=info.id) as consumer:
                _drain(consumer, clock, seen)  # type: ignore[arg-type]
    try:
        seen.committed = bus.commit_stage("sink", 1)
    except HeadwaterError as error:
        seen.committed = str(error)
    for sequence in (1, 3):
        receipt = bus.publish("home/once", payload("home/once", sequence, 20), producer="meter", sequence=sequence)
        seen.repeats[sequence] = receipt.duplicate, receipt.offset if receipt.duplicate else 0
    for root in ROOTS:
        seen.published[root] = bus.publish(f"{root}/new", b"new").offset
    seen.events = [(event.kind, event.text) for event in bus.events()]
    return seen


def look(bus: Bus) -> Seen:
    """See what can be seen without changing anything."""
    seen = Seen()
    for root, end in bus.ends().items():
        seen.ends[root] = end
        _read(bus.replay(f"{root}/#"), root, seen)
    seen.topics = {info.topic: (info.messages, info.last_offset) for info in bus.topics("#")}
    seen.retained = {message.topic: (message.offset, message.payload) for message in bus.retained("#").values()}
    state = bus.core.state
    seen.others = {
        "id": bus.id,
        "subscriptions": {info.id: info.filter for info in bus.subscriptions()},
        "clients": sorted(info.name for info in bus.clients.list()),
        "rules": sorted(str(rule) for rule in bus.acl.list()),
        "tokens": sorted(info.id for info in bus.tokens.list()),
        "channels": sorted(info.name for info in bus.channels.list()),
        "sessions": _decoded(state.scan(rows.SESSION)),
        "delayed": sorted(key for key, _ in state.scan(rows.DELAYED)),
        "staged": _decoded(state.scan(rows.STAGED)),
        "marks": bus.core.data.archived(),
    }
    seen.events = [(event.kind, event.text) for event in bus.events()]
    return seen


def _decoded(found: Iterator[tuple[bytes, bytes]]) -> dict[bytes, object]:
    return {key: msgspec.msgpack.decode(value) for key, value in found}


def _read(reading: Reading, root: str, seen: Seen) -> None:
    last = 0
    while True:
        try:
            batch = reading.batch(10_000)
        except Gap as gap:
            assert gap.first > last, f"{root}: a gap from {gap.first} on, after {last}"
            seen.gaps.setdefault(root, []).append((gap.first, gap.last))
            last = gap.last
            continue
        if not batch:
            return
        for message in batch:
            assert message.offset > last, f"{root}: {message.offset} comes after {last}"
            last = message.offset
            seen.messages[root, message.offset] = message.topic, message.payload


def _drain(consumer: Consumer, clock: ManualClock, seen: Seen) -> None:
    got = seen.pending[consumer.id] = []
    missed = seen.missed[consumer.id] = []
    quiet = 0
    while quiet < 2:
        try:
            messages: list[Message] = consumer.batch(1000, timeout_s=0)
        except Gap as gap:
            missed.append((gap.root, gap.first, gap.last))
            continue
        for message in messages:
            if not message.retained:
                place = message.root, message.offset
                got.append(place)
                seen.messages.setdefault(place, (message.topic, message.payload))
                assert seen.messages[place] == (message.topic, message.payload), f"{place} differs by reader"
        if messages:
            consumer.ack(messages)
            quiet = 0
        else:
            clock.advance(RETRY_S)
            quiet += 1


def _root(topic: str) -> str:
    return topic.partition("/")[0]


@contextmanager
def visiting(folder: str, *, read_only: bool = False) -> Iterator[Bus]:
    """A bus that is let go of, whatever becomes of it."""
    bus = open_bus(folder, read_only=read_only)
    try:
        yield bus
    finally:
        bus.close()
