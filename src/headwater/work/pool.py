"""Workers that are threads: one pool for all handlers of a bus.

The thread that calls `run` waits for the end, and meanwhile sees to it that what waits behind a slow message keeps its
time; the workers do the rest. Promises:

- There are no more threads than workers, however many subscriptions there are.
- A turn is one batch: taken at once, acked at once. Acks of a few turns become one commit, before the worker waits for
  something to do, or handles something slow.
- When it stops, handlers that run are finished and their messages acked; what no handler has begun is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from headwater import threads, verdicts
from headwater.clock import SECOND_US, Clock
from headwater.errors import Closed, HeadwaterError, Malformed, Recalled
from headwater.message import Message, fail
from headwater.verdicts import Said
from headwater.work import outcome
from headwater.work.handlers import Handler, check_run
from headwater.work.queue import Job, Queue
from headwater.work.roster import Roster
from headwater.work.shift import Shift

THREAD_NAME = "headwater-worker"
FLUSH_US = 20_000
"""What was handled this long ago is acked before the next message is begun."""
GROUP = 1000
"""Messages of one worker whose acks become one commit,"""
GROUP_US = 5_000
"""and how long the first of them waits for the others, while there is something to do."""
TICK_US = 200_000
"""How often it is looked for what waits too long, while handlers run; more often where ack timeouts are short."""
TICK_US_MIN = 20_000
TICK_US_IDLE = SECOND_US
"""The same while none does."""
STUCK_US = 200_000
"""What waits behind a message that takes longer than this goes to other workers, if order allows it."""
BY_HAND = "its handler nacked it"

Refused = tuple[Message, HeadwaterError]
"""A message of which nothing could be said, and why."""


class Acking(Protocol):
    """Acks that a reader has noted, or sent."""

    def wait(self) -> None: ...
    def hurry(self) -> None: ...


class Ack(NamedTuple):
    """Messages whose ack is under way."""

    queue: Queue
    messages: list[Message]
    acking: Acking


class Acks:
    """What a worker has handled, of whichever queues, and is not on disk yet."""

    __slots__ = ("count", "since_us", "under_way")

    def __init__(self) -> None:
        self.under_way: list[Ack] = []
        self.count = 0
        """Messages of these,"""
        self.since_us = 0
        """and since when the first of them waits."""

    def add(self, ack: Ack, now_us: int) -> None:
        """One more."""
        if not self.under_way:
            self.since_us = now_us
        self.under_way.append(ack)
        self.count += len(ack.messages)

    def taken(self) -> list[Ack]:
        """All of them, to be settled."""
        found, self.under_way, self.count = self.under_way, [], 0
        return found

    def is_due(self, now_us: int) -> bool:
        """Whether these are to be on disk before more is handled."""
        return self.count >= GROUP or (self.count > 0 and now_us - self.since_us > GROUP_US)


class Pool:
    """Threads that run handlers."""

    def __init__(self, subscribe: Callable[..., Any], clock: Clock, workers: int) -> None:
        self._subscribe = subscribe
        self._clock = clock
        self._size = workers
        self.roster = Roster()
        self._lock = threads.RLock()
        """Of the roster; a signal's handler may run where its thread has it."""
        self._ready = threads.Condition(self._lock)
        self._ending = threads.Condition(self._lock)
        self._idle = 0
        self.is_stopping = False
        self._acks: list[Acks] = []
        """Of each worker."""
        self._over = threads.Event()
        self._owner = threads.current_thread()
        self._threads = [
            threads.Thread(target=self._work, name=f"{THREAD_NAME}-{number}", daemon=True) for number in range(workers)
        ]

    # Begin and end

    def add(self, handler: Handler) -> None:
        """Subscribe for a handler, and have its messages handled; one that was defined again goes on with them."""
        known = self.roster.of(handler)
        if known is not None:
            known.handler = handler
            return
        reader = self._subscribe(**handler.asked)
        queue = Queue(handler, reader, lambda size: reader.batch(size, 0), self._size)
        with self._lock:
            self.roster.add(queue)
        reader.add_waker(lambda: self._wake(queue))
        self._wake(queue)

    def run(self) -> Shift:
        """Work until `stop`, or until no subscription is left."""
        began_us = self._clock.monotonic_us()
        try:
            for thread in self._threads:
                thread.start()
            while not self.is_stopping and not self.roster.is_over:
                with self._ending:
                    if not self.is_stopping:
                        self._clock.wait(self._ending, self._tick_us)
                self._tick()
            self.stop()
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(TICK_US / SECOND_US)
                    self._tick()
        finally:
            self.close()
        seconds = (self._clock.monotonic_us() - began_us) / SECOND_US
        return Shift(seconds, [queue.tally for queue in self.roster.queues])

    def stop(self) -> None:
        """Take no more; from any thread, and from a signal's handler."""
        with self._lock:
            self.is_stopping = True
            self._ready.notify_all()
            self._ending.notify_all()

    def wait(self) -> None:
        """Until it is over; not for those who would wait for themselves."""
        if threads.current_thread() not in (self._owner, *self._threads):
            self._over.wait()

    def close(self) -> None:
        """Give back what was taken and not begun."""
        self.stop()
        if self._over.is_set():
            return
        try:
            for queue in self.roster.queues:
                try:
                    queue.reader.close()
                except HeadwaterError as error:
                    outcome.unread(queue, error)
        finally:
            self._over.set()

    # Whose turn it is

    def _wake(self, queue: Queue) -> None:
        """There may be something to do; from any thread."""
        if queue.is_queued:  # whoever takes it from the line looks after this
            return
        with self._lock:
            if self.roster.wake(queue) and self._idle:
                self._ready.notify()

    def _work(self) -> None:
        """A worker's life."""
        acks = Acks()
        self._acks.append(acks)
        while True:
            with self._lock:
                queue = None if self.is_stopping else self.roster.next()
                if queue is None and not acks.under_way:
                    if self.is_stopping:
                        return
                    self._idle += 1
                    self._ready.wait()
                    self._idle -= 1
                    continue
            if queue is None:
                self._settle(acks)
            else:
                self._turn(queue, acks)

    def _turn(self, queue: Queue, acks: Acks) -> None:
        """Do what there is for one turn of a queue."""
        job: Job | None = None
        is_done = False
        try:
            job = self._take(queue)
            if job is not None:
                if queue.workers < queue.limit and queue.wants_another:
                    self._wake(queue)
                self._handle(queue, job, acks)
                is_done = True
        except Exception as error:  # a worker outlives whatever it meets
            outcome.broken(queue, error)
            queue.rest(self._clock.monotonic_us())
        finally:
            if job is not None:
                queue.leave(job)
            with self._lock:
                if self.roster.leave(queue, is_done) and self._idle and self.roster.is_crowded:
                    self._ready.notify()  # this worker takes the next one itself

    def _take(self, queue: Queue) -> Job | None:
        now_us = self._clock.monotonic_us()
        try:
            return queue.take(now_us)
        except HeadwaterError as error:
            if isinstance(error, Closed) and self.is_stopping:
                return None
            outcome.unread(queue, error)
            if not queue.goes_on(error, now_us):
                with self._lock:
                    self.roster.end(queue)
                    self._ending.notify_all()
            return None

    # Handling

    def _handle(self, queue: Queue, job: Job, acks: Acks) -> None:
        """Handle the messages of a job."""
        if acks.under_way and queue.pace.each_us > GROUP_US:
            self._flush(queue, job, acks)
        function, messages, late_us = queue.handler.function, job.messages, queue.late_us
        clock_us = self._clock.monotonic_us
        done = job.done
        handled = 0
        now_us = began_us = flushed_us = clock_us()
        for _ in range(queue.share(job)):
            if self.is_stopping:
                break
            try:
                message = messages.popleft()
            except IndexError:  # others have them
                break
            job.began_us = now_us
            if now_us - job.timed_us > late_us:
                self._extend(queue, message)
            verdicts.begin(message)
            try:
                result = function(message)
                if result is not None:
                    check_run(result)
            except BaseException as error:
                said = verdicts.end(message)
                self._ack(queue, job.taken_done(), acks)
                self._fail(queue, job, message, error, said)
            else:
                said = verdicts.end(message)
                if said:
                    self._ack(queue, job.taken_done(), acks)
                    self._go_by(queue, job, message, said)
                else:
                    done.append(message)
            handled += 1
            now_us = clock_us()
            if now_us - flushed_us > FLUSH_US:
                self._flush(queue, job, acks)
                flushed_us = now_us
        if handled:
            queue.pace.note(handled, now_us - began_us)
            queue.count(busy_us=now_us - began_us)
        self._ack(queue, job.taken_done(), acks)
        if acks.is_due(now_us):
            self._settle(acks)

    def _go_by(self, queue: Queue, job: Job, message: Message, said: Said) -> None:
        """A handler has said by hand what becomes of its message: behind one that it nacked, nothing is done now."""
        outcome.said_by_hand(queue, said)
        if said == "nack":
            self._drop_recalled(queue, job, [(message, Recalled(BY_HAND))])

    def _fail(self, queue: Queue, job: Job, message: Message, error: BaseException, said: Said) -> None:
        """A handler raised something."""
        verdict = outcome.failed(queue, message, error, said)
        if not queue.is_durable:
            return
        if said:
            self._go_by(queue, job, message, said)
            return
        queue.begin_failing()
        recalled: list[Message] = []
        try:
            fail(message, verdict)
            if not verdict.is_final:
                recalled = [one for chain in queue.behind(job, (message,)) for one in chain]
        except HeadwaterError as refused:
            outcome.unsaid(queue, message, refused)
            recalled = self._recalled(queue, job, [(message, refused)])
        finally:
            queue.end_failing(job, recalled)

    def _drop_recalled(self, queue: Queue, job: Job, refused: Sequence[Refused]) -> None:
        """Do nothing that is behind messages of which nothing could be said."""
        queue.begin_failing()
        recalled: list[Message] = []
        try:
            recalled = self._recalled(queue, job, refused)
        finally:
            queue.end_failing(job, recalled)

    def _recalled(self, queue: Queue, job: Job, refused: Sequence[Refused]) -> list[Message]:
        """What comes again because nothing could be said of messages.

        All that is behind those that are ours until they time out. Those that are not ours may have been recalled, and
        what was behind them then; or they are done, and nothing was. What came again since then is behind that.
        """
        ours = [message for message, error in refused if not isinstance(error, Recalled)]
        found = [message for chain in queue.behind(job, ours) for message in chain]
        for chain in queue.behind(job, [message for message, error in refused if isinstance(error, Recalled)]):
            for message in chain:
                try:
                    message.extend(queue.probe_s)
                except Malformed:  # the server has other limits, and was not asked
                    break
                except HeadwaterError:
                    found.append(message)
                else:
                    break
        return found

    def _ack(self, queue: Queue, done: list[Message], acks: Acks) -> list[Refused]:
        """Ack messages; that is on disk once it is settled. Those that are known by now to come again."""
        if not done:
            return []
        if not queue.is_durable:
            queue.count(done=len(done))
            return []
        try:
            acks.add(Ack(queue, done, queue.reader.ack_later(done)), self._clock.monotonic_us())
        except HeadwaterError:
            return self._ack_singly(queue, done)
        return []

    def _flush(self, queue: Queue, job: Job, acks: Acks) -> None:
        """Have what was handled so far on disk; where order binds, do nothing that is behind what comes again."""
        lost = self._ack(queue, job.taken_done(), acks)
        lost += [refused for of, refused in self._settle(acks) if of is queue]
        if lost:
            self._drop_recalled(queue, job, lost)

    def _settle(self, acks: Acks) -> list[tuple[Queue, Refused]]:
        """Wait until acks are on disk; the messages that come again."""
        lost: list[tuple[Queue, Refused]] = []
        for queue, messages, acking in acks.taken():
            try:
                acking.wait()
            except HeadwaterError:
                lost += [(queue, refused) for refused in self._ack_singly(queue, messages)]
            else:
                queue.count(done=len(messages))
        return lost

    def _ack_singly(self, queue: Queue, messages: list[Message]) -> list[Refused]:
        """Ack messages of which one was taken back, which refuses all; those that come again."""
        lost: list[Refused] = []
        for message in messages:
            try:
                message.ack()
            except HeadwaterError as error:
                lost.append((message, error))
        queue.count(done=len(messages) - len(lost))
        if lost:
            outcome.recalled(queue, [message for message, _ in lost], lost[-1][1])
        return lost

    # Time

    @property
    def _tick_us(self) -> int:
        return self.roster.tick_us(TICK_US if self._idle < self._size else TICK_US_IDLE, TICK_US_MIN)

    def _tick(self) -> None:
        """See to what waits for too long."""
        now_us = self._clock.monotonic_us()
        for acks in self._acks:
            for ack in acks.under_way if acks.is_due(now_us) else ():
                ack.acking.hurry()  # their worker is stuck in a message
        acks = Acks()
        for queue in self.roster.at_work():
            for message in queue.untimed(now_us):
                self._extend(queue, message)
            self._ack(queue, queue.left_done(now_us, STUCK_US), acks)
            if queue.loosen(now_us, STUCK_US) or queue.is_stuck(now_us, STUCK_US):
                self._wake(queue)
            if queue.retry_us is not None and now_us >= queue.retry_us:
                queue.retry_us = None
                self._wake(queue)
        self._settle(acks)

    def _extend(self, queue: Queue, message: Message) -> None:
        """Give a message its whole time again; one that was taken back meanwhile is found out by its ack."""
        with suppress(HeadwaterError):
            message.extend(queue.timeout_s)
