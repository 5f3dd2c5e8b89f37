"""A worker hog: a client with many sessions, each of which asks for something that takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.core import Core
from headwater.log.checks import Checks
from headwater.log.publish import Part
from headwater.server import server
from headwater.server.workers import Workers
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches, requests
from mqtt.peer import Served
from server.harness import PATIENCE_S

MANY = server.WORKERS + 2


class Gate:
    """Work that takes until the gate is opened, and notes who began."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self._open = threading.Event()
        self._changed = threading.Condition()

    def pass_through(self, who: object) -> object:
        with self._changed:
            self.begun.append(who)
            self._changed.notify_all()
        assert self._open.wait(PATIENCE_S)
        return who

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def test_another_client_is_answered_while_one_has_all_that_it_asked_for_under_way(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = Core.extents

    def extents(self: Core, filter: str, moments: Any = ()) -> Any:
        gate.pass_through(filter)
        return real(self, filter, moments)

    monkeypatch.setattr(Core, "extents", extents)
    with Served(tmp_path / "data", auth="scram") as served:
        for name in ("hog", "other"):
            served.client(name, ("subscribe #",))
        other = served.peer("other")
        hogs = [served.peer("hog") for _ in range(MANY)]
        for hog in hogs:
            hog.begin(requests.Extents(filter="#"))
        gate.wait_for(server.WORKERS - server.WORKERS_APART)
        assert other.ask(requests.Topics(filter="#")) == []
        assert len(gate.begun) == server.WORKERS - server.WORKERS_APART
        gate.open()


def test_long_publishes_of_one_client_are_checked_in_turn_with_those_of_others(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Checks.body

    def body(self: Checks, root: str, *given: Any, **more: Any) -> Part:
        gate.pass_through(root)
        return check(self, root, *given, **more)

    with Served(tmp_path / "data", auth="scram") as served:
        for name in ("hog", "other"):
            served.client(name, ("publish #", "create #"))
        hogs, other = [served.peer("hog") for _ in range(5)], served.peer("other")
        monkeypatch.setattr(Checks, "body", body)
        waiting = served.server.sessions.side_pools.checks.pool._waiting
        hogs[0].send(long_frame("hog"))
        gate.wait_for(1)
        for hog in hogs[1:]:
            hog.send(long_frame("hog"))
        served.until(lambda: sum(map(len, waiting.values())) == 4)
        other.send(long_frame("other"))
        served.until(lambda: sum(map(len, waiting.values())) == 5)
        gate.open()
        for peer in (other, *hogs):
            assert peer.published(7).first_offset
    assert gate.begun.index("other") <= 2


def long_frame(root: str) -> bytes:
    """A publish of more than is checked on the loop."""
    body = encode_body([f"{root}/x"] * 3, [bytes(400_000)] * 3, 1)
    return b"".join(batches.pack_publish(7, root, 3, checksum(body), body))


def test_those_that_wait_have_their_turn_in_rotation(gate: Gate) -> None:
    workers = Workers("of-a-test", 1)
    order: list[str] = []
    workers.of("hog").submit(gate.pass_through, "hog")
    gate.wait_for(1)
    for name in ["hog"] * MANY + ["other", "third", "other"]:
        workers.of(name).submit(order.append, name)
    last = workers.submit(order.append, "server")
    gate.open()
    last.result(PATIENCE_S)
    workers.shutdown()
    assert order[:4] == ["hog", "other", "third", "server"]
    assert order[4:] == ["hog", "other"] + ["hog"] * (MANY - 2)


def test_all_that_was_given_is_done_at_the_end_and_nothing_after_it(gate: Gate) -> None:
    workers = Workers("of-a-test", 2, 1)
    done = [workers.of(name).submit(gate.pass_through, name) for name in ("hog", "hog", "other")]
    dropped = workers.of("hog").submit(gate.pass_through, "never")
    assert dropped.cancel()
    gate.wait_for(2)
    threading.Timer(0.01, gate.open).start()
    workers.shutdown()
    assert [one.result(0) for one in done] == ["hog", "hog", "other"]
    assert "never" not in gate.begun
    with pytest.raises(RuntimeError):
        workers.submit(gate.pass_through, "late")


def test_what_fails_fails_for_who_asked_and_gives_its_thread_back() -> None:
    workers = Workers("of-a-test", 1)
    failed = workers.of("hog").submit(partial(int, "no number"))
    with pytest.raises(ValueError, match="no number"):
        failed.result(PATIENCE_S)
    assert workers.of("hog").submit(int, "7").result(PATIENCE_S) == 7
    workers.shutdown()
