"""The served bus for threads: the names, signatures and errors of `headwater.bus`, over a connection.

    with headwater.connect("headwater://name:secret@127.0.0.1:7411") as bus:
        bus.publish("home/kitchen/temp", b"21.5")

A thin shell around `client.client`: one thread in the background runs its event loop; callers check and encode in their
own threads, hand over, and wait. A question, its answer and a subscription's messages need no hop to that thread: who
asks or answers writes to the socket, and who waits reads from it (`client.line`). Any number of threads may share it.
It does not survive a fork: connect in the process that uses it. Nothing here may be called from the background thread
(from a callback of a future, say), which would wait for itself: that raises Conflict (409).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from headwater import surface, threads
from headwater.client.answer import Answer
from headwater.client.client import Client
from headwater.client.kept_session import KeptSession
from headwater.client.operations import Operations, Served, retained_message
from headwater.client.pending import Pending
from headwater.client.publisher import Call, Encoded, Single
from headwater.client.readers import Consumer, Live, Reading, Verbs
from headwater.client.url import Address, Token, address_of
from headwater.config import Connecting
from headwater.delivery.options import OnResume
from headwater.errors import Closed, Conflict
from headwater.forgotten import close_at_end, let_go, weakly
from headwater.log.publish import MESSAGE_WEIGHT, Publish
from headwater.message import DeadLetter, Headers, Message, Receipt, Receipts
from headwater.payload import Payload
from headwater.surface import GivenHeaders, Messages, documented, like
from headwater.values import Retained
from headwater.wire import requests as wire
from headwater.wire.request import A, Request
from headwater.work.handlers import Handlers
from headwater.work.workers import Workers

if TYPE_CHECKING:
    from headwater.arrow.source import Source
    from headwater.parts import Acl, Channels, Clients

P = ParamSpec("P")
R = TypeVar("R")
THREAD_NAME = "headwater-client"
JOIN_S = 10.0


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


def _leave(client: Client, loop: asyncio.AbstractEventLoop, thread: threads.Thread) -> None:
    """End a connection whose bus was forgotten."""
    try:
        asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    finally:
        _end_loop(loop, thread)


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threads.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(JOIN_S)


def waiting(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that waits, in its caller's thread, for what the client does in its loop."""

    @wraps(verb)
    def call(bus: Bus, /, *args: P.args, **options: P.kwargs) -> R:
        return bus._run(verb(bus._operations, *args, **options))

    return call


