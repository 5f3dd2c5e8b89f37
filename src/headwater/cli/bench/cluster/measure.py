"""The rows: what is stored in batches and one by one, how far followers are behind, and how long nobody leads."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

import headwater
from headwater.cli.bench.cluster.jetstream import JetStream
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import BATCH, MESSAGE_BYTES
from headwater.cli.bench.served.publish import Stream, batches_of
from headwater.cli.cluster.reach import wait_for
from headwater.cli.cluster.trial import Trial
from headwater.cli.following import pause
from headwater.cli.output import remark
from headwater.cli.temporary import temporary_folder
from headwater.cluster.node import STEP_DOWN
from headwater.cluster.overview import Overview, look
from headwater.errors import Failed, HeadwaterError

ROUNDS = 5
MIB = 1_000_000
LARGE = 1_000_000
LARGE_IN_FLIGHT = 4
SMALL_IN_FLIGHT = 4
SINGLES = 200
"""Publishes one after another, in each turn."""
ROOT = "bench"
PARTS = ("publish", "single", "failover", "step-down", "engine")
PATIENCE_S = 60.0
LOOK_S = 0.05
STEADY_S = 2.0
"""So long acks have to come again before a loss is over."""


def measure(
    place: str, seconds: float, rounds: int, parts: tuple[str, ...] = PARTS, lease_s: float = 3.0
) -> Iterator[Figure]:
    """Each part that is asked for, on a cluster of its own on this disk."""
    settings = ("--set", f"lease_s={lease_s}", "--set", "disk_free_bytes_min=0", "--log-level", "warning")
    with temporary_folder(place, "headwater-bench") as folder, Trial(folder, with_doors=False, more=settings) as trial:
        trial.start()
        if "publish" in parts or "single" in parts:
            with JetStream(trial.servers.urls) as raw:
                if "publish" in parts:
                    yield from _publish(trial, raw, seconds)
                if "single" in parts:
                    yield _single(trial, raw)
        if "step-down" in parts:
            yield from _pauses(trial, "step-down, last ack to next ack", rounds, _step_down, worst_s=1.0)
        if "failover" in parts:
            name = f"kill -9 of the leader, lease_s {lease_s:g}, last ack to next ack"
            yield from _pauses(trial, name, rounds, _kill, middle_s=5.0, worst_s=10.0)
        if "engine" in parts:
            name = "kill -9 of the NATS server that leads, last ack to next ack"
            yield from _pauses(trial, name, rounds, _kill_server, worst_s=20.0)


# What is stored


def _publish(trial: Trial, raw: JetStream, seconds: float) -> Iterator[Figure]:
    """Batches through the leader; by turns 1 MB messages with three consumers, and 400 bytes one by one."""
    frames = batches_of(1, ROOT)
    turn_s = seconds / ROUNDS
    ours, large, small = [], [], []
    lags: list[float] = []
    leader = trial.leader()
    host, _, port = leader.rpartition(":")
    stream = Stream((host, int(port)), None, frames)
    _publish_for(stream, turn_s)
    for _ in range(ROUNDS):
        with Lag(trial) as lag:
            ours.append(_publish_for(stream, turn_s))
        lags.append(lag.worst_s)
        raw.consume()
        large.append(LARGE * raw.publish_for(turn_s, LARGE, LARGE_IN_FLIGHT))
        raw.rest()
        small.append(raw.publish_for(turn_s, MESSAGE_BYTES, SMALL_IN_FLIGHT))
    stream.client.close()
    rate = median(ours)
    yield Figure(
        *("publish, 1,000 a frame, acked", "bytes", rate * MESSAGE_BYTES / MIB, "MB/s", median(large) / MIB),
        raw_name=f"R3, 1 MB messages, {LARGE_IN_FLIGHT} in flight, three consumers",
        goal=("ratio ≥", 0.6),
    )
    yield Figure(
        *("publish, 1,000 a frame, acked", "messages", rate, "messages/s", median(small)),
        raw_name=f"R3, 400 bytes one by one, {SMALL_IN_FLIGHT} in flight",
        goal=("ratio ≥", 20.0),
    )
    yield Figure("follower behind the leader", "full load, worst", max(lags), "s", goal=("value ≤", 1.0))


def _publish_for(stream: Stream, seconds: float) -> float:
    """Messages a second that were acked."""
    begun, before = time.perf_counter(), stream.done
    stream.fill()
    while (elapsed := time.perf_counter() - begun) < seconds:
        stream.receive()
        stream.fill()
    rate = BATCH * (stream.done - before) / elapsed
    stream.finish()
    return rate


def _single(trial: Trial, raw: JetStream) -> Figure:
    """One publish after another, and the same bytes without Headwater."""
    ours: list[float] = []
    theirs: list[float] = []
    payload = os.urandom(MESSAGE_BYTES)
    with headwater.connect(f"headwater://{trial.leader()}") as bus:
        bus.publish(f"{ROOT}/one", payload)
        for _ in range(ROUNDS):
            for _ in range(SINGLES):
                begun = time.perf_counter()
                bus.publish(f"{ROOT}/one", payload)
                ours.append(time.perf_counter() - begun)
            size = _record_bytes(trial)
            theirs += raw.times_of(SINGLES, size)
    return Figure(
        *("single publish, p50", "400 bytes", 1e6 * median(ours), "µs", 1e6 * median(theirs)),
        raw_name="R3, the same bytes as a record",
        goal=("ratio ≤", 1.4),
    )


def _record_bytes(trial: Trial) -> int:
    """How large the newest record is, as it stands in the engine's stream."""
    _, last = trial.engine.bounds()
    found: list[int] = []
    heard = threading.Event()

    def told(seen: object) -> None:
        data = getattr(seen, "data", None)
        found.append(len(data) if data is not None else MESSAGE_BYTES)
        heard.set()

    trial.engine.look(last, told)
    heard.wait(PATIENCE_S)
    return found[0] if found else MESSAGE_BYTES


