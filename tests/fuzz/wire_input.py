"""What may come out of bytes on a connection: one function that every fuzzer of the wire calls.

The bytes are read as a server would, then as a client would. Allowed are values, a wait for more, and the errors in
`ALLOWED`; whatever is read must also be written again to the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.errors import Malformed, TooLarge
from headwater.wire import batches, handshake, operations, requests
from headwater.wire.frame import LENGTH_BYTES, Frame, Kind, pack
from headwater.wire.handshake import Phase
from headwater.wire.reader import FrameReader

ALLOWED = (Malformed, TooLarge)
LIMIT = 64 * 1024

READERS: dict[int, Callable[[Frame], Any]] = {
    Kind.HELLO: lambda frame: requests.decode(frame.payload, handshake.Hello),
    Kind.CHALLENGE: lambda frame: requests.decode(frame.payload, handshake.Challenge),
    Kind.RESPONSE: lambda frame: requests.decode(frame.payload, handshake.Response),
    Kind.OK: lambda frame: requests.decode(frame.payload, handshake.Welcome),
    Kind.REQUEST: operations.read_request,
    Kind.REPLY: lambda frame: [_tried(frame, type) for type in operations.REPLIES.values()],
    Kind.ERROR: lambda frame: requests.error_of(requests.decode(frame.payload, requests.Problem)),
    Kind.PUBLISH: batches.read_publish,
    Kind.PUBLISHED: batches.read_published,
    Kind.DELIVER: batches.read_deliver,
    Kind.ACK: batches.read_ranges,
    Kind.TAKEN: batches.read_ranges,
    Kind.CREDIT: batches.read_credit,
    Kind.RECALL: batches.read_ranges,
    Kind.NOTICE: lambda frame: requests.decode(frame.payload, requests.Notice),
    Kind.PING: lambda frame: None,
    Kind.PONG: lambda frame: None,
    Kind.GOODBYE: lambda frame: requests.decode(frame.payload, requests.Goodbye),
}


def _tried(frame: Frame, type: Any) -> Any:
    try:
        return requests.decode(frame.payload, type)
    except ALLOWED:
        return None


def feed_all(data: bytes, step: int) -> tuple[list[Frame], str]:
    """The frames of these bytes, fed so many at a time, and the error after them."""
    reader = FrameReader(LIMIT)
    found: list[Frame] = []
    try:
        for at in range(0, len(data), step):
            found += reader.feed(data[at : at + step])
            assert reader.waiting_bytes <= min(LIMIT, at + step)
        if reader.error is not None:
            raise reader.error
    except ALLOWED as error:
        return found, str(error)
    return found, ""


def check(data: bytes) -> None:
    """Raises if bytes make the wire do anything but what it promises; the first byte says how they are split."""
    step, data = (data[0] % 32 + 1, data[1:]) if data else (1, b"")
    frames, error = feed_all(data, step)
    assert (frames, error) == feed_all(data, max(1, len(data))), "frames depend on how their bytes were split"
    again = b"".join(pack(frame.kind, frame.id, frame.payload, frame.flags) for frame in frames)
    assert data.startswith(again), "a frame is not written as it was read"
    state = Phase.GREETING
    for frame in frames:
        assert len(frame.payload) <= LIMIT - LENGTH_BYTES
        try:
            value = READERS[frame.kind](frame)
        except ALLOWED as problem:
            assert requests.pack_error(frame.id, problem)
            value = None
        if frame.kind == Kind.REQUEST and value is not None:
            assert operations.read_request(Frame(Kind.REQUEST, 0, 0, requests.encode(value))) == value
        try:
            state = handshake.step(state, frame)
        except Malformed:
            state = Phase.REGISTERED  # go on where most may come
