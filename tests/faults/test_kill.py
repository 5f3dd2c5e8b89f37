"""kill -9 of a real process under load, on real files and a real state store, life after life."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from faults.child import CONFIG, SUBSCRIPTIONS
from faults.oracle import Found, Oracle, Place, Reader, Sent, name_in, read_all, root_of
from headwater.bus import Bus
from headwater.delivery.consumer import Consumer
from headwater.message import Message

TESTS = Path(__file__).resolve().parents[1]


class Witness:
    """What the killed processes told, added up in an oracle."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.sequence = 0
        """What the idempotent producer tried last."""
        self.lines: Counter[str] = Counter()
        for id, order in SUBSCRIPTIONS.items():
            self.oracle.readers[id] = Reader(id, "#", order)

    def hear(self, line: str) -> None:
        word, *rest = line.split(" ")
        self.lines[word] += 1
        if word == "sent":
            self._sent(rest[0], rest[1], int(rest[2]))
        elif word == "trying":
            self.sequence = int(rest[0])
        elif word in ("got", "acked", "dead"):
            self._settled(word, self.oracle.readers[rest[0]], (rest[1], int(rest[2])))

    def _sent(self, name: str, topic: str, offset: int) -> None:
        sent = self.oracle.sent.setdefault(name, Sent(name, topic, b"", topic.endswith("/kept")))
        assert sent.offset in (0, offset), f"{name} was stored at {sent.offset} and at {offset}"
        sent.offset, sent.outcome = offset, "acked"
        known = self.oracle.acked.setdefault(sent.place, sent)
        assert known is sent, f"{sent.place} was given to {known.name} and to {sent.name}"

    def _settled(self, word: str, reader: Reader, place: Place) -> None:
        assert place not in reader.done, f"{reader.id} was handed {place} again, which it had settled"
        if word == "got":
            reader.doubtful.add(place)  # the process may be killed after its ack and before it tells
        else:
            reader.done.add(place)
            if word == "dead":
                reader.dead.add(place)

    def check(self, bus: Bus) -> Found:
        found = read_all(bus)
        for message in (message for many in found.messages.values() for message in many):
            name = name_in(message.topic, message.payload)
            sent = self.oracle.sent.setdefault(
                name, Sent(name, message.topic, message.payload, message.topic.endswith("/kept"))
            )
            sent.payload = sent.payload or message.payload
        self.oracle.check(bus)
        self._check_calls(found)
        self._check_lag(bus, found)
        return found

    def _check_calls(self, found: Found) -> None:
        """All messages of a call to one root, next to each other, or none."""
        calls: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for name, message in found.names().items():
            call, _, number = name.rpartition(".")
            calls.setdefault((call, message.root), []).append((message.offset, int(number.partition("of")[0])))
            assert len(calls[call, message.root]) <= int(number.partition("of")[2])
        for (call, root), places in calls.items():
            first = places[0][0]
            assert places == [(first + number, number) for number in range(len(places))], f"{call} in {root}"

    def _check_lag(self, bus: Bus, found: Found) -> None:
        """What is left to deliver is what was not acked; a few acks may have been killed on their way to be told."""
        total = sum(map(len, found.messages.values()))
        for info in bus.subscriptions():
            reader = self.oracle.readers[info.id]
            assert total - len(reader.done | reader.doubtful) <= info.lag <= total - len(reader.done)

    def check_to_the_end(self, bus: Bus, found: Found) -> None:
        """Every subscription gets all that it has not settled, and then nothing."""
        for reader in self.oracle.readers.values():
            consumer: Consumer = bus.subscribe("#", id=reader.id)  # type: ignore[assignment]
            got: list[Message] = []
            while messages := consumer.batch(1000, timeout_s=0.1):
                for message in messages:
                    assert (message.root, message.offset) not in reader.done
                consumer.ack(messages)
                got += messages
            places = {(message.root, message.offset) for message in got}
            assert len(places) == len(got)
            everything = {(root, message.offset) for root, many in found.messages.items() for message in many}
            assert everything - reader.done - reader.doubtful <= places
            letters = {(root_of(letter.topic), letter.offset) for letter in bus.dead_letters(reader.id)}
            assert reader.dead <= letters


def has_worked(told: list[bytes]) -> bool:
    """Whether a process has done some of everything, however slow it is."""
    text = b"".join(told)
    return all(text.count(b"\n%s " % word) > 5 for word in (b"sent", b"trying", b"got", b"acked"))


def live_and_die(folder: Path, life: int, witness: Witness, rng: random.Random, *, while_opening: bool) -> None:
    """Start a process, let it work, kill it, and hear what it told."""
    child = subprocess.Popen(
        [sys.executable, "-m", "faults.child", str(folder), str(life), str(witness.sequence)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},  # the same Headwater as here
        cwd=TESTS,
    )
    assert child.stdout is not None
    told = []
    if not while_opening:
        told.append(child.stdout.readline())
        assert told == [b"ready\n"]
    until = time.monotonic() + rng.uniform(0.05 if while_opening else 0.2, 0.4 if while_opening else 1.0)
    os.set_blocking(child.stdout.fileno(), False)
    while time.monotonic() < until or not (while_opening or has_worked(told)):  # a full pipe would stop it
        told.append(child.stdout.read() or b"")
        time.sleep(0.005)
        assert child.poll() is None, "it died by itself"
    child.send_signal(signal.SIGKILL)
    child.wait()
    os.set_blocking(child.stdout.fileno(), True)
    told.append(child.stdout.read())
    child.stdout.close()
    lines = b"".join(told).decode().split("\n")
    assert lines.pop() == "", "a line is whole or not there"
    for line in lines:
        witness.hear(line)


def lives(folder: Path, count: int, seed: int) -> Witness:
    rng = random.Random(seed)
    witness = Witness()
    for life in range(count):
        live_and_die(folder, life, witness, rng, while_opening=life % 5 == 4)
        with Bus(folder, CONFIG) as bus:
            found = witness.check(bus)
            assert not [event for event in bus.events() if event.kind in ("damage", "gap", "trouble")]
            if life == count - 1:
                witness.check_to_the_end(bus, found)
    return witness


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    witness = lives(tmp_path / "data", 3, seed=1)
    assert all(witness.lines[word] > 10 for word in ("sent", "trying", "got", "acked")), witness.lines


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_process_after_process_is_killed_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    lives(tmp_path / "data", 50, seed)
