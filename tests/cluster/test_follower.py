"""What a reader of the stream believes."""

from __future__ import annotations

import pytest

from headwater.cluster.follower import Beyond, Diverged, Following, Missing
from headwater.cluster.record import BEGINNING, Append, Entry, Epoch, Position, Record, Rows, encode

ONE = 1 << 20


def chain(epoch: int, position: Position, *groups: Entry) -> list[bytes]:
    """Messages that continue a position, a record for each entry; the first begins its epoch if that is larger."""
    found, number, digest, entries = [], position.number, position.digest, list(groups)
    if epoch > position.epoch:
        entries.insert(0, Epoch(epoch, f"n{epoch}", "bus"))
    for entry in entries:
        number += 1
        encoded = encode(Record(number, epoch, 0, digest, (entry,)), ONE)
        found.append(encoded.parts[0])
        digest = encoded.digest
    return found


def rows(text: str) -> Rows:
    return Rows({text.encode(): b"1"})


def read(following: Following, *messages: bytes) -> list[Record]:
    found = (following.read(following.end + 1, message) for message in messages)
    return [record for record in found if record is not None]


def test_records_that_continue_the_chain_count() -> None:
    following = Following(Position())
    records = read(following, *chain(1, Position(), rows("a"), rows("b")))
    assert [record.number for record in records] == [1, 2, 3]
    assert following.position.sequence == following.end == 3


def test_a_later_message_of_an_old_leader_that_was_let_in_behind_a_new_one_is_void() -> None:
    following = Following(Position())
    read(following, *chain(1, Position(), rows("a")))
    at = following.position
    old = chain(1, at, rows("b"), rows("c"))
    new = chain(2, at, rows("d"))
    assert [record.epoch for record in read(following, new[0], old[1])] == [2]
    assert following.end == 4
    other = Following(Position())
    read(other, *chain(1, Position(), rows("a")), new[0], old[1])
    assert other.position == following.position
    [resumed] = read(following, *chain(2, following.position, rows("d")))
    assert resumed.entries == (rows("d"),)


def test_a_record_that_another_interrupts_is_void() -> None:
    following = Following(Position())
    read(following, *chain(1, Position()))
    at = following.position
    parts = encode(Record(2, 1, 0, at.digest, (Append(1, bytes(1000)),)), 300).parts
    assert read(following, parts[0], parts[1]) == []
    [begun] = read(following, *chain(2, at))
    assert begun.epoch == 2
    assert read(following, *parts[2:]) == []
    assert following.position.number == 2


def test_parts_make_one_record() -> None:
    following = Following(Position())
    read(following, *chain(1, Position()))
    made = Record(2, 1, 0, following.position.digest, (Append(1, bytes(1000)),))
    assert read(following, *encode(made, 300).parts) == [made]
    assert following.position.sequence == following.end


def test_what_is_delivered_again_is_passed_over() -> None:
    following = Following(Position())
    messages = chain(1, Position(), rows("a"))
    read(following, *messages)
    assert following.read(1, messages[0]) is None
    assert following.position.number == 2


def test_a_hole_in_the_sequences_is_missing_and_changes_nothing() -> None:
    following = Following(Position())
    messages = chain(1, Position(), rows("a"))
    with pytest.raises(Missing):
        following.read(2, messages[1])
    assert following.end == 0


def test_a_later_epoch_that_does_not_continue_what_was_applied_is_another_history() -> None:
    following = Following(Position())
    read(following, *chain(1, Position(), rows("a")))
    with pytest.raises(Diverged, match="epoch 2"):
        read(following, *chain(2, Position(3, 2, 1, b"x" * 16)))


def test_an_epoch_begins_with_its_record_alone() -> None:
    following = Following(Position())
    with pytest.raises(Diverged):
        read(following, encode(Record(1, 1, 0, BEGINNING, (rows("a"),)), ONE).parts[0])


def test_records_that_come_after_more_than_can_be_in_flight_are_behind_a_hole() -> None:
    following = Following(Position(), in_flight_max=4)
    messages = chain(1, Position(), *(rows(str(number)) for number in range(9)))
    read(following, messages[0])
    assert read(following, *messages[2:5]) == []
    with pytest.raises(Diverged, match="not there"):
        read(following, messages[5])


def test_what_is_no_record_is_another_history() -> None:
    with pytest.raises(Diverged):
        read(Following(Position()), b"hello")


def test_a_stream_that_ends_before_what_was_read_is_noticed() -> None:
    following = Following(Position())
    read(following, *chain(1, Position(), rows("a")))
    following.check(1, 2, None)
    with pytest.raises(Beyond, match="lost records"):
        following.check(1, 1, None)


def test_a_stream_that_has_another_record_in_the_place_of_the_last_is_noticed() -> None:
    following = Following(Position())
    messages = chain(1, Position(), rows("a"))
    read(following, *messages)
    following.check(1, 9, messages[1])
    with pytest.raises(Diverged, match="another record"):
        following.check(1, 9, chain(1, Position(), rows("b"))[1])


def test_a_stream_that_begins_after_what_comes_next_is_missing_something() -> None:
    following = Following(Position(5, 5, 1, BEGINNING))
    following.check(6, 8, None)
    with pytest.raises(Missing):
        following.check(7, 8, None)


def test_a_stream_that_ends_before_what_the_folder_had_before_a_crash_is_noticed() -> None:
    following = Following(Position(), written=Position(9, 9, 1, BEGINNING))
    following.check(1, 9, None)
    with pytest.raises(Beyond, match="ends at 8, and this node has read up to 9"):
        following.check(1, 8, None)


def test_a_stream_that_goes_on_otherwise_than_the_folder_had_before_a_crash_is_noticed() -> None:
    before = Following(Position())
    read(before, *chain(1, Position(), rows("a")))
    same, other = Following(Position(), written=before.position), Following(Position(), written=before.position)
    assert len(read(same, *chain(1, Position(), rows("a"), rows("b")))) == 3
    with pytest.raises(Diverged, match="than this node had applied"):
        read(other, *chain(1, Position(), rows("c"), rows("b")))
