"""Workers that are tasks: handlers that are coroutine functions, in one event loop.

The same turns as in `pool`, by the same roster and queues; nothing here has a thread.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from headwater import verdicts
from headwater.clock import SECOND_US, Clock
from headwater.errors import Closed, Conflict, HeadwaterError, Malformed, Recalled
from headwater.verdicts import Said, Verdict
from headwater.work import outcome
from headwater.work.handlers import Handler, Handlers, check_run
from headwater.work.pool import BY_HAND, FLUSH_US, STUCK_US, TICK_US, TICK_US_IDLE, TICK_US_MIN
from headwater.work.queue import Job, Queue
from headwater.work.roster import Roster
from headwater.work.shift import Shift
from headwater.work.signals import STOPPING
from headwater.work.workers import number_of_workers

TASKS = 64
"""Handlers that run at once, unless every handler states fewer, one states more, or `run` says how many."""

Fail = Callable[[Any, Verdict], Awaitable[None]]
Refused = tuple[Any, HeadwaterError]
"""A message of which nothing could be said, and why."""


class Ack(NamedTuple):
    """Messages whose ack is under way."""

    queue: Queue
    messages: list[Any]
    task: asyncio.Task[None]


class TaskPool:
    """Tasks that run handlers."""

    def __init__(self, subscribe: Callable[..., Any], fail: Fail, clock: Clock, workers: int) -> None:
        self._subscribe = subscribe
        self._say_failed = fail
        self._clock = clock
        self._size = workers
        self.roster = Roster()
        self._idle: deque[asyncio.Future[None]] = deque()
        self.is_stopping = False
        self._ending = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._owner = asyncio.current_task()

    # Begin and end

    async def add(self, handler: Handler) -> None:
        """Subscribe for a handler, and have its messages handled; one that was defined again goes on with them."""
        known = self.roster.of(handler)
        if known is not None:
            known.handler = handler
            return
        reader = await self._subscribe(**handler.asked)
        queue = Queue(handler, reader, reader.poll, self._size)
        self.roster.add(queue)
        reader.add_waker(lambda: self._wake(queue))
        self._wake(queue)

    async def run(self) -> Shift:
        """Work until `stop`, or until no subscription is left."""
        began_us = self._clock.monotonic_us()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._size)]
        try:
            while not self.is_stopping and not self.roster.is_over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._tick_us / SECOND_US):
                        await self._ending.wait()
                await self._tick()
            self.stop()
            while (await asyncio.wait(self._tasks, timeout=TICK_US / SECOND_US))[1]:
                await self._tick()
            await asyncio.gather(*self._tasks)
        except BaseException:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            raise
        finally:
            await self.close()
        seconds = (self._clock.monotonic_us() - began_us) / SECOND_US
        return Shift(seconds, [queue.tally for queue in self.roster.queues])

    def stop(self) -> None:
        """Take no more."""
        self.is_stopping = True
        self._ending.set()
        while self._idle:
            self._call_one()

    async def wait(self) -> None:
        """Until it is over; not for those who would wait for themselves."""
        if asyncio.current_task() not in (self._owner, *self._tasks):
            await self._over.wait()

    async def close(self) -> None:
        """Give back what was taken and not begun."""
        self.stop()
        if self._over.is_set():
            return
        try:
            for queue in self.roster.queues:
                try:
                    await queue.reader.close()
                except HeadwaterError as error:
                    outcome.unread(queue, error)
        finally:
            self._over.set()

    # Whose turn it is

    def _wake(self, queue: Queue) -> None:
        """There may be something to do."""
        if self.roster.wake(queue):
            self._call_one()

    def _call_one(self) -> None:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def _work(self) -> None:
        """A worker's life."""
        ack: Ack | None = None
        while True:
            queue = None if self.is_stopping else self.roster.next()
            if queue is not None:
                ack = await self._turn(queue, ack)
            elif ack is not None:
                await self._settle(ack)
                ack = None
            elif self.is_stopping:
                return
            else:
                waiting = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                await waiting

    async def _turn(self, queue: Queue, ack: Ack | None) -> Ack | None:
        """Do what there is for one turn of a queue; the ack that is under way after it."""
        job: Job | None = None
        is_done = False
        try:
            job = self._take(queue)
            if job is not None:
                if queue.workers < queue.limit:  # tasks cost next to nothing, and most of what they do is to wait
                    self._wake(queue)
                ack = await self._handle(queue, job, ack)
                is_done = True
        except Exception as error:  # a worker outlives whatever it meets
            outcome.broken(queue, error)
            queue.rest(self._clock.monotonic_us())
        finally:
            if job is not None:
                queue.leave(job)
            if self.roster.leave(queue, is_done) and self.roster.is_crowded:
                self._call_one()
        return ack

    def _take(self, queue: Queue) -> Job | None:
        now_us = self._clock.monotonic_us()
        try:
            return queue.take(now_us)
        except HeadwaterError as error:
            if isinstance(error, Closed) and self.is_stopping:
                return None
            outcome.unread(queue, error)
            if not queue.goes_on(error, now_us):
                self.roster.end(queue)
                if self.roster.is_over:
                    self._ending.set()
            return None

    # Handling

    async def _handle(self, queue: Queue, job: Job, ack: Ack | None) -> Ack | None:
        """Handle the messages of a job; the ack that is under way after it."""
        function, messages, late_us = queue.handler.function, job.messages, queue.late_us
        clock_us = self._clock.monotonic_us
        done = job.done
        handled = 0
        now_us = began_us = flushed_us = clock_us()
        for _ in range(queue.share(job)):
            if self.is_stopping or not messages:
                break
            message = messages.popleft()
            job.began_us = now_us
            if now_us - job.timed_us > late_us:
                await self._extend(queue, message)
            verdicts.begin(message)
            try:
                result = await function(message)
                if result is not None:
                    check_run(result)
            except BaseException as error:
                said = verdicts.end(message)
                if not is_of_handler(error):
                    raise
                ack = await self._ack(queue, job.taken_done(), ack)
                await self._fail(queue, job, message, error, said)
            else:
                said = verdicts.end(message)
                if said:
                    ack = await self._ack(queue, job.taken_done(), ack)
                    await self._go_by(queue, job, message, said)
                else:
                    done.append(message)
            handled += 1
            now_us = clock_us()
            if now_us - flushed_us > FLUSH_US:
                ack, flushed_us = await self._flush(queue, job, ack), now_us
                await asyncio.sleep(0)  # handlers that never wait hold nobody up
        if handled:
            queue.pace.note(handled, now_us - began_us)
            queue.count(busy_us=now_us - began_us)
        return await self._ack(queue, job.taken_done(), ack)

    async def _go_by(self, queue: Queue, job: Job, message: Any, said: Said) -> None:
        """A handler has said by hand what becomes of its message, as in `Pool`."""
        outcome.said_by_hand(queue, said)
        if said == "nack":
            await self._drop_recalled(queue, job, [(message, Recalled(BY_HAND))])

    async def _fail(self, queue: Queue, job: Job, message: Any, error: BaseException, said: Said) -> None:
        """A handler raised something."""
        verdict = outcome.failed(queue, message, error, said)
        if not queue.is_durable:
            return
        if said:
            await self._go_by(queue, job, message, said)
            return
        queue.begin_failing()
        recalled: list[Any] = []
        try:
            await self._say_failed(message, verdict)
            if not verdict.is_final:
                recalled = [one for chain in queue.behind(job, (message,)) for one in chain]
        except HeadwaterError as refused:
            outcome.unsaid(queue, message, refused)
            recalled = await self._recalled(queue, job, [(message, refused)])
        finally:
            queue.end_failing(job, recalled)

    async def _drop_recalled(self, queue: Queue, job: Job, refused: Sequence[Refused]) -> None:
        """Do nothing that is behind messages of which nothing could be said."""
        queue.begin_failing()
        recalled: list[Any] = []
        try:
            recalled = await self._recalled(queue, job, refused)
        finally:
            queue.end_failing(job, recalled)

    async def _recalled(self, queue: Queue, job: Job, refused: Sequence[Refused]) -> list[Any]:
        """What comes again because of messages of which nothing could be said, as in `Pool`."""
        ours = [message for message, error in refused if not isinstance(error, Recalled)]
        found = [message for chain in queue.behind(job, ours) for message in chain]
        for chain in queue.behind(job, [message for message, error in refused if isinstance(error, Recalled)]):
            for message in chain:
                try:
                    await message.extend(queue.probe_s)
                except Malformed:  # the server has other limits, and was not asked
                    break
                except HeadwaterError:
                    found.append(message)
                else:
                    break
        return found

    async def _ack(self, queue: Queue, done: list[Any], before: Ack | None) -> Ack | None:
        """Ack messages, once the ack before is settled; the one that is then under way."""
        if not done:
            return before
        if before is not None:
            await self._settle(before)
        if not queue.is_durable:
            queue.count(done=len(done))
            return None
        return Ack(queue, done, asyncio.ensure_future(queue.reader.ack(done)))

    async def _flush(self, queue: Queue, job: Job, before: Ack | None) -> Ack | None:
        """Ack what was handled so far; where order binds, see to it that nothing is done behind what comes again."""
        ack = await self._ack(queue, job.taken_done(), before)
        if ack is None or ack.queue is not queue or queue.order == "none":
            return ack
        lost = await self._settle(ack)
        if lost:
            await self._drop_recalled(queue, job, lost)
        return None

    async def _settle(self, ack: Ack) -> Sequence[Refused]:
        """Wait until an ack is on disk; those of its messages that come again."""
        try:
            await asyncio.shield(ack.task)
        except HeadwaterError:
            return await self._ack_singly(ack.queue, ack.messages)
        ack.queue.count(done=len(ack.messages))
        return ()

    async def _ack_singly(self, queue: Queue, messages: list[Any]) -> list[Refused]:
        """Ack messages of which one was taken back, which refuses all; those that come again."""
        lost: list[Refused] = []
        for message in messages:
            try:
                await message.ack()
            except HeadwaterError as error:
                lost.append((message, error))
        queue.count(done=len(messages) - len(lost))
        if lost:
            outcome.recalled(queue, [message for message, _ in lost], lost[-1][1])
        return lost

    # Time

    @property
    def _tick_us(self) -> int:
        return self.roster.tick_us(TICK_US if len(self._idle) < self._size else TICK_US_IDLE, TICK_US_MIN)

    async def _tick(self) -> None:
        """See to what waits for too long."""
        now_us = self._clock.monotonic_us()
        for queue in self.roster.at_work():
            for message in queue.untimed(now_us):
                await self._extend(queue, message)
            ack = await self._ack(queue, queue.left_done(now_us, STUCK_US), None)
            if ack is not None:
                await self._settle(ack)
            if queue.loosen(now_us, STUCK_US) or queue.is_stuck(now_us, STUCK_US):
                self._wake(queue)
            if queue.retry_us is not None and now_us >= queue.retry_us:
                queue.retry_us = None
                self._wake(queue)

    async def _extend(self, queue: Queue, message: Any) -> None:
        """Give a message its whole time again; one that was taken back meanwhile is found out by its ack."""
        with suppress(HeadwaterError):
            await message.extend(queue.timeout_s)


