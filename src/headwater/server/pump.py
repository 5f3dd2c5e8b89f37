"""A pump: serves one subscription of one session, over whatever connection the session has.

It takes batches from where they come (a durable subscription, a live one, history) and sends them as they are, as far
as the client has given credit and takes what is sent. One turn of the loop looks at so many batches and no more, and
what is on disk is read in a thread. Promises: never more than the credit is sent; for a client that
does not read, nothing piles up here: a durable subscription and history wait, a live one drops or ends as its policy
says; what was taken back from the client is told before anything is sent after it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from typing import Any

import msgspec

from headwater.actor import Actor, Offload
from headwater.delivery.selection import Selection
from headwater.errors import Gap, HeadwaterError, Malformed, TooManyFiles, Unwritable
from headwater.server.party import Party
from headwater.server.workers import Workers
from headwater.store.state import Rows
from headwater.wire import requests
from headwater.wire.batches import Range

CREDIT_MAX = 1 << 62
ROOM_AGAIN_S = 0.5
"""After this it is looked whether a file can be opened again, if none could, or something noted."""


class Wake(msgspec.Struct, frozen=True):
    """There may be something to send."""


class Credit(msgspec.Struct, frozen=True, gc=False):
    """The client takes so much more."""

    messages: int
    bytes: int


class Ack(msgspec.Struct, frozen=True):
    """The client is done with messages."""

    id: int
    """By which it is answered, unless somebody else waits for it."""
    ranges: list[Range]
    beside: Rows | None = None
    """What is noted together with that."""
    future: Future[object] | None = None
    """Completes when it is on disk."""


class Spare(msgspec.Struct, frozen=True, gc=False):
    """The client has messages from another subscription: they are done with here, handed out or not."""

    root: str
    offsets: Sequence[int]


class PutBack(msgspec.Struct, frozen=True):
    """What was handed out and is not among these, by root and offset, was not sent: it is to be handed out again."""

    sent: Set[tuple[str, int]]


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The client's application has taken messages."""

    ranges: list[Range]


class Failed(msgspec.Struct, frozen=True):
    """The client could not do something with a message, or asks for more time."""

    id: int
    request: requests.Nack | requests.Reject | requests.Extend


WAKE = Wake()
UNBOUNDED = (-1, -1)
"""Credit of those who are bounded by something else: what their connection takes, and their own window."""


