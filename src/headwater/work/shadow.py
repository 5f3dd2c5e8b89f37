"""A shadow of a subscription: recorded messages are handled by new code, and nothing that it says leaves the shadow.

Promises:

- The subscription is read and never changed: its messages are replayed, not taken.
- What the code does through its bus, in the thread or task that handles a message, is noted and not done; acks, nacks
  and replies of the message go to the shadow. What it does elsewhere (a database, another thread) is done.
- A message that fails is tried again at once, as often as the subscription says, before the next: none overtakes it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock, to_datetime
from headwater.delivery.life import LifeEntry
from headwater.errors import Conflict, Malformed, TimedOut
from headwater.log.checks import Checks
from headwater.message import Envelope, Outgoing, Receipt
from headwater.message import Message as ThreadMessage
from headwater.receipt import Receipts
from headwater.requests import answer_headers
from headwater.topics.name import root_of
from headwater.verdicts import Verdict, error_text, verdict_of
from headwater.work.comparison import (
    TEXT_CHARS_MAX,
    Comparison,
    Outcome,
    Published,
    Recorded,
    Trial,
    compared,
    published_of,
)
from headwater.work.handlers import Function, Handler, check_function
from headwater.work.past import Past

MESSAGES_MAX = 100_000
"""Messages that are tried, unless more are asked for."""

Tries = Generator[ThreadMessage, BaseException | None, Outcome]
"""Gives a message to handle, takes what the handler raised, and again; ends with what became of it."""


class Hearing:
    """What the code says while it handles a message: the message's origin, and what its bus is asked for."""

    def __init__(self, checks: Checks, clock: Clock) -> None:
        self._checks = checks
        self._clock = clock
        self.published: list[Published] = []
        self.verdict: Verdict | None = None
        """What was said of the message, if that was no ack."""
        self.is_acked = False

    # Of the message

    def ack(self, messages: Sequence[ThreadMessage], wait: bool) -> None:
        """It is done."""
        if self.verdict is None:
            self.is_acked = True

    def nack(self, message: ThreadMessage, error: str | BaseException, delay_s: float | None) -> None:
        """It failed this time."""
        self._judge(Verdict(error_text(error), delay_s))

    def reject(self, message: ThreadMessage, error: str | BaseException) -> None:
        """It will never succeed."""
        self._judge(Verdict(error_text(error), is_final=True))

    def extend(self, message: ThreadMessage, seconds: float) -> None:
        """Nobody waits for it."""

    def reply(self, message: ThreadMessage, payload: bytes) -> Receipt:
        """An answer, which goes nowhere."""
        return self._note("reply", answer_headers(message)[0], payload)

    def _judge(self, verdict: Verdict) -> None:
        if not self.is_acked and self.verdict is None:
            self.verdict = verdict

    # Of the bus

    def publish(self, topic: str, payload: bytes, **options: Any) -> Receipt:
        """A message that would be stored, if nothing is wrong with it."""
        return self._note("publish", topic, payload, **options)

    def publish_many(self, messages: Any, *, producer: str | None = None, sequence: int | None = None) -> Receipts:
        """The same with several."""
        if producer is not None or sequence is not None:
            self._checks.sequence(producer, sequence)
        given = [one if isinstance(one, Outgoing) else Outgoing(*one) for one in messages]
        for one in given:
            self._note("publish", **msgspec.structs.asdict(one))
        return Receipts([one.topic for one in given], [(range(len(given)), 0, self._clock.now_us(), False)])

    def publish_soon(self, topic: str, payload: bytes, **options: Any) -> Future[Receipt]:
        """The same, done already."""
        return _done(self.publish(topic, payload, **options))

    def publish_many_soon(self, messages: Any, **options: Any) -> Future[Receipts]:
        """The same, done already."""
        return _done(self.publish_many(messages, **options))

    def send(self, topic: str, payload: bytes, **options: Any) -> None:
        """A message that would be sent."""
        self._note("send", topic, payload, **options)

    def request(self, topic: str, payload: bytes, *, headers: Any = (), **_: Any) -> Any:
        """A question, which nobody hears."""
        self._note("request", topic, payload, headers=headers)
        raise TimedOut(f'nobody answers on "{topic}" in a what-if: requests are noted and not sent')

    def _note(self, verb: str, topic: str, payload: bytes, **options: Any) -> Receipt:
        """A message as it would be on disk."""
        (part,) = self._checks.one(topic, payload, **options).parts
        self.published.append(published_of(verb, topic, part.payloads[0], part.keys[0] if part.keys else None))
        return Receipt(topic, 0, self._clock.now_us())


