"""Who sends as much as it can before anybody knows it: the memory of a server of its own process stays what it was."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headwater.cli.bench.fair.neighbours import announced, come, guess_of
from headwater.cli.bench.served.broker import running
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5

MIB = 1 << 20
HOGS = 150
HOG_BYTES = 2 * MIB
WATCHED_S = 0.5
BEGUN = {
    "a proof": (announced(), b"\xf0"),
    "a message behind an announcement": (announced(), b"\x30"),
    "a message behind a password": (encode(guess_of("nobody"), V5), b"\x30"),
}


@pytest.mark.parametrize("what", BEGUN)
def test_what_is_announced_takes_no_memory_before_it_is_proven(tmp_path: Path, what: str):
    first, kind = BEGUN[what]
    with running(str(tmp_path), "scram") as broker, ExitStack() as stack:
        before = most = broker.resident_bytes
        for number in range(HOGS):
            hog = stack.enter_context(come(("127.0.0.1", broker.mqtt_port), number))
            hog.sendall(first)
            if kind == b"\xf0":
                hog.recv(4096)  # it is asked
            hog.setblocking(False)
            with suppress(OSError):
                hog.send(kind + b"\xff\xff\xff\x03" + bytes(HOG_BYTES))  # as much as the system takes of 8 MiB
            most = max(most, broker.resident_bytes)
        until_s = time.monotonic() + WATCHED_S
        while time.monotonic() < until_s:
            most = max(most, broker.resident_bytes)
            time.sleep(0.01)
    assert most - before < 32 * MIB
