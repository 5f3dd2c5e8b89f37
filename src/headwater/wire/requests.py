"""Requests and what answers them, as MessagePack.

A request is a map whose field `do` names it; unknown fields are passed over, so that either side may be newer. Its
answer is a REPLY frame with the same id, of the type that the request names, or an ERROR frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from headwater import errors
from headwater.errors import Gap, HeadwaterError, Malformed
from headwater.events import Event
from headwater.message import (
    DeadLetter,
    Erased,
    Extent,
    Headers,
    PurgeInfo,
    ScheduleInfo,
    StateInfo,
    SubscriptionInfo,
    TopicInfo,
)
from headwater.store.log import Counted
from headwater.wire import administration
from headwater.wire.frame import Kind, pack
from headwater.wire.request import CAUSE_MAX, U32, U63, U64, Change, Micros, Options, Request, Seconds, check_options

TEXT_MAX = 4096
"""Characters of an error's text that are sent."""

HOST_CHARS_MAX = 255
"""Of the name that a client tells of its machine."""
HEADERS_MAX = 10_000
LETTERS_MAX = 1_000
"""Dead letters that one request mends."""
MOMENTS_MAX = 16
AMONG_MAX = 1_000
"""Filters among whose messages one request counts."""
LetterPlace = int | tuple[str, int]
"""An offset, or a root and an offset in it; none is negative, which `_check_places` sees to.

Not of U64: a union of a number with a `Meta` and a tuple of fixed length makes msgspec 0.22 crash the interpreter at
the next garbage collection.
"""


PurgePlace = tuple[str, int, str, bytes | None]
"""The root, the offset, the filter and the key of something that was purged."""


def _check_places(places: Iterable[LetterPlace]) -> None:
    for place in places:
        offset = place if isinstance(place, int) else place[1]
        if offset < 0:
            raise Malformed(f"offset {offset} cannot be one; offsets count from 1")


# Sessions

Host = Annotated[str, msgspec.Meta(max_length=HOST_CHARS_MAX)]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The session is this connection's."""

    session: str
    resumed: bool
    expire_after_s: float
    subscriptions: tuple[Subscribed, ...] = ()
    """Those of a session that was resumed; each goes on by itself."""
    bus: str = ""
    """The id of the bus that is served, which a lake names as its own."""
    waits: bool = False
    """Whether its subscriptions wait until they are subscribed to again, as the client has asked."""


class Register(Request[Registered], frozen=True, kw_only=True):
    """A session: a new one, or the one that is named."""

    session: str | None = None
    expire_after_s: Seconds | None = None
    """How long it is kept once the connection is gone; None: the server's default."""
    on_resume: Literal["keep", "redrive"] = "keep"
    """With a session that is resumed: whether all its dead letters are handed out again, before all else."""
    waits: bool = False
    """With a session that is resumed: its subscriptions go on as each is subscribed to again, and not by themselves."""
    host: Host = ""
    pid: U32 = 0
    """Which machine and process it is, for those who ask who takes from a subscription."""


# Subscriptions


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as its session has it."""

    number: U32
    id: str | None
    filter: str
    kind: str
    existed: bool = False
    """Whether it was there before, with its place."""


class Subscribe(Request[Subscribed], frozen=True, kw_only=True):
    """Messages from now on, or from a place in history on; `number` is the client's name for it."""

    number: U32
    filter: str
    kind: Literal["live", "named", "session", "replay", "follow"]
    id: str | None = None
    """Of a named one."""
    start: Literal["earliest", "latest"] | U64 = "latest"
    start_us: Micros | None = None
    """A moment instead of `start`."""
    options: Options = msgspec.field(default_factory=dict)
    """Those of a durable subscription that are not to be as they were, or the default; names in `OPTION_NAMES`."""
    when_full: str = "drop_oldest"
    after: U64 | dict[str, U64] | None = None
    since_us: Micros | None = None
    upto: dict[str, U64] | None = None
    """With "replay": the last offset of each root that is read; other roots are not."""
    credit_messages: U64 = 0
    credit_bytes: U64 = 0

    def __post_init__(self) -> None:
        check_options(self.options)


