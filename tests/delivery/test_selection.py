"""Selections: counted, cut and taken the same way, whether they are of a batch or of single messages."""

from __future__ import annotations

import pytest

from headwater.delivery.selection import Selection
from headwater.message import Message
from headwater.store.batch import QUIET, Batch, Header, checksum
from headwater.store.body import encode_body

PAYLOADS = [b"12", b"345", b"6"]
OFFSETS = [1, 2, 3]


def of_batch(places: list[int] | None = None) -> Selection:
    body = encode_body(["home/a"] * 3, PAYLOADS, 5)
    batch = Batch.of(Header("home", 1, 3, 5, 0, None, 0, 0, 64, len(body), checksum(body)), body)
    return Selection("home", batch, 3 if places is None else len(places), places)


def of_messages() -> Selection:
    messages = [Message("home/a", offset, payload, 5) for offset, payload in zip(OFFSETS, PAYLOADS, strict=True)]
    return Selection("home", None, len(messages), None, messages)


@pytest.mark.parametrize("selection", [of_batch(), of_batch([0, 1, 2]), of_messages()])
def test_messages_are_counted_cut_and_taken(selection: Selection) -> None:
    origin = object()
    assert selection.count == 3
    assert [message.offset for message in selection.taken(origin)] == OFFSETS
    assert {message.origin for message in selection.taken(origin)} == {origin}
    head, rest = selection.cut(2)
    assert ([one.payload for one in head.taken()], [one.payload for one in rest.taken()]) == (
        PAYLOADS[:2],
        PAYLOADS[2:],
    )
    assert (head.count, rest.count) == (2, 1)


def test_as_many_single_messages_fit_as_their_payloads_allow_and_one_always_does() -> None:
    assert [of_messages().fitting(size) for size in (0, 2, 4, 5, 6, 100)] == [1, 1, 1, 2, 3, 3]


def test_a_single_message_on_its_way_to_disk_is_encoded_when_somebody_needs_its_bytes() -> None:
    early = Batch.of_one("home", 7, "home/a", b"x", 5)
    assert (early.count, early.first_offset, early.last_offset, early.is_early) == (1, 7, 7, True)
    assert early.data == encode_body(("home/a",), (b"x",), 5)
    assert early.crc == checksum(early.data)
    assert (early.header.first_offset, early.header.flags, early.header.time_us) == (7, QUIET, 5)
    assert [message.payload for message in Selection("home", early, 1).taken()] == [b"x"]