@documented(surface.Threaded)
class Bus(Served, surface.Threaded):
    """A bus that a server has."""

    if TYPE_CHECKING:

        @property
        def clients(self) -> Clients: ...
        @property
        def acl(self) -> Acl: ...
        @property
        def channels(self) -> Channels: ...

    is_busy = False

    def __init__(
        self,
        url: str | Address,
        settings: Connecting | None = None,
        *,
        token: Token | None = None,
        session: str | os.PathLike[str] | None = None,
        on_resume: OnResume = "keep",
    ) -> None:
        self.address = address_of(url, token)
        self.settings = settings or Connecting()
        kept = KeptSession(session, on_resume)
        self._process = os.getpid()
        self._loop = new_loop()
        self._thread = threads.Thread(target=run_loop, args=(self._loop,), name=THREAD_NAME, daemon=True)
        self._closing = threads.Lock()
        self._closed = False
        self._thread.start()
        try:
            self._client = self._wait(self._connect(kept))
            self._operations = Operations(self._client, Verbs(self))
        except BaseException:
            self._stop()
            raise
        handlers = Handlers(is_asynchronous=False, check_open=weakly(self._check_open))
        self._workers = Workers(weakly(self.subscribe), self._client.clock, handlers)
        close_at_end(self)

    async def _connect(self, kept: KeptSession) -> Client:
        client = Client(self.address, self.settings, kept=kept, is_shared=True)
        await client.open()
        return client

    def close(self) -> None:
        self._check_thread()
        self._workers.end()
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
            _end_loop(self._loop, self._thread)

    def _close_at_end(self) -> None:
        if not self._closed and self._process == os.getpid():
            self._wait(self._client.close())

    def __del__(self) -> None:
        if hasattr(self, "_operations") and not self._closed and os.getpid() == self._process:
            let_go(self, f"the bus at {self.address}", partial(_leave, self._client, self._loop, self._thread))

    # Calls into the loop

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
        """Run a coroutine in the loop, and wait for it."""
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
        """What a request is answered with."""
        self._check_open()
        return self._wait(self._client.link.request(request))

    # Publishing

    @like(surface.Bus.publish)
    def publish(self, topic: str, payload: Payload, **options: Any) -> Receipt:
        item = self._prepare(topic, payload, **options)
        if isinstance(item, wire.Delay):
            return self._run(self._client.delay(item))
        return cast(Receipt, self._submit(item).result())

    @like(surface.Bus.publish_many)
    def publish_many(self, messages: Messages, **options: Any) -> Receipts:
        return self.publish_many_soon(messages, **options).result()

    @like(surface.Bus.publish_soon)
    def publish_soon(self, topic: str, payload: Payload, **options: Any) -> Future[Receipt]:
        if not options and type(payload) is bytes:
            return self._publish_plain(topic, payload)
        item = self._prepare(topic, payload, **options)
        if isinstance(item, wire.Delay):
            return asyncio.run_coroutine_threadsafe(self._client.delay(item), self._loop)
        return cast("Future[Receipt]", self._submit(item))

    @like(surface.Bus.publish_many_soon)
    def publish_many_soon(self, messages: Messages, **options: Any) -> Future[Receipts]:
        self._check_open()
        return cast("Future[Receipts]", self._submit(self._client.checks.many(messages, **options)))

    def _publish_plain(self, topic: str, payload: bytes) -> Future[Receipt]:
        """One message without options, by the shortest way: 5 µs of a core in place of 20."""
        self._check_open()
        client = self._client
        root, publisher = client.checks.plain(topic, payload), client.publisher
        weight = len(payload) + len(topic) + MESSAGE_WEIGHT
        self._take_share(weight)
        future = Pending(publisher.lock)
        publisher.submit(Single(root, topic, payload, weight, future))
        return future

    def _prepare(self, topic: str, payload: Payload, **options: Any) -> Publish | wire.Delay:
        self._check_open()
        return self._client.prepare(topic, payload, **options)

    @like(surface.Bus.send)
    def send(self, topic: str, payload: Payload, **options: Any) -> None:
        self._check_open()
        client = self._client
        if options or type(payload) is not bytes:
            item: Single | Encoded = client.prepare_quiet(topic, payload, **options)
        else:
            client.link.check_open()
            root = client.checks.plain(topic, payload)
            item = Single(root, topic, payload, len(payload) + len(topic) + MESSAGE_WEIGHT)
        self._take_share(item.weight)
        client.publisher.submit(item)

    def _submit(self, item: Publish) -> Future[object]:
        """Queue a publish for the loop, once the budget of bytes in flight has room."""
        future: Future[object] = Future()
        if item.topics:
            self._take_share(item.weight)
            self._client.publisher.submit(Call(item, future, len(item.parts)))
        else:
            future.set_result(Receipts((), ()))
        return future

    def _send_now(self, item: Encoded) -> None:
        """Send what nobody waits for in this thread, or in the loop if something else is to be sent before."""
        publisher = self._client.publisher
        if not publisher.send_now(item):
            self._take_share(item.weight)
            publisher.submit(item)

    def _take_share(self, weight: int) -> None:
        budget = self._client.publisher.budget
        if not budget.take(weight):
            go = threads.Event()
            if not budget.take(weight, go.set):
                go.wait()

    # Subscribing

    def _subscribe(self, filter: str, **options: Any) -> Consumer | Live | str:
        self._check_open()
        asked = self._client.subscription(filter, **options)
        if isinstance(asked, wire.SubscribeTo):
            return self.ask(asked).id
        feed = self._wait(self._client.subscribe(asked, Verbs(self)))
        return Live(self, feed) if asked.kind == "live" else Consumer(self, feed)

    # Reading

    @like(surface.Bus.replay)
    def replay(self, filter: str, **options: Any) -> Reading:
        return self._reading(filter, follows=False, **options)

    @like(surface.Bus.follow)
    def follow(self, filter: str, **options: Any) -> Reading:
        return self._reading(filter, follows=True, **options)

    def _reading(self, filter: str, window: tuple[int, int] | None = None, **options: Any) -> Reading:
        self._check_open()
        asked = self._client.history(filter, **options)
        return Reading(self, self._wait(self._client.subscribe(asked, Verbs(self), window)))

    def _columns(self, filter: str, columns: Sequence[str], **options: Any) -> Source:
        from headwater.arrow.source import Received, window

        return Received(self._reading(filter, window(self.settings), follows=False, **options))

    # Operations

    @like(surface.Bus.redrive)
    def redrive(self, *args: Any, mended: Iterable[DeadLetter] | None = None, **options: Any) -> int:
        letters = None if mended is None else tuple(mended)  # here, as they may be made of what this bus is asked
        return self._run(self._operations.redrive(*args, mended=letters, **options))

    def stage(self, producer: str, epoch: int, messages: Messages, *, part: str = "") -> None:
        self._check_open()
        item = self._client.checks.many(messages)
        self._run(self._operations.stage_prepared(item, producer, epoch, part))

    @like(surface.Bus.retained)
    def retained(self, filter: str) -> Retained:
        ends, found = self.ends(), map(retained_message, self._retained_messages(filter))
        clock = self._client.clock
        return Retained(filter, ends, found, lambda *place: self.follow(place[0], after=place[1]), clock)

    unsubscribe = waiting(Operations.unsubscribe)
    subscriptions = waiting(Operations.subscriptions)
    schedule = waiting(Operations.schedule)
    schedules = waiting(Operations.schedules)
    unschedule = waiting(Operations.unschedule)
    schema = waiting(Operations.schema)
    schemas = waiting(Operations.schemas)
    remove_schema = waiting(Operations.remove_schema)
    states = waiting(Operations.states)
    _past = waiting(Operations._past)
    _retained_messages = waiting(Operations._retained_messages)
    topics = waiting(Operations.topics)
    ends = waiting(Operations.ends)
    extents = waiting(Operations.extents)
    events = waiting(Operations.events)
    refresh = waiting(Operations.refresh)
    dead_letters = waiting(Operations.dead_letters)
    dead_letter = waiting(Operations.dead_letter)
    mend = waiting(Operations.mend)
    redrive_mended = waiting(Operations.redrive_mended)
    drop_mended = waiting(Operations.drop_mended)
    drop_dead_letters = waiting(Operations.drop_dead_letters)
    stage_body = waiting(Operations.stage_body)
    commit_stage = waiting(Operations.commit_stage)
    drop_stage = waiting(Operations.drop_stage)
    purge = waiting(Operations.purge)
    purges = waiting(Operations.purges)
    erase = waiting(Operations.erase)
    remove_root = waiting(Operations.remove_root)
    backup = waiting(Operations.backup)
    mark_archived = waiting(Operations.mark_archived)
    show_progress = waiting(Operations.show_progress)
    count_matching = waiting(Operations.count_matching)

    # Request and reply

    def request_soon(
        self, topic: str, payload: Payload, *, headers: GivenHeaders = (), durable: bool = False
    ) -> tuple[Headers, Future[Message]]:
        self._check_open()
        client = self._client
        answer = Answer(client.link, client.clock)
        if not client.is_listening:
            client.checks.plain(topic, payload)
            self._wait(client.listen(Verbs(self)))
        if durable:
            return self._wait(client.ask_durably(topic, payload, headers, answer)), answer
        question = client.question(topic, payload, headers, answer)
        self._send_now(question)
        return question.asks, answer

    def forget_request(self, headers: Headers) -> None:
        self._client.replies.forget(headers)
