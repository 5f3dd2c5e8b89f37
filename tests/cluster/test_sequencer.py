"""The sequencer: one order, whoever sends; refusals at once; everybody is told in the end."""

from __future__ import annotations

import threading

import pytest

from cluster.memory_engine import Bed, Faults, MemoryEngine
from headwater.clock import SystemClock
from headwater.cluster.follower import Following
from headwater.cluster.pipeline import Committed, Stopped
from headwater.cluster.record import Epoch, Position, Record, Rows
from headwater.cluster.sequencer import Sequencer
from headwater.errors import SteppedDown, TooLarge, Unavailable


def made(bed: Bed, faults: Faults | None = None, part_bytes_max: int = 1 << 20) -> tuple[Sequencer, MemoryEngine]:
    engine = MemoryEngine(bed, faults, part_bytes_max)
    sequencer = Sequencer(engine, Position(), 0, 1, SystemClock())
    sequencer.commit([Epoch(1, "n1", "orders")])
    return sequencer, engine


def read_all(bed: Bed) -> list[Record]:
    following = Following(Position())
    found = [following.read(sequence, bed.messages[sequence]) for sequence in range(1, bed.last + 1)]
    return [record for record in found if record is not None]


def row(number: int) -> Rows:
    return Rows({b"k%d" % number: b"v" * 100})


def wait_until(sequencer: Sequencer, *, suspended: bool) -> None:
    while sequencer.is_suspended is not suspended:
        threading.Event().wait(0.001)


def test_what_many_threads_commit_is_carried_out_in_the_order_of_the_records_whatever_the_engine_does() -> None:
    bed, done, told = Bed(), list[int](), list[int]()
    sequencer, engine = made(bed, Faults(3, lost=30, unheard=50, doubled=50, late=30), part_bytes_max=300)
    sequencer._apply = lambda committed: told.append(committed.record.number)

    def work(first: int) -> None:
        for number in range(first, first + 20):
            while True:
                try:
                    sequencer.commit([row(number)], lambda position: done.append(position.number))
                    break
                except Unavailable:
                    wait_until(sequencer, suspended=False)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 100, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert done == told == list(range(2, 102))
    assert [record.number for record in read_all(bed)] == list(range(1, 102))
    assert sequencer.position.number == 101


def test_what_is_too_large_is_refused_and_changes_nothing() -> None:
    bed = Bed()
    sequencer, engine = made(bed, part_bytes_max=100)
    with pytest.raises(TooLarge):
        sequencer.commit([Rows({b"k": bytes(30_000)})])
    sequencer.commit([row(1)])
    engine.close()
    assert [record.number for record in read_all(bed)] == [1, 2]


def test_a_lease_that_is_in_doubt_suspends_it_and_hooks_hear_of_that_once() -> None:
    heard: list[str] = []
    sequencer, engine = made(Bed())
    sequencer.on_suspended = heard.append
    sequencer.on_resumed = lambda: heard.append("resumed")
    sequencer.suspend("the lease was not renewed")
    sequencer.suspend("the lease was not renewed for 2 s")
    with pytest.raises(Unavailable, match="not renewed"):
        sequencer.commit([row(1)])
    sequencer.resume()
    sequencer.resume()
    sequencer.commit([row(2)])
    engine.close()
    assert heard == ["the lease was not renewed", "resumed"]


def test_after_a_stop_who_waits_is_told_that_it_may_be_stored_and_who_comes_that_it_is_not() -> None:
    stops: list[Stopped] = []
    sequencer, engine = made(Bed())
    sequencer.on_stopped = stops.append
    engine.is_up = False
    ticket = sequencer.send([row(1)])
    wait_until(sequencer, suspended=True)
    sequencer.stop("the lease is another's")
    with pytest.raises(SteppedDown, match="may be stored or not"):
        sequencer.wait(ticket)
    with pytest.raises(SteppedDown, match="nothing was stored"):
        sequencer.send([row(2)])
    assert [stopped.unknown for stopped in stops] == [(2,)]
    sequencer.stop("again")
    assert len(stops) == 1
    engine.close()


def test_what_is_committed_and_cannot_be_written_here_stops_it() -> None:
    told: list[Committed] = []
    sequencer, engine = made(Bed())
    sequencer._apply = told.append

    def fail(_: Position) -> None:
        raise OSError("no room")

    with pytest.raises(SteppedDown, match=r"stored by the cluster and could not be written here.*no room"):
        sequencer.commit([row(1)], fail)
    assert sequencer.stopped is not None
    assert sequencer.position.number == 1
    assert told == []
    engine.close()
