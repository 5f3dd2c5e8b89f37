"""A client with a producer for each message: the others' repeats are known all the same, and nobody looks at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import Config
from headwater.client.bus import Bus
from headwater.store import state as rows
from headwater.store.state import MemoryState
from mqtt.peer import Served
from server.harness import SECRET

LIMITS = Config(producers_max=60, producers_per_client_max=20)


def connect(served: Served, name: str, auth: str) -> Bus:
    secret = f":{SECRET.replace(' ', '%20')}" if auth == "scram" else ""
    return headwater.connect(f"headwater://{name}{secret}@{served.server.url.partition('://')[2].rpartition('@')[2]}")


def checkpoint(served: Served) -> None:
    served.bus.core.roots.commit.run(served.bus.core.roots.checkpoints.make)


@pytest.mark.parametrize("auth", ["none", "scram"])
def test_the_repeats_of_others_are_known_however_many_producers_one_has(tmp_path: Path, auth: str):
    for life in range(2):
        with Served(tmp_path / "data", LIMITS, auth=auth) as served:
            if auth == "scram" and not life:
                for name in ("hog", "other"):
                    served.client(name, ("publish #", "create #"), admin=True)
            with connect(served, "other", auth) as other, connect(served, "hog", auth) as hog:
                first = other.publish("home/x", b"once", producer="importer", sequence=1)
                assert first.duplicate is bool(life)
                for count in range(LIMITS.producers_max * 2):
                    hog.publish("home/x", b"", producer=f"{life}/{count}", sequence=1)
                    if count % 25 == 0:
                        checkpoint(served)
                assert other.publish("home/x", b"once", producer="importer", sequence=1).duplicate
                last = LIMITS.producers_max * 2 - 1
                kept = [
                    hog.publish("home/x", b"", producer=f"{life}/{count}", sequence=1).duplicate
                    for count in range(last, last - LIMITS.producers_per_client_max, -1)
                ]
                assert all(kept)
                checkpoint(served)
                root = served.bus.core.roots.get("home")
                assert root is not None
                assert root.producers.count <= LIMITS.producers_per_client_max + 1
                stored = served.bus.core.state.scan(rows.PRODUCER)
                assert sum(1 for _ in stored) <= LIMITS.producers_per_client_max + 1


class Looked(MemoryState):
    """A state that counts the producers that somebody looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = 0

    def scan(self, prefix: bytes, *rest: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(prefix, *rest):
            self.producers += prefix.startswith(rows.PRODUCER)
            yield row


def test_all_producers_are_looked_at_once_and_not_for_each_that_is_new(tmp_path: Path):
    state = Looked()
    with headwater.open(tmp_path, Config(producers_max=50), state=state) as bus:
        for count in range(150):
            bus.publish("home/x", b"", producer=str(count), sequence=1)
            bus.core.roots.commit.run(bus.core.roots.checkpoints.make)
        assert state.producers <= 51
        assert bus.publish("home/x", b"", producer="149", sequence=1).duplicate
        assert not bus.publish("home/x", b"", producer="99", sequence=1).duplicate


def test_a_client_whose_publishes_are_refused_does_not_take_the_order_of_others(tmp_path: Path):
    limits = Config(producers_max=60, producers_per_client_max=20, topics_per_root_max=1)
    with (
        Served(tmp_path / "data", limits) as served,
        connect(served, "other", "none") as other,
        connect(served, "hog", "none") as hog,
    ):
        other.publish("home/x", b"")
        with pytest.raises(headwater.QuotaExceeded):
            other.publish("home/y", b"", producer="importer", sequence=1)
        for count in range(limits.producers_max * 2):
            with pytest.raises(headwater.QuotaExceeded):
                hog.publish("home/y", b"", producer=str(count), sequence=1)
        with pytest.raises(headwater.Conflict, match="send 1 again"):
            other.publish("home/x", b"", producer="importer", sequence=2)