class Pump(Actor):
    """One subscription of a session."""

    __slots__ = (
        "_credit_bytes",
        "_credit_messages",
        "_is_fetching",
        "_rechecks",
        "_rest",
        "_version",
        "filter",
        "id",
        "is_abandoned",
        "is_held",
        "is_held_back",
        "is_left",
        "is_rung",
        "kind",
        "number",
        "session",
    )

    def __init__(
        self, session: Party, number: int, kind: str, id: str | None, filter: str, credit: tuple[int, int]
    ) -> None:
        super().__init__(session, session.sessions.serving.mailbox_max)
        self.session = session
        self.number = number
        self.kind = kind
        self.id = id
        self.filter = filter
        self.is_rung = False
        self.is_held = False
        """Whether it is to send nothing yet, as its client is not told that it is there."""
        self.is_held_back = False
        """Whether it could not send, and waits to be woken when its connection takes more."""
        self.is_left = False
        """Whether its session has let go of it."""
        self.is_abandoned = False
        """Whether its client is gone without a word."""
        self._credit_messages = 0
        self._credit_bytes = 0
        self._rest: Selection | None = None
        """What is left of a selection for which there was not credit enough."""
        self._is_fetching = False
        """Whether a thread reads for it."""
        self._rechecks = session.sessions.broker.rechecks
        self._version = -1
        """Of the rules and clients by which it was last asked whether it may send."""
        self._grant(*credit)

    def receive(self, message: Any) -> None:
        if self.is_left:
            return
        match message:
            case Wake() | Credit():
                if isinstance(message, Credit):
                    self._grant(message.messages, message.bytes)
                try:
                    self._pump()
                except TooManyFiles:
                    self.session.sessions.loop.call_later(ROOM_AGAIN_S, self.ring)
                except HeadwaterError as error:
                    # Nobody asked for it, so it is no answer: the pump has failed.
                    raise RuntimeError(f"cannot go on: {error}") from error
            case Ack():
                self._ack(message)
            case Spare():
                self._spare(message.root, message.offsets)
            case PutBack():
                self._put_back(message.sent)
            case Taken():
                self._taken(message.ranges)
            case Failed():
                self._fail(message.id, message.request)

    def ring(self) -> None:
        """Have it look for something to send; from any thread."""
        self.session.sessions.wakes.ring(self)

    def on_wake(self) -> None:
        """It was rung."""
        self.tell(WAKE)

    @property
    def credit(self) -> tuple[int, int]:
        """Messages and bytes that may still be sent."""
        return max(0, self._credit_messages), max(0, self._credit_bytes)

    def _grant(self, messages: int, size: int) -> None:
        if (messages, size) == UNBOUNDED:
            self._credit_messages = self._credit_bytes = CREDIT_MAX
            return
        serving = self.session.sessions.serving
        self._credit_messages = min(self._credit_messages + messages, serving.credit_messages_max)
        self._credit_bytes = min(self._credit_bytes + size, serving.credit_bytes_max)

    # Sending

    @property
    def _may_send(self) -> bool:
        connection = self.session.connection
        return (
            connection is not None
            and not self.is_left
            and not self.is_held
            and connection.is_writable
            and not connection.is_closed
            and self._credit_messages > 0
            and self._credit_bytes > 0
            and (self._version == self._rechecks.version or self.is_allowed)
        )

    @property
    def is_allowed(self) -> bool:
        """Whether the client may have what it brings, by the rules of this very moment; it is ended soon if not."""
        version = self._rechecks.version  # read first: a change sets it last
        if self._version != version:
            if not self.session.may_take(self):
                return False
            self._version = version
        return True

    def doubt(self) -> None:
        """It is to be asked again whether the client may have this."""
        self._version = -1

    @abstractmethod
    def _pump(self) -> None:
        """Send as much as there is and may be sent."""

    def _send(self, selection: Selection) -> tuple[int, int]:
        """Have messages leave; how many there were, and how many bytes they took of the credit."""
        count, size = selection.count, self.session.deliver(self, selection)
        self._credit_messages -= count
        self._credit_bytes -= size
        counts = self.session.sessions.counts
        counts.messages_out += count
        counts.bytes_out += size
        return count, size

    def _send_some(self, selection: Selection) -> None:
        """As much as there is credit for; the rest waits for more."""
        if not selection.count:
            return  # what matches in it comes after the end of what was asked for, or its ttl is over
        room = min(self._credit_messages, selection.fitting(self._credit_bytes))
        if selection.count > room:
            selection, self._rest = selection.cut(room)
        self._send(selection)

    def _take_rest(self) -> Selection | None:
        rest, self._rest = self._rest, None
        return rest

    # Reading, in a thread

    def _fetch(self, work: Callable[[], None], threads: Workers) -> None:
        """Have a slice read that a look did not reach; then look again."""
        self._is_fetching = True
        session = self.session
        Offload(session.sessions.loop, threads.of(session.payer)).do(work, self._fetched)

    def _fetched(self, _: None, error: BaseException | None) -> None:
        self._is_fetching = False
        if self.is_left:
            return
        if isinstance(error, Gap):
            self.notice("gap", error)
        elif isinstance(error, TooManyFiles | Unwritable):
            self.session.sessions.loop.call_later(ROOM_AGAIN_S, self.ring)
            return
        elif isinstance(error, Exception):
            self._on_unread(error)
            return
        self.tell(WAKE)

    def _on_unread(self, error: Exception) -> None:
        """It could not be read."""
        self.session.on_failure(self, RuntimeError(f"cannot go on: {error}"))

    def notice(self, what: str, error: BaseException | None = None, count: int = 0) -> None:
        """Tell the client something about this subscription."""
        self.session.notice(self.number, what, error, count)

    # What only some kinds understand

    def _ack(self, ack: Ack) -> None:
        raise Malformed("only messages of a durable subscription are acked")

    def _spare(self, root: str, offsets: Sequence[int]) -> None:
        """Nothing is kept."""

    def _put_back(self, sent: Set[tuple[str, int]]) -> None:
        """Nothing is kept."""

    def _taken(self, ranges: list[Range]) -> None:
        """Nothing is timed."""

    def _fail(self, id: int, request: requests.Nack | requests.Reject | requests.Extend) -> None:
        raise Malformed("only messages of a durable subscription can be given back")

    @abstractmethod
    def leave(self) -> Callable[[], object] | None:
        """Stop; what is left to do in a thread."""
