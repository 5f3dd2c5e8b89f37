"""Bytes that go bad: torn tails are cut, damage is reported as a gap and set apart, and all the rest stays readable."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import pytest

from faults.faulty_files import FaultyFiles
from faults.machine import FOLDER, SMALL, Machine, stream_of
from faults.oracle import Found, Oracle, read
from headwater.bus import Bus
from headwater.config import Config
from headwater.errors import Gap, HeadwaterError, Malformed
from headwater.store.batch import Seed, checksum, seal_header, seed_of
from headwater.store.body import encode_body
from headwater.store.segment import whole_batches

LAZY = msgspec.structs.replace(SMALL, checkpoint_batches=1 << 20, checkpoint_bytes=1 << 30, journal_bytes=1 << 20)
"""Without checkpoints of its own accord, so that recovery has everything to look at."""

WATERMARKS = f"{FOLDER}/watermarks"
QUARANTINE = f"{FOLDER}/quarantine"


class Place(NamedTuple):
    """A batch in a segment."""

    path: str
    position: int
    length: int
    """Without the zeros up to the next."""
    first: int
    last: int


def batches(machine: Machine, root: str = "a") -> list[Place]:
    """Every batch of a root, in order."""
    return [
        Place(path, at, header.header_bytes + header.body_bytes, header.first_offset, header.last_offset)
        for path in machine.segments(root)
        for at, header, _ in whole_batches(machine.seed(), machine.files.open(path, write=False), 0, root)
    ]


def copy_of(machine: Machine) -> Machine:
    """The same machine, with everything on disk durable, to damage and open."""
    return machine.after_crash(0, "all", "all")


def forget_watermarks(machine: Machine) -> None:
    machine.files.remove(WATERMARKS)


def texts(bus: Bus, kind: str) -> list[str]:
    return [event.text for event in bus.events() if event.kind == kind]


def quarantined(files: FaultyFiles) -> bytes:
    return b"".join(files.read(f"{QUARANTINE}/{name}") for name in files.list(QUARANTINE))


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def written(oracle: Oracle, config: Config = LAZY) -> Machine:
    """A stream of seven batches, one of them of three messages; everything acked."""
    machine = Machine(config)
    bus = machine.open()
    for count in range(3):
        oracle.publish(bus, "a/x", count * 11)
    oracle.publish_many(bus, ["a/x", "a/y", "a/x"], 5)
    for count in range(3):
        oracle.publish(bus, "a/y", count * 7)
    machine.stop()
    return machine


def check_goes_on(machine: Machine, bus: Bus, oracle: Oracle, found: Found) -> None:
    """No offset is used twice, new messages are kept, and the gap stays where it is after the next opening."""
    gaps = found.gaps.get("a", [])
    last = max([message.offset for message in found.messages["a"]] + [last for _, last in gaps])
    assert oracle.publish(bus, "a/after").offset == last + 1
    assert oracle.check(bus, damaged=bool(gaps)).gaps == found.gaps
    machine.close(bus)
    bus = machine.open()
    assert oracle.check(bus, damaged=bool(gaps)).gaps == found.gaps


# The tail is cut


def test_a_tail_that_was_never_acked_is_cut_at_any_byte(oracle: Oracle) -> None:
    machine = Machine(LAZY)
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "a/y"])
    oracle.publish(bus, "a/x")
    machine.crash_when(lambda path: path.endswith(".log"))
    with machine.power_loss():
        oracle.publish_many(bus, ["a/x", "a/y", "a/x"], 20)
    last = batches(copy_of(machine))[-1]
    assert (last.first, last.last) == (4, 6)
    for cut in range(last.position, last.position + last.length + 8):
        after = copy_of(machine)
        after.files.cut(last.path, cut)
        is_whole = cut >= last.position + last.length
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus)
        assert len(found.messages["a"]) == (6 if is_whole else 3), f"cut at {cut}"
        assert bool(texts(bus, "torn")) == (last.position < cut and not is_whole)
        assert not after.files.list(QUARANTINE)
        check_goes_on(after, bus, again, found)
        after.stop()


@pytest.mark.parametrize(
    "evidence",
    [
        "watermarks",
        "state",
        "floor",
        "acked out of order",
    ],
)
def test_a_tail_that_was_acked_and_is_cut_at_any_byte_is_a_gap(oracle: Oracle, evidence: str) -> None:
    machine = Machine(LAZY)
    bus = machine.open()
    for count in range(4):
        oracle.publish(bus, "a/x", count)
    oracle.publish_many(bus, ["a/y", "a/y"])
    oracle.publish(bus, "a/x")
    if evidence == "state":
        bus.core.roots.checkpoints.make()
    if evidence == "floor":
        consumer = oracle.subscribe(bus, "s", "#")
        oracle.ack(consumer, oracle.take(consumer, 10))
    if evidence == "acked out of order":
        consumer = oracle.subscribe(bus, "s", "#", order="none")
        oracle.ack(consumer, oracle.take(consumer, 10)[-1:])
    whole = copy_of(machine)
    places = batches(whole)
    for cut in range(places[3].position, places[-1].position + places[-1].length):
        after = copy_of(machine)
        if evidence != "watermarks":
            forget_watermarks(after)
        after.files.cut(places[0].path, cut)
        bus = after.open()
        left = [place for place in places if place.position + place.length <= cut]
        again = oracle.fork()
        found = again.check(bus, damaged=True)
        assert found.gaps == {"a": [(left[-1].last + 1, 7)]}, f"cut at {cut}"
        assert any(f"messages {left[-1].last + 1} to 7" in text for text in texts(bus, "damage"))
        rest = whole.files.read(places[0].path)[left[-1].position + left[-1].length : cut].strip(b"\0")
        assert quarantined(after.files).strip(b"\0") == rest
        check_goes_on(after, bus, again, found)
        after.stop()


# Bits flip


def flips(place: Place) -> Iterator[tuple[int, int]]:
    """One bit of every byte of a batch, another one in each."""
    for index in range(place.length):
        yield place.position + index, index % 8


@pytest.mark.parametrize("number", [0, 3, 5], ids=["the first", "three messages", "the last but one"])
def test_a_flip_below_the_watermark_costs_its_batch_and_nothing_else(oracle: Oracle, number: int) -> None:
    """A later header calls it durable, so it is damage, though nothing else says so."""
    machine = written(oracle)
    place = batches(copy_of(machine))[number]
    for position, bit in flips(place):
        after = copy_of(machine)
        forget_watermarks(after)
        after.files.flip(place.path, position, bit)
        bad = after.files.read(place.path)[place.position : place.position + place.length]
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus, damaged=True)
        assert found.gaps == {"a": [(place.first, place.last)]}, f"byte {position}, bit {bit}"
        assert len(found.messages["a"]) == 9 - (place.last - place.first + 1)
        assert [f"messages {place.first} to {place.last} of" in text for text in texts(bus, "damage")] == [True]
        assert bad in quarantined(after.files)
        check_goes_on(after, bus, again, found)
        after.stop()


def test_a_flip_above_the_watermark_is_a_torn_tail(oracle: Oracle) -> None:
    machine = Machine(LAZY)
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "a/y"])
    machine.crash_when(lambda path: path.endswith(".log"))
    with machine.power_loss():
        oracle.publish_many(bus, ["a/x", "a/y", "a/x"], 20)
    place = batches(copy_of(machine))[-1]
    for position, bit in flips(place):
        after = copy_of(machine)
        after.files.flip(place.path, position, bit)
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus)
        assert len(found.messages["a"]) == 2, f"byte {position}, bit {bit}"
        assert texts(bus, "torn")
        assert not texts(bus, "damage")
        check_goes_on(after, bus, again, found)
        after.stop()


def test_a_flip_in_the_last_acked_batch_is_damage_if_anything_says_so(oracle: Oracle) -> None:
    machine = written(oracle)
    place = batches(copy_of(machine))[-1]
    for position, bit in flips(place):
        after = copy_of(machine)
        after.files.flip(place.path, position, bit)
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus, damaged=True)
        assert found.gaps == {"a": [(9, 9)]}, f"byte {position}, bit {bit}"
        assert texts(bus, "damage")
        assert quarantined(after.files)
        check_goes_on(after, bus, again, found)
        after.stop()


@pytest.mark.parametrize("where", ["a closed segment", "the active segment, before the checkpoint"])
def test_a_flip_in_what_recovery_does_not_look_at_is_found_when_it_is_read(oracle: Oracle, where: str) -> None:
    machine = copy_of(written(oracle))
    bus = machine.open()
    if where == "a closed segment":
        bus.core.roots.commit.run(stream_of(bus, "a").roll)
        oracle.publish(bus, "a/x")
    bus.core.roots.checkpoints.make_all()
    machine.stop()
    place = batches(copy_of(machine))[3]
    for position, bit in flips(place):
        after = copy_of(machine)
        after.files.flip(place.path, position, bit)
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus, damaged=True)
        assert found.gaps == {"a": [(place.first, place.last)]}, f"byte {position}, bit {bit}"
        check_goes_on(after, bus, again, found)
        after.stop()


def test_a_flip_between_batches_harms_nobody(oracle: Oracle) -> None:
    machine = written(oracle)
    for place in batches(copy_of(machine)):
        end = place.position + place.length
        for position in range(end, end + -end % 8):
            after = copy_of(machine)
            after.files.flip(place.path, position)
            oracle.fork().check(after.open())
            after.stop()


# What subscribers see


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_a_durable_subscriber_gets_a_gap_once_and_goes_on(oracle: Oracle, order: str) -> None:
    machine = written(oracle)
    after = copy_of(machine)
    place = batches(after)[3]
    after.files.flip(place.path, place.position + 70)
    bus = after.open()
    consumer = oracle.subscribe(bus, "s", "#", order=order)
    taken = oracle.take(consumer, 100)
    assert [message.offset for message in taken] == [1, 2, 3, 7, 8, 9]
    assert oracle.readers["s"].gaps == [("a", 4, 6)]
    assert len(texts(bus, "gap")) == 1
    oracle.ack(consumer, taken)
    after.close(bus)
    bus = after.open()
    consumer = oracle.subscribe(bus, "s", "#", order=order)
    oracle.publish(bus, "a/x")
    assert [message.offset for message in oracle.take(consumer, 100)] == [10]
    assert oracle.readers["s"].gaps == [("a", 4, 6)]
    after.stop()


def test_a_subscriber_that_chose_to_skip_gaps_never_hears_of_one(oracle: Oracle) -> None:
    machine = written(oracle)
    after = copy_of(machine)
    place = batches(after)[3]
    after.files.flip(place.path, place.position + 70)
    bus = after.open()
    consumer = oracle.subscribe(bus, "s", "#", on_gap="skip")
    assert [message.offset for message in oracle.take(consumer, 100)] == [1, 2, 3, 7, 8, 9]
    assert oracle.readers["s"].gaps == []
    assert texts(bus, "gap")
    after.stop()


def test_a_message_that_waits_for_its_retry_and_goes_bad_is_a_gap(oracle: Oracle) -> None:
    machine = written(oracle, msgspec.structs.replace(LAZY, tail_bytes=0))
    after = copy_of(machine)
    bus = after.open()
    consumer = oracle.subscribe(bus, "s", "#")
    taken = oracle.take(consumer, 3)
    oracle.ack(consumer, taken[:1])
    oracle.nack(consumer, taken[1], 5.0)
    place = batches(after)[1]
    after.files.flip(place.path, place.position + 70)
    after.clock.advance(6)
    assert [message.offset for message in oracle.take(consumer, 100)] == [3, 4, 5, 6, 7, 8, 9]
    assert oracle.readers["s"].gaps == [("a", 2, 2)]
    after.stop()


def test_a_follower_gets_a_gap_and_goes_on(oracle: Oracle) -> None:
    machine = written(oracle)
    after = copy_of(machine)
    place = batches(after)[3]
    after.files.flip(place.path, place.position + 70)
    bus = after.open()
    with bus.follow("a/#", after=0) as reading:
        offsets: list[int | str] = []
        while len(offsets) < 7:
            try:
                offsets += [message.offset for message in reading.batch(100, timeout_s=0)]
            except Gap as gap:
                offsets.append(f"{gap.first}-{gap.last}")
        assert offsets == [1, 2, 3, "4-6", 7, 8, 9]
    after.stop()


# The journal


def in_journal_alone(oracle: Oracle) -> Machine:
    """Groups over two roots whose segments lost everything; the watermarks are on disk."""
    machine = Machine(LAZY)
    bus = machine.open()
    for _ in range(3):
        oracle.publish_many(bus, ["a/x", "b/x", "a/y"], 10)
    marks = machine.files.read(WATERMARKS)
    after = machine.after_crash(0, "none", "none")
    after.files.write(WATERMARKS, marks)
    assert not any(after.files.read(path).strip(b"\0") for root in "ab" for path in after.segments(root))
    return after.after_crash(0, "all", "all")


def test_a_flip_in_the_journal_costs_one_batch_of_one_root(oracle: Oracle) -> None:
    machine = in_journal_alone(oracle)
    journal = f"{FOLDER}/journal"
    file = machine.files.open(journal, write=False)
    for at, header, stored in list(whole_batches(machine.seed(), file, 0, None)):
        for index in range(header.header_bytes + len(stored)):
            after = copy_of(machine)
            after.files.flip(journal, at + index, index % 8)
            bus = after.open()
            again = oracle.fork()
            found = again.check(bus, damaged=True)
            assert found.gaps == {header.root: [(header.first_offset, header.last_offset)]}, f"byte {at + index}"
            assert texts(bus, "damage")
            after.close(bus)
            assert again.check(after.open(), damaged=True).gaps == found.gaps
            after.stop()


def test_a_flip_in_a_journal_that_nobody_needs_harms_nobody(oracle: Oracle) -> None:
    machine = Machine(LAZY)
    bus = machine.open()
    for _ in range(3):
        oracle.publish_many(bus, ["a/x", "b/x", "a/y"], 10)
    journal = f"{FOLDER}/journal"
    for position in range(len(machine.files.read(journal))):
        after = copy_of(machine)
        after.files.flip(journal, position, position % 8)
        bus = after.open()
        oracle.fork().check(bus)
        assert not bus.events()
        after.stop()


# The index


def test_a_flip_in_an_index_is_healed_whatever_it_says(oracle: Oracle) -> None:
    """Offsets, positions and times of closed and active segments: the index is a hint and is checked at use."""
    machine = Machine(msgspec.structs.replace(SMALL, tail_bytes=0, read_bytes=1, checkpoint_batches=1 << 20))
    bus = machine.open()
    times = []
    for _ in range(4):
        times += [receipt.time_us for receipt in oracle.publish_many(bus, ["a/x", "a/y"])]
        machine.clock.advance(1)
    bus.core.roots.commit.run(stream_of(bus, "a").roll)
    for _ in range(4):
        times += [receipt.time_us for receipt in oracle.publish_many(bus, ["a/x", "a/y"])]
        machine.clock.advance(1)
    machine.close(bus)
    indexes = [path.replace(".log", ".idx") for path in machine.segments("a")]
    for index, length in [(index, len(machine.files.read(index))) for index in indexes]:
        for position in range(length):
            for bit in (0, 3, 7):
                after = copy_of(machine)
                after.files.flip(index, position, bit)
                check_every_way_to_read(after, oracle.fork(), times, f"{index} byte {position} bit {bit}")
                after.stop()


def test_an_index_that_is_cut_anywhere_is_healed(oracle: Oracle) -> None:
    machine = Machine(msgspec.structs.replace(SMALL, tail_bytes=0, read_bytes=1, checkpoint_batches=1 << 20))
    bus = machine.open()
    times = []
    for count in range(8):
        times += [receipt.time_us for receipt in oracle.publish_many(bus, ["a/x", "a/y"])]
        machine.clock.advance(1)
        if count == 3:
            bus.core.roots.commit.run(stream_of(bus, "a").roll)
    machine.close(bus)
    indexes = [path.replace(".log", ".idx") for path in machine.segments("a")]
    for index, length in [(index, len(machine.files.read(index))) for index in indexes]:
        for cut in range(0, length, 4):
            after = copy_of(machine)
            after.files.cut(index, cut)
            check_every_way_to_read(after, oracle.fork(), times, f"{index} cut to {cut}")
            after.stop()


def check_every_way_to_read(machine: Machine, oracle: Oracle, times: list[int], told: str) -> None:
    bus = machine.open()
    for offset in range(1, 17):
        first, *_ = read(bus.replay("a/#", after=offset - 1))[0]
        assert first.offset == offset, told
        since = datetime.fromtimestamp(times[offset - 1] / 1e6, UTC)
        expected = times.index(times[offset - 1]) + 1
        assert read(bus.replay("a/#", since=since))[0][0].offset == expected, told
    oracle.check(bus)
    assert {event.kind for event in bus.events()} <= {"mended"}, told
    assert oracle.publish(bus, "a/x").time_us == machine.clock.now_us(), told


# The folder


def test_a_flip_in_the_version_is_refused_and_changes_nothing(oracle: Oracle) -> None:
    machine = written(oracle)
    path = f"{FOLDER}/VERSION"
    whole = machine.files.read(path)
    for position in range(len(whole)):
        for bit in range(8):
            after = copy_of(machine)
            after.files.flip(path, position, bit)
            try:
                bus = after.open()
            except HeadwaterError as error:
                assert isinstance(error, Malformed)
            else:
                oracle.check(bus)  # white space, perhaps
                after.stop()
            again = copy_of(after)
            again.files.write(path, whole)
            oracle.check(again.open())
            again.stop()


def test_a_flip_in_the_watermarks_is_not_taken_for_messages_that_were_lost(oracle: Oracle) -> None:
    machine = written(oracle)
    for bit in range(64):
        after = copy_of(machine)
        after.files.flip(WATERMARKS, 8 + bit // 8, bit % 8)  # the cell of stream 1
        bus = after.open()
        again = oracle.fork()
        found = again.check(bus)
        check_goes_on(after, bus, again, found)
        after.stop()


# Batches that a publisher writes into a payload

GUESS = seed_of(b"not this folder's")


def forged(seed: Seed, root: str, first: int, durable: int) -> bytes:
    """A whole batch, as a payload that brings it to a multiple of 8."""
    body = encode_body([f"{root}/secret"], [b"forged"], 0)
    head = seal_header(seed, root.encode(), first, 1, 1 << 50, durable, len(body), checksum(body))
    return (head + body).rjust(1600, b"\0")


def after_a_torn_publish(oracle: Oracle, payload: bytes) -> Machine:
    """The power is lost while it is written, and costs a sector of its header."""
    machine = Machine(LAZY)
    bus = machine.open()
    oracle.publish(bus, "a/x")
    machine.crash_when(lambda path: path.endswith(".log"))
    with machine.power_loss():
        bus.publish("a/x", payload)
    place = batches(copy_of(machine))[-1]
    after = copy_of(machine)
    after.files.flip(place.path, place.position + 20)
    return after


def topics_read(bus: Bus) -> list[str]:
    found, gaps = read(bus.replay("#"))
    assert not gaps
    return [message.topic for message in found]


@pytest.mark.parametrize("guess", [Seed(0), GUESS], ids=["unseeded", "guessed"])
@pytest.mark.parametrize(
    ("first", "durable"),
    [
        pytest.param(2, 0, id="in its place"),
        pytest.param(3, 0, id="after it"),
        pytest.param(3, 2, id="after it, calling it durable"),
    ],
)
def test_a_batch_within_the_payload_of_a_torn_batch_is_not_taken_for_a_message(
    oracle: Oracle, first: int, durable: int, guess: Seed
) -> None:
    """Whoever may publish to one topic could so place a message in another of the same root."""
    after = after_a_torn_publish(oracle, forged(guess, "a", first, durable))
    bus = after.open()
    assert topics_read(bus) == ["a/x"]
    assert oracle.publish(bus, "a/x").offset == 2
    after.stop()


def test_it_is_the_seed_alone_that_tells_it_apart(oracle: Oracle) -> None:
    """Who can read the folder's files has the seed, and is trusted not to use it so."""
    other = Machine(LAZY)
    other.open()
    after = after_a_torn_publish(oracle, forged(other.seed(), "a", 3, 2))
    assert after.seed() == other.seed()
    other.stop()
    found, gaps = read(after.open().replay("a/#"))
    assert [message.topic for message in found] == ["a/x", "a/secret"]
    assert gaps == [(2, 2)]
    after.stop()


