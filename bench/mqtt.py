"""Headwater and Mosquitto side by side: `python bench/mqtt.py [--messages 200000] [--runs 3] [--only fan-out]`.

One load generator for both, over plain sockets in this process: packets are encoded before anything is measured, sent
many at a time, and counted by their bytes; each broker is a process of its own, on a port that is free, one after the
other in each run. Figures are medians of the runs, ratios Headwater's to Mosquitto's; in brackets the same for each
second of the broker's own processor time, which is what counts on a machine that has other things to do. Mosquitto
keeps nothing on disk; Headwater has each QoS 1 message on disk before its PUBACK.

    publish     QoS 1, 1,000 in flight, until the last PUBACK
    deliver     the same, to a subscriber that acknowledges each with QoS 1, until the last PUBACK of either side
    fan-out n   QoS 0 to n subscribers, at most 1,000 messages ahead of the slowest; deliveries a second
    round trip  QoS 0, one message at a time, p50; here less is better, and so the ratio is Mosquitto's to Headwater's
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V4
from headwater.mqtt.packets import Connect, Publish, Subscribe, Subscription

IN_FLIGHT = 1000
NUMBERS = 60_000
READ_BYTES = 1 << 20
ACK_BYTES = 4
TOPIC = "bench/topic"
NUMBER_AT = 3 + 2 + len(TOPIC)
"""Where a PUBLISH has its number: after a fixed header of three bytes and the topic."""
SETTLE_S = 0.2
ROUND_TRIPS = 3000
START_S = 30.0

MOSQUITTO = """
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_inflight_messages {in_flight}
max_queued_messages 0
set_tcp_nodelay true
log_dest none
"""


# Brokers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


@contextlib.contextmanager
def headwater(folder: str) -> Iterator[tuple[int, int]]:
    serve = (
        "serve",
        "--data",
        f"{folder}/data",
        "--port",
        "0",
        "--mqtt-port",
        "0",
        "--no-http",
        "--log-level",
        "error",
    )
    with ended(
        subprocess.Popen([sys.executable, "-m", "headwater", *serve], stdout=subprocess.PIPE, text=True)
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            met = re.search(r" mqtt://127\.0\.0\.1:(\d+)$", line.strip())
            if met:
                yield int(met[1]), process.pid
                return
        raise RuntimeError("headwater ended before it listened")


@contextlib.contextmanager
def mosquitto(folder: str) -> Iterator[tuple[int, int]]:
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise SystemExit("there is no mosquitto; on Debian and Ubuntu: apt-get install mosquitto")
    port = free_port()
    path = Path(folder) / "mosquitto.conf"
    path.write_text(MOSQUITTO.format(port=port, in_flight=IN_FLIGHT), encoding="utf-8")
    with ended(subprocess.Popen([program, "-c", str(path)], text=True)) as process:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                time.sleep(0.02)
            else:
                yield port, process.pid
                return
        raise RuntimeError("mosquitto does not listen")


def processor_s(pid: int) -> float:
    """What a process has used of the processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BROKERS = {"headwater": headwater, "mosquitto": mosquitto}


# The generator


