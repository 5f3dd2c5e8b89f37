"""Columns of a stretch, against what stands in its frames one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.frame import HEADER_BYTES, Kind, pack
from headwater.wire.stretch import AT_ONCE, Stretch, alike

COUNTS = st.sampled_from([1, 2, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + 7])


@given(COUNTS, st.integers(1, 20), st.data())
def test_a_column_is_what_stands_at_one_place_of_each_frame(
    count: int, payload_bytes: int, data: st.DataObject
) -> None:
    payloads = [bytes((7 * number + place) % 256 for place in range(payload_bytes)) for number in range(count)]
    stretch = Stretch(
        Kind.PUBLISH,
        1,
        count,
        HEADER_BYTES + payload_bytes,
        b"".join(pack(Kind.PUBLISH, number, payload, 1) for number, payload in enumerate(payloads)),
    )
    at = data.draw(st.integers(0, payload_bytes - 1))
    width = data.draw(st.integers(1, payload_bytes - at))
    some = data.draw(st.integers(0, count))
    values = [payload[at : at + width] for payload in payloads]
    assert stretch.column(HEADER_BYTES + at, width) == b"".join(values)
    assert stretch.values(HEADER_BYTES + at, width, some) == values[:some]
    assert [(frame.id, frame.payload) for frame in stretch.frames(some, count)] == list(enumerate(payloads))[some:]


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=12), st.sets(st.integers(0, 2)))
def test_as_many_are_alike_as_begin_with_the_bytes_of_the_first(pieces: list[bytes], places: set[int]) -> None:
    pieces = [bytes(byte % 2 for byte in piece) for piece in pieces]
    same = [all(piece[place] == pieces[0][place] for place in places) for piece in pieces]
    expected = same.index(False) if False in same else len(same)
    assert alike(b"--" + b"".join(pieces) + b"-", 2, 3, len(pieces), places) == expected
