"""The journal oracle: remembers what was promised, and checks after every crash that it was kept.

    oracle = Oracle()
    oracle.publish(bus, "home/door", retain=True)           # payloads are the oracle's: each is told from all others
    oracle.take(bus, "alarm", 3, ack)                       # a durable subscription, and what became of its messages
    …                                                       # a crash, at any moment
    oracle.check(bus)                                       # on the bus as it was opened again

What it checks:

- What was acked is there, at its offset, as it was; what was refused is not. A publish whose outcome nobody learned may
  be there or not, but whole: all messages of one call to one root, next to each other, or none of them.
- Nothing is there that nobody published, and nothing twice.
- Offsets are dense. Where they are not, readers get a Gap, and an event said so; offsets are not used twice.
- An ack of a delivery holds: never again. What was not acked comes again, in order, with the attempts that it had.
- A producer's repeat gets the first receipt. Retained values are the last ones. `topics` counts what replay finds. A
  delayed message comes once.
"""

from __future__ import annotations

import copy
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from faults.machine import PATIENCE_S, Machine
from headwater.bus import Bus
from headwater.clock import SECOND_US, to_datetime
from headwater.delivery.consumer import Consumer
from headwater.delivery.replay import Reading
from headwater.errors import Conflict, Failed, Gap, HeadwaterError, PartlyStored, Recalled
from headwater.message import Message, Outgoing, Receipt
from headwater.store import state as rows
from headwater.topics.name import compile_filter

Outcome = Literal["unknown", "acked", "refused"]
Place = tuple[str, int]
"""Root and offset."""

FILLING = bytes(index * 7 % 251 for index in range(502))
RETRY_S_MAX = 301.0


def root_of(topic: str) -> str:
    return topic.partition("/")[0]


