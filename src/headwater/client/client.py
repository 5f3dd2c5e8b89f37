"""The client: everything that is asked of a server, over a link that reconnects by itself. In one event loop.

The shells for threads (`client.bus`) and for asyncio (`client.aio`) stand on this. What a connection brings is handed
on here: answers to publishes to the publisher, batches to their feeds.
"""

from __future__ import annotations

import asyncio
import os
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from headwater import surface, threads
from headwater.client.clock import ServedClock
from headwater.client.connection import Connection
from headwater.client.feed import Feed, Verbs
from headwater.client.kept_session import KeptSession
from headwater.client.link import Link, LinkState
from headwater.client.publisher import Call, Encoded, Publisher
from headwater.client.url import Address
from headwater.clock import Clock, SteadyClock, SystemClock, from_datetime
from headwater.config import Config, Connecting
from headwater.delivery.live import BUS_CLOSED, CLOSED_BY_USER, Policy
from headwater.delivery.options import SubscriptionKind, check_none_of_live, check_when_full, kind_of, stated
from headwater.delivery.replay import After, check_after
from headwater.delivery.start import Start, check_start
from headwater.errors import Closed, Disconnected, Gap, HeadwaterError, Malformed, Recalled
from headwater.forgotten import has_ended
from headwater.log.checks import Checks
from headwater.log.publish import Publish
from headwater.message import Envelope, Headers, Message, Receipt
from headwater.payload import Payload, encoded
from headwater.requests import REPLY_ROOT, Replies, answer_headers, pairs_of
from headwater.store.batch import checksum
from headwater.store.body import encode_one
from headwater.surface import GivenHeaders, like
from headwater.topics.name import check_filter
from headwater.wire import requests as wire
from headwater.wire.batches import Range, pack_credit, pack_ranges, read_deliver, read_published, read_ranges
from headwater.wire.frame import Frame, Kind
from headwater.wire.handshake import Limits
from headwater.wire.request import Request
from headwater.wire.requests import Notice, Problem, Registered, decode, error_of

RESUBSCRIBE_S = 0.5
"""Delay before a subscription that the server ended, and asks for again, is made again; half of it drawn."""
FORGOTTEN_S = 30.0
"""How long a consumer that nobody holds any more is waited with, for acks of what it handed out."""
REPLY_WINDOW = (1 << 40, 1 << 50)
"""Credit for answers: those who wait have them as they come, so that none wait here, nor for credit."""


