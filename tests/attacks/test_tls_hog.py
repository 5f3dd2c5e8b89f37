"""Who begins TLS and never says who it is: as many as fit into the memory for strangers, which is given back later."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import HeadwaterError
from headwater.server import listener as listening
from headwater.server.accepting import TLS_WEIGHT
from server.authority import LOCAL, Authority
from server.harness import PATIENCE_S, Ended, Running

SLOTS = 20
UNFINISHED = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(1000)
"""The beginning of a ClientHello of 16 KiB."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    mine, key = Authority(tmp_path, "authority").issue("server", "broker", others=LOCAL)
    limits: dict[str, Any] = {"handshakes_max": SLOTS, "handshakes_per_address_max": SLOTS, "handshake_s": 60.0}
    with Running(auth="scram", tls_certificate=mine, tls_key=key, **limits) as made:
        yield made.client("ann", ["publish home/#", "create home/#"])


@pytest.fixture
def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def hog(running: Running) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", running.server.port), PATIENCE_S)
    made.sendall(UNFINISHED)
    return made


@pytest.mark.parametrize("is_through", [True, False])
def test_one_with_tls_counts_as_several(running: Running, context: ssl.SSLContext, is_through: bool):
    listener = running.server.listener
    with ExitStack() as stack:
        for _ in range(SLOTS // TLS_WEIGHT):
            if is_through:
                running.connect(tls=context)
                running.until(lambda: listener.arriving == 0)
            else:
                stack.enter_context(hog(running))
        running.until(lambda: listener.greeting_weight + listener.arriving_weight == SLOTS)
        with pytest.raises((OSError, HeadwaterError, Ended)):
            running.connect(tls=context).shake("ann", "a secret")
        for peer in running._peers:
            peer.close()
    running.until(lambda: listener.greeting_weight + listener.arriving_weight == 0)
    running.peer("ann", tls=context).publish("home/a")
    assert running.call(lambda: listener.greeting_weight) == 0
    assert not running.call(lambda: listener.greeting_by_network)


def test_their_memory_is_given_back_when_they_have_gone(
    running: Running, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
):
    given: list[int] = []
    monkeypatch.setattr(listening, "give_back", lambda: given.append(1))
    monkeypatch.setattr(listening, "LEFT_MIN", 3)
    monkeypatch.setattr(listening, "GIVE_BACK_S", 0.0)
    listener = running.server.listener
    running.peer("ann", tls=context).publish("home/a")
    running.run(wait_for_a_sweep(running))
    assert not given, "nobody has left"
    hog(running).close()
    running.connect(tls=context).close()
    running.until(lambda: listener.tls_left == 2)
    running.run(wait_for_a_sweep(running))
    assert not given
    hog(running).close()
    running.until(lambda: given)
    assert listener.tls_left == 0


async def wait_for_a_sweep(running: Running) -> None:
    running.server.listener._sweep()