class Search(NamedTuple):
    """Something that is to be read of what is recorded."""

    filter: str
    since: datetime
    take: Callable[[ThreadMessage], None]
    what: str


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


HEARD = ("publish", "publish_many", "publish_soon", "publish_many_soon", "send", "request")
"""What a bus is asked for that is noted;"""
REFUSED = (
    *("subscribe", "unsubscribe", "schedule", "unschedule", "stage", "stage_body", "commit_stage", "drop_stage"),
    *("redrive", "mend", "redrive_mended", "drop_mended", "drop_dead_letters", "purge", "remove_root", "backup"),
    *("erase", "mark_archived", "run", "request_soon", "schema", "remove_schema", "stage_prepared"),
    *("show_progress", "close"),
)
"""and that is refused, as the code would go on from what is not so."""
REGISTERED = ("handler", "consume")
"""What a module says of its handlers, where nobody else is to use its bus: they are not run."""

_hearing: ContextVar[Hearing | None] = ContextVar("what-if", default=None)
_shadowed: Counter[int] = Counter()
"""Buses that are listened to, by their identity, and for how many what-ifs."""
_lock = threads.Lock()


@contextmanager
def listened_to(bus: Any, *, is_asynchronous: bool, is_alone: bool = False) -> Iterator[None]:
    """Have what handlers ask a bus for meanwhile go to the shadow. Others go on as ever, unless nobody else is to use
    it: then nothing is done of what they ask for."""
    with _lock:
        _shadowed[id(bus)] += 1
        for name in (*HEARD, *REFUSED):
            if name not in vars(bus) and hasattr(bus, name):
                vars(bus)[name] = _instead(name, None if is_alone else getattr(bus, name), is_asynchronous)
        if is_alone:
            vars(bus).update(handler=lambda *_, **__: lambda function: function, consume=lambda *_, **__: None)
    try:
        yield
    finally:
        with _lock:
            _shadowed[id(bus)] -= 1
            if not _shadowed[id(bus)]:
                del _shadowed[id(bus)]
                for name in (*HEARD, *REFUSED, *REGISTERED):
                    vars(bus).pop(name, None)


def _instead(name: str, really: Callable[..., Any] | None, is_asynchronous: bool) -> Callable[..., Any]:
    """What is called in place of a method, which is called for everybody but handlers, if there is one."""

    def call(*given: Any, **options: Any) -> Any:
        hearing = _hearing.get()
        if hearing is None:
            return None if really is None else really(*given, **options)
        if name in REFUSED:
            raise Conflict(f"bus.{name} is not done in a what-if, where a handler may publish and no more")
        return getattr(hearing, name)(*given, **options)

    async def wait(*given: Any, **options: Any) -> Any:
        found = call(*given, **options)
        return await found if inspect.isawaitable(found) else found

    def soon(*given: Any, **options: Any) -> Any:
        import asyncio  # a bus for threads does without

        found = call(*given, **options)
        return asyncio.wrap_future(found) if isinstance(found, Future) else found

    if not is_asynchronous or name == "subscribe":
        return call
    return soon if name.endswith("_soon") else wait