def is_of_handler(error: BaseException) -> bool:
    """Whether it is the handler's failure, and not its worker's: what it waited for was cancelled, its task was not."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception | SystemExit)


class TaskWorkers:
    """Runs the handlers of one bus in its event loop."""

    def __init__(self, subscribe: Callable[..., Any], fail: Fail, clock: Clock, handlers: Handlers | None) -> None:
        self.handlers = handlers or Handlers(is_asynchronous=True)
        self._subscribe = subscribe
        self._fail = fail
        self.clock = clock
        self.pool: TaskPool | None = None
        self._adding: set[asyncio.Task[None]] = set()

    async def run(self, workers: int | None = None) -> Shift:
        """Run the handlers until SIGTERM, Ctrl-C or `stop`."""
        handlers = self.handlers.all
        size = number_of_workers(handlers, workers, TASKS)
        if self.pool is not None:
            raise Conflict("the handlers of this bus are being run already; one pool works for all of them")
        pool = self.pool = TaskPool(self._subscribe, self._fail, self.clock, size)
        try:
            with stopped_by_signals(pool.stop):
                for handler in self.handlers.begin(self._add_soon):
                    await pool.add(handler)
                return await pool.run()
        finally:
            self.handlers.end()
            await pool.close()
            self.pool = None

    def _add_soon(self, handler: Handler) -> None:
        """One that was registered while handlers run; what becomes of it is in the log."""
        if self.pool is not None:
            task = asyncio.ensure_future(self.pool.add(handler))
            self._adding.add(task)
            task.add_done_callback(self._added)

    def _added(self, task: asyncio.Task[None]) -> None:
        self._adding.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            outcome.log.error("a handler that was registered while others run got no subscription: %s", error)

    def stop(self) -> None:
        """Have them stop."""
        if self.pool is not None:
            self.pool.stop()

    async def end(self) -> None:
        """Have them stop, and wait for it, unless it is one of them who asks."""
        pool = self.pool
        if pool is not None:
            pool.stop()
            await pool.wait()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call this at SIGTERM or Ctrl-C, and cancel whoever waits at the second; in the main thread's loop alone."""
    loop, task, count = asyncio.get_running_loop(), asyncio.current_task(), 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            stop()
        elif task is not None:
            task.cancel()

    added: list[signal.Signals] = []
    try:
        try:
            for number in STOPPING:
                loop.add_signal_handler(number, on_signal)
                added.append(number)
        except (ValueError, RuntimeError, NotImplementedError):  # not the main thread, or no Unix
            pass
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
