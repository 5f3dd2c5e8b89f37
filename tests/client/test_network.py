"""A client on a bad network: connections are cut, reset and stalled at any byte, and a journal says what must be true.

Nothing that was acknowledged is lost, nothing is stored twice, and everything is in order, for publishers and for
consumers.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from client.proxy import Proxy
from client.served import Served
from headwater import Connecting, Disconnected, HeadwaterError, Recalled
from headwater.client.bus import Bus
from server.site import free_port

WAIT_S = 100.0
PATIENT = Connecting(reconnect_delay_s=0.005, reconnect_delay_s_max=0.05, connect_timeout_s=2.0, request_timeout_s=30.0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", keepalive_s=1.0) as made:
        yield made


@contextmanager
def bad_network(served: Served, seed: int, bytes_max: int = 20_000) -> Iterator[tuple[Bus, Proxy]]:
    """A client behind a proxy that breaks its connections until the block ends."""
    proxy = Proxy(served.port, seed)
    try:
        bus = headwater.connect(proxy.url, PATIENT)
    except BaseException:
        proxy.close()
        raise
    stop = threading.Event()
    breaking = threading.Thread(target=proxy.go_on_breaking, args=(stop, (0.005, 0.08), bytes_max))
    breaking.start()
    try:
        yield bus, proxy
    finally:
        stop.set()
        breaking.join()
        proxy.break_after(1 << 60)
        bus.close()
        proxy.close()


class Journal:
    """What publishers were told, to be held against what is stored."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {}
        """Per topic, in the order of the calls."""
        self.receipts: dict[bytes, tuple[str, int]] = {}

    def check(self, bus: Any) -> None:
        stored: dict[str, list[bytes]] = {}
        for message in bus.replay("#"):
            if message.topic.startswith("$"):
                continue
            stored.setdefault(message.topic, []).append(message.payload)
            assert self.receipts[message.payload] == (message.topic, message.offset)
        assert stored == self.sent