class Shadow:
    """What becomes of recorded messages in new code."""

    def __init__(
        self,
        past: Past,
        handler: Function,
        against: Function | None,
        checks: Checks,
        clock: Clock,
        messages_max: int,
        *,
        is_asynchronous: bool,
    ) -> None:
        if type(messages_max) is not int or messages_max < 1:
            raise Malformed(f"messages_max is {messages_max!r}; use 1 or more")
        for function in (handler, against):
            if function is not None:
                check_function(function, is_asynchronous=is_asynchronous)
        self.past = past
        self._handler = handler
        self._against = against
        self._checks = checks
        self._clock = clock
        self._messages_max = messages_max
        self._trials: list[Trial] = []
        self._notes: list[str] = []
        self._recorded = Recorded()
        self.is_cut = False

    @property
    def codes(self) -> list[Function]:
        """What each message is handled by, in turn: the other code, if there is one, and the new."""
        return [self._handler] if self._against is None else [self._against, self._handler]

    def wants(self) -> bool:
        """Whether one more message is to be tried."""
        self.is_cut = len(self._trials) >= self._messages_max
        return not self.is_cut

    def miss(self, what: str) -> None:
        """Something could not be read."""
        self._notes.append(what)

    def tries(self, message: ThreadMessage) -> Tries:
        """Have a message handled until it is acked or dead."""
        published: list[Published] = []
        first_us: int | None = None
        text = None
        attempt = 0
        while True:
            attempt += 1
            hearing = Hearing(self._checks, self._clock)
            given = msgspec.structs.replace(message, origin=hearing, attempt=attempt, retained=False)
            began_us = self._clock.monotonic_us()
            token = _hearing.set(hearing)
            try:
                error = yield given
            finally:
                _hearing.reset(token)
            first_us = self._clock.monotonic_us() - began_us if first_us is None else first_us
            published += hearing.published
            verdict = hearing.verdict
            if error is not None and not hearing.is_acked and verdict is None:
                trace = error.__traceback__
                verdict = verdict_of(error, trace.tb_next if trace is not None else None)  # the first call is ours
            if verdict is None:
                return Outcome("acked", attempt, text, first_us, tuple(published))
            text = verdict.text[:TEXT_CHARS_MAX]
            if verdict.is_final or attempt >= self.past.attempts_max:
                return Outcome("dead", attempt, text, first_us, tuple(published))

    def note(self, message: ThreadMessage, outcomes: Sequence[Outcome]) -> None:
        """What became of a message, by each code."""
        before, after = outcomes[0], outcomes[-1]
        self._trials.append(Trial(message.topic, message.offset, message.time_us, before, after))
        if self._against is None:
            self.past.ask(message.root, message.offset)
            self._recorded.expect(after.published or ())

    # What happened

    @property
    def searches(self) -> list[Search]:
        """What is to be read once all messages are tried: what became of them, and where what the code would publish
        may be recorded."""
        if self._against is not None or not self._trials:
            return []
        first = to_datetime(min(trial.time_us for trial in self._trials))
        found = [Search(wanted, first, self._recorded.add, "what was published") for wanted in self._recorded.filters]
        if self.past.told_on is not None:
            found.append(Search(self.past.told_on, first, self._tell, "what became of each message"))
        return found

    def _tell(self, message: Envelope) -> None:
        self.past.tell(message.json(LifeEntry))

    def _as_it_happened(self, trial: Trial) -> Trial:
        return msgspec.structs.replace(trial, before=self.past.of(root_of(trial.topic), trial.offset))

    def comparison(self) -> Comparison:
        """All of it."""
        options, other = self.past.options, self._against
        limit_us = round(options.ack_timeout_s * SECOND_US)
        if other is None:
            trials = compared(list(map(self._as_it_happened, self._trials)), self._recorded, limit_us)
        else:
            trials = compared(self._trials, None, limit_us)
        if self.past.lost:
            self.miss(
                f"{self.past.lost:,} entries of what became of messages are missing, so that not all attempts and "
                "errors are known"
            )
        ends = Counter(f"{trial.before.end} → {trial.after.end}" for trial in trials)
        counts = Counter(change for trial in trials for change in trial.changes)
        return Comparison(
            subscription=options.id,
            filter=options.filter,
            handler=Handler(self._handler, options.filter).name,
            against=None if other is None else Handler(other, options.filter).name,
            messages=len(trials),
            is_cut=self.is_cut,
            counts={change: counts[change] for change in ("fails", "succeeds", "retries", "publishes", "longer")},
            ends=dict(sorted(ends.items())),
            trials=trials,
            notes=tuple(self._notes),
        )


def plain_envelope(message: Envelope) -> ThreadMessage:
    """A recorded message without where it came from."""
    found = ThreadMessage(*(getattr(message, name) for name in Envelope.__struct_fields__))
    return msgspec.structs.replace(found, origin=None)