class Leave(Request[None], frozen=True, kw_only=True):
    """Detach from a subscription; a durable one stays, and so does its cursor."""

    number: U32


class Unsubscribe(Change[None], frozen=True, kw_only=True):
    """Delete a durable subscription."""

    id: str


class SubscribeTo(Change[administration.ChannelInfo], frozen=True, kw_only=True):
    """Have messages pushed to where somebody listens: a tcp channel of the client's own, until it unsubscribes."""

    filter: str
    destination_host: str
    destination_port: U32
    id: str | None = None
    """Of the channel; None: one that is generated. The same client's channel for the same filter and destination is
    used again."""
    name: str = ""
    """Empty: the client's."""
    start: Literal["earliest", "latest"] = "latest"
    options: Options = msgspec.field(default_factory=dict)


class Nack(Request[None], frozen=True, kw_only=True):
    """A message failed this time."""

    number: U32
    lease: U64
    offset: U64
    error: str = ""
    delay_s: Seconds | None = None


class Reject(Request[None], frozen=True, kw_only=True):
    """A message will never succeed."""

    number: U32
    lease: U64
    offset: U64
    error: str = ""


class Extend(Request[None], frozen=True, kw_only=True):
    """More time for a message."""

    number: U32
    lease: U64
    offset: U64
    seconds: Seconds


class Seek(Request[None], frozen=True, kw_only=True):
    """Move the cursor of a durable subscription."""

    number: U32
    to: Literal["earliest", "latest"] | U64 | dict[str, U64] = "latest"
    """With offsets by root, roots that are not named stay where they are."""
    to_us: Micros | None = None


class Pause(Request[None], frozen=True, kw_only=True):
    """Pause or resume delivery."""

    number: U32
    paused: bool


# Publishing, where a PUBLISH frame does not say enough


class Delayed(msgspec.Struct, frozen=True):
    """A message waits until it is due."""

    time_us: int


class Delay(Request[Delayed], frozen=True, kw_only=True):
    """One message that is to be delivered later."""

    topic: str
    payload: bytes
    deliver_at_us: Micros
    retain: bool = False
    key: bytes | None = None
    headers: Annotated[Headers, msgspec.Meta(max_length=HEADERS_MAX)] = ()
    ttl_s: Seconds | None = None


class Schedule(Change[ScheduleInfo], frozen=True, kw_only=True):
    """One message that is to be published again and again; in place of what this id had."""

    topic: str
    payload: bytes
    cron: str
    id: str | None = None
    """None: the topic's name."""
    zone: str = "UTC"
    retain: bool = False
    key: bytes | None = None
    headers: Annotated[Headers, msgspec.Meta(max_length=HEADERS_MAX)] = ()
    ttl_s: Seconds | None = None


class Schedules(Request[list[ScheduleInfo]], frozen=True, kw_only=True):
    """Messages that are published again and again, by id: a page of them, after an id."""

    after: str | None = None
    limit: U32 | None = None


class Unschedule(Change[None], frozen=True, kw_only=True):
    """Publish a schedule's message no more."""

    id: str


class Stage(Request[None], frozen=True, kw_only=True):
    """Store messages of a producer's epoch that nobody sees before they are committed: a body of one root."""

    producer: str
    epoch: U63
    part: str
    """Which part of the epoch this is; staging a part again replaces it."""
    root: str
    count: U32
    crc: U32
    body: bytes


class CommitStage(Request[dict[str, tuple[int, int]]], frozen=True, kw_only=True):
    """Make parts of an epoch visible, once; parts that are not named are dropped."""

    producer: str
    epoch: U63
    parts: tuple[str, ...]


class DropStage(Request[None], frozen=True, kw_only=True):
    """Forget what was staged of an epoch and never committed."""

    producer: str
    epoch: U63


# Looking


