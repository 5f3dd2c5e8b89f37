"""A subscription as workers see it: what was taken of it and waits for its turn, in the order that it asks for.

No I/O but the reader that it polls, no threads. Promises:

- strict, and live ones unless more workers are stated: one message at a time.
- key: messages of one key one after another; each is in the same job as those before it of its key.
- What is known to be recalled behind a message that failed is not handed to a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headwater import threads
from headwater.clock import SECOND_US
from headwater.delivery.options import Options
from headwater.errors import Failed, Gap, HeadwaterError
from headwater.message import Envelope
from headwater.work.handlers import Handler
from headwater.work.pace import SIZE_MAX, Pace
from headwater.work.shift import Tally

JOBS_PER_WORKER = 4
"""Of a keyed subscription, so that few keys wait for another one of their job."""
WAITING_MAX = 1000
"""Messages of a keyed subscription that may wait here: beyond it, none are taken."""
NEVER_US = 1 << 62
RETRY_US = SECOND_US
"""After a subscription could not be read, it is read again."""
PROBE_S = 86_400.0
"""What messages that never time out are extended by, to find out whether they are ours: none waits here for so long."""
ALONE_US = 2_000
"""What takes less than this, one worker does alone: to wake another takes about as long."""


class Job:
    """Messages that one worker handles one after another."""

    __slots__ = ("began_us", "done", "is_busy", "messages", "timed_us")

    def __init__(self, messages: Iterable[Any] = (), timed_us: int = 0) -> None:
        self.messages: deque[Any] = deque(messages)
        self.done: deque[Any] = deque()
        """Handled, and not acked yet."""
        self.timed_us = timed_us
        """When the ack timers of the oldest of these began."""
        self.is_busy = False
        """Whether a worker is at it,"""
        self.began_us = 0
        """and since when it is at its present message."""

    def taken_done(self) -> list[Any]:
        """What was handled, to be acked by whoever asks: its worker, or others while that is stuck in a message."""
        found: list[Any] = []
        done = self.done
        while done:
            try:
                found.append(done.popleft())
            except IndexError:
                break
        return found


class Queue:
    """One handler's subscription, being worked on."""

    def __init__(self, handler: Handler, reader: Any, poll: Callable[[int], Sequence[Any]], workers: int) -> None:
        """`poll` takes up to so many messages without waiting; `workers` is how many there are in all."""
        self.handler = handler
        self.reader = reader
        self._poll = poll
        self.tally = Tally(handler.name, handler.subscription)
        self.pace = Pace()
        self.is_durable = handler.is_durable
        options = options_of(handler, reader)
        self.order = "none" if options is None else options.order
        self.timeout_us = 0 if options is None else round(options.ack_timeout_s * SECOND_US)
        self.limit = min(workers, handler.workers or (workers if self.is_durable else 1))
        if self.order == "strict":
            self.limit = 1
        self.lock = threads.Lock()
        self.is_queued = False
        """Whether it waits for a worker."""
        self.workers = 0
        """Who are at it."""
        self.is_more = False
        """Whether there was something new for it while none could be added."""
        self.is_over = False
        """Whether nothing will come any more."""
        self.retry_us: int | None = None
        """When to look again, after it could not be read."""
        self.failing = 0
        """Messages of which it is being said that they failed: nothing is taken meanwhile."""
        self._jobs = [Job() for _ in range(JOBS_PER_WORKER * self.limit)] if self._is_split else []
        self._turn = 0
        self._loose: deque[Job] = deque()
        """Jobs of an unordered subscription that their worker does not get to."""
        self.busy: list[Job] = []
        """Those that workers are at."""

    @property
    def _is_split(self) -> bool:
        return self.order == "key" and self.limit > 1

    def share(self, job: Job) -> int:
        """How many messages of a job are one turn: a keyed one is filled while it is worked on."""
        return min(len(job.messages), self.pace.size) if self._jobs else len(job.messages)

    @property
    def timeout_s(self) -> float:
        """The ack timeout."""
        return self.timeout_us / SECOND_US

    # Taking

    def take(self, now_us: int) -> Job | None:
        """Something for a worker to do, if there is any."""
        with self.lock:
            job = self._next_job()
            if job is None and not self.failing:
                job = self._take_more(now_us)
            if job is not None:
                job.is_busy = True
                job.began_us = now_us
                self.busy.append(job)
            return job

    def goes_on(self, error: HeadwaterError, now_us: int) -> bool:
        """It could not be read: whether it will be again, behind a gap at once, and in a moment where that may help."""
        if isinstance(error, Gap):  # told once
            self.is_more = True
            return True
        if not (error.retryable or isinstance(error, Failed)):
            return False
        self.rest(now_us)
        return True

    def rest(self, now_us: int) -> None:
        """Something went wrong: it is looked at again in a moment."""
        self.retry_us = now_us + RETRY_US

    def _take_more(self, now_us: int) -> Job | None:
        if not self._jobs:
            found = self._poll(self.pace.size)
            return Job(found, now_us) if found else None
        room = WAITING_MAX - sum(len(job.messages) for job in self._jobs)
        if room <= 0:
            return None
        for message in self._poll(min(self.pace.size * self.limit, SIZE_MAX, room)):
            job = self._jobs[hash(key_of(message)) % len(self._jobs)]
            if not job.messages:
                job.timed_us = now_us
            job.messages.append(message)
        return self._next_job()

    def _next_job(self) -> Job | None:
        if self._loose:
            return self._loose.popleft()
        for step in range(len(self._jobs)):
            job = self._jobs[(self._turn + step) % len(self._jobs)]
            if job.messages and not job.is_busy:
                self._turn += step + 1
                return job
        return None

    @property
    def wants_another(self) -> bool:
        """Whether one more worker should look, while those who are at it work."""
        with self.lock:
            waiting = sum(len(job.messages) for job in (*self.busy, *self._loose))
            waiting += sum(len(job.messages) for job in self._jobs if not job.is_busy)
        return waiting * self.pace.each_us > ALONE_US

    def leave(self, job: Job) -> bool:
        """A worker is done with a job, or has had its turn; whether something of the queue waits."""
        with self.lock:
            job.is_busy = False
            self.busy.remove(job)
            if job.messages and not self._jobs:
                self._loose.append(job)
            return bool(self._loose) or any(one.messages and not one.is_busy for one in self._jobs)

    def loosen(self, now_us: int, stuck_us: int) -> bool:
        """Let others have what waits behind a message that takes its time; whether there is something."""
        if self.order != "none" or self.limit == 1:
            return False
        with self.lock:
            for job in self.busy:
                if job.messages and now_us - job.began_us > stuck_us:
                    self._loose.append(Job(_emptied(job.messages), job.timed_us))
            return bool(self._loose)

    def left_done(self, now_us: int, stuck_us: int) -> list[Any]:
        """What was handled before messages that take their time."""
        with self.lock:
            stuck = [job for job in self.busy if job.done and now_us - job.began_us > stuck_us]
        return [message for job in stuck for message in job.taken_done()]

    def is_stuck(self, now_us: int, stuck_us: int) -> bool:
        """Whether all who are at it have been at their present message for so long."""
        with self.lock:
            return bool(self.busy) and all(now_us - job.began_us > stuck_us for job in self.busy)

    # Failing

    def begin_failing(self) -> None:
        """A message is about to be nacked."""
        with self.lock:
            self.failing += 1

    def behind(self, job: Job, messages: Sequence[Envelope]) -> list[list[Any]]:
        """What a job has of what order puts behind these messages, chain by chain, each in its order."""
        if self.order == "none" or not messages:
            return []
        with self.lock:
            if self.order == "strict":
                return [list(job.messages)]
            chains: dict[bytes | str, list[Any]] = {key_of(message): [] for message in messages}
            for message in job.messages:
                chain = chains.get(key_of(message))
                if chain is not None:
                    chain.append(message)
            return list(chains.values())

    def end_failing(self, job: Job, recalled: Iterable[Any] = ()) -> None:
        """It was said, and these were recalled with it: they come again, and are dropped here."""
        gone = {id(message) for message in recalled}
        with self.lock:
            self.failing -= 1
            if gone:
                left = [message for message in job.messages if id(message) not in gone]
                job.messages.clear()
                job.messages.extend(left)

    # Ack timers

    def untimed(self, now_us: int) -> list[Any]:
        """Messages that wait here for so long that they need more time, which they are taken to get now."""
        if not self.timeout_us:
            return []
        found: list[Any] = []
        with self.lock:
            for job in {id(job): job for job in (*self.busy, *self._loose, *self._jobs)}.values():
                if job.messages and now_us - job.timed_us > self.timeout_us // 3:
                    found += job.messages
                    job.timed_us = now_us
        return found

    @property
    def probe_s(self) -> float:
        """By how much a message is extended to find out whether it is still ours."""
        return self.timeout_s or PROBE_S

    @property
    def late_us(self) -> int:
        """A message that is begun this long after its ack timer needs more time."""
        return self.timeout_us // 4 or NEVER_US

    # Figures

    def count(self, *, done: int = 0, retried: int = 0, rejected: int = 0, recalled: int = 0, busy_us: int = 0) -> None:
        """So many more."""
        with self.lock:
            tally = self.tally
            tally.done += done
            tally.retried += retried
            tally.rejected += rejected
            tally.recalled += recalled
            tally.busy_us += busy_us


def options_of(handler: Handler, reader: Any) -> Options | None:
    """Those of a durable subscription; what nobody has stated is as for a new one, where it cannot be told."""
    if not handler.is_durable:
        return None
    stored: Options | None = getattr(reader, "options", None)
    return stored or handler.stated_options


def key_of(message: Envelope) -> bytes | str:
    """What order="key" goes by."""
    return message.topic if message.key is None else message.key


def _emptied(messages: deque[Any]) -> deque[Any]:
    """All that is in a deque, taken out of it from behind, while its worker may take from the front."""
    found: deque[Any] = deque()
    while messages:
        try:
            found.appendleft(messages.pop())
        except IndexError:
            break
    return found
