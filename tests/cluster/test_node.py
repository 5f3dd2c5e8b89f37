"""One node, as far as it does not take others to see it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster import nodes
from cluster.memory_engine import MemoryEngine
from cluster.nodes import BUS, SMALL
from headwater.cluster import node as noding
from headwater.cluster.copies import COPY
from headwater.cluster.founding import BUS as FOUNDED
from headwater.cluster.founding import Founded
from headwater.cluster.history import KNOWN
from headwater.cluster.members import Member, Members
from headwater.cluster.node import NAMESAKE, Node
from headwater.cluster.record import DIGEST_BYTES
from headwater.config import Clustering, Config
from headwater.errors import NotFound, Unavailable

PATIENCE_S = 30.0


class BehindItself:
    """An engine that has another node's row on its way: it refuses a second, and does not show the first yet."""

    def __getattr__(self, verb: str) -> Any:
        return lambda *_: None


def test_a_node_does_not_take_for_its_own_what_another_is_about_to_write(tmp_path: Path):
    engine: Any = BehindItself()
    node = Node(tmp_path / "n1", Config(), Clustering(cluster=("nats://127.0.0.1",)), engine, name="n1")
    with pytest.raises(Unavailable, match="another node begins"):
        node.begin()


@pytest.mark.parametrize("is_same", [True, False], ids=["the same", "another"])
def test_a_folder_with_a_record_that_another_node_knows_otherwise_does_not_give_way_to_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
):
    """It is too far behind, as the stream was trimmed: whoever compares it later finds no trace of what it had."""
    monkeypatch.setattr(noding, "PAUSE_S", 0.01)
    one = nodes.first(tmp_path / "n1")
    leader = one.lead(1)
    leader.bus.publish("t/a", b"1")
    leader.settle()
    leader.close()
    behind = nodes.another(one, tmp_path / "n2").followed()
    behind.close()
    leader = one.lead(2)
    leader.bus.publish("t/a", b"2")
    leader.settle()
    leader.close()

    engine, asked = MemoryEngine(one.bed), threading.Event()
    engine.trim(one.bed.last - 1)
    engine.put_row(FOUNDED, msgspec.json.encode(Founded(node="n1", id=behind.id)))
    Members(engine).put(Member(node="n1"))
    digest = behind.position.digest if is_same else bytes(DIGEST_BYTES)

    def copy(_: bytes) -> bytes:
        asked.set()
        raise Unavailable("not now")

    def namesake(_: bytes) -> bytes:
        raise NotFound("it has another name")

    known = msgspec.msgpack.encode({behind.position.number: digest})
    engine.answer("n1", {KNOWN: lambda _: known, COPY: copy, NAMESAKE: namesake})
    node = Node(tmp_path / "n2", SMALL, Clustering(cluster=("nats://127.0.0.1",), bus=BUS), engine, name="n2")
    node.begin()
    node.join()
    following = threading.Thread(target=node.follow)
    following.start()
    try:
        until = time.monotonic() + PATIENCE_S
        while not (asked.is_set() or node.report().is_cut_off) and time.monotonic() < until:
            threading.Event().wait(0.001)
    finally:
        node.stop()
        following.join()
        node.close()
    assert asked.is_set() is is_same
    assert node.report().is_cut_off is not is_same
    if not is_same:
        assert "another record" in node.trouble
        assert (tmp_path / "n2/streams").exists()