class Topics(Request[list[TopicInfo]], frozen=True, kw_only=True):
    """Topics that a filter matches, root by root and by name: a page of them, after a topic."""

    filter: str = "#"
    after: str = ""
    limit: U32 | None = None


class RetainedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A retained message."""

    topic: str
    offset: int
    payload: bytes
    time_us: int
    key: bytes | None
    headers: Headers


class Retained(Request[list[RetainedMessage]], frozen=True, kw_only=True):
    """Retained messages that a filter matches, root by root and by topic: a page of them, after a topic."""

    filter: str
    after: str = ""
    limit: U32 | None = None


class Subscriptions(Request[list[SubscriptionInfo]], frozen=True, kw_only=True):
    """Every durable subscription, by id: a page of them, after an id."""

    after: str | None = None
    limit: U32 | None = None


class States(Request[list[StateInfo]], frozen=True, kw_only=True):
    """Messages of a subscription that there is something to say about, by root and offset: a page, after so many."""

    id: str
    after: U32 = 0
    limit: U32 | None = None


class Ends(Request[dict[str, int]], frozen=True, kw_only=True):
    """The newest offset of each root."""


class Extents(Request[list[Extent]], frozen=True, kw_only=True):
    """What the roots that a filter may match have: their oldest and newest offsets, and where moments are in them."""

    filter: str
    moments_us: Annotated[tuple[Micros, ...], msgspec.Meta(max_length=MOMENTS_MAX)] = ()


class Count(Request[Counted], frozen=True, kw_only=True):
    """How many messages of a root a filter matches, from one offset to another, until there are so many.

    Of the filter, those that any of `among` matches, if it names any. A server reads about so many bytes, and no more.
    """

    filter: str
    among: Annotated[tuple[str, ...], msgspec.Meta(max_length=AMONG_MAX)] = ()
    root: str
    first: U64
    last: U64
    messages: U64
    bytes: U64


class Events(Request[list[Event]], frozen=True, kw_only=True):
    """What happened lately."""


class DeadLetters(Request[list[DeadLetter]], frozen=True, kw_only=True):
    """What a subscription gave up on; with an offset, that one; else a page of them, after a root and an offset."""

    id: str
    offset: LetterPlace | None = None
    after: tuple[str, int] | None = None
    limit: U32 | None = None

    def __post_init__(self) -> None:
        _check_places(place for place in (self.offset, self.after) if place is not None)


class Redrive(Change[int], frozen=True, kw_only=True):
    """Redeliver dead letters to their subscription."""

    id: str
    offsets: tuple[LetterPlace, ...] | None = None

    def __post_init__(self) -> None:
        _check_places(self.offsets or ())


class Mend(Request[None], frozen=True, kw_only=True):
    """Store other contents for dead letters, which wait until the write that they are a part of redrives them."""

    id: str
    write: str
    letters: Annotated[tuple[DeadLetter, ...], msgspec.Meta(max_length=LETTERS_MAX)]
    part: str = ""
    """Which part of the write this is; mending a letter in it again replaces its contents."""


class RedriveMended(Change[int], frozen=True, kw_only=True):
    """Redeliver the letters that parts of a write have mended, once."""

    id: str
    write: str
    parts: tuple[str, ...]


class DropMended(Request[None], frozen=True, kw_only=True):
    """Forget what a write has mended and not redriven."""

    id: str
    write: str


class DropDeadLetters(Change[int], frozen=True, kw_only=True):
    """Forget dead letters."""

    id: str
    offsets: tuple[LetterPlace, ...] | None = None

    def __post_init__(self) -> None:
        _check_places(self.offsets or ())


class Purge(Change[int], frozen=True, kw_only=True):
    """Remove messages."""

    filter: str


class Purges(Request[list[PurgeInfo]], frozen=True, kw_only=True):
    """What was purged of the roots that a filter may match, root by root, the oldest first: a page, after one of it."""

    filter: str = "#"
    after: PurgePlace | None = None
    """Its `root`, `upto`, `filter` and `key`."""
    limit: U32 | None = None


class Erase(Change[Erased], frozen=True, kw_only=True):
    """Remove what there is of a key."""

    key: bytes
    filter: str = "#"
    dry_run: bool = False
    """Only say what there is."""


class RemoveRoot(Change[None], frozen=True, kw_only=True):
    """Remove a root with all that it has."""

    name: str
    force: bool = False
    """Also if subscriptions cover nothing else, or have messages of it to do."""


class Backup(Change[None], frozen=True, kw_only=True):
    """A copy of the data, in a folder on the server's machine."""

    target: str
    with_keys: bool = False
    """Whether what opens the secrets of channels is copied, too."""