def payload_of(name: str, topic: str, size: int = 0) -> bytes:
    """A payload that says which message of which topic it is, and that it is whole."""
    text = f"{name} {topic} ".encode()
    text += (FILLING[len(text) % 251 :] * (size // 251 + 1))[:size]
    return b"%08x " % zlib.crc32(text) + text


def name_in(topic: str, payload: bytes) -> str:
    """The name that `payload_of` put into a payload; a damaged one, or one of another topic, fails the test."""
    crc, _, text = payload.partition(b" ")
    assert b"%08x" % zlib.crc32(text) == crc, f"an alien payload in {topic}: {payload[:60]!r}"
    name, stated, _ = text.split(b" ", 2)
    assert stated.decode() == topic, f"a message of {stated!r} in {topic}"
    return name.decode()


@dataclass(eq=False)
class Sent:
    """A message that somebody tried to publish."""

    name: str
    topic: str
    payload: bytes
    retain: bool = False
    due_us: int = 0
    """When a delayed message is to come; 0 if it is none."""
    outcome: Outcome = "unknown"
    offset: int = 0

    @property
    def place(self) -> Place:
        return root_of(self.topic), self.offset


@dataclass(eq=False)
class Call:
    """A publish call: its messages, and the producer's sequence if it had one."""

    messages: list[Sent]
    producer: str | None = None
    sequence: int | None = None
    outcome: Outcome = "unknown"

    def of_root(self, root: str) -> list[Sent]:
        return [sent for sent in self.messages if root_of(sent.topic) == root]


@dataclass(eq=False)
class Reader:
    """A durable subscription, as far as it was promised."""

    id: str
    filter: str
    order: str = "strict"
    done: set[Place] = field(default_factory=set)
    """Acked, rejected or given up on, and told so: never again."""
    doubtful: set[Place] = field(default_factory=set)
    """An ack or a reject did not return: never again, or again."""
    attempts: Counter[Place] = field(default_factory=Counter)
    """Failed attempts that were noted for good."""
    dead: set[Place] = field(default_factory=set)
    copies_done: set[Place] = field(default_factory=set)
    """The same for copies of retained messages."""
    copies_doubtful: set[Place] = field(default_factory=set)
    after: dict[str, int] = field(default_factory=dict)
    """Per root, the last message before its start."""
    copies: set[Place] = field(default_factory=set)
    """Retained messages at its start."""
    gaps: list[tuple[str, int, int]] = field(default_factory=list)
    """What it was told is gone."""

    def settled(self, message: Message) -> tuple[set[Place], set[Place]]:
        return (self.copies_done, self.copies_doubtful) if message.retained else (self.done, self.doubtful)


@dataclass
class Found:
    """What a bus holds."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    """By root, in the order of reading."""
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def names(self) -> dict[str, Message]:
        return {
            name_in(message.topic, message.payload): message
            for messages in self.messages.values()
            for message in messages
            if message.payload
        }

    def has_gap(self, place: Place) -> bool:
        root, offset = place
        return any(first <= offset <= last for first, last in self.gaps.get(root, ()))


class Oracle:
    """What was promised to publishers and consumers of one bus, over all of its lives."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sent: dict[str, Sent] = {}
        self.clears: Counter[str] = Counter()
        """Empty payloads sent with the retain flag; they have no name."""
        self.readers: dict[str, Reader] = {}
        self.acked: dict[Place, Sent] = {}
        self._lock = threading.Lock()

    def fork(self) -> Oracle:
        """One of its own for each way in which the story goes on."""
        other = Oracle()
        memory = (self.calls, self.sent, self.clears, self.readers, self.acked)
        other.calls, other.sent, other.clears, other.readers, other.acked = copy.deepcopy(memory)
        return other

    # Publishing

    def message(self, topic: str, size: int = 0, *, retain: bool = False, due_us: int = 0) -> Sent:
        """A message that is about to be published."""
        with self._lock:
            name = f"m{len(self.sent)}"
            sent = self.sent[name] = Sent(name, topic, payload_of(name, topic, size), retain, due_us)
        return sent

    def _begin(self, messages: list[Sent], producer: str | None, sequence: int | None) -> Call:
        call = Call(messages, producer, sequence)
        with self._lock:
            self.calls.append(call)
        return call

    def publish(
        self,
        bus: Bus,
        topic: str,
        size: int = 0,
        *,
        retain: bool = False,
        producer: str | None = None,
        sequence: int | None = None,
        due_us: int = 0,
    ) -> Receipt:
        """Publish one message, and remember what came of it."""
        sent = self.message(topic, size, retain=retain, due_us=due_us)
        call = self._begin([sent], producer, sequence)
        at = to_datetime(due_us) if due_us else None
        try:
            receipt = bus.publish(
                topic, sent.payload, retain=retain, producer=producer, sequence=sequence, deliver_at=at
            )
        except HeadwaterError as error:
            self.refuse(call, error)
            raise
        self.store(call, [receipt])
        return receipt

    def publish_many(
        self,
        bus: Bus,
        topics: Iterable[str],
        size: int = 0,
        *,
        retain: bool = False,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Sequence[Receipt]:
        """Publish messages together, and remember what came of them."""
        messages = [self.message(topic, size, retain=retain) for topic in topics]
        call = self._begin(messages, producer, sequence)
        try:
            receipts = bus.publish_many(outgoing(messages), producer=producer, sequence=sequence)
        except HeadwaterError as error:
            self.refuse(call, error)
            raise
        self.store(call, receipts)
        return receipts

    def clear(self, bus: Bus, topic: str) -> None:
        """Clear a retained value."""
        self.clears[topic] += 1
        bus.publish(topic, b"", retain=True)

    def store(self, call: Call, receipts: Iterable[Receipt]) -> None:
        """The call returned: from now on it is a promise."""
        with self._lock:
            call.outcome = "acked"
            for sent, receipt in zip(call.messages, receipts, strict=True):
                self._promise(sent, receipt)

    def _promise(self, sent: Sent, receipt: Receipt) -> None:
        sent.outcome = "acked"
        assert receipt.topic == sent.topic
        if sent.due_us:
            assert receipt.offset == 0
            return
        assert sent.offset in (0, receipt.offset), f"a repeat was given {receipt.offset}, not {sent.offset}"
        sent.offset = receipt.offset
        known = self.acked.setdefault(sent.place, sent)
        assert known is sent, f"{sent.place} was given to {known.name} and to {sent.name}"

    def refuse(self, call: Call, error: HeadwaterError) -> None:
        """The call raised: nothing was stored but what the error says, unless it was a failure of the disk, after which
        nobody knows."""
        if not isinstance(error, PartlyStored):
            self._decide(call, "unknown" if isinstance(error, Failed) else "refused")
            return
        with self._lock:
            call.outcome = "unknown"
            for sent, receipt in zip(call.messages, error.receipts, strict=True):
                if receipt is not None:
                    self._promise(sent, receipt)
                else:
                    sent.outcome = "unknown" if isinstance(error.refused[root_of(sent.topic)], Failed) else "refused"

    def _decide(self, call: Call, outcome: Outcome) -> None:
        with self._lock:
            call.outcome = outcome
            for sent in call.messages:
                sent.outcome = outcome

    # Consuming

    def subscribe(self, bus: Bus, id: str, filter: str, **options: object) -> Consumer:
        """A consumer of a durable subscription that is remembered here."""
        if id not in self.readers:
            reader = self.readers[id] = Reader(id, filter, str(options.get("order", "strict")))
            if options.get("start") == "latest":
                reader.after = {root.name: root.stream.durable for root in bus.core.roots.all()}
                reader.copies = {(message.root, message.offset) for message in bus.retained(filter).values()}
        consumer: Consumer = bus.subscribe(filter, id=id, **{"start": "earliest", **options})  # type: ignore[call-overload]
        return consumer

    def take(self, consumer: Consumer, count: int) -> list[Message]:
        """Take what is there, up to so many; whatever was acked before must not be among it."""
        reader = self.readers[consumer.id]
        taken: list[Message] = []
        while len(taken) < count:
            try:
                found = consumer.batch(count - len(taken), timeout_s=0)
            except Gap as gap:
                reader.gaps.append((gap.root, gap.first, gap.last))
                continue
            if not found:
                break
            taken += found
        for message in taken:
            place = (message.root, message.offset)
            done, _ = reader.settled(message)
            assert place not in done, f"{place} was acked by {reader.id} and came again"
            assert message.retained or message.attempt > reader.attempts[place], f"{place} forgot its attempts"
            if message.payload:
                name_in(message.topic, message.payload)
        return taken

    def ack(self, consumer: Consumer, messages: Sequence[Message], *, wait: bool = True) -> None:
        """Ack, and remember whether it returned; one that was not waited for is no promise."""
        reader = self.readers[consumer.id]
        self._settle(consumer, messages, lambda: consumer.ack(messages, wait=wait))
        for message in () if wait else messages:
            done, doubtful = reader.settled(message)
            done.discard((message.root, message.offset))
            doubtful.add((message.root, message.offset))

    def reject(self, consumer: Consumer, message: Message) -> None:
        """Reject, and remember whether it returned."""
        self._settle(consumer, [message], lambda: message.reject("never"))
        if not message.retained:
            self.readers[consumer.id].dead.add((message.root, message.offset))

    def nack(self, consumer: Consumer, message: Message, delay_s: float | None = None) -> None:
        """Nack, and remember whether it returned; the last attempt allowed is not counted by this oracle."""
        message.nack("not now", delay_s)
        if not message.retained:
            self.readers[consumer.id].attempts[message.root, message.offset] += 1

    def _settle(self, consumer: Consumer, messages: Sequence[Message], call: Callable[[], None]) -> None:
        reader = self.readers[consumer.id]
        places = [(reader.settled(message), (message.root, message.offset)) for message in messages]
        fresh = [(doubtful, place) for (_, doubtful), place in places if place not in doubtful]
        for doubtful, place in fresh:
            doubtful.add(place)
        try:
            call()
        except Recalled:  # but an ack before it that was not waited for may hold
            for doubtful, place in fresh:
                doubtful.discard(place)
            raise
        for (done, doubtful), place in places:
            doubtful.discard(place)
            done.add(place)

    # Checking

    def check(self, bus: Bus, *, damaged: bool = False, trimmed: bool = False) -> Found:
        """Everything that can be seen without changing anything.

        `damaged`: durable bytes were changed, so messages may be gone if somebody says so. `trimmed`: retention
        or a purge deleted some.
        """
        found = read_all(bus)
        if not damaged:
            assert not found.gaps, f"messages are gone: {found.gaps}"
        self._check_offsets(found, trimmed)
        self._check_names(found, damaged)
        self._check_acked(found, trimmed)
        self._check_calls(found, trimmed)
        if not (found.gaps or trimmed):
            self._check_topics(bus, found)
            self._check_retained(bus, found)
        return found

    def _check_offsets(self, found: Found, trimmed: bool) -> None:
        for root, messages in found.messages.items():
            offsets = [message.offset for message in messages]
            missing = [offset for first, last in found.gaps.get(root, ()) for offset in (first, last)]
            assert offsets == sorted(set(offsets)), f"the order of {root} is {offsets}"
            first = min(offsets + missing) if trimmed else 1
            expected = first
            spans = sorted([(offset, offset) for offset in offsets] + found.gaps.get(root, []))
            for start, last in spans:
                assert start == expected, f"{root} has nothing at {expected}, and nobody says so"
                expected = last + 1

    def _check_names(self, found: Found, damaged: bool) -> None:
        seen: Counter[str] = Counter()
        empty: Counter[str] = Counter()
        for messages in found.messages.values():
            for message in messages:
                if message.payload:
                    seen[name_in(message.topic, message.payload)] += 1
                else:
                    empty[message.topic] += 1
        for name, times in seen.items():
            sent = self.sent.get(name)
            assert sent is not None, f"nobody sent {name}"
            assert times == 1, f"{name} is stored {times} times"
            assert sent.outcome != "refused", f"{name} was refused, and is there"
        for topic, times in empty.items():
            assert times <= self.clears[topic], f"an empty message in {topic} that nobody sent"

    def _check_acked(self, found: Found, trimmed: bool) -> None:
        by_place = {(root, message.offset): message for root, many in found.messages.items() for message in many}
        first = {root: many[0].offset for root, many in found.messages.items() if many}
        for place, sent in self.acked.items():
            message = by_place.get(place)
            if message is None:
                is_deleted = trimmed and place[1] < first.get(place[0], place[1] + 1)
                assert is_deleted or found.has_gap(place), f"{sent.name} was acked at {place}, and is lost"
                continue
            assert message.payload == sent.payload, f"another message stands at {place}, in place of {sent.name}"
            assert message.topic == sent.topic

    def _check_calls(self, found: Found, trimmed: bool) -> None:
        """Messages of one call to one root are next to each other, in its order, or not there."""
        names = found.names()
        for call in self.calls:
            if any(sent.due_us for sent in call.messages):
                continue
            for root in {root_of(sent.topic) for sent in call.messages}:
                wanted = call.of_root(root)
                offsets = [names[sent.name].offset for sent in wanted if sent.name in names]
                if len(offsets) < len(wanted) and (trimmed or found.gaps.get(root)):
                    continue
                assert len(offsets) in (0, len(wanted)), f"a part of a call is there: {[sent.name for sent in wanted]}"
                assert not offsets or offsets == list(range(offsets[0], offsets[0] + len(offsets)))

    def _check_topics(self, bus: Bus, found: Found) -> None:
        messages: Counter[str] = Counter()
        last: dict[str, int] = {}
        for many in found.messages.values():
            for message in many:
                messages[message.topic] += 1
                last[message.topic] = message.offset
        listed = {info.topic: (info.messages, info.last_offset) for info in bus.topics("#")}
        assert listed == {topic: (messages[topic], last[topic]) for topic in messages}

    def _check_retained(self, bus: Bus, found: Found) -> None:
        expected: dict[str, tuple[int, bytes]] = {}
        for many in found.messages.values():
            for message in many:
                if not message.payload:
                    expected.pop(message.topic, None)
                elif self.sent[name_in(message.topic, message.payload)].retain:
                    expected[message.topic] = (message.offset, message.payload)
        held = {message.topic: (message.offset, message.payload) for message in bus.retained("#").values()}
        assert held == expected
        assert {info.topic for info in bus.topics("#") if info.retained} == set(expected)

    # Checking by going on: these change the bus, as publishers and consumers do.

    def resend(self, bus: Bus, last: int = 8) -> None:
        """Producers send their last calls again: what was stored is not stored twice, what was not is stored now."""
        by_producer: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.producer is not None:
                by_producer.setdefault(call.producer, []).append(call)
        for calls in by_producer.values():
            for call in calls[-last:]:
                before = call.outcome
                is_acked = before == "acked"
                if not is_acked:
                    self._decide(call, "unknown")
                try:
                    receipts = bus.publish_many(outgoing(call.messages), producer=call.producer, sequence=call.sequence)
                except Conflict:
                    # It was not stored, and the producer went on, or an earlier one of it failed.
                    assert not is_acked
                    self._decide(call, before)
                    continue
                except PartlyStored as error:
                    assert not is_acked
                    self.refuse(call, error)
                    if not all(isinstance(refusal, Conflict) for refusal in error.refused.values()):
                        raise
                    for sent, receipt in zip(call.messages, error.receipts, strict=True):
                        sent.outcome = before if receipt is None else sent.outcome
                    continue
                except HeadwaterError as error:
                    if before == "refused":  # else one of the times before may have stored it
                        self.refuse(call, error)
                    raise
                assert not is_acked or all(receipt.duplicate for receipt in receipts)
                self.store(call, receipts)

    def release(self, machine: Machine, bus: Bus, upto_us: int, *, damaged: bool = False) -> None:
        """Let the time come for delayed messages: those that are due by then are there, the others are not.

        On a disk that has failed or is full they have to wait.
        """
        machine.clock.advance(max(0, upto_us - machine.clock.now_us()) / SECOND_US)
        troubles = len(bus.events())

        def has_to_wait() -> bool:
            return has_failed(bus) or (machine.files.capacity_bytes is not None and len(bus.events()) > troubles)

        machine.wait_until(lambda: has_to_wait() or not is_due(bus, machine.clock.now_us()))
        machine.settle(bus)
        if has_to_wait():
            return
        names = read_all(bus).names()
        for sent in self.sent.values():
            if sent.due_us > machine.clock.now_us():
                assert sent.name not in names, f"{sent.name} came too early"
            elif sent.due_us and sent.outcome == "acked" and not damaged:
                assert sent.name in names, f"{sent.name} was to be delivered by now"

    def drain(self, machine: Machine, bus: Bus) -> None:
        """Every subscription gets what it has not acked, in order, and nothing else; then it has nothing left."""
        found = read_all(bus)
        for reader in self.readers.values():
            if any(info.id == reader.id for info in bus.subscriptions()):
                self._drain(machine, bus, reader, found)

    def _drain(self, machine: Machine, bus: Bus, reader: Reader, found: Found) -> None:
        wanted = compile_filter(reader.filter)
        consumer: Consumer = bus.subscribe(reader.filter, id=reader.id)  # type: ignore[assignment]
        got: list[Message] = []
        quiet = 0
        while quiet < 2:
            messages = self.take(consumer, 1000)
            if messages:
                got += messages
                self.ack(consumer, messages)
                quiet = 0
            else:
                machine.clock.advance(RETRY_S_MAX)  # what failed is due by then
                quiet += 1
        consumer.close()
        places = [(message.root, message.offset) for message in got if not message.retained]
        owed = {
            (root, message.offset)
            for root, many in found.messages.items()
            for message in many
            if wanted(message.topic) and message.offset > reader.after.get(root, 0)
        }
        missing = owed - set(places) - reader.done - reader.doubtful
        assert not missing, f"{reader.id} never got {sorted(missing)}"
        copies = {(message.root, message.offset) for message in got if message.retained}
        assert reader.copies - reader.copies_done - reader.copies_doubtful <= copies <= reader.copies
        assert set(places) <= owed
        assert len(places) == len(set(places)), f"{reader.id} got something twice that it had acked"
        self._check_order(reader, got)
        letters = {(root_of(letter.topic), letter.offset): letter for letter in bus.dead_letters(reader.id)}
        for place in reader.dead:
            assert place in letters, f"{place} is dead for {reader.id}, and no letter is left"
            if place in self.acked:
                assert letters[place].payload == self.acked[place].payload

    def _check_order(self, reader: Reader, got: list[Message]) -> None:
        """Of a root with order="strict", of a topic with order="key" (no message here has a key)."""
        last: dict[str, int] = {}
        for message in got:
            of = message.root if reader.order == "strict" else message.topic
            if not message.retained and reader.order != "none":
                assert message.offset > last.get(of, 0), f"{reader.id} got {of} {message.offset} after {last[of]}"
                last[of] = message.offset


def outgoing(messages: list[Sent]) -> list[Outgoing]:
    return [Outgoing(sent.topic, sent.payload, retain=sent.retain) for sent in messages]


def is_due(bus: Bus, now_us: int) -> bool:
    """Whether a delayed message waits whose time has come."""
    return any(int.from_bytes(key[1:9], "big") <= now_us for key, _ in bus.core.state.scan(rows.DELAYED))


def has_failed(bus: Bus) -> bool:
    """Whether there is something that this bus cannot write any more."""
    return bus.core.rows.failed is not None or any(root.stream.failed for root in bus.core.roots.all())


def has_told(bus: Bus) -> bool:
    """Whether a dead letter or a delayed message could not be published, which the bus says and tries again; it may be
    about to say so."""
    words = ("is not published", "could not be published")
    until = time.monotonic() + PATIENCE_S
    while not any(event.kind == "trouble" and any(word in event.text for word in words) for event in bus.events()):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def read_all(bus: Bus) -> Found:
    """Everything that a replay finds, root by root, and the gaps: those it meets, and known ones before its start."""
    found = Found()
    for root in bus.core.roots.all():
        if not root.name.startswith("$"):
            found.messages[root.name], gaps = read(bus.replay(f"{root.name}/#"))
            holes = bus.core.roots.holes(root.stream.number)
            gaps += [(hole.first, hole.last) for hole in holes if hole.last < root.stream.first_offset]
            if gaps:
                found.gaps[root.name] = sorted(gaps)
    return found


def read(reading: Reading) -> tuple[list[Message], list[tuple[int, int]]]:
    """Messages and gaps, to the end of history."""
    messages: list[Message] = []
    gaps: list[tuple[int, int]] = []
    while True:
        try:
            batch = reading.batch(10_000)
        except Gap as gap:
            gaps.append((gap.first, gap.last))
            continue
        if not batch:
            return messages, gaps
        messages += batch
