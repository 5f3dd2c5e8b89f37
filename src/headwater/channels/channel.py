"""A channel: takes from its durable subscription, and pushes to where somebody listens.

Promises: messages are pushed in order, at least once; while a destination is down no attempt is counted, and it is
tried again with exponential back-off; what the receiver refuses is retried as the subscription says, and then is a dead
letter. Here is what both kinds share; `channels.tcp` and `channels.http` have the rest.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.actor import Actor, Offload
from headwater.channels.registry import Status
from headwater.channels.row import ChannelRow
from headwater.delivery import retry
from headwater.delivery.lane import Remote
from headwater.delivery.subscriber import Subscriber as Durable
from headwater.errors import Closed, HeadwaterError, NotAllowed, NotFound
from headwater.message import this_process
from headwater.server.log import Log
from headwater.server.pump import Pump

if TYPE_CHECKING:
    from headwater.channels.runner import ChannelRunner

JITTER = 0.2
ERROR_CHARS_MAX = 500

log = Log("headwater.server")


class Channel(Actor):
    """One channel, of whatever kind."""

    def __init__(self, channels: ChannelRunner, row: ChannelRow, delivered: int = 0) -> None:
        super().__init__(self, channels.serving.mailbox_max)
        self.channels = channels
        self.row = row
        self.error = ""
        """What went wrong the last time, if it has not gone right since."""
        self.is_rung = False
        self.is_ended = False
        self.is_denied = False
        """Whether its owner, or anybody, may not push there."""
        self.durable: Durable | None = None
        self.ticket = Remote(row.subscription, this_process())
        self._addresses: tuple[str, ...] = ()
        self._delivered = delivered
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._offload = Offload(channels.loop, channels.executor.of(row.owner))
        self.left: asyncio.Future[None] = channels.loop.create_future()
        """Done once it is ended and has let go of its subscription."""

    # Coming and going

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self.row.id

    @property
    def payer(self) -> str:
        """In whose share it counts what is done for it; empty for one that an administrator made."""
        return self.row.owner

    def begin(self) -> None:
        """Find where to push to, take from the subscription, and push."""
        self._timer = None
        Offload(self.channels.loop, self.channels.resolvers).do(self._resolve, self._resolved)

    def _resolve(self) -> tuple[str, ...]:
        row = self.row
        self.channels.check_owner(row)
        return self.channels.registry.destinations.resolve(row.destination_host, row.destination_port)

    def _resolved(self, addresses: Any, error: BaseException | None) -> None:
        self.is_denied = isinstance(error, NotAllowed)
        if error is not None:
            self._begin_later(error)
        elif not self.is_ended:
            self._addresses = addresses
            self._offload.do(lambda: self.channels.registry.serve(self.row, self.ticket), self._served)

    def _served(self, durable: Any, error: BaseException | None) -> None:
        if error is not None:
            self._begin_later(error)
            return
        self.durable = durable
        if not self.is_ended:
            self._push()

    def _begin_later(self, error: BaseException) -> None:
        self.hold(str(error.args[0]) if isinstance(error, HeadwaterError) else repr(error), self.begin)

    @abstractmethod
    def _push(self) -> None:
        """Begin to push."""

    @abstractmethod
    def _stop(self) -> None:
        """Push no more."""

    @abstractmethod
    async def try_out(self) -> str:
        """Reach the destination, without a message of its own; what it said. Any error of ours says why not."""

    def end(self) -> None:
        """Push no more, and let go of the subscription."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self.durable is not None:
            self.durable.waiters.set(self.ticket, None)
        self._stop()
        self._offload.do(self._detach, self._detached)

    def _detach(self) -> None:
        if self.durable is not None:
            self.channels.broker.core.dispatcher.detach(self.durable, self.ticket)

    def _detached(self, _: object, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, NotFound | Closed):
            log.error("channel-trouble", channel=self.row.id, error=repr(error))
        self.left.set_result(None)

    async def find(self) -> None:
        """Look up where to push to, if that is not known yet; NotAllowed (403) if it may not be pushed to."""
        if not self._addresses:
            channels, row = self.channels, self.row
            resolve = channels.registry.destinations.resolve
            self._addresses = await channels.loop.run_in_executor(
                channels.resolvers, resolve, row.destination_host, row.destination_port
            )

    # Trouble with the destination

    @property
    def address(self) -> str:
        """The one that is connected to; another one of a name that has several after each failure."""
        return self._addresses[self._failures % len(self._addresses)] if self._addresses else ""

    @property
    def where(self) -> str:
        """The destination, for people."""
        host = self.row.destination_host
        return f"{f'[{host}]' if ':' in host else host}:{self.row.destination_port}"

    def hold(self, error: str, again: Callable[[], None], delay_s: float | None = None) -> None:
        """It cannot be reached, or does not want more: it is tried again later."""
        if self.is_ended:
            return
        if self.durable is not None:
            self.durable.consumers.give_back(self.ticket)
        if not self.error:
            log.warning("channel-failing", channel=self.row.id, error=error)
        self.error = error[:ERROR_CHARS_MAX]
        self._failures += 1
        serving = self.channels.serving
        if delay_s is None:
            delay_s = retry.delay_s(
                self._failures, serving.channel_retry_s, serving.channel_retry_s_max, JITTER, random.random
            )
        self._timer = self.channels.loop.call_later(delay_s, again)

    def went_right(self) -> None:
        """Messages are delivered."""
        if self.error:
            log.info("channel-recovered", channel=self.row.id)
        self.error = ""
        self._failures = 0

    def may_take(self, pump: Pump) -> bool:
        """Whether its owner may still have it."""
        try:
            self.channels.check_owner(self.row)
        except NotAllowed:
            return False
        return True

    # Looking

    @property
    def status(self) -> Status:
        """What it is doing; from any thread."""
        if self.error:
            state = "failing"
        elif not self._is_ready:
            state = "connecting"
        else:
            state = "delivering" if self._is_delivering else "idle"
        return Status(state, self.error, self.address, self.delivered)

    @property
    def delivered(self) -> int:
        """Messages since the server's start."""
        return self._delivered

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether nothing keeps it from delivering."""

    @property
    @abstractmethod
    def _is_delivering(self) -> bool:
        """Whether messages are on their way."""

    # Supervision

    def on_failure(self, actor: Actor, error: Exception) -> None:
        """This channel, or its pump, failed at one message."""
        if isinstance(actor, Pump) and isinstance(error, HeadwaterError):
            raise error  # an answer to what the receiver asked of it
        log.error("actor-failed", actor=type(actor).__name__, channel=self.row.id, error=repr(error))
        self.on_broken(error)

    def on_broken(self, error: Exception) -> None:
        """Begin anew, after a while."""
