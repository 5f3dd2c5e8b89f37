"""An http channel: POSTs messages as CloudEvents, signed as Standard Webhooks has it.

One request is under way at a time, so order is kept. What an answer means:

| answer | |
|---|---|
| 2xx | delivered |
| 410 | nobody wants them any more: the channel is paused |
| 429 or 503 with Retry-After | sent again after that time; no attempt is counted |
| any other, redirects included; none in time; none that is HTTP | refused |
| no connection | the destination is down: tried again with a growing delay; no attempt is counted |

Several messages that are refused together are sent again in halves, until one alone is refused: that one has failed,
and is tried again, and then given up, as the subscription says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from headwater.channels.channel import Channel
from headwater.channels.row import ChannelRow
from headwater.clock import SECOND_US
from headwater.delivery.cursor import Budget
from headwater.delivery.selection import Selection
from headwater.errors import Closed, Conflict, Disconnected, Gap
from headwater.message import Message
from headwater.server.log import Log
from headwater.server.posting import Poster, Response, Unanswered, Unreachable
from headwater.wire import cloudevents
from headwater.wire.webhook import secret_bytes, sign

if TYPE_CHECKING:
    from headwater.channels.runner import ChannelRunner

RETRY_AFTER_S_MAX = 3600.0
"""A destination that wants to be left alone for longer is asked again by then."""
GONE, TOO_MANY, UNAVAILABLE = 410, 429, 503
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = Log("headwater.server")


class HttpChannel(Channel):
    """Posts to a URL."""

    def __init__(self, channels: ChannelRunner, row: ChannelRow, delivered: int = 0) -> None:
        super().__init__(channels, row, delivered)
        serving = channels.serving
        self._secret = secret_bytes(row.secret)
        self._source = cloudevents.source_of(channels.broker.core.id)
        self._batch = row.batch_messages_max
        """Messages that are sent at once: fewer for a while after some were refused."""
        self._poster = self._make_poster()
        self._is_posting = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._batch_bytes_max = serving.channel_batch_bytes_max

    def _make_poster(self) -> Poster:
        row, serving = self.row, self.channels.serving
        return Poster(
            row.destination_host, row.destination_port, serving.channel_connect_s, serving.channel_answer_bytes_max
        )

    def _push(self) -> None:
        assert self.durable is not None
        self._timer = None
        self.durable.waiters.set(self.ticket, self._ring)
        self._woken.set()
        self._task = self.channels.loop.create_task(self._run())

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._poster.close()

    def receive(self, message: object) -> None:
        """Nobody writes to it."""

    # Waking

    def _ring(self) -> None:
        self.channels.wakes.ring(self)

    def on_wake(self) -> None:
        """There may be something to send."""
        self._woken.set()

    # Sending

    async def _run(self) -> None:
        """Post until there is trouble with the destination; then again after a while."""
        assert self.durable is not None
        try:
            while not self.is_ended:
                await self._woken.wait()
                self._woken.clear()
                while found := await self._take():
                    try:
                        await self._deliver(found)
                    except Conflict:  # taken back meanwhile, by who moved or paused the subscription
                        self.durable.consumers.give_back(self.ticket)
        except Closed:
            self.end()
        except Hold as hold:
            self.hold(str(hold.args[0]), self._push, hold.delay_s)
        except Exception as error:
            log.error("channel-broken", channel=self.row.id, error=repr(error))
            self.hold(f"the broker failed at it ({type(error).__name__}); see its log", self._push)

    async def _take(self) -> list[Selection]:
        """What there is to post; what is on disk, or far ahead, is read in a thread."""
        assert self.durable is not None
        while not self.is_ended:
            self.ticket.recalls.clear()  # what is taken back here was never far away
            try:
                found = self.durable.hand(self.ticket, self._batch, self._batch_bytes_max, Budget())
            except Gap:
                self._woken.set()  # the bus's events tell of it
                return []
            if found or not self.durable.is_unread:
                return found
            await self.channels.loop.run_in_executor(self.channels.readers.of(self.payer), self.durable.read_on)
        return []

    async def _deliver(self, found: list[Selection]) -> None:
        messages = [message for selection in found for message in selection.taken()]
        self._is_posting = True
        try:
            answer = await self._post(messages)
        except Unreachable as error:
            raise Hold(str(error.args[0])) from None
        except Unanswered as error:
            self._refuse(found, messages, str(error.args[0]))
            return
        finally:
            self._is_posting = False
        if 200 <= answer.status < 300:
            self._ack(found, len(messages))
        elif answer.status == GONE:
            await self._on_gone()
        elif answer.status in (TOO_MANY, UNAVAILABLE) and (delay_s := self._delay_s(answer)) is not None:
            raise Hold(f"{self.where} answered {answer.status}: again after {delay_s:g} s", delay_s)
        else:
            self._refuse(found, messages, f"{self.where} answered {answer.status}{_detail(answer)}")

    async def _post(self, messages: Sequence[Message]) -> Response:
        first, last = messages[0], messages[-1]
        events = [cloudevents.event_of(message, self._source) for message in messages]
        if len(events) == 1:
            headers, body = cloudevents.in_binary_mode(events[0])
        else:
            headers, body = [("content-type", cloudevents.BATCH)], cloudevents.as_batch(events)
        about = f"{self._source} {self.row.id} {first.root}/{first.offset} {last.root}/{last.offset} {len(messages)}"
        headers += self._signature(about, body)
        counts = self.channels.counts
        counts.messages_out += len(messages)
        counts.bytes_out += len(body)
        assert self.durable is not None
        within_s = self.durable.options.ack_timeout_s or None
        return await self._poster.post(self.address, self.row.path, headers, body, within_s)

    def _signature(self, about: str, body: bytes) -> list[tuple[str, str]]:
        """The headers by which the receiver knows who sent a request; the same messages have the same id."""
        number = "msg_" + hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        now_s = self.channels.broker.clock.now_us() // SECOND_US
        return [
            ("webhook-id", number),
            ("webhook-timestamp", str(now_s)),
            ("webhook-signature", sign(self._secret, number, now_s, body)),
        ]

    # Answers

    def _ack(self, found: Sequence[Selection], count: int) -> None:
        assert self.durable is not None
        future: Future[object] = Future()
        future.add_done_callback(self._noted)
        self.durable.settlement.ack_leases(
            [(one.lease, one.lease.offsets) for one in found if one.lease is not None], future
        )
        self._delivered += count
        self._batch = min(2 * self._batch, self.row.batch_messages_max)
        self.went_right()

    def _noted(self, done: Future[object]) -> None:
        error = done.exception()
        if error is not None:
            log.error("channel-trouble", channel=self.row.id, error=repr(error))

    def _refuse(self, found: Sequence[Selection], messages: Sequence[Message], error: str) -> None:
        """Several: find out which of them it is. One: it has failed."""
        assert self.durable is not None
        self.error = error
        if len(messages) > 1:
            self._batch = max(1, len(messages) // 2)
            self.durable.consumers.give_back(self.ticket)
            return
        self._batch = 1
        lease = found[0].lease
        assert lease is not None
        self.durable.settlement.note_nack(lease, messages[0].offset, error, None, messages[0])
        self.channels.broker.core.rows.kick()

    async def _on_gone(self) -> None:
        """Standard Webhooks: 410 says that nobody wants these any more."""
        assert self.durable is not None
        self.error = f"{self.where} answered 410 Gone: paused; resume it when it is wanted again"
        channels = self.channels
        await channels.loop.run_in_executor(channels.executor.of(self.payer), channels.registry.pause, self.row.id)
        self.durable.consumers.give_back(self.ticket)

    def _delay_s(self, answer: Response) -> float | None:
        """How long the destination wants to be left alone, if it says so."""
        said = answer.retry_after.strip()
        if said.isascii() and said.isdecimal():
            return min(float(said[:9]), RETRY_AFTER_S_MAX)
        try:
            moment = parsedate_to_datetime(said)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        now_s = self.channels.broker.clock.now_us() / SECOND_US
        return min(max(0.0, (moment - EPOCH).total_seconds() - now_s), RETRY_AFTER_S_MAX)

    # Looking

    async def try_out(self) -> str:
        """Send an event of a type of its own."""
        poster = self._make_poster()
        try:
            event = cloudevents.trial_event(self._source, f"{self.row.id}/{self.channels.broker.clock.now_us()}")
            headers, body = cloudevents.in_binary_mode(event)
            within_s = self.channels.serving.channel_connect_s
            answer = await poster.post(
                self.address, self.row.path, [*headers, *self._signature(event.id, body)], body, within_s
            )
        finally:
            poster.close()
        if not 200 <= answer.status < 300:
            raise Disconnected(f"{self.where} answered {answer.status}{_detail(answer)}")
        return f"{self.where} answered {answer.status}"

    @property
    def _is_ready(self) -> bool:
        return self.durable is not None

    @property
    def _is_delivering(self) -> bool:
        return self._is_posting


class Hold(Exception):
    """The destination is down, or wants to be left alone."""

    def __init__(self, error: str, delay_s: float | None = None) -> None:
        super().__init__(error)
        self.delay_s = delay_s


def _detail(answer: Response) -> str:
    """What an answer means besides its status."""
    return ", a redirect, which is not followed" if answer.location else ""