class Client:
    """A client of a server."""

    def __init__(
        self,
        address: Address,
        settings: Connecting,
        clock: Clock | None = None,
        kept: KeptSession | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """With `is_shared`, threads beside the loop's write and read, too."""
        self.address = address
        self.settings = settings
        self.clock = ServedClock(SteadyClock(clock or SystemClock()))
        self.loop = asyncio.get_running_loop()
        self.thread = threads.get_ident()
        self.process = os.getpid()
        self.config = Config()
        self.checks = Checks(self.config, self.clock)
        self.kept = kept or KeptSession(None)
        self.link = Link(address, settings, self.clock, self, is_shared=is_shared)
        self.link.on_resume = self.kept.on_resume
        self.replies = Replies("", settings.requests_max)
        self.publisher = Publisher(self.link, settings, self.clock, self.replies)
        self._feeds: dict[int, Feed] = {}
        self._subscribes: dict[int, wire.Subscribe] = {}
        self._next_number = 1
        self._again: set[int] = set()
        """Feeds that were subscribed again and have delivered nothing since."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._reply_feed: Feed | None = None
        self._reply_verbs: Verbs | None = None

    async def open(self) -> None:
        """Connect."""
        await self.link.open(self.kept)
        try:
            await self._keep()
        except BaseException:
            await self.close()
            raise

    async def _keep(self) -> None:
        """Note which session it is, where that is asked for."""
        session, kept = self.link.session, self.kept
        if kept.is_kept and session is not None and kept.id != session:
            await asyncio.to_thread(kept.keep, session)

    async def close(self) -> None:
        """Finish what is under way, as long as an answer may take, and leave."""
        if self.link.state is LinkState.CLOSED:
            return
        try:
            async with asyncio.timeout(self.settings.request_timeout_s):
                await self.publisher.drain()
        except TimeoutError:
            pass  # whoever waits gets an error: whether it was stored is not known
        connection = self._say_goodbye()
        if connection is not None:
            await connection.gone()

    def _say_goodbye(self) -> Connection | None:
        connection = self.link.close(end_session=not self.kept.is_kept)
        for task in tuple(self._tasks):
            task.cancel()
        return connection

    # Called by the link

    def on_up(self, registered: Registered) -> None:
        """There is a connection: go on where the last one ended."""
        self._learn(self.link.limits)
        there = {found.number for found in registered.subscriptions}
        self._next_number = max((self._next_number - 1, *there)) + 1
        if self.link.connections > 1:
            self._spawn(self._keep())
        for number, feed in tuple(self._feeds.items()):
            if feed.is_open and not (registered.resumed and number in there and feed.is_durable):
                self._spawn(self._subscribe_again(feed))
        for number in () if registered.waits else sorted(there - self._feeds.keys()):
            self._spawn(self._leave(number))
        if self.replies.is_any:
            if self.replies.topic == self._reply_topic and self._reply_verbs is not None:
                self._spawn(self._listen_again(self._reply_verbs))
            else:
                self.replies.end()
        self.publisher.on_up()

    def _learn(self, limits: Limits) -> None:
        """Check by the server's limits, before anything is sent."""
        known = {name: getattr(limits, name) for name in Limits.__struct_fields__ if name in Config.__struct_fields__}
        learned = Config(
            **known, request_timeout_s=self.settings.answer_timeout_s, requests_max=self.settings.requests_max
        )
        if learned != self.config:
            self.config = learned
            self.checks = Checks(learned, self.clock)

    def on_down(self) -> None:
        """The connection is lost: leases of it are void, and nobody listens for answers."""
        if self._reply_feed is not None:
            self._forget(self._reply_feed)
            self._reply_feed = self._listening = None
        for feed in self._feeds.values():
            feed.renew()

    def on_end(self, error: HeadwaterError) -> None:
        """There will be no connection any more."""
        self.publisher.end(error)
        self.replies.end()
        said = Closed(BUS_CLOSED) if isinstance(error, Closed) else error
        for feed in self._feeds.values():
            feed.fail(said)

    def on_writable(self) -> None:
        """The transport takes bytes again after back-pressure."""
        self.publisher.pump()

    def on_batch_frame(self, frame: Frame) -> None:
        """A frame about messages has arrived."""
        match frame.kind:
            case Kind.PUBLISHED:
                self.publisher.on_published(read_published(frame))
            case Kind.DELIVER:
                self._on_deliver(frame)
            case Kind.ERROR:
                self.publisher.on_refused(frame.id, error_of(decode(frame.payload, Problem)))
            case Kind.RECALL:
                feed = self._feeds.get(frame.id)
                if feed is not None:
                    feed.recall(read_ranges(frame)[1])
            case Kind.NOTICE:
                self._on_notice(frame.id, decode(frame.payload, Notice))
            case _:
                raise Malformed(f"the server sent {Kind(frame.kind).name}, which is not for clients")

    def _on_deliver(self, frame: Frame) -> None:
        feed = self._feeds.get(frame.id)
        if feed is None:
            return  # we have left it
        deliver = read_deliver(frame)
        if checksum(deliver.body) != deliver.crc:
            raise Malformed(f'a batch of "{deliver.root}" arrived damaged; the connection is made anew')
        self._again.discard(frame.id)
        feed.is_open = True  # also where whoever asked for it has yet to hear that it is
        if feed is self._reply_feed:
            for message in feed.messages_of(deliver):
                self.replies.answer(message)
        else:
            feed.put(deliver)

    def _on_notice(self, number: int, notice: Notice) -> None:
        feed = self._feeds.get(number)
        if feed is None:
            return
        error = error_of(notice.problem) if notice.problem is not None else None
        match notice.what:
            case "gap":
                if isinstance(error, Gap):
                    feed.put_gap(error)
            case "dropped":
                feed.drop(notice.count)
            case "over":
                feed.finish()
                self._forget(feed)
            case "ended":
                self._on_ended(feed, error or Closed("the server ended the subscription; subscribe again"))

    def _on_ended(self, feed: Feed, error: HeadwaterError) -> None:
        """The server ended a subscription: if the error asks for it, subscribe again, once; else fail its reader."""
        if _asks_again(error) and feed.number not in self._again and feed.is_open:
            self._again.add(feed.number)
            feed.renew()
            self._spawn(self._subscribe_again(feed, RESUBSCRIBE_S * random.uniform(0.5, 1.0)))
            return
        self._forget(feed)
        feed.fail(error)

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    # Publishing

    @like(surface.Bus.publish)
    def prepare(
        self, topic: str, payload: Payload, *, deliver_at: datetime | None = None, **options: Any
    ) -> Publish | wire.Delay:
        """A checked message; from any thread."""
        if deliver_at is None:
            return self.checks.one(topic, payload, **options)
        payload, headers = encoded(payload, options.get("headers", ()))
        part = self.checks.one(topic, payload, deliver_at=deliver_at, **{**options, "headers": headers}).parts[0]
        return wire.Delay(
            topic=topic,
            payload=part.payloads[0],
            deliver_at_us=from_datetime(deliver_at),
            retain=options.get("retain", False),
            key=part.keys[0] if part.keys is not None else None,
            headers=tuple(headers.items()) if isinstance(headers, Mapping) else tuple(map(tuple, headers)),
            ttl_s=options.get("ttl_s"),
        )

    async def delay(self, request: wire.Delay) -> Receipt:
        """Have a message delivered later."""
        answer: wire.Delayed = await self.link.request(request)
        return Receipt(request.topic, 0, answer.time_us)

    @like(surface.Bus.send)
    def prepare_quiet(self, topic: str, payload: Payload, **options: Any) -> Encoded:
        """A checked and encoded message that nobody waits for; from any thread."""
        self.link.check_open()
        item = self.checks.one(topic, payload, **options)
        part = item.parts[0]
        part.encode(self.clock.now_us())
        assert part.body is not None
        return Encoded(part.root, part.body, item.weight)

    def _prepare_with(self, topic: str, payload: Payload, headers: Headers) -> Encoded:
        """The same of one with headers that are ours, and known to be right."""
        if type(payload) is not bytes or not headers:
            return self.prepare_quiet(topic, payload, headers=headers)
        self.link.check_open()
        root = self.checks.plain(topic, payload)
        body = encode_one(topic, payload, self.clock.now_us(), headers)
        return Encoded(root, body, len(body))

    async def send(self, item: Encoded) -> None:
        """Have a message sent that nobody waits for, a question, say."""
        if not self.publisher.send_here(item):
            await self._take_share(item.weight)
            self.publisher.submit_here(item)

    async def publish(self, item: Publish) -> Any:
        """A receipt, or receipts, once it is on disk."""
        await self._take_share(item.weight)
        future = self.loop.create_future()
        self.publisher.submit_here(Call(item, future, len(item.parts)))
        return await future

    async def _take_share(self, weight: int) -> None:
        """Back-pressure: wait until the budget of bytes in flight has room."""
        budget, go = self.publisher.budget, self.loop.create_future()

        def granted() -> None:
            if go.cancelled():
                budget.give_back(weight)
            else:
                go.set_result(None)

        if not budget.take(weight, lambda: _call_soon(self.loop, granted)):
            try:
                await go
            except asyncio.CancelledError:
                if not go.cancelled():
                    budget.give_back(weight)
                raise

    # Subscribing

    async def subscribe(self, asked: wire.Subscribe, verbs: Verbs, window: tuple[int, int] | None = None) -> Feed:
        """A feed of what a subscription is sent; `number` and credit of the request are set here."""
        window = window or (self.settings.prefetch_messages, self.settings.prefetch_bytes)
        number, self._next_number = self._next_number, self._next_number + 1
        feed = Feed(number, asked.kind, asked.filter, asked.id, window, self.clock, verbs, self._flush_soon)
        request = _with(asked, number=number, credit_messages=window[0], credit_bytes=window[1])
        self._feeds[number] = feed
        self._subscribes[number] = request
        try:
            there = await self._subscribed(request)
            while there.number != number and there.number not in self._feeds:  # its last reader was just leaving
                await self._leave(there.number)
                there = await self._subscribed(request)
        except BaseException:
            self._forget(feed)
            raise
        shared = self._feeds.get(there.number)
        if shared is not None and shared is not feed:  # this session takes from it already: another reader of it
            self._forget(feed)
            shared.readers += 1
            if shared.retire is not None:
                shared.retire()
            return shared
        if number in self._feeds:
            feed.is_open = True
            feed.id = there.id  # of a session's own, it is made of the session's id and the filter
        return feed

    async def _subscribed(self, request: wire.Subscribe) -> wire.Subscribed:
        """What the server makes of a request to subscribe; what it has made for a task that is cancelled is left."""
        asking = self.loop.create_task(self.link.request(request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._leave_made)
            raise

    def _leave_made(self, asked: asyncio.Task[wire.Subscribed]) -> None:
        if not asked.cancelled() and asked.exception() is None and asked.result().number not in self._feeds:
            self._spawn(self._leave(asked.result().number))

    async def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription; its consumers here get Closed."""
        await self.link.request(wire.Unsubscribe(id=id))
        for feed in [feed for feed in self._feeds.values() if feed.id == id]:
            self._forget(feed)
            feed.fail(Closed(f'subscription "{id}" is closed; subscribe again to go on'))

    def subscription(
        self,
        filter: str,
        *,
        id: str | None = None,
        kind: SubscriptionKind | None = None,
        start: Start = "latest",
        when_full: Policy = "drop_oldest",
        destination: tuple[str, int] | None = None,
        **options: Any,
    ) -> wire.Subscribe | wire.SubscribeTo:
        """A request for a durable subscription, a live one, or a channel; from any thread."""
        given = stated(options)
        check_filter(filter, self.config)
        if destination is not None:
            if start not in ("earliest", "latest"):
                raise Malformed(f'start is {start!r}; a channel begins at "earliest" or "latest"')
            host, port = destination
            return wire.SubscribeTo(
                filter=filter,
                destination_host=host,
                destination_port=port,
                id=id,
                start="earliest" if start == "earliest" else "latest",
                options=given,
            )
        check_start(filter, start)
        kind = kind_of(kind, id)
        check_when_full(when_full, kind)
        if kind == "live":
            check_none_of_live(given, start)
            return wire.Subscribe(number=0, filter=filter, kind="live", when_full=when_full)
        if id is not None and not isinstance(id, str):
            raise Malformed(f"a subscription's id is a str, not {type(id).__name__}")
        return wire.Subscribe(
            number=0,
            filter=filter,
            kind=kind,
            id=id,
            start="latest" if isinstance(start, datetime) else start,
            start_us=from_datetime(start) if isinstance(start, datetime) else None,
            options=given,
        )

    def history(
        self,
        filter: str,
        *,
        follows: bool,
        after: After = None,
        since: datetime | None = None,
        upto: Mapping[str, int] | None = None,
    ) -> wire.Subscribe:
        """A request for history; from any thread."""
        check_filter(filter, self.config)
        check_after(filter, after, since)
        check_after("#", upto, None)
        return wire.Subscribe(
            number=0,
            filter=filter,
            kind="follow" if follows else "replay",
            after=dict(after) if isinstance(after, Mapping) else after,
            since_us=from_datetime(since) if since is not None else None,
            upto=dict(upto) if upto is not None else None,
        )

    async def _subscribe_again(self, feed: Feed, delay_s: float = 0.0) -> None:
        """Make a subscription on a new connection; history goes on from where it got to."""
        epoch = feed.epoch
        if delay_s:
            await asyncio.sleep(delay_s)
        if self._feeds.get(feed.number) is not feed or feed.epoch != epoch:
            return
        request = self._subscribes[feed.number]
        if feed.kind in ("replay", "follow") and feed.places:
            request = _further(request, feed.places)
        feed.is_open = False
        try:
            await self.link.request(request)
        except Disconnected:
            feed.is_open = True
            if feed.epoch == epoch and self.link.is_up:
                self._spawn(self._subscribe_again(feed, RESUBSCRIBE_S))
        except HeadwaterError as error:
            if error.retryable and feed.number in self._feeds:
                feed.is_open = True
                self._spawn(self._subscribe_again(feed, RESUBSCRIBE_S * random.uniform(1.0, 2.0)))
                return
            self._forget(feed)
            feed.fail(error)
        else:
            feed.is_open = True
            if self._feeds.get(feed.number) is not feed:  # its reader has left meanwhile
                await self._leave(feed.number)

    def _forget(self, feed: Feed) -> None:
        self._feeds.pop(feed.number, None)
        self._subscribes.pop(feed.number, None)
        self._again.discard(feed.number)

    async def leave(self, feed: Feed, taker: int = 0) -> None:
        """Take no more. What this reader has taken goes to those who are left, if none of them has begun to take."""
        is_for_others = self._is_for_others(feed, taker)
        feed.readers -= 1
        feed.takers.discard(taker)
        if self._feeds.get(feed.number) is not feed:
            return
        if not feed.readers:
            self._forget(feed)
            feed.fail(Closed(CLOSED_BY_USER))
            if feed.is_open and self.link.is_up:
                await self._leave(feed.number)
        elif is_for_others:
            await self._give_back(feed)

    @staticmethod
    def _is_for_others(feed: Feed, taker: int) -> bool:
        return feed.is_durable and feed.readers > 1 and feed.takers == {taker}

    async def _give_back(self, feed: Feed) -> None:
        """Have what was handed out come again, as the consumer that it was for has left: leave, and come back."""
        feed.is_given_back = True
        feed.renew()
        epoch = feed.epoch
        try:
            if self.link.is_up:
                await self._leave(feed.number)
        finally:
            feed.is_given_back = False
        if self.link.is_up and feed.epoch == epoch:  # else it was given back with the connection
            await self._subscribe_again(feed)

    def leave_with(self, reader: object, feed: Feed) -> weakref.finalize[..., object]:
        """Take no more when nobody has the reader of a feed any more, as after a `break` out of a loop over it.

        Not for consumers, of whom that is to be told: see `forget`.
        """
        # Finalised in any thread, at any moment.
        forgetting = weakref.finalize(reader, _call_soon, self.loop, self._let_go, feed)
        forgetting.atexit = False
        return forgetting

    def forget(self, feed: Feed, taker: int, last: Sequence[Envelope]) -> bool:
        """Nobody has a consumer of a feed any more: take no more for it. From any thread; False if it was over.

        What it handed out last may still be acked as long as somebody holds that and no other consumer comes, but not
        for long.
        """
        if has_ended() or self._feeds.get(feed.number) is not feed or self.process != os.getpid():
            return False
        if feed.readers > 1 or not last:
            feed.is_given_back = feed.is_given_back or self._is_for_others(feed, taker)  # at once: nobody takes more
            _call_soon(self.loop, self._let_go, feed, taker)
            return True
        held = {id(message.origin): message.origin for message in last}
        waited_for = set(held)

        def let_go(whose: int | None) -> None:
            is_last = bool(waited_for)
            waited_for.discard(whose) if whose is not None else waited_for.clear()
            if is_last and not waited_for:
                feed.retire = None
                self._let_go(feed, taker)

        feed.retire = partial(let_go, None)
        for number, origin in held.items():
            weakref.finalize(origin, _call_soon, self.loop, let_go, number).atexit = False
        _call_soon(self.loop, self.loop.call_later, FORGOTTEN_S, let_go, None)
        return True

    def close_soon(self) -> None:
        """Nobody has the bus any more: leave. From any thread."""
        _call_soon(self.loop, self._close_soon)

    def _close_soon(self) -> None:
        if self.publisher.is_idle:  # at once, as this may be the last that the loop does
            self._say_goodbye()
            return
        task = self.loop.create_task(self.close())
        self._leaving = task  # or nobody would hold it

    def _let_go(self, feed: Feed, taker: int = 0) -> None:
        if self._feeds.get(feed.number) is feed:
            feed.is_given_back = feed.is_given_back or self._is_for_others(feed, taker)
            self._spawn(self.leave(feed, taker))

    async def _leave(self, number: int) -> None:
        try:
            await self.link.request(wire.Leave(number=number))
        except HeadwaterError:
            return  # it is gone with its connection, or by itself

    # Acks and nacks

    def _flush_soon(self, feed: Feed) -> None:
        if threads.get_ident() == self.thread:
            self.loop.call_soon(self._flush, feed)
        else:
            _call_soon(self.loop, self._flush, feed)

    def _flush(self, feed: Feed) -> None:
        """Send TAKEN (ack timers start) and CREDIT (the prefetch window opens again)."""
        taken, messages, size = feed.owed()
        if self._feeds.get(feed.number) is not feed or not self.link.is_up:
            return
        said = [pack_ranges(Kind.TAKEN, feed.number, 0, taken)] if taken else []
        if messages or size:
            said.append(pack_credit(feed.number, messages, size))
        if said:
            self.link.send(said)

    def ack(self, feed: Feed, epoch: int, ranges: list[Range]) -> asyncio.Future[Any]:
        """Ack messages; in the loop. The future fails with Recalled if the connection is lost."""
        if not self.link.is_up or feed.epoch != epoch or self._feeds.get(feed.number) is not feed:
            refused = self.loop.create_future()
            refused.set_exception(self.refusal(feed, ranges))
            return refused
        self._flush(feed)
        return self.link.ask(lambda number: (pack_ranges(Kind.ACK, number, feed.number, ranges),))

    def refusal(self, feed: Feed, ranges: list[Range]) -> HeadwaterError:
        """Why messages cannot be acked."""
        if self.link.state is LinkState.CLOSED:
            return feed.error or Closed(BUS_CLOSED)
        if self._feeds.get(feed.number) is not feed:
            return feed.error or Recalled(
                f'this consumer of "{feed.id}" is closed, and what it held was taken back; it comes again'
            )
        return feed.recalled(ranges[0][1])

    async def ack_and_wait(self, feed: Feed, epoch: int, ranges: list[Range]) -> None:
        """Ack messages, and wait until that is on disk."""
        if not ranges:
            return
        try:
            await self.ack(feed, epoch, ranges)
        except Disconnected:
            raise feed.recalled(ranges[0][1]) from None

    def ack_only(self, feed: Feed, epoch: int, ranges: list[Range]) -> None:
        """Ack messages without waiting; a failure is ignored."""
        if ranges:
            self.ack(feed, epoch, ranges).add_done_callback(_ignore)

    async def tell(self, feed: Feed, message: Message, make: Callable[..., Request[None]]) -> None:
        """Nack, reject or extend a message; `make` makes the request of its lease."""
        lease = feed.lease_of(message)
        if self._feeds.get(feed.number) is not feed:
            raise self.refusal(feed, [(lease, message.offset, message.offset)])
        self._flush(feed)
        try:
            await self.link.request(make(lease=lease))
        except Disconnected:
            raise feed.recalled(message.offset) from None

    # Request and reply

    @property
    def _reply_topic(self) -> str:
        return f"{REPLY_ROOT}/{self.link.session}"

    async def listen(self, verbs: Verbs) -> None:
        """Subscribe to the reply topic, once."""
        while self._listening is None or (self._listening.done() and self._reply_feed is None):
            self._listening = self.loop.create_task(self._listen(verbs))
        await asyncio.shield(self._listening)

    async def _listen(self, verbs: Verbs) -> None:
        self._reply_verbs = verbs
        try:
            await self.link.until_up()
            topic = self._reply_topic
            feed = await self.subscribe(wire.Subscribe(number=0, filter=topic, kind="live"), verbs, REPLY_WINDOW)
        except BaseException:
            self._listening = None
            raise
        self.replies.topic = topic
        self._reply_feed = feed

        def look() -> None:
            if feed.error is not None and self._reply_feed is feed:
                self._reply_feed = self._listening = None

        feed.add_waker(look)
        look()

    async def _listen_again(self, verbs: Verbs) -> None:
        """For those who wait for answers since the last connection."""
        try:
            await self.listen(verbs)
        except HeadwaterError:
            return  # they wait in vain; whoever asks next is told

    @property
    def is_listening(self) -> bool:
        """Whether answers would come."""
        return self._reply_feed is not None

    def question(self, topic: str, payload: Payload, headers: GivenHeaders, answer: Any) -> Encoded:
        """A checked and encoded question, whose answer will complete a future; from any thread."""
        pairs = self.replies.expect(answer)
        try:
            if headers:
                item = self.prepare_quiet(topic, payload, headers=(*pairs_of(headers), *pairs))
            else:
                item = self._prepare_with(topic, payload, pairs)
        except BaseException:
            self.replies.forget(pairs)
            raise
        item.asks = pairs
        return item

    async def ask_durably(self, topic: str, payload: Payload, headers: GivenHeaders, answer: Any) -> Headers:
        """Store a question, whose answer will complete a future; those of its headers by which that is found."""
        pairs = self.replies.expect(answer, is_durable=True)
        try:
            item = self.prepare(topic, payload, headers=(*pairs_of(headers), *pairs))
            assert isinstance(item, Publish)
            await self.publish(item)
        except BaseException:
            self.replies.forget(pairs)
            raise
        return pairs

    def reply_to(self, message: Message, payload: Payload) -> tuple[Encoded, Receipt] | Publish:
        """The answer to a request, ready to be sent, with what is to be said of that; or to be published."""
        topic, headers, is_sent = answer_headers(message)
        if is_sent:
            prepare = self._prepare_with if len(headers) == 1 else self.prepare_quiet  # one: its correlation id
            return prepare(topic, payload, headers=headers), Receipt(topic, 0, self.clock.now_us())
        item = self.prepare(topic, payload, headers=headers)
        assert isinstance(item, Publish)
        return item


def _with(request: wire.Subscribe, **changes: Any) -> wire.Subscribe:
    return msgspec.structs.replace(request, **changes)


def _further(request: wire.Subscribe, places: Mapping[str, int]) -> wire.Subscribe:
    """The same history from where it got to; roots that brought nothing yet begin where they were to."""
    if isinstance(request.after, int):
        return _with(request, after=max(request.after, *places.values()))
    return _with(request, after={**(request.after or {}), **places})


def _asks_again(error: HeadwaterError) -> bool:
    return error.retryable or (error.code == 500 and "subscribe again" in str(error))


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return  # the loop is closed, and nobody is left to tell
