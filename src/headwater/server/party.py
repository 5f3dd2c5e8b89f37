"""Parties: whom a connection belongs to and pumps serve. A session is one, and so is a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from headwater.config import Serving
from headwater.counts import Counts
from headwater.delivery.rows import RowsItem
from headwater.delivery.selection import Selection
from headwater.errors import HeadwaterError
from headwater.server.attention import Attention
from headwater.server.bell import Wakes
from headwater.server.outbox import Outbox
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.actor import Actor
    from headwater.server.broker import Broker
    from headwater.server.connection import Connection
    from headwater.server.pump import Pump
    from headwater.server.slices import Slices
    from headwater.server.workers import Workers


class Host(Protocol):
    """Whoever keeps connections: the listener those of clients, the channels those to receivers."""

    loop: asyncio.AbstractEventLoop
    buffer: memoryview
    wakes: Wakes
    outbox: Outbox
    attention: Attention
    serving: Serving

    def on_connection(self, connection: Connection) -> None:
        """It is connected."""

    def on_lost(self, connection: Connection) -> None:
        """It is gone."""

    def on_refused(self, connection: Connection, error: HeadwaterError) -> None:
        """It is closed for what the other side did."""


class Waiter(Protocol):
    """Whoever works for a connection, and need not any more once it is gone."""

    def cancel(self) -> None:
        """The connection is gone."""


class Room(Protocol):
    """Whoever keeps parties: all sessions, or all channels."""

    loop: asyncio.AbstractEventLoop
    executor: Workers
    readers: Workers
    wakes: Wakes
    serving: Serving
    broker: Broker
    slices: Slices
    counts: Counts


class Asker(Protocol):
    """Somebody whose requests are answered."""

    @property
    def connection(self) -> Connection | None:
        """What serves it at the moment."""

    def reply(self, connection: Connection | None, id: int, value: object, error: BaseException | None) -> None:
        """Answer a request on the connection that it came from."""


class Party(Protocol):
    """Somebody with a connection and subscriptions."""

    @property
    def connection(self) -> Connection | None:
        """What serves it at the moment."""

    @property
    def sessions(self) -> Room:
        """Who keeps it."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    @property
    def payer(self) -> str:
        """In whose share it counts what is done for it."""

    @property
    def room(self) -> int:
        """How many more messages of durable subscriptions it takes, whatever the credit of each."""

    @property
    def share_max(self) -> int:
        """How many messages it takes at once of a subscription that others take from, too."""

    def hold_back(self, pump: Pump) -> None:
        """A pump that may have something to send cannot: it is woken when the connection takes more."""

    def may_take(self, pump: Pump) -> bool:
        """Whether it may still have what a subscription brings; asked after rules or clients have changed."""

    def tell(self, message: object) -> None:
        """Frames have come."""

    def on_registered(self, connection: Connection) -> None:
        """The other side knows that it is served."""

    def on_lost(self, connection: Connection) -> None:
        """The connection is gone."""

    def on_writable(self) -> None:
        """The connection takes more."""

    def deliver(self, pump: Pump, selection: Selection) -> int:
        """Send messages; how many bytes that took of the credit."""

    def recall(self, pump: Pump, ranges: Sequence[Range]) -> None:
        """Say that messages were taken back."""

    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None:
        """Say something about a subscription."""

    def answer_when(self, id: int, future: Future[object]) -> None:
        """Answer a request once rows are on disk."""

    def finish_rows(self, item: RowsItem | None, future: Future[object]) -> None:
        """Have rows written, of which the future tells."""

    def on_over(self, pump: Pump) -> None:
        """History was read to its end."""

    def on_ended(self, pump: Pump, error: HeadwaterError) -> None:
        """A subscription ended by itself."""

    def on_failure(self, actor: Actor, error: Exception) -> None:
        """A pump has failed."""
