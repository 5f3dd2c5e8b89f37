"""The state on a disk that is full for a while: acks are refused, and go on by themselves when there is room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from cli.test_serve import Served, serving
from headwater import HeadwaterError, Unwritable, upkeep
from headwater.bus import Bus
from store.test_rocks import Limited, log_of

PATIENCE_S = 60.0
IS_ROOT = os.geteuid() == 0


def eventually(is_so: object, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.02)


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    monkeypatch.setattr(upkeep, "STATE_AGAIN_S", 0.02)
    with headwater.open(tmp_path / "data") as made:
        yield made


def test_acks_go_on_by_themselves_once_there_is_room_and_none_is_lost(bus: Bus, tmp_path: Path) -> None:
    bus.publish_many([("jobs/x", b"%d" % number) for number in range(10)])
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(10, 0)
    sub.ack(messages[:3])
    with Limited(log_of(tmp_path / "data" / "state").stat().st_size + 10):
        with pytest.raises(HeadwaterError):
            messages[3].ack()
        with pytest.raises(Unwritable) as refused:
            messages[4].ack()
        assert refused.value.retryable
    eventually(lambda: bus.core.state.failed is None, "the state was not mended")
    eventually(lambda: [event for event in bus.events() if event.kind == "mended"], "nobody said so")
    sub.ack(messages[4:])  # also the one that was refused
    bus.close()
    with headwater.open(tmp_path / "data") as again:
        assert again.subscriptions()[0].floors == {"jobs": 10}
        assert not [event for event in again.events() if event.kind == "damage"]


def test_an_ack_that_failed_is_stored_later_or_its_message_comes_again(bus: Bus, tmp_path: Path) -> None:
    bus.publish_many([("jobs/x", b"%d" % number) for number in range(4)])
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
    first, second, third, _ = sub.batch(4, 0)
    first.ack()
    with Limited(log_of(tmp_path / "data" / "state").stat().st_size + 10), pytest.raises(HeadwaterError):
        second.reject("it is no good")
    eventually(lambda: bus.core.state.failed is None, "the state was not mended")
    third.ack()
    bus.close()
    with headwater.open(tmp_path / "data") as again:
        assert again.subscriptions()[0].floors == {"jobs": 3}
        assert [letter.offset for letter in again.dead_letters("s")] == [2]


def test_a_subscription_that_could_not_be_stored_is_not_there_afterwards(bus: Bus, tmp_path: Path) -> None:
    bus.publish("jobs/x", b"1")
    bus.subscribe("jobs/#", id="first", start="earliest").close()
    with Limited(log_of(tmp_path / "data" / "state").stat().st_size + 10):
        with pytest.raises(HeadwaterError):
            bus.subscribe("jobs/#", id="second", start="earliest")
        with pytest.raises(Unwritable):
            bus.subscribe("jobs/#", id="third", start="earliest")
    eventually(lambda: bus.core.state.failed is None, "the state was not mended")
    assert [info.id for info in bus.subscriptions()] == ["first"]
    bus.subscribe("jobs/#", id="third", start="earliest").close()
    rows = list(bus.core.dispatcher.directory.each())
    assert len({row.number for row in rows}) == len(rows) == 2


def test_a_bus_whose_state_failed_closes_and_opens(bus: Bus, tmp_path: Path) -> None:
    bus.publish_many([("jobs/x", b"%d" % number) for number in range(3)])
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(3, 0)
    messages[0].ack()
    with Limited(log_of(tmp_path / "data" / "state").stat().st_size + 10):
        with pytest.raises(HeadwaterError):
            messages[1].ack()
        bus.close()
    with headwater.open(tmp_path / "data") as again:
        assert again.subscriptions()[0].floors["jobs"] in (1, 2)
        assert not [event for event in again.events() if event.kind == "damage"]


# For real: a small disk that is full


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    if not IS_ROOT or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a disk of its own needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            pass
    return filler


def health(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def next_url(served: Served) -> str:
    assert served.process.stdout is not None
    return served.process.stdout.readline().split()[-1]


def test_a_server_on_a_full_disk_tells_goes_on_when_there_is_room_and_ends_in_order(disk: Path) -> None:
    quiet = {"HEADWATER_DISK_FREE_BYTES_MIN": "0", "HEADWATER_PREALLOCATE_BYTES": "0"}
    with serving(disk / "data", "--http-port", "0", **quiet) as served:
        http = next_url(served).rstrip("/")
        url = served.ready.split()[-1]
        with headwater.connect(url) as bus:
            bus.publish_many([("jobs/x", b"%d" % number) for number in range(300)])
            sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=300)
            messages = sub.batch(300, PATIENCE_S)
            messages[0].ack()
            filler = fill(disk)
            left = iter(messages[1:])

            def is_refused() -> bool:
                try:
                    next(left).ack()
                except HeadwaterError:
                    return True
                return False

            eventually(is_refused, "acks went on though the disk is full")
            status, told = health(f"{http}/healthz")
            assert (status, told) == (503, {"ok": False, "ailing": ["state"]})
            filler.unlink()
            eventually(lambda: health(f"{http}/healthz")[0] == 200, "it did not go on")
            for message in left:
                message.ack()
            fill(disk)
        served.signal(signal.SIGTERM)
        code, rest = served.end()
        assert (code, "Traceback" in rest) == (0, False), rest
