"""The engine's promises, tried on real NATS servers."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from cluster.conftest import joined, runs_nats
from cluster.rig import retried
from headwater.cli.nats_servers import NatsServers
from headwater.cluster import nats_connection
from headwater.cluster.engine import Acked, Engine, Refused, Seen, StreamLost, Told
from headwater.cluster.nats_engine import NatsEngine
from headwater.config import Clustering
from headwater.errors import Malformed, Unavailable

Engines = Callable[[str], NatsEngine]
T = TypeVar("T")


class Answers:
    """What callbacks were told."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._condition = threading.Condition()

    def __call__(self, told: Told) -> None:
        with self._condition:
            self.told.append(told)
            self._condition.notify_all()

    def wait(self, count: int) -> list[Told]:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.told) >= count, 30)
        return self.told


def publish(engine: Engine, after: int, *data: bytes) -> list[Told]:
    answers = Answers()
    for place, one in enumerate(data):
        engine.publish(after + place, one, 1, answers)
    return answers.wait(len(data))


def look(engine: Engine, sequence: int) -> Seen | None:
    found: queue.Queue[Seen | None] = queue.Queue()
    engine.look(sequence, found.put)
    return found.get(timeout=30)


def read(engine: Engine, after: int, count: int) -> list[tuple[int, bytes]]:
    reader = engine.read(after)
    found: list[tuple[int, bytes]] = []
    try:
        while len(found) < count:
            found += reader.next(1)
    finally:
        reader.close()
    return found


def test_messages_are_stored_behind_the_sequence_that_they_expect_and_nowhere_else(engines: Engines):
    engine = engines("n1")
    assert publish(engine, 0, b"a", b"b", b"c") == [Acked(1), Acked(2), Acked(3)]
    assert publish(engine, 1, b"x") == [Refused(3)]
    assert publish(engine, 7, b"x") == [Refused(3)]
    assert engine.bounds() == (1, 3)
    assert look(engine, 2) == Seen(b"b", 1, 3)
    assert look(engine, 4) == Seen(None, 1, 3)


def test_a_reader_gets_everything_in_order_what_comes_later_included(engines: Engines):
    engine, other = engines("n1"), engines("n2")
    publish(engine, 0, *(b"%d" % number for number in range(500)))
    reader = other.read(100)
    found: list[tuple[int, bytes]] = []
    while len(found) < 400:
        found += reader.next(1)
    publish(engine, 500, b"late")
    while len(found) < 401:
        found += reader.next(1)
    reader.close()
    assert found == [(number + 1, b"%d" % number) for number in range(100, 500)] + [(501, b"late")]


def test_a_slow_reader_loses_nothing_and_is_not_sent_more_than_a_window(engines: Engines):
    engine = engines("n1")
    publish(engine, 0, *(bytes(1 << 20) for _ in range(64)))
    reader = engine.read(0)
    time.sleep(0.5)  # what is sent to somebody who takes nothing
    first = list(reader.next(5))
    assert len(first) < 64
    while len(first) < 64:
        first += reader.next(5)
    reader.close()
    assert [sequence for sequence, _ in first] == list(range(1, 65))


def test_trimming_deletes_what_comes_before_and_numbers_go_on(engines: Engines):
    engine = engines("n1")
    publish(engine, 0, b"a", b"b", b"c")
    engine.trim(2)
    assert engine.bounds() == (3, 3)
    engine.trim(3)
    assert engine.bounds() == (4, 3)
    assert publish(engine, 3, b"d") == [Acked(4)]


def test_a_stream_that_is_gone_is_told_from_servers_that_do_not_answer(engines: Engines):
    engine = engines("n1")
    publish(engine, 0, b"a", b"b")
    engine.unmake()
    with pytest.raises(StreamLost):
        engine.bounds()
    with pytest.raises(StreamLost):
        engine.read(0)
    engine.make(first=3)
    assert engine.bounds() == (3, 2)
    assert publish(engine, 2, b"c") == [Acked(3)]


def test_one_has_the_lease_and_it_is_gone_when_it_is_not_renewed(engines: Engines):
    first, second = engines("n1"), engines("n2")
    revision = first.take_lease(b"first")
    assert revision is not None
    assert second.take_lease(b"second") is None
    renewed = first.renew_lease(b"first again", revision)
    assert renewed is not None
    assert first.renew_lease(b"late", revision) is None
    row = second.lease()
    assert row is not None
    assert (row.value, row.revision) == (b"first again", renewed)
    while second.lease() is not None:
        time.sleep(0.05)
    assert first.renew_lease(b"too late", renewed) is None
    taken = second.take_lease(b"second")
    assert taken is not None
    second.release_lease(taken)
    assert first.lease() is None
    assert first.take_lease(b"first") is not None