def run_all(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


@pytest.mark.parametrize("seed", range(3))
def test_publishers_lose_and_double_nothing_and_keep_their_order(served: Served, seed: int) -> None:
    journal = Journal()
    with bad_network(served, seed) as (bus, proxy):

        def publish(number: int) -> Callable[[], None]:
            def work() -> None:
                rolled = random.Random(seed * 100 + number)
                waiting: list[tuple[list[bytes], Future[Any]]] = []
                topics = [f"{root}/{number}" for root in ("a", "b", "c")]
                count = 0
                until = time.monotonic() + 2.5
                while time.monotonic() < until:
                    some: list[tuple[str, bytes]] = []
                    for _ in range(rolled.choice([1, 1, 1, 5, 40])):
                        count += 1
                        some.append((rolled.choice(topics), b"%d-%d-" % (number, count) + bytes(rolled.randrange(300))))
                    for topic, payload in some:
                        journal.sent.setdefault(topic, []).append(payload)
                    if len(some) == 1:
                        waiting.append(([some[0][1]], bus.publish_soon(*some[0])))
                    else:
                        waiting.append(([payload for _, payload in some], bus.publish_many_soon(some)))
                    if rolled.random() < 0.1:
                        waiting[-1][1].result(WAIT_S)
                for payloads, future in waiting:
                    found = future.result(WAIT_S)
                    for payload, receipt in zip(payloads, [found] if len(payloads) == 1 else found, strict=True):
                        journal.receipts[payload] = (receipt.topic, receipt.offset)

            return work

        run_all(*[publish(number) for number in range(4)])
        assert proxy.cuts > 5
    journal.check(served.bus)


@pytest.mark.parametrize("seed", range(3))
def test_a_consumer_gets_everything_in_order_and_nothing_that_it_has_acked(served: Served, seed: int) -> None:
    total = 3000
    done: list[int] = []
    acked: set[int] = set()
    with bad_network(served, seed) as (bus, proxy):
        sub = bus.subscribe("a/#", id="x", start="earliest", max_in_flight=200)

        def publish() -> None:
            for first in range(0, total, 20):
                served.bus.publish_many([("a/b", b"%d" % n) for n in range(first, first + 20)])
                time.sleep(0.01)

        def consume() -> None:
            rolled = random.Random(seed)
            while len(acked) < total:
                found = sub.batch(rolled.randrange(1, 50), 1)
                if not found:
                    acked.update(range(_floor(served, "x")))  # by acks whose answers were lost
                numbers = [int(message.payload) for message in found]
                assert not acked.intersection(numbers), "an acked message came again"
                done.extend(numbers)
                try:
                    sub.ack(found)
                except Recalled:
                    continue  # its ack may have arrived: then it does not come again
                else:
                    acked.update(numbers)

        run_all(publish, consume)
        assert proxy.cuts > 5
    firsts = list(dict.fromkeys(done))
    assert firsts == list(range(total))
    (info,) = served.bus.subscriptions()
    assert info.floors["a"] == total


def _floor(served: Served, id: str) -> int:
    """Up to where a subscription is acked."""
    (info,) = [info for info in served.bus.subscriptions() if info.id == id]
    return info.floors["a"]


@pytest.mark.parametrize("verb", ["follow", "replay"])
@pytest.mark.parametrize("seed", range(2))
def test_history_is_read_without_gap_or_repeat(served: Served, seed: int, verb: str) -> None:
    total = 20_000
    for first in range(0, total // 2, 100):
        served.bus.publish_many([(f"a/{n % 7}", b"%d" % n) for n in range(first, first + 100)])
    with bad_network(served, seed, bytes_max=100_000) as (bus, proxy):

        def publish() -> None:
            for first in range(total // 2, total, 100):
                served.bus.publish_many([(f"a/{n % 7}", b"%d" % n) for n in range(first, first + 100)])
                time.sleep(0.01)

        seen: list[int] = []

        def read() -> None:
            reading = getattr(bus, verb)("a/#")
            while len(seen) < (total if verb == "follow" else total // 2):
                found = reading.batch(500, WAIT_S)
                assert found
                seen.extend(int(message.payload) for message in found)
                time.sleep(0.005)
            reading.close()

        run_all(publish, read)
        assert seen == list(range(len(seen)))
        assert proxy.cuts > 2


def test_live_messages_that_arrive_are_in_order_and_once(served: Served) -> None:
    with bad_network(served, 1) as (bus, _):
        live = bus.subscribe("a/#")
        seen: list[int] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.extend(int(message.payload) for message in live.batch(100, 0.1))

        def publish() -> None:
            end = time.monotonic() + WAIT_S / 2
            n = 0
            while (n < 500 or len(seen) <= 50) and time.monotonic() < end:
                served.bus.publish("a/b", b"%d" % n)
                n += 1
                time.sleep(0.002)
            stop.set()

        run_all(read, publish)
        assert seen == sorted(set(seen))
        assert len(seen) > 50


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_connection_that_breaks_at_any_byte_of_its_first_moments_does_no_harm(served: Served, fault: Any) -> None:
    proxy = Proxy(served.port)
    offsets = []
    for allowed in range(0, 2400, 31):
        proxy.break_after(allowed, fault)
        while True:
            try:
                bus = headwater.connect(proxy.url, PATIENT)
                break
            except HeadwaterError as error:
                assert isinstance(error, Disconnected), error
        with bus:
            offsets.append(bus.publish("a/b", b"%d" % allowed).offset)
            assert bus.ends()["a"] == len(offsets)
    proxy.close()
    assert offsets == list(range(1, len(offsets) + 1))
    assert [int(m.payload) for m in served.bus.replay("a/#")] == list(range(0, 2400, 31))


@pytest.mark.parametrize("allowed", [0, 10, 40, 5000])
def test_a_half_open_connection_is_noticed_and_made_anew(served: Served, allowed: int) -> None:
    """Nothing passes any more, and nobody says so: keepalive finds out."""
    proxy = Proxy(served.port)
    with headwater.connect(proxy.url, PATIENT) as bus:
        sub = bus.subscribe("a/#", id="x", start="earliest")
        bus.publish("a/b", b"0")
        sub.next(WAIT_S).ack()  # type: ignore[union-attr]
        proxy.break_after(allowed, "stall")
        futures = [bus.publish_soon("a/b", b"%d" % n + bytes(100)) for n in range(1, 50)]
        assert [future.result(WAIT_S).offset for future in futures] == list(range(2, 51))
        seen: list[int] = []
        while len(seen) < 49:
            message = sub.next(WAIT_S)
            seen.append(message.offset)  # type: ignore[union-attr]
            message.ack()  # type: ignore[union-attr]
        assert seen == list(range(2, 51))
    proxy.close()


def test_a_slow_network_changes_nothing_but_time(served: Served) -> None:
    proxy = Proxy(served.port)
    proxy.delay_s = 0.02
    with headwater.connect(proxy.url, PATIENT) as bus:
        futures = [bus.publish_soon("a/b", b"%d" % n) for n in range(500)]
        assert [future.result(WAIT_S).offset for future in futures] == list(range(1, 501))
        assert [int(m.payload) for m in bus.replay("a/#")] == list(range(500))
    proxy.close()


def test_a_server_that_is_stopped_and_started_under_load_loses_nothing(served: Served) -> None:
    journal = Journal()
    with headwater.connect(served.url, PATIENT) as bus:
        stop = threading.Event()

        def publish() -> None:
            waiting: list[tuple[bytes, Future[Any]]] = []
            count = 0
            while not stop.is_set():
                payload = b"%d" % count
                count += 1
                journal.sent.setdefault("a/b", []).append(payload)
                waiting.append((payload, bus.publish_soon("a/b", payload)))
                time.sleep(0.001)
            for payload, future in waiting:
                receipt = future.result(WAIT_S)
                journal.receipts[payload] = (receipt.topic, receipt.offset)

        def restart() -> None:
            for _ in range(3):
                time.sleep(0.3)
                served.stop()
                served.start()
            stop.set()

        run_all(publish, restart)
    journal.check(served.bus)


def test_a_server_that_is_killed_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """kill -9, three times, with a publisher and a consumer that come back by themselves."""
    with free_port() as port:
        kill_under_load(tmp_path / "data", port)


def kill_under_load(folder: Path, port: int) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--data", str(folder), "--port", str(port)]
    journal = Journal()
    seen: list[bytes] = []
    acked: set[bytes] = set()
    stop = threading.Event()

    def serve() -> subprocess.Popen[str]:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline()  # clients may connect
        return child

    child = serve()
    with headwater.connect(f"headwater://127.0.0.1:{port}", PATIENT) as bus:
        sub = bus.subscribe("a/#", id="x", start="earliest")

        def publish() -> None:
            waiting: list[tuple[bytes, Future[Any]]] = []
            while not stop.is_set():
                payload = b"%d" % len(waiting)
                journal.sent.setdefault("a/b", []).append(payload)
                waiting.append((payload, bus.publish_soon("a/b", payload)))
                time.sleep(0.004)  # a slow machine takes long to start a server, and has to take all of it in the end
            for payload, future in waiting:
                receipt = future.result(WAIT_S)
                journal.receipts[payload] = (receipt.topic, receipt.offset)

        def consume() -> None:
            while not stop.is_set() or len(set(seen)) < len(journal.sent["a/b"]):
                found = sub.batch(200, 1)
                payloads = [message.payload for message in found]
                assert not acked.intersection(payloads), "an acked message came again"
                seen.extend(payloads)
                try:
                    sub.ack(found)
                except Recalled:
                    continue
                acked.update(payloads)

        def kill() -> None:
            nonlocal child
            for _ in range(3):
                time.sleep(0.7)
                child.kill()
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
                child = serve()
            stop.set()

        run_all(publish, consume, kill)
        assert list(dict.fromkeys(seen)) == journal.sent["a/b"]
        journal.check(bus)
    child.terminate()
    assert child.wait(WAIT_S) == 0
    assert child.stdout is not None
    child.stdout.close()
