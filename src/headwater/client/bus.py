"""The served bus for threads: the names, signatures and errors of `headwater.bus`, over a connection.

    with headwater.connect("headwater://name:secret@127.0.0.1:7411") as bus:
        bus.publish("home/kitchen/temp", b"21.5")

A thin shell around `client.client`: one thread in the background runs its event loop; callers check and encode in their
own threads, hand over, and wait. Any number of threads may share it. It does not survive a fork: connect in the process
that uses it. Nothing here may be called from the background thread (from a callback of a future, say), which would wait
for itself: that raises Conflict (409).
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar, cast

from headwater import threads
from headwater.client.admin import Acl, Channels, Clients
from headwater.client.client import Client
from headwater.client.feed import Feed
from headwater.client.link import LinkState
from headwater.client.publisher import Call
from headwater.client.url import Address, parse_url
from headwater.clock import from_datetime, to_datetime
from headwater.config import Config, Connecting
from headwater.delivery.dead_letters import Position
from headwater.delivery.live import CLOSED_BY_USER, Policy, check_max
from headwater.delivery.mending import check_letter, mended_twice, write_of
from headwater.delivery.replay import After
from headwater.delivery.start import Start, check_start
from headwater.delivery.subscriber import _text as text_of
from headwater.errors import Closed, Conflict, HeadwaterError, Malformed, NotFound, TimedOut
from headwater.events import Event
from headwater.log.publish import Publish
from headwater.message import DeadLetter, Extent, Message, Outgoing, Receipt, Receipts, SubscriptionInfo, TopicInfo
from headwater.topics.name import root_of
from headwater.wire import requests as wire
from headwater.wire.administration import ChannelInfo
from headwater.wire.contents import Deliver
from headwater.wire.request import A, Request

R = TypeVar("R")
THREAD_NAME = "headwater-client"
JOIN_S = 10.0
LETTERS_BYTES = 1024 * 1024
"""Payloads of one request to mend, unless a letter alone has more."""
GivenHeaders = Mapping[str, str] | Sequence[tuple[str, str]]


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A thread's work: run a loop until it is stopped, and leave nothing of it behind."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(asyncio.sleep(0))  # in which transports that were given up let go
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class Bus:
    """A bus that a server has."""

    is_read_only = False
    is_busy = False

    def __init__(self, url: str | Address, settings: Connecting | None = None) -> None:
        self.address = parse_url(url) if isinstance(url, str) else url
        self.settings = settings or Connecting()
        self._process = os.getpid()
        self._loop = new_loop()
        self._thread = threads.Thread(target=run_loop, args=(self._loop,), name=THREAD_NAME, daemon=True)
        self._closing = threads.Lock()
        self._closed = False
        self._thread.start()
        try:
            self._client = self._wait(self._connect())
        except BaseException:
            self._stop()
            raise
        self.clients = Clients(self.ask)
        self.acl = Acl(self.ask)
        self.channels = Channels(self.ask)

    async def _connect(self) -> Client:
        client = Client(self.address, self.settings)
        await client.open()
        return client

    def close(self) -> None:
        """Finish what is under way, and leave."""
        self._check_thread()
        with self._closing:
            if self._closed:
                return
            try:
                self._wait(self._client.close())
            finally:
                self._closed = True
                self._stop()

    def _stop(self) -> None:
        if os.getpid() == self._process and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_S)

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<headwater bus at {self.address}>"

    @property
    def id(self) -> str:
        """The id of the bus, by which a lake knows whose it is; empty if the server is too old to tell."""
        return self._client.link.bus

    # Handing over to the loop

    def _check_thread(self) -> None:
        if threads.current_thread() is self._thread:
            raise Conflict(
                "this is the client's own thread, which would wait for itself; call from another (a future's callback "
                "runs here: hand the work to a queue)"
            )
        if os.getpid() != self._process:
            raise Conflict("this connection was made before a fork, in the parent process; connect again in this one")

    def _check_open(self) -> None:
        self._check_thread()
        if self._closed:
            raise Closed(f"the connection to {self.address} is closed; connect again")

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Have something done in the loop."""
        try:
            self._check_thread()
            if self._loop.is_closed():
                raise Closed(f"the connection to {self.address} is closed; connect again")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._closed:
            work.close()
            self._check_open()
        return self._wait(work)

    def ask(self, request: Request[A]) -> A:
        self._check_open()
        return self._wait(self._client.link.request(request))

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Store a message; returns once it is on disk. `ttl_s` and `deliver_at` go by the server's time (`bus.now`)."""
        item = self._prepare(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        if isinstance(item, wire.Delay):
            return self._run(self._client.delay(item))
        return cast(Receipt, self._submit(item).result())

    def publish_many(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Store messages together; receipts in the order of the call.

        What can be told from the call alone (names, sizes, options) refuses all of it. Then each root's messages are
        stored, all of them or none: if some roots refuse theirs (a right, a limit, a sequence) and others do not,
        PartlyStored (409) has the receipts; if all do, the error of the first.
        """
        return self.publish_many_soon(messages, producer=producer, sequence=sequence).result()

    def publish_soon(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Future[Receipt]:
        """Store a message without waiting: the future has its receipt once it is on disk."""
        item = self._prepare(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        if isinstance(item, wire.Delay):
            return asyncio.run_coroutine_threadsafe(self._client.delay(item), self._loop)
        return cast("Future[Receipt]", self._submit(item))

    def publish_many_soon(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Future[Receipts]:
        """`publish_many` without waiting."""
        self._check_open()
        item = self._client.prepare_many(messages, producer, sequence)
        if not item.topics:
            done: Future[Receipts] = Future()
            done.set_result(Receipts((), ()))
            return done
        return cast("Future[Receipts]", self._submit(item))

    def _prepare(self, *given: Any) -> Publish | wire.Delay:
        self._check_open()
        return self._client.prepare(*given)

    def _submit(self, item: Publish) -> Future[object]:
        """Hand a publish over, once there is room for it."""
        publisher = self._client.publisher
        budget = publisher.budget
        if not budget.try_take(item.weight):
            go = threads.Event()
            if not budget.take(item.weight, go.set):
                go.wait()
        future: Future[object] = Future()
        publisher.submit(Call(item, future))
        return future

    # Subscribing

    def subscribe(
        self,
        filter: str,
        *,
        id: str | None = None,
        start: Start = "latest",
        order: str | None = None,
        max_in_flight: int | None = None,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = None,
        expire_after_s: float | None = None,
        on_gap: str | None = None,
        retry_delay_s: float | None = None,
        retry_delay_s_max: float | None = None,
        when_full: Policy = "drop_oldest",
        destination: tuple[str, int] | None = None,
    ) -> Any:
        """With an id, a durable subscription (`Consumer`); without, a live one (`Live`).

        With a destination, a host and a port where somebody listens (`headwater.receive`), messages are pushed there:
        a channel of this client, whose id is returned, and which `unsubscribe` ends.
        """
        self._check_open()
        options = {
            "order": order,
            "max_in_flight": max_in_flight,
            "ack_timeout_s": ack_timeout_s,
            "max_attempts": max_attempts,
            "expire_after_s": expire_after_s,
            "on_gap": on_gap,
            "retry_delay_s": retry_delay_s,
            "retry_delay_s_max": retry_delay_s_max,
        }
        client, verbs = self._client, _Verbs(self)
        if destination is not None:
            made: ChannelInfo = self.ask(client.pushed(filter, id, start, options, destination))
            return made.id
        if id is None:
            asked = client.live(filter, when_full, start, options)
            return Live(self, self._wait(client.subscribe(asked, verbs)))
        asked = client.durable(filter, id, start, options)
        return Consumer(self, self._wait(client.subscribe(asked, verbs)))

    def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription, its place and its dead letters."""
        self._check_open()
        self._wait(self._client.unsubscribe(id))

    def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, by id; with a limit a page of them, after an id."""
        return self.ask(wire.Subscriptions(after=after, limit=limit))

    def states(self, id: str) -> list[tuple[str, int, str, int, tuple[str, ...]]]:
        """Root, offset, state, attempts and errors of each message that is not simply pending or acked."""
        return self.ask(wire.States(id=id))

    # Reading

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        """History, from an offset or a moment on, up to now; with `upto`, of those roots alone and not beyond it."""
        return self._reading(filter, after, since, follows=False, upto=upto)

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        """History and then everything new: no gap, no repeat, in order."""
        return self._reading(filter, after, since, follows=True)

    def _reading(
        self,
        filter: str,
        after: After,
        since: datetime | None,
        follows: bool,
        upto: Mapping[str, int] | None = None,
    ) -> Reading:
        self._check_open()
        asked = self._client.history(filter, after, since, follows, upto)
        return Reading(self, self._wait(self._client.subscribe(asked, _Verbs(self))))

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""
        return self.ask(wire.Topics(filter=filter))

    def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        return [retained_message(one) for one in self.ask(wire.Retained(filter=filter))]

    def ends(self) -> dict[str, int]:
        """The newest offset of each root."""
        return self.ask(wire.Ends())

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, by name; and where in them each of these moments is."""
        return self.ask(extents_of(filter, moments))

    def show_progress(
        self, filter: str, id: str, places: Mapping[str, int], *, expire_after_s: float | None = None
    ) -> None:
        """Have a durable subscription, made if need be, stand at the next offset to read of each root.

        For readers that keep their own place, as Spark does: nothing is handed out here.
        """
        self._check_open()
        asked = self._client.durable(filter, id, "earliest", {"expire_after_s": expire_after_s})
        feed = self._wait(self._client.subscribe(asked, _Verbs(self), (0, 0)))
        try:
            self.ask(wire.Seek(number=feed.number, to=dict(places)))
        finally:
            self._wait(self._client.leave(feed))

    def events(self) -> list[Event]:
        """What happened lately that somebody should know, oldest first."""
        return self.ask(wire.Events())

    def refresh(self) -> None:
        """What a served bus shows is always fresh."""
        self._check_open()

    # Dead letters

    def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Messages that a subscription gave up on; with a limit a page of them, after a root and an offset in it."""
        return self.ask(wire.DeadLetters(id=id, after=after, limit=limit))

    def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        """One of them."""
        return one_letter(self.ask(wire.DeadLetters(id=id, offset=offset)), id, offset)

    def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        """Hand dead letters to their subscription again, in order; answers how many.

        With `mended`, those letters, as they now are: `[letter.mend(payload=…) for letter in bus.dead_letters(id)]`.
        All of them or none; under the name of a `write` once, however often it is asked for.
        """
        write = write_of(offsets, mended, write)
        if write is None:
            return self.ask(wire.Redrive(id=id, offsets=places_of(offsets)))
        try:
            self.mend(id, write, tuple(mended or ()))
            return self.redrive_mended(id, write)
        except HeadwaterError as error:
            if not error.retryable:
                self.drop_mended(id, write)
            raise

    def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        """Store other contents for dead letters, which wait for `redrive_mended`; doing it again replaces them."""
        for request in mending(id, write, letters, part):
            self.ask(request)

    def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        """Hand the letters that parts of a write have mended to their subscription again, once; drops the other parts.

        Answers how many, however often it is asked.
        """
        return self.ask(wire.RedriveMended(id=id, write=write, parts=tuple(parts)))

    def drop_mended(self, id: str, write: str) -> None:
        """Forget what a write has mended and not redriven; the dead letters stay as they are."""
        self.ask(wire.DropMended(id=id, write=write))

    def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget dead letters; answers how many."""
        return self.ask(wire.DropDeadLetters(id=id, offsets=places_of(offsets)))

    # Request and reply

    def request(
        self, topic: str, payload: bytes, *, timeout_s: float | None = None, headers: GivenHeaders = ()
    ) -> Message:
        """Publish a request and wait for its answer."""
        pairs, answer = self.request_soon(topic, payload, headers=headers)
        timeout_s = self.settings.answer_timeout_s if timeout_s is None else timeout_s
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise TimedOut(
                f'nobody answered on "{topic}" within {timeout_s} s; is its service running, and does it call reply()?'
            ) from None
        finally:
            self.forget_request(pairs)

    def request_soon(
        self, topic: str, payload: bytes, *, headers: GivenHeaders = ()
    ) -> tuple[tuple[tuple[str, str], ...], Future[Message]]:
        """Publish a request; its headers, and a future of the answer."""
        self._check_open()
        return self._wait(self._client.ask(_Verbs(self), topic, payload, headers))

    def forget_request(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Nobody waits for this answer any more."""
        self._client.replies.forget(headers)

    # Staged publishes

    def stage(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        """Store a part of a producer's epoch, which nobody sees before `commit_stage`; staging it again replaces it."""
        self._check_open()
        item = self._client.prepare_many(messages, None, None)
        for request in staged(item, producer, epoch, part):
            self.ask(request)

    def stage_body(self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes) -> None:
        """The same for messages of one root that are encoded already."""
        self.ask(wire.Stage(producer=producer, epoch=epoch, part=part, root=root, count=count, crc=crc, body=body))

    def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        """Make these parts of an epoch visible, once, and drop the others; first and last offset by root."""
        asked = wire.CommitStage(producer=producer, epoch=epoch, parts=tuple(parts))
        return self.ask(asked)

    def drop_stage(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch and never committed."""
        self.ask(wire.DropStage(producer=producer, epoch=epoch))

    # Every day

    def purge(self, filter: str) -> int:
        """Remove the messages that a filter matches, their retained values and topics; answers how many topics."""
        return self.ask(wire.Purge(filter=filter))

    def backup(self, target: str | os.PathLike[str]) -> None:
        """A copy of the data as of now, in a new folder on the server's machine."""
        self.ask(wire.Backup(target=os.fspath(target)))

    def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        """Say how far a lake has each root: retention waits for it as for a durable subscription."""
        self.ask(wire.MarkArchived(lake=lake, archived=dict(archived)))

    @property
    def now(self) -> datetime:
        """The server's time."""
        return to_datetime(self._client.clock.now_us())

    @property
    def config(self) -> Config:
        """The settings of the server that clients are told; the others are defaults."""
        return self._client.config

    @property
    def folder(self) -> str:
        """Where the data is, as far as one may say: the server's address."""
        return str(self.address)


class _Verbs:
    """What is said about a message, for threads."""

    __slots__ = ("_bus",)

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def ack(self, feed: Feed, messages: Sequence[Message], wait: bool) -> None:
        if not feed.is_durable:
            return refuse(feed, "ack")
        bus = self._bus
        bus._check_open()
        epoch = feed.epoch
        ranges = feed.ranges_of(messages, wait)
        if wait:
            bus._wait(bus._client.ack_and_wait(feed, epoch, ranges))
        else:
            bus._loop.call_soon_threadsafe(bus._client.ack_only, feed, epoch, ranges)
        return None

    def nack(self, feed: Feed, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        self._tell(feed, "nack", message, nack_of(feed, message, error, delay_s))

    def reject(self, feed: Feed, message: Message, error: str | BaseException) -> None:
        self._tell(feed, "reject", message, reject_of(feed, message, error))

    def extend(self, feed: Feed, message: Message, seconds: float) -> None:
        self._tell(feed, "extend", message, extend_of(feed, message, seconds))

    def _tell(self, feed: Feed, verb: str, message: Message, make: Callable[[int], Request[Any]]) -> None:
        refuse(feed, verb)
        self._bus._run(self._bus._client.tell(feed, message, make))

    def reply(self, message: Message, payload: bytes) -> Receipt:
        bus = self._bus
        bus._check_open()
        return cast(Receipt, bus._submit(bus._client.reply_to(message, payload)).result())


class _Reader:
    """Takes messages of a feed."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        self._bus = bus
        self._feed = feed
        self.filter = feed.filter
        self._closed = False
        self._forgetting: weakref.finalize[..., Any] | None = None

    def _leave_when_forgotten(self) -> None:
        """Let go of its place at the server when nobody has it any more, as after `for … in bus.follow(…): break`.

        A consumer does not: messages that it handed out may be acked without it.
        """
        self._forgetting = weakref.finalize(self, self._bus._client.forget_soon, self._feed)
        self._forgetting.atexit = False

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the time has passed."""
        found = self.batch(1, timeout_s)
        return found[0] if found else None

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        check_max(max)
        self._bus._check_thread()
        return self._feed.wait(max, timeout_s, self._check_open)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self._closed_text)

    @property
    def _is_done(self) -> bool:
        """Whether its user, and not the server, has ended it."""
        return self._closed or self._bus._client.link.state is LinkState.CLOSED

    def close(self) -> None:
        """Leave."""
        if self._closed:
            return
        self._bus._check_thread()
        self._closed = True
        if self._forgetting is not None:
            self._forgetting.detach()
        self._feed.wake()
        if not self._bus._closed:
            try:
                self._bus._wait(self._bus._client.leave(self._feed))
            except HeadwaterError as error:
                if error.code != Closed.code:
                    raise

    _closed_text = CLOSED_BY_USER

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(_Reader):
    """Takes messages of one durable subscription, and says what became of them."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        assert feed.id is not None
        self.id = feed.id
        self._closed_text = f'this consumer of "{feed.id}" is closed; subscribe again to go on'

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.next()
            except Closed:
                return
            if message is not None:
                yield message

    def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        """Done with these: one commit for all of them."""
        _Verbs(self._bus).ack(self._feed, messages, wait)

    def seek(self, to: Start) -> None:
        """Go on from "earliest", "latest", an offset or a moment; what is in flight is taken back."""
        self._bus.ask(seek_of(self._feed, to))

    def pause(self) -> None:
        """Hand out nothing, to any consumer of this subscription, until `resume`; remembered."""
        self._bus.ask(wire.Pause(number=self._feed.number, paused=True))

    def resume(self) -> None:
        """Go on after `pause`."""
        self._bus.ask(wire.Pause(number=self._feed.number, paused=False))

    def __enter__(self) -> Consumer:
        return self


class Live(_Reader):
    """A live subscription."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self._leave_when_forgotten()

    @property
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""
        return self._feed.dropped

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                found = self.batch(1000)
            except Closed:
                if self._is_done:
                    return
                raise
            yield from found

    def __enter__(self) -> Live:
        return self


class Reading(_Reader):
    """Messages one after another; iterate it, or ask with `next` and `batch`."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self._ready: list[Message] = []
        self._leave_when_forgotten()

    def batch(self, max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages; empty at the end of history, or when the time has passed."""
        try:
            if self._ready:
                check_max(max)
                found = self._ready[: -max - 1 : -1]
                del self._ready[-max:]
                return found
            return super().batch(max, timeout_s)
        except Closed:
            if self._is_done:
                return []
            raise

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._ready:
            self._ready = self.batch(1000)[::-1]
            if not self._ready:
                raise StopIteration
        return self._ready.pop()

    def take_batch(self) -> Deliver | None:
        """The next batch as the server sent it, with the messages that match alone; None at the end of history.

        For readers that make no objects of messages, as Spark's do.
        """
        return self._feed.wait_batch(self._check_open)

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed or (not self._ready and self._feed.is_over)

    def __enter__(self) -> Reading:
        return self


# What both shells make of what users say


def extents_of(filter: str, moments: Sequence[datetime]) -> wire.Extents:
    """A request for what roots have."""
    return wire.Extents(filter=filter, moments_us=tuple(from_datetime(moment) for moment in moments))


def retained_message(one: wire.RetainedMessage) -> Message:
    """A retained message as users see it."""
    return Message(one.topic, one.offset, one.payload, one.time_us, one.key, one.headers, retained=True)


def one_letter(found: list[DeadLetter], id: str, offset: Position) -> DeadLetter:
    """The letter that was asked for."""
    if not found:
        raise NotFound(f'subscription "{id}" has no dead letter {offset}; see bus.dead_letters("{id}")')
    return found[0]


def places_of(offsets: Collection[Position] | None) -> tuple[wire.Place, ...] | None:
    """Places as they are sent."""
    return None if offsets is None else tuple(offsets)


def mending(id: str, write: str, letters: Iterable[DeadLetter], part: str) -> list[wire.Mend]:
    """Requests that mend letters, few enough in each."""
    groups: list[list[DeadLetter]] = []
    seen: set[Position] = set()
    size = LETTERS_BYTES
    for letter in letters:
        check_letter(letter, id)
        place = (root_of(letter.topic), letter.offset)
        if place in seen:
            raise mended_twice(letter.topic, letter.offset)
        seen.add(place)
        if size >= LETTERS_BYTES or len(groups[-1]) == wire.LETTERS_MAX:
            groups.append([])
            size = 0
        groups[-1].append(letter)
        size += len(letter.payload)
    return [wire.Mend(id=id, write=write, letters=tuple(group), part=part) for group in groups]


def staged(item: Publish, producer: str, epoch: int, part: str) -> list[wire.Stage]:
    """Requests that stage messages, one a root."""
    return [
        wire.Stage(
            producer=producer,
            epoch=epoch,
            part=part,
            root=one.root,
            count=len(one.topics),
            crc=one.crc,
            body=one.body or b"",
        )
        for one in item.parts
    ]


def seek_of(feed: Feed, to: Start) -> wire.Seek:
    """A request to go on from elsewhere."""
    check_start(feed.filter, to)
    if isinstance(to, datetime):
        return wire.Seek(number=feed.number, to_us=round(to.timestamp() * 1_000_000))
    return wire.Seek(number=feed.number, to=to)  # type: ignore[arg-type]  # it was checked


def nack_of(
    feed: Feed, message: Message, error: str | BaseException, delay_s: float | None
) -> Callable[[int], Request[Any]]:
    """A request that says that a message failed."""
    text = text_of(error)
    return lambda lease: wire.Nack(number=feed.number, lease=lease, offset=message.offset, error=text, delay_s=delay_s)


def reject_of(feed: Feed, message: Message, error: str | BaseException) -> Callable[[int], Request[Any]]:
    """A request that says that a message will never succeed."""
    text = text_of(error)
    return lambda lease: wire.Reject(number=feed.number, lease=lease, offset=message.offset, error=text)


def extend_of(feed: Feed, message: Message, seconds: float) -> Callable[[int], Request[Any]]:
    """A request for more time."""
    return lambda lease: wire.Extend(number=feed.number, lease=lease, offset=message.offset, seconds=seconds)


REFUSALS = {
    "nack": "a live subscription keeps nothing to hand out again; subscribe with an id for that",
    "reject": "a live subscription has no dead letters; subscribe with an id for that",
    "extend": "a live subscription has no ack timeout; subscribe with an id for that",
}


def refuse(feed: Feed, verb: str) -> None:
    """Malformed (422) where a message's subscription does not know the word; an ack of a live one is nothing."""
    if feed.kind == "live" and verb != "ack":
        raise Malformed(REFUSALS[verb])
    if feed.kind in ("replay", "follow"):
        raise Malformed(f"cannot {verb} a message that was read from history; subscribe with an id for that")