def test_rows_are_replaced_by_revision(engines: Engines):
    engine = engines("n1")
    assert engine.row("secret") is None
    revision = engine.put_row("secret", b"1", 0)
    assert revision is not None
    assert engine.put_row("secret", b"2", 0) is None
    assert engine.put_row("secret", b"2", revision) is not None
    assert engine.put_row("secret", b"3", revision) is None
    engine.put_row("member.n1", b"here")
    engine.put_row("member.n2", b"there")
    engine.delete_row("member.n1")
    assert {key: row.value for key, row in engine.rows("member.").items()} == {"member.n2": b"there"}
    assert engine.put_row("member.n1", b"back", 0) is not None


def test_nodes_ask_each_other_and_are_told_what_went_wrong(engines: Engines):
    first, second = engines("n1"), engines("n2")

    def fail(_data: bytes) -> bytes:
        raise Malformed("not so,\r\nat all")

    second.answer("n2", {"double": lambda data: 2 * data, "fail": fail})
    assert retried(lambda: first.ask("n2", "double", b"ab", 5)) == b"abab"  # once servers have told each other of it
    with pytest.raises(Malformed, match="not so, at all"):
        first.ask("n2", "fail", b"", 5)
    with pytest.raises(Unavailable, match='"n3" does not answer'):
        first.ask("n3", "double", b"", 5)


def test_the_clock_of_a_server_is_told(engines: Engines):
    assert abs(engines("n1").time_us() - time.time_ns() // 1000) < 60_000_000


ACCOUNTS = """
accounts {
  SYS {
    exports: [{service: "$SYS.REQ.SERVER.PING.JSZ", response: stream}]
  }
  HEADWATER {
    jetstream: enabled
    users: [{user: node, password: secret}]
    imports: [{service: {account: SYS, subject: "$SYS.REQ.SERVER.PING.JSZ"}}]
  }
}
system_account: SYS
"""


class Telling(NatsServers):
    """Servers that tell nodes how they sync."""

    is_synced = True

    def config(self, place: int, text: str) -> str:
        return (text if self.is_synced else text.replace("  sync_interval: always\n", "")) + ACCOUNTS


@pytest.mark.parametrize(("is_synced", "found"), [(True, []), (False, ["nats1"])], ids=["synced", "not"])
def test_a_server_that_answers_before_it_syncs_is_named_where_it_tells(tmp_path, is_synced: bool, found: list[str]):
    runs_nats()
    servers = Telling(tmp_path, 1)
    servers.is_synced = is_synced
    servers.start()
    try:
        place = servers.urls[0].replace("nats://", "nats://node:secret@")
        engine = joined(Clustering(cluster=(place,), cluster_replicas=1))
        assert engine.unsynced() == found
        engine.close()
    finally:
        servers.stop()


def test_servers_that_tell_nothing_are_not_accused(engines: Engines):
    assert engines("n1").unsynced() == []


def test_where_no_server_is_a_sentence_names_the_places_and_no_password(clustering: Clustering, monkeypatch):
    monkeypatch.setattr(nats_connection, "CONNECT_S", 0.5)
    wrong = msgspec.structs.replace(clustering, cluster=("nats://me:hidden@127.0.0.1:1",))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: .*--cluster") as met:
        NatsEngine(wrong)
    assert "hidden" not in str(met.value)


def test_certificates_that_are_none_are_told_of(clustering: Clustering, tmp_path):
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(Malformed, match="nats_ca"):
        NatsEngine(msgspec.structs.replace(clustering, nats_ca=str(tmp_path / "ca.pem")))


# The library forgets the writer of a server that it leaves, and lets Python close it.
@pytest.mark.filterwarnings("ignore:.*StreamWriter.__del__:pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_stands_still_is_left_though_much_is_on_its_way_to_it(engines: Engines, nats: NatsServers):
    engine = engines("n1")
    (place,) = (place for place, port in enumerate(nats.ports) if engine.server.endswith(f":{port}"))
    process = nats.process(place)
    process.send_signal(signal.SIGSTOP)
    try:
        for number in range(60):  # more than what the system takes
            engine.publish(number, bytes(900_000), 1, Answers())
        retried(lambda: is_elsewhere(engine, nats.ports[place]), 30.0)
    finally:
        process.send_signal(signal.SIGCONT)


def is_elsewhere(engine: NatsEngine, port: int) -> None:
    if not engine.server or engine.server.endswith(f":{port}"):
        raise Unavailable("it is not connected, or to the same server as before")


def test_it_goes_on_when_the_servers_were_away(engines: Engines, nats: NatsServers):
    engine = engines("n1")
    publish(engine, 0, b"a")
    reader = engine.read(0)
    assert reader.next(5) == [(1, b"a")]
    places = [place for place, port in enumerate(nats.ports) if engine.server.endswith(f":{port}")]
    nats.kill(places[0])
    try:
        answers, attempt = Answers(), 1
        while Acked(2) not in answers.told:
            engine.publish(1, b"b", attempt, answers)
            answers.wait(attempt)
            attempt += 1
            if isinstance(answers.told[-1], Refused):
                assert look(engine, 2) == Seen(b"b", 1, 2)
                break
    finally:
        nats.start(places)
    assert retried(lambda: read(engine, 0, 2)) == [(1, b"a"), (2, b"b")]
    reader.close()
