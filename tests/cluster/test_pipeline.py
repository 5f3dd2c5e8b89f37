"""A leader's records in flight, by the sequence that each message expects to come after."""

from __future__ import annotations

import pytest

from headwater.cluster.pipeline import (
    TRANSITIONS,
    Command,
    Committed,
    Fate,
    FlightEvent,
    Look,
    Pipeline,
    Send,
    Stopped,
)
from headwater.cluster.record import Append, Position, Record, Rows, open_part

START = Position(10, 5, 3, b"d" * 16)


def pipeline(**limits: int) -> Pipeline:
    return Pipeline(START, 10, 3, part_bytes_max=limits.pop("part_bytes_max", 1 << 20), **limits)


def add(made: Pipeline, count: int = 1) -> list[Send]:
    commands: list[Command] = []
    for number in range(count):
        _, more = made.add((Rows({b"k%d" % number: b"v"}),), 0)
        commands += more
    return [command for command in commands if isinstance(command, Send)]


def committed(commands: list[Command]) -> list[int]:
    return [command.record.number for command in commands if isinstance(command, Committed)]


def test_records_in_flight_name_consecutive_sequences() -> None:
    assert [send.after for send in add(pipeline(), 3)] == [10, 11, 12]


def test_a_record_is_committed_when_all_before_it_are() -> None:
    made = pipeline()
    add(made, 3)
    assert made.acked(11, 12) == []
    assert committed(made.acked(10, 11)) == [6, 7]
    assert committed(made.acked(12, 13)) == [8]
    assert made.committed.sequence == 13


def test_a_record_of_several_parts_is_committed_with_its_last() -> None:
    made = pipeline(part_bytes_max=300)
    record, sends = made.add((Append(1, bytes(500)),), 0)
    assert [send.after for send in sends if isinstance(send, Send)] == [10, 11, 12]
    assert made.acked(10, 11) == made.acked(11, 12) == []
    [done] = made.acked(12, 13)
    assert isinstance(done, Committed)
    assert (done.record, done.position.sequence, done.position.number) == (record, 13, 6)


def test_after_a_timeout_the_identical_message_is_sent_again() -> None:
    made = pipeline()
    [first] = add(made)
    assert made.unanswered(10) == [Send(10, first.data, 2)]
    assert made.unanswered(10) == [Send(10, first.data, 3)]


def test_a_refused_message_that_is_in_its_place_is_ours_and_committed() -> None:
    made = pipeline()
    [first, _] = add(made, 2)
    made.unanswered(10)
    assert made.refused(10, 11) == [Look(11)]
    assert committed(made.looked(11, first.data, 11)) == [6]


def test_a_refused_message_with_anothers_in_its_place_stops_all_later_ones() -> None:
    made = pipeline()
    [first, *_] = add(made, 3)
    made.acked(12, 13)
    made.refused(10, 11)
    [stopped] = made.looked(11, first.data[:-1] + b"?", 13)
    assert isinstance(stopped, Stopped)
    assert (stopped.lost, stopped.unknown, stopped.is_fault) == ((6, 7, 8), (), False)
    assert made.acked(10, 11) == made.acked(11, 12) == []


def test_what_was_refused_for_the_sake_of_the_one_before_goes_again_with_it() -> None:
    made = pipeline()
    [first, second, third] = add(made, 3)
    assert made.refused(11, 10) == made.refused(12, 10) == []
    assert made.unanswered(10) == [Send(10, first.data, 2)]
    assert made.acked(10, 11) == [
        Committed(Record(6, 3, 0, START.digest, (Rows({b"k0": b"v"}),)), made.committed),
        Send(11, second.data, 2),
        Send(12, third.data, 2),
    ]


def test_only_the_head_is_looked_into() -> None:
    made = pipeline()
    [_first, second] = add(made, 2)
    assert made.refused(11, 12) == []
    assert made.acked(10, 11)[1:] == [Look(12)]
    assert committed(made.looked(12, second.data, 12)) == [7]


def test_a_head_that_is_nowhere_is_sent_again() -> None:
    made = pipeline()
    [first] = add(made)
    made.refused(10, 10)
    assert made.looked(11, None, 10) == [Send(10, first.data, 2)]


def test_a_stream_that_ends_before_what_was_committed_is_a_fault_once_it_was_looked_at_again() -> None:
    made = pipeline()
    add(made, 2)
    assert made.refused(10, 8) == [Look(11)]
    assert made.looked(11, None, 8) == [Look(11)]
    assert made.looked(11, None, 8) == [Look(11)]
    [stopped] = made.looked(11, None, 8)
    assert isinstance(stopped, Stopped)
    assert stopped.is_fault
    assert stopped.unknown == (6, 7)


def test_a_message_that_was_stored_elsewhere_is_a_fault() -> None:
    made = pipeline()
    add(made)
    [stopped] = made.acked(10, 12)
    assert isinstance(stopped, Stopped)
    assert stopped.is_fault


def test_a_look_that_nobody_answers_is_asked_again() -> None:
    made = pipeline()
    add(made)
    assert made.unseen(11) == []
    made.refused(10, None)
    assert made.unseen(11) == [Look(11)]


def test_what_is_in_flight_when_it_is_stopped_is_unknown() -> None:
    made = pipeline()
    add(made, 2)
    [stopped] = made.stop("the lease is over")
    assert stopped == Stopped("the lease is over", (), (6, 7))
    assert made.stop("again") == []
    assert made.acked(10, 11) == []
    with pytest.raises(RuntimeError):
        add(made)


def test_a_full_pipeline_says_so() -> None:
    made = pipeline(in_flight_max=2)
    add(made, 2)
    assert not made.has_room
    made.acked(10, 11)
    assert made.has_room


def test_each_record_carries_the_digest_of_the_one_before() -> None:
    made = pipeline()
    first, [sent] = made.add((Rows({b"a": b"1"}),), 0)
    second, _ = made.add((Rows({b"b": b"1"}),), 0)
    assert first.previous == START.digest
    assert isinstance(sent, Send)
    assert second.previous == open_part(sent.data).digest


def test_what_is_stored_or_lost_stays_so() -> None:
    final = {Fate.STORED, Fate.FOREIGN, Fate.GONE}
    assert not [event for fate in final for event in FlightEvent if (fate, event) in TRANSITIONS]
