"""Publishes that are read many at a time, against each read by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.native.runs import RUN_MIN, Run, read_run, read_stretch
from headwater.store.batch import checksum
from headwater.store.body import encode_body, one_of
from headwater.wire import batches
from headwater.wire.frame import HEADER_BYTES, Frame, Kind
from headwater.wire.reader import FrameReader
from headwater.wire.stretch import STRETCH_MIN, Stretch

COUNT = 20
TIME_US = 1_700_000_000_000_000
BODY = encode_body(("home/x",), (b"abc",), TIME_US)
LONGER = 98
"""A topic that takes more room, which frame by frame is no obstacle."""
UNUSED = range(HEADER_BYTES + 28, HEADER_BYTES + 32)
"""Zeros behind the name of the root, which nobody looks at."""
INDEX_AT, BEGIN_AT = 32, 48

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["home/kitchen/a", "home/kitchen/b", "home/kitchen/bb", "home/halls/ä", "home/x"]),
        st.binary(min_size=0, max_size=17),
        st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=COUNT,
    max_size=COUNT,
)


def packed(number: int, topic: str, payload: bytes, time_us: int = TIME_US, producer: str | None = None) -> bytes:
    return sealed(number, topic.partition("/")[0], encode_body((topic,), (payload,), time_us), producer)


def sealed(number: int, root: str, body: bytes, producer: str | None = None) -> bytes:
    return b"".join(batches.pack_publish(number, root, 1, checksum(body), body, producer))


def number_of(frame: bytes) -> int:
    return FrameReader(1 << 20).feed(frame)[0].id


def stretches(data: bytes) -> list[Stretch]:
    return [one for one in FrameReader(1 << 20).feed_stretches(data) if isinstance(one, Stretch)]


def taken(stretch: Stretch) -> list[int]:
    """The ids of what is taken of a stretch."""
    run = read_stretch(stretch)
    assert run is None or len(run.ids) >= STRETCH_MIN
    return checked(run, stretch.frames(0, stretch.count))


def taken_one_by_one(frames: list[Frame]) -> list[int]:
    run = read_run(frames, 0)
    assert run is None or len(run.ids) >= RUN_MIN
    return checked(run, frames)


def checked(run: Run | None, frames: list[Frame]) -> list[int]:
    """The ids of a run, whose messages are what the frames say."""
    if run is None:
        return []
    for frame, *said in zip(frames, run.ids, run.topics, run.payloads, run.times, strict=False):
        assert tuple(said) == read_by_itself(frame, run.root)
    assert len(run.ids) == len(run.topics) == len(run.payloads) == len(run.times)
    return list(run.ids)


def read_by_itself(frame: Frame, root: str) -> tuple[int, str, bytes, int]:
    publish = batches.read_publish(frame)
    assert (publish.root, publish.producer, publish.count) == (root, None, 1)
    assert checksum(publish.body) == publish.crc
    one = one_of(publish.body)
    assert one is not None
    return frame.id, *one


@given(MESSAGES, st.sampled_from([1, 8, 100]))
def test_messages_are_those_of_the_frames_whatever_their_topics_times_and_lengths(
    messages: list[tuple[str, bytes, int]], rounds: int
) -> None:
    # Sorted by length they come in stretches.
    frames = sorted((packed(number, *message) for number, message in enumerate(messages * rounds)), key=len)
    for stretch in stretches(b"".join(frames)):
        taken(stretch)


@given(MESSAGES)
def test_frames_that_are_read_one_by_one_are_all_taken_whatever_their_lengths(
    messages: list[tuple[str, bytes, int]],
) -> None:
    data = b"".join(packed(number, *message) for number, message in enumerate(messages))
    assert taken_one_by_one(FrameReader(1 << 20).feed(data)) == list(range(COUNT))


@pytest.mark.parametrize("payloads", [(b"abc",), (b"abc", b"abcdefgh"), (b"",)])
@pytest.mark.parametrize("topics", [("home/x",), ("home/x", "home/yy"), ("home/kitchen/ä", "home/kitchen/abc")])
def test_all_of_those_are_taken_that_are_equally_laid_out(topics: tuple[str, ...], payloads: tuple[bytes, ...]) -> None:
    frames = [
        packed(number, topics[number % len(topics)], payloads[number % 3 % len(payloads)], number)
        for number in range(200)
    ]
    (stretch,) = stretches(b"".join(frames))
    assert taken(stretch) == list(range(200))


@given(st.data())
def test_none_is_taken_that_was_damaged(data: st.DataObject) -> None:
    frames = [bytearray(packed(number, f"home/{number % 10}", b"%03d" % number)) for number in range(COUNT)]
    place = data.draw(st.integers(0, COUNT - 1))
    at = data.draw(st.integers(HEADER_BYTES, len(frames[0]) - 1).filter(lambda at: at not in UNUSED))
    frames[place][at] ^= data.draw(st.integers(1, 255))
    for stretch in stretches(b"".join(frames)):
        assert place not in taken(stretch)
    assert taken_one_by_one(FrameReader(1 << 20).feed(b"".join(frames))) == list(
        range(place if place >= RUN_MIN else 0)
    )


@pytest.mark.parametrize(
    "other",
    [
        packed(99, "yard/x", b"abc"),
        packed(99, "home/x", b"", producer="device"),
        packed(LONGER, "home/longer/x", b""),
        packed(LONGER, "home/xyz" + "\0" * 8, b"", 3 << 32),
        sealed(99, "home", BODY.replace(b"home/x", b"home/\xff")),
        sealed(99, "home", BODY.replace(b"\x06\0\0\0home/x\0\0", b"\x09\0\0\0home/x\0\0")),
        sealed(99, "home", BODY.replace(b"\x03\0\0\0abc", b"\x09\0\0\0abc")),
        sealed(99, "home", BODY.replace(b"\x03\0\0\0abc", b"\xff\xff\xff\xffabc")),
        sealed(99, "home", BODY.replace(b"\x03\0\0\0abc", b"\0\0\0\0abc")),
        sealed(99, "home", BODY[:INDEX_AT] + b"\1" + BODY[INDEX_AT + 1 :]),
        sealed(99, "home", BODY[:BEGIN_AT] + b"\1" + BODY[BEGIN_AT + 1 :]),
    ],
)
def test_those_before_one_that_is_laid_out_in_another_way_are_taken(other: bytes) -> None:
    alike = [packed(number, "home/x", b"%03d" % number) for number in range(COUNT)]
    assert len(other) == len(alike[0])
    assert other != packed(99, "home/x", b"abc")
    for place in range(COUNT):
        (stretch,) = stretches(b"".join([*alike[:place], other, *alike[place:]]))
        assert taken(stretch) == (list(range(place)) if place >= STRETCH_MIN else [])
        if number_of(other) != LONGER:
            frames = stretch.frames(0, stretch.count)
            assert taken_one_by_one(frames) == (list(range(place)) if place >= RUN_MIN else [])


def test_those_before_one_that_somebody_waits_for_or_that_ends_too_early_are_taken() -> None:
    frames = [Frame(Kind.PUBLISH, 0, 1, packed(1, "home/long/topic", b"")[HEADER_BYTES:])] * 3
    whole = packed(2, "home/x", b"abc")[HEADER_BYTES:]
    assert taken_one_by_one([Frame(Kind.PUBLISH, 0, 2, whole)] * 2) == [2, 2]  # its head is known from now on
    for other in (
        Frame(Kind.PUBLISH, batches.QUIET, 2, whole),
        Frame(Kind.PUBLISH, 0, 2, whole[: -len(BODY) + INDEX_AT]),
        Frame(Kind.PUBLISH, 0, 2, whole[:4]),
        Frame(Kind.ACK, 0, 2, whole),
    ):
        assert taken_one_by_one([*frames, other, *frames]) == [1, 1, 1]