@pytest.mark.parametrize("guess", [Seed(0), GUESS], ids=["unseeded", "guessed"])
def test_a_batch_within_a_payload_in_the_journal_is_not_taken_for_a_message(oracle: Oracle, guess: Seed) -> None:
    """There it could even be of another root, which its publisher may not publish to."""
    machine = Machine(LAZY)
    bus = machine.open()
    machine.crash_when(lambda path: path.endswith("journal"))
    with machine.power_loss():
        bus.publish_many([("a/x", forged(guess, "c", 1, 0)), ("b/x", b"")])
    journal = f"{FOLDER}/journal"
    after = copy_of(machine)
    after.files.flip(journal, 20)
    assert b"c/secret" in after.files.read(journal)
    for path in (*after.segments("a"), *after.segments("b")):
        after.files.cut(path, 0)
    bus = after.open()
    assert topics_read(bus) == ["b/x"]
    assert set(bus.ends()) == {"b"}
    after.stop()


def test_segments_that_vanished_are_a_gap(oracle: Oracle) -> None:
    machine = written(oracle)
    after = copy_of(machine)
    for path in after.segments("a"):
        after.files.remove(path)
    bus = after.open()
    found = oracle.check(bus, damaged=True)
    assert found.gaps == {"a": [(1, 9)]}
    assert texts(bus, "damage")
    assert oracle.publish(bus, "a/x").offset == 10
    after.stop()


def test_recovery_of_damage_may_be_interrupted_anywhere(oracle: Oracle) -> None:
    """A crash in the midst of setting bytes apart: the next opening finds the same damage, or knows of it."""
    machine = written(oracle)
    place = batches(copy_of(machine))[3]
    for tail in (False, True):
        point = 0
        while True:
            point += 1
            after = copy_of(machine)
            if tail:
                after.files.cut(place.path, place.position + 10)
            else:
                after.files.flip(place.path, place.position + 70)
            after.crash_at(point)
            with after.power_loss():
                after.open()
                after.is_out = True
            if point > len(after.syncs):
                break
            for seed in range(4):
                later = after.after_crash(seed)
                bus = later.open()
                again = oracle.fork()
                found = again.check(bus, damaged=True)
                assert found.gaps == {"a": [(4, 9) if tail else (4, 6)]}
                assert quarantined(later.files)
                check_goes_on(later, bus, again, found)
                later.stop()
