"""Who may lead, and what is said to those who may not."""

from __future__ import annotations

import pytest

from headwater.cluster.candidate import clock_is_off, unfit
from headwater.cluster.members import Report
from headwater.cluster.record import Position

SECOND_US = 1_000_000
MEMBERS = ("n1", "n2", "n3")


def at(number: int, digest: bytes = b"") -> Position:
    return Position(number, number, 1, digest or b"%016d" % number)


def report(node: str, position: Position, written: Position | None = None) -> Report:
    return Report(
        node=node, role="following", position=position, synced=Position(), time_us=0, written=written or Position()
    )


OURS = at(10)
KNOWN = {number: b"%016d" % number for number in range(1, 11)}


def judged(*reports: Report, written: Position | None = None, members: tuple[str, ...] = MEMBERS) -> str:
    said = {one.node: one for one in reports}
    return unfit("n1", OURS, written or Position(), OURS.sequence, members, said, KNOWN)


@pytest.mark.parametrize("theirs", [Position(), at(7), at(10)])
def test_one_that_is_not_behind_a_majority_may_lead(theirs: Position) -> None:
    assert judged(report("n2", theirs)) == ""


def test_one_without_a_majority_may_not() -> None:
    assert "1 of 3 nodes answer" in judged()
    assert judged(members=("n1",)) == ""
    assert "2 of 4 nodes answer" in judged(report("n2", at(10)), members=(*MEMBERS, "n4"))


def test_one_that_lacks_what_another_has_applied_may_not() -> None:
    assert 'node "n3" has applied record 11' in judged(report("n2", at(10)), report("n3", at(11)))


def test_one_that_lacks_what_another_had_applied_before_a_crash_may_not() -> None:
    assert 'node "n2" has applied record 12' in judged(report("n2", at(8), written=at(12)))


def test_one_that_lacks_what_it_had_applied_itself_may_not() -> None:
    assert "had applied record 12 before it stopped" in judged(report("n2", at(10)), written=at(12))


@pytest.mark.parametrize("number", [7, 10])
def test_one_of_another_history_may_not(number: int) -> None:
    other = at(number, b"another history.")
    assert f"has applied another record {number}" in judged(report("n2", other))
    assert f"has applied another record {number}" in judged(report("n2", at(5), written=other))


def test_one_whose_clock_is_off_may_not() -> None:
    now_us = 1_700_000_000 * SECOND_US
    assert clock_is_off(now_us, now_us + SECOND_US, now_us, 5.0) == ""
    assert "10.0 s off that of the NATS servers" in clock_is_off(now_us + 10 * SECOND_US, now_us, now_us, 5.0)
    assert "-10.0 s off" in clock_is_off(now_us - 10 * SECOND_US, now_us, now_us - 10 * SECOND_US, 5.0)
    assert "10.0 s behind the newest record" in clock_is_off(now_us, now_us, now_us + 10 * SECOND_US, 5.0)