class MarkArchived(Request[None], frozen=True, kw_only=True):
    """Say how far a lake has each root: what is not archived yet is kept."""

    lake: str
    """Its id."""
    archived: dict[str, U63]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error, as it is sent."""

    kind: str
    """Its class in the tree of errors."""
    code: int
    text: str
    gap: tuple[str, int, int, str] | None = None
    """Of a `Gap`: root, first and last offset, reason."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that the server pushes about a subscription."""

    what: Literal["gap", "ended", "dropped", "over"]
    """gap: messages are gone, and it goes on. ended: it is no more, `problem` says why. dropped: a live one was too
    slow, and has lost `count` messages by now. over: history was read to its end."""
    problem: Problem | None = None
    count: int = 0


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The connection ends, and why."""

    problem: Problem | None = None
    reconnect: bool = False
    """Whether it makes sense to come back at once, as after a restart of the server."""
    address: str = ""
    """Where to, as host:port, if another node of the cluster is to lead."""
    end_session: bool = False
    """From a client: its session ends now, not when its timer expires."""


_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the decoder raises."""

BY_NAME = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, HeadwaterError)
}
WITH_MORE = (errors.Gap, errors.PartlyStored)
"""Errors that are more than a sentence: they say which messages, or they are none."""


def encode(value: object) -> bytes:
    """A value as MessagePack."""
    return _encoder.encode(value)


def decode(payload: bytes, type: Any) -> Any:
    """The value of a type; Malformed if it is none."""
    decoder = _decoders.get(type)
    if decoder is None:
        decoder = _decoders[type] = msgspec.msgpack.Decoder(type)
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise Malformed(f"a frame's MessagePack cannot be read: {cut(error)}") from None


def cut(error: BaseException) -> str:
    """What was wrong with what was sent, without much of it."""
    return str(error)[:CAUSE_MAX]


def pack_request(id: int, request: Request[Any]) -> bytes:
    """A REQUEST frame."""
    return pack(Kind.REQUEST, id, _encoder.encode(request))


def pack_error(id: int, error: BaseException) -> bytes:
    """An ERROR frame."""
    return pack(Kind.ERROR, id, _encoder.encode(problem_of(error)))


def problem_of(error: BaseException) -> Problem:
    """An error as it is sent; of one that is not ours, its type alone."""
    if isinstance(error, Gap):
        return Problem(
            kind="Gap", code=error.code, text="", gap=(error.root, error.first, error.last, _sendable(error.reason))
        )
    if isinstance(error, HeadwaterError):
        text = str(error.args[0]) if error.args else ""
        return Problem(kind=type(error).__name__, code=error.code, text=_sendable(text))
    return Problem(kind="Failed", code=500, text=f"the server failed at it ({type(error).__name__}); see its log")


def _sendable(text: str) -> str:
    """Text that UTF-8 can say: a file's name in it may hold what it cannot."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


def error_of(problem: Problem) -> HeadwaterError:
    """The error that was sent."""
    if problem.gap is not None:
        return Gap(*problem.gap)
    known = BY_NAME.get(problem.kind)
    if known is None or known in WITH_MORE:
        alike = (error for error in BY_NAME.values() if error.code == problem.code and error not in WITH_MORE)
        known = next(alike, HeadwaterError)
    return known(problem.text)
