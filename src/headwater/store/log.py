"""The seam: all that the rest of Headwater knows about how messages are stored.

`Stream` is the log of one root: read from an offset, trim. `Log` is all of them together, since a group that touches
several is made durable by one sync. An append and a read may take their time, so that a store across the network fits
behind this as well as files do. `State`, in `store/state.py`, is
the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from headwater.errors import HeadwaterError
from headwater.store.batch import Batch
from headwater.store.body import Body

REMOVED = "its root was removed"


class Hole(msgspec.Struct, frozen=True):
    """Offsets that a reader asked for and that are gone."""

    first: int
    last: int
    reason: str


def untold(holes: Sequence[Hole], first: int, last: int) -> list[tuple[int, int]]:
    """The parts of a gap that none of these, in ascending order, tells of."""
    parts = []
    for hole in holes:
        if hole.first <= last and hole.last >= first:
            parts.append((first, hole.first - 1))
            first = hole.last + 1
    return [(start, end) for start, end in (*parts, (first, last)) if start <= end]


class Checkpoint(msgspec.Struct, frozen=True):
    """Up to where the state reflects a stream: its last applied offset, and the place where the next batch starts."""

    applied: int = 0
    base: int = 0
    position: int = 0


class Found(msgspec.Struct):
    """What recovery met in one stream."""

    holes: list[Hole] = []
    torn_bytes: int = 0
    from_journal: int = 0
    batches: int = 0


class Write(msgspec.Struct, eq=False, gc=False):
    """A batch to append: its body and who produced it; then, where it was placed."""

    body: bytes
    crc: int
    count: int
    producer: bytes | None = None
    sequence: int = 0
    flags: int = 0
    """How it was published: `QUIET`, `ONCE`."""
    columns: Body | None = None
    """The body decoded, if somebody had to look into it before."""
    batch: Batch | None = None
    room: int = 0
    """How many bytes it takes there, up to the next."""


Wanted = Callable[[str], bool]
"""Whether a topic is."""


class Counted(msgspec.Struct, frozen=True):
    """How many messages of a stretch match."""

    end: int
    """The first offset that was not counted."""
    messages: int
    bytes: int = 0
    """About what was read for it."""


class Stream(Protocol):
    """The log of one root."""

    @property
    def number(self) -> int:
        """Short and for ever: what rows of the state call this stream."""

    @property
    def root(self) -> str:
        """Whose log it is."""

    @property
    def first_offset(self) -> int:
        """The oldest offset that is kept."""

    @property
    def durable(self) -> int:
        """The newest offset that readers may see; 0 if there is none."""

    @property
    def failed(self) -> str | None:
        """Why nothing is appended any more."""

    @property
    def holes(self) -> Sequence[Hole]:
        """Gaps that are known."""

    @property
    def size(self) -> tuple[int, int]:
        """Bytes, and in how many pieces."""

    def read(self, offset: int, bytes_max: int) -> Sequence[Batch | Hole]:
        """Batches from the one that holds an offset on; empty if it is not there yet. From any thread."""

    def held(self, offset: int, bytes_max: int) -> Sequence[Batch] | None:
        """The same, of those that are in memory; None if one would have to go to where they are stored."""

    def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; one past the end if there is none."""

    def count(self, wanted: Wanted, first: int, last: int, messages_max: int, bytes_max: int) -> Counted:
        """Messages of topics that are wanted, from an offset up to another, or until there are so many, or so much was
        read; nothing is read of what they carry."""

    def beyond(self, bytes_max: int) -> int:
        """The last offset of the oldest messages without which the stream would be so small; 0 if it is."""

    def trim(self, upto: int) -> int:
        """Delete messages up to an offset, as far as that can be done cheaply; answers the new first offset."""

    def fail(self, reason: str) -> None:
        """Append nothing any more."""


class Share(Protocol):
    """Of the disk, for what is appended while others are."""

    def is_shared(self, root: str) -> bool:
        """Whether others use it besides those who wait for this root; from any thread."""

    def give_way(self, root: str, sync: Callable[[], None]) -> None:
        """Between two pieces of what is written: let others have theirs, after a sync of what was written."""


class Appending(Protocol):
    """Batches on their way to one stream, which takes nothing else until they are shown or dropped."""

    def write(self, writes: Sequence[Write]) -> None:
        """Write them and make them durable; by any thread, while others are appended to other streams. If it raises,
        nothing of them stays, unless their sync failed."""

    def show(self) -> None:
        """Let readers see them."""

    def drop(self) -> None:
        """They could not be written."""


class Making(Protocol):
    """Streams of new roots on their way."""

    def write(self) -> None:
        """Make them, durably; by any thread, while others are appended to."""

    def show(self) -> Mapping[str, HeadwaterError]:
        """Let them be appended to; answers the roots of those that could not be made, and why."""


class Log(Protocol):
    """The streams of one bus."""

    is_near: bool
    """Whether an append takes no longer than this machine's disk, so that an event loop may do a small one."""
    on_roll: Callable[[str], None]
    """Hears of each root of which there may be something more to trim; from any thread."""

    def all(self) -> Sequence[Stream]:
        """Every stream."""

    def create(self, root: str) -> Stream:
        """The stream of a root, made if there is none."""

    def is_made(self, root: str) -> bool:
        """Whether there is one, so that `create` takes no time."""

    def make_apart(self, roots: Sequence[str]) -> Making:
        """Prepare to make the streams of new roots, while others are appended to; one such at a time."""

    @property
    def removed(self) -> Collection[int]:
        """Numbers of streams whose roots were removed, as far as they are remembered."""

    def remove(self, stream: Stream) -> None:
        """A stream is no more, durably: whoever reads on in it is told, and a new one of its root goes on with the
        offset after its last."""

    def sweep(self) -> bool:
        """Delete a part of what removed streams have left; whether there is more."""

    def append(self, asked: Sequence[tuple[Stream, Sequence[Write]]], now_us: int) -> None:
        """Write batches to streams; returns once they are durable. If they cannot be written, nothing of the group
        stays; if they may not be durable, nobody sees them."""

    def append_apart(self, stream: Stream, now_us: int, share: Share) -> Appending:
        """Prepare to append much to one stream, while others are appended to, with so much of the disk."""

    def recover(
        self,
        checkpoints: Callable[[int], Checkpoint],
        evidence: Callable[[int], int],
        holes: Callable[[int], list[Hole]],
        apply: Callable[[Stream, Batch], None],
        first: str,
    ) -> dict[str, Found]:
        """Bring every stream back, the one of root `first` before the others; answers what was met in each."""

    def look(self, holes: Callable[[int], list[Hole]]) -> None:
        """See the streams as they are now, beside a process that owns them; changes nothing."""

    def checkpoint(self, stream: Stream) -> Checkpoint:
        """Where a stream stands, for the state to remember."""

    def seal(self) -> None:
        """From here on, what is stored by now is never written to again."""

    def copy(self, target: str) -> None:
        """A copy, in another place, of what was sealed."""

    def free_bytes(self) -> int:
        """Room left."""

    def close(self) -> None:
        """Let go of everything, in good order."""