def connect(port: int, id: str, subscribe_qos: int | None = None) -> socket.socket:
    """A client that is connected, and subscribed if it is to be."""
    line = socket.create_connection(("127.0.0.1", port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.settimeout(60.0)
    line.sendall(encode(Connect(id, V4), V4))
    take(line, 4)
    if subscribe_qos is not None:
        line.sendall(encode(Subscribe(1, (Subscription(TOPIC, subscribe_qos),)), V4))
        take(line, 5)
    return line


def take(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = line.recv(count - len(found))
        if not more:
            raise RuntimeError("the broker has closed a connection")
        found += more
    return found


class Packets:
    """PUBLISH packets, encoded once, all of one size, whose numbers go round."""

    def __init__(self, payload: bytes, qos: int) -> None:
        first = encode(Publish(TOPIC, payload, qos, packet_id=1 if qos else 0), V4)
        self.size = len(first)
        self.count = NUMBERS if qos else IN_FLIGHT
        data = bytearray(first * self.count)
        if qos:
            numbers = range(1, NUMBERS + 1)
            data[NUMBER_AT :: self.size] = bytes(number >> 8 for number in numbers)
            data[NUMBER_AT + 1 :: self.size] = bytes(number & 0xFF for number in numbers)
        self._data = memoryview(bytes(data))
        self._next = 0

    def take(self, most: int) -> memoryview:
        """The next packets, at most so many."""
        begin = self._next
        end = min(self.count, begin + most)
        self._next = end % self.count
        return self._data[begin * self.size : end * self.size]


class Publisher:
    """Sends so many messages, never more than so many ahead of what is told to be done."""

    def __init__(self, line: socket.socket, packets: Packets, messages: int, watch: selectors.BaseSelector) -> None:
        self.line = line
        self.left = messages
        self._packets = packets
        self._room = IN_FLIGHT
        self._waiting = memoryview(b"")
        self._watch = watch
        self._is_blocked = False

    def done(self, count: int) -> None:
        self._room += count
        self.send()

    def send(self) -> None:
        while True:
            if not self._waiting:
                most = min(self._room, self.left)
                if not most:
                    break
                self._waiting = self._packets.take(most)
                sent = len(self._waiting) // self._packets.size
                self._room -= sent
                self.left -= sent
            try:
                self._waiting = self._waiting[self.line.send(self._waiting) :]
            except BlockingIOError:
                break
        if bool(self._waiting) is not self._is_blocked:
            self._is_blocked = bool(self._waiting)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._is_blocked else 0)
            self._watch.modify(self.line, events, "publisher")


class Acknowledging:
    """Takes PUBLISH packets of one size, and acknowledges them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest = b""
        self.count = 0

    def take(self, data: bytes) -> bytes:
        """The acknowledgements of what has come."""
        data = self._rest + data
        count = len(data) // self._size
        whole, self._rest = data[: count * self._size], data[count * self._size :]
        acks = bytearray(b"\x40\x02\0\0" * count)
        acks[2::ACK_BYTES] = whole[NUMBER_AT :: self._size]
        acks[3::ACK_BYTES] = whole[NUMBER_AT + 1 :: self._size]
        self.count += count
        return bytes(acks)


def publish(port: int, payload: bytes, messages: int) -> float:
    line, packets = connect(port, "publisher"), Packets(payload, 1)
    line.setblocking(False)
    acked = 0
    with selectors.DefaultSelector() as watch, line:
        watch.register(line, selectors.EVENT_READ, "publisher")
        publisher = Publisher(line, packets, messages, watch)
        begun = time.perf_counter()
        publisher.send()
        rest = 0
        while acked < messages:
            for _, events in watch.select():
                if events & selectors.EVENT_READ:
                    count, rest = divmod(rest + len(line.recv(READ_BYTES)), ACK_BYTES)
                    acked += count
                    publisher.done(count)
                else:
                    publisher.send()
        return time.perf_counter() - begun


def deliver(port: int, payload: bytes, messages: int) -> float:
    reading, line, packets = connect(port, "subscriber", 1), connect(port, "publisher"), Packets(payload, 1)
    acking = Acknowledging(packets.size)
    for one in (reading, line):
        one.setblocking(False)
    with selectors.DefaultSelector() as watch, line, reading:
        watch.register(line, selectors.EVENT_READ, "publisher")
        watch.register(reading, selectors.EVENT_READ, "subscriber")
        publisher = Publisher(line, packets, messages, watch)
        begun = time.perf_counter()
        publisher.send()
        acked = rest = 0
        acks = b""
        while acked < messages or acking.count < messages:
            for key, events in watch.select():
                if key.data == "subscriber":
                    acks += acking.take(reading.recv(READ_BYTES))
                    if acks:
                        acks = acks[reading.send(acks) :]
                elif events & selectors.EVENT_READ:
                    count, rest = divmod(rest + len(line.recv(READ_BYTES)), ACK_BYTES)
                    acked += count
                    publisher.done(count)
                else:
                    publisher.send()
        return time.perf_counter() - begun


def fan_out(port: int, payload: bytes, messages: int, subscribers: int) -> float:
    lines = [connect(port, f"subscriber-{place}", 0) for place in range(subscribers)]
    line, packets = connect(port, "publisher"), Packets(payload, 0)
    time.sleep(SETTLE_S)
    buffer = bytearray(READ_BYTES)
    received = [0] * subscribers
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(selectors.DefaultSelector())
        for place, one in enumerate(lines):
            stack.enter_context(one)
            one.setblocking(False)
            watch.register(one, selectors.EVENT_READ, place)
        stack.enter_context(line)
        line.setblocking(False)
        watch.register(line, selectors.EVENT_READ, "publisher")
        publisher = Publisher(line, packets, messages, watch)
        begun, done, whole = time.perf_counter(), 0, messages * packets.size
        publisher.send()
        while done < messages:
            for key, _ in watch.select():
                if key.data == "publisher":
                    publisher.send()
                    continue
                count = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]  # a socket
                if not count:
                    raise RuntimeError("the broker has closed a connection")
                received[key.data] += count
            slowest = min(received)
            if slowest // packets.size > done:
                news = slowest // packets.size - done
                done += news
                publisher.done(news)
        assert received == [whole] * subscribers
        return time.perf_counter() - begun


def round_trip(port: int, payload: bytes) -> float:
    reading, line = connect(port, "subscriber", 0), connect(port, "publisher")
    packet = encode(Publish(TOPIC, payload), V4)
    time.sleep(SETTLE_S)
    times = []
    with line, reading:
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            line.sendall(packet)
            take(reading, len(packet))
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


Measurement = tuple[int, Callable[[int, bytes], float]]
"""How many deliveries, publishes or round trips it is about, and what it takes: seconds; of round trips µs, p50."""


def measurements(messages: int) -> dict[str, Measurement]:
    def fan(subscribers: int) -> Measurement:
        count = max(2000, messages * 2 // (subscribers + 3))
        return count * subscribers, lambda port, payload: fan_out(port, payload, count, subscribers)

    half = messages // 2
    return {
        "publish, QoS 1": (messages, lambda port, payload: publish(port, payload, messages)),
        "deliver, QoS 1": (half, lambda port, payload: deliver(port, payload, half)),
        **{f"fan-out to {n}": fan(n) for n in (1, 10, 100)},
        "round trip, µs": (ROUND_TRIPS, round_trip),
    }


def measured(broker: str, one: Measurement, payload: bytes) -> tuple[float, float]:
    """A figure, and the same for each second of the broker's processor time."""
    count, measure = one
    with tempfile.TemporaryDirectory() as folder, BROKERS[broker](folder) as (port, pid):
        before_s = processor_s(pid)
        found = measure(port, payload)
        used_s = max(processor_s(pid) - before_s, 0.001)
        return (found, used_s / count * 1e6) if measure is round_trip else (count / found, count / used_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="measurements whose name contains this")
    parser.add_argument("--broker", choices=[*BROKERS, "both"], default="both")
    given = parser.parse_args()
    if not 128 <= given.bytes < 16_000:
        raise SystemExit("use 128 to 16000 bytes: packets are counted by a header of three bytes")
    payload = b"x" * given.bytes
    brokers = [given.broker] if given.broker != "both" else list(BROKERS)
    print(f"{'':16}" + "".join(f"{name:>26}" for name in brokers) + (f"{'ratio':>16}" if len(brokers) > 1 else ""))
    for name, one in measurements(given.messages).items():
        if given.only not in name:
            continue
        found: dict[str, list[tuple[float, float]]] = {broker: [] for broker in brokers}
        for _ in range(given.runs):
            for broker in brokers:
                found[broker].append(measured(broker, one, payload))
        medians = [tuple(map(statistics.median, zip(*found[broker], strict=True))) for broker in brokers]
        line = f"{name:16}" + "".join(f"{speed:13,.0f} ({per_s:9,.0f})" for speed, per_s in medians)
        if len(brokers) > 1:
            pairs = zip(*(medians if "µs" not in name else medians[::-1]), strict=True)
            speed, per_s = (ours / theirs for ours, theirs in pairs)
            line += f"{speed:7.2f}× ({per_s:5.2f}×)"
        print(line, flush=True)


if __name__ == "__main__":
    main()