class Lag:
    """How long a follower has a record later than the leader, at worst, while its block runs."""

    def __init__(self, trial: Trial) -> None:
        self.worst_s = 0.0
        self._trial = trial
        self._led: list[tuple[float, int]] = []
        """When the leader was seen at which record."""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over:
            try:
                found = look(self._trial.engine)
            except HeadwaterError:
                continue
            self._note(found, time.perf_counter())
            pause(LOOK_S)

    def _note(self, found: Overview, now_s: float) -> None:
        if found.leader is None:
            return
        for report in found.reports.values():
            since_s = next((at_s for at_s, number in self._led if number > report.position.number), now_s)
            self.worst_s = max(self.worst_s, now_s - since_s)
        self._led.append((now_s, found.leader.position.number))

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()


# How long nobody leads


def _pauses(
    trial: Trial,
    name: str,
    rounds: int,
    lose: Callable[[Trial], Callable[[], None]],
    *,
    middle_s: float | None = None,
    worst_s: float,
) -> Iterator[Figure]:
    """The longest time between two acks of one publisher around each loss; `lose` answers what mends it."""
    found = []
    with headwater.connect(trial.url) as bus, Beat(bus) as beat:
        for _ in range(rounds):
            _whole(trial)
            pause(0.5)
            beat.restart()
            mend = lose(trial)
            found.append(beat.gap_s(time.perf_counter()))
            mend()
    yield Figure(name, "p50", median(found), "s", goal=("value ≤", middle_s) if middle_s is not None else None)
    yield Figure(name, f"worst of {rounds}", max(found), "s", goal=("value ≤", worst_s))


def _whole(trial: Trial) -> Overview:
    found = wait_for(trial.engine, lambda seen: seen.is_well() and len(seen.reports) == len(trial.names), PATIENCE_S)
    if found is None:
        raise Failed(f"the cluster did not come back within {PATIENCE_S:.0f} s:\n{trial.logs()}")
    return found


class Beat:
    """A publisher that publishes one message after another, whatever happens, and notes when each was acked."""

    def __init__(self, bus: headwater.Bus) -> None:
        self._bus = bus
        self._acked: list[float] = []
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._bus.publish(f"{ROOT}/beat", b"x")
            except HeadwaterError as error:
                if not error.retryable:
                    remark(str(error))
                pause(0.01)
                continue
            with self._changed:
                self._acked.append(time.perf_counter())
                self._changed.notify_all()

    def restart(self) -> None:
        """Count from the next ack on."""
        with self._changed:
            self._acked.clear()
            self._changed.wait(PATIENCE_S)

    def gap_s(self, lost_s: float) -> float:
        """The longest pause, once acks have come steadily for a while after the loss."""
        until = time.perf_counter() + PATIENCE_S
        with self._changed:
            while time.perf_counter() < until:
                after = [at_s for at_s in self._acked if at_s > lost_s]
                if after and time.perf_counter() - lost_s > STEADY_S and after[-1] - after[0] > STEADY_S:
                    break
                self._changed.wait(1.0)
            acked = list(self._acked)
        return max((later - earlier for earlier, later in itertools.pairwise(acked)), default=PATIENCE_S)

    def __enter__(self) -> Beat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(PATIENCE_S)


def _kill(trial: Trial) -> Callable[[], None]:
    name = _led(trial)
    trial.kill_node(name)
    return lambda: trial.start_node(name)


def _step_down(trial: Trial) -> Callable[[], None]:
    trial.engine.ask(_led(trial), STEP_DOWN, b"", PATIENCE_S)
    return lambda: None


def _kill_server(trial: Trial) -> Callable[[], None]:
    place = trial.stream_place()
    trial.servers.process(place).send_signal(signal.SIGCONT)
    trial.servers.kill(place)
    return lambda: trial.servers.start([place])


def _led(trial: Trial) -> str:
    leader = _whole(trial).leader
    assert leader is not None
    return leader.node
