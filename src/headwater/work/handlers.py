"""Handlers as they were registered: which function handles the messages of which subscription.

What is wrong with one is said when it is registered, and then nothing has changed. Subscriptions are made when the
handlers are run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

import msgspec

from headwater import threads
from headwater.config import Config
from headwater.delivery.options import (
    Options,
    SubscriptionKind,
    check_none_of_live,
    check_not_of_channel,
    check_when_full,
    kind_of,
    stated,
)
from headwater.delivery.start import Start, check_start
from headwater.errors import Conflict, Malformed
from headwater.topics.name import check_filter

Function = Callable[[Any], Any]
"""What handles a message: nothing is made of its result, and with asyncio it is a coroutine function."""
H = TypeVar("H", bound=Function)

SESSIONS_OWN = "session"
"""Stands for the id of a session's own subscription, which it gets where it is made."""
WORKERS_MAX = 10_000
"""More at once: Malformed (422)."""


class Handler(msgspec.Struct, frozen=True):
    """A function, and the subscription whose messages it handles."""

    function: Function
    filter: str
    id: str | None = None
    kind: SubscriptionKind = "live"
    workers: int | None = None
    """How many of its messages may be handled at once; None for as many as there are workers."""
    start: Start = "latest"
    when_full: str = "drop_oldest"
    options: Mapping[str, Any] = {}
    """What was stated about the durable subscription."""

    @property
    def name(self) -> str:
        """The function's, with its module."""
        named = inspect.unwrap(getattr(self.function, "func", self.function))
        name = getattr(named, "__qualname__", type(named).__qualname__)
        return f"{getattr(named, '__module__', '')}.{name}"

    @property
    def is_durable(self) -> bool:
        """Whether what becomes of a message is kept."""
        return self.kind != "live"

    @property
    def subscription(self) -> str:
        """By what it is known: its id, or the filter of one that has none."""
        return self.filter if self.id is None else self.id

    @property
    def asked(self) -> dict[str, Any]:
        """What `bus.subscribe` is asked for."""
        if not self.is_durable:
            return {"filter": self.filter, "when_full": self.when_full}
        named = {"kind": self.kind} if self.id is None else {"id": self.id}
        return {"filter": self.filter, **named, "start": self.start, **self.options}

    def shares_with(self, other: Handler) -> bool:
        """Whether both would take from one subscription."""
        return self.is_durable and (self.kind, self.subscription) == (other.kind, other.subscription)

    @property
    def stated_options(self) -> Options:
        """Those of its durable subscription, as they were stated."""
        return Options(id=SESSIONS_OWN if self.id is None else self.id, filter=self.filter, **self.options)

    def check(self, config: Config, *, is_asynchronous: bool) -> None:
        """Malformed (422), or Conflict for an id that is not for users, unless all of it can be right."""
        check_filter(self.filter, config)
        check_start(self.filter, self.start)
        check_when_full(self.when_full, self.kind)
        if not self.is_durable:
            check_none_of_live(self.options, self.start)
        else:
            check_not_of_channel(self.id)
            self.stated_options.check(config)
        if self.workers is not None:
            check_workers(self.workers)
        check_function(self.function, is_asynchronous=is_asynchronous)


def handler_of(
    filter: str,
    function: Function,
    *,
    id: str | None = None,
    kind: SubscriptionKind | None = None,
    workers: int | None = None,
    start: Start = "latest",
    when_full: str = "drop_oldest",
    **options: Any,
) -> Handler:
    """A handler, with those of its options that were stated."""
    return Handler(function, filter, id, kind_of(kind, id), workers, start, when_full, stated(options))


def decorator(consume: Callable[..., None], filter: object, options: dict[str, Any]) -> Callable[[H], H]:
    """What `@bus.handler("home/#", id="thermostat")` is: it registers a function, and leaves it as it is. Malformed
    (422) where the parentheses were left out."""
    if callable(filter):
        raise Malformed(
            f"@bus.handler stands above {getattr(filter, '__qualname__', repr(filter))} without a filter; "
            'say which messages it is for: @bus.handler("home/#", id="…")'
        )

    def register(function: H) -> H:
        consume(filter, function, **options)
        return function

    return register


def check_workers(workers: object) -> None:
    """Malformed (422) unless so many can work at once."""
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise Malformed(f"workers is {workers!r}; use 1 to {WORKERS_MAX}")


def check_function(function: object, *, is_asynchronous: bool) -> None:
    """Malformed (422) unless it can be called with a message, and nothing else."""
    if not callable(function):
        raise Malformed(f"a handler is a function of one message, not {type(function).__name__}")
    name = getattr(function, "__qualname__", repr(function))
    called = getattr(type(function), "__call__", None)  # noqa: B004  # that it is callable is known
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in (function, called)):
        raise Malformed(f"handler {name} yields, and would never be run; return, and publish what is to be sent on")
    if any(map(inspect.iscoroutinefunction, (function, called))) is not is_asynchronous:
        raise Malformed(
            f"handler {name} is no coroutine function; write async def, or use a bus of headwater.open or connect"
            if is_asynchronous
            else f"handler {name} is a coroutine function; use a bus of headwater.aio, or write def"
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # one that is not written in Python, and does not tell
    try:
        signature.bind(object())
    except TypeError as error:
        raise Malformed(f"handler {name}{signature} cannot be called with a message alone: {error}") from None


def check_run(result: object) -> None:
    """Malformed (422) if a handler returned what was to be run, and nobody has."""
    if isinstance(result, CoroutineType):
        result.close()  # or Python warns that nobody awaited it
    elif not isinstance(result, GeneratorType | AsyncGeneratorType):
        return
    raise Malformed(
        f"it returned a {type(result).__name__.replace('_', ' ')}, {result.__qualname__}, which nobody runs, so that "
        "nothing was done; await it, as a coroutine function on a bus of headwater.aio, or run it in the handler"
    )


class Handlers:
    """The handlers of one bus."""

    def __init__(self, *, is_asynchronous: bool, check_open: Callable[[], None] | None = None) -> None:
        self.is_asynchronous = is_asynchronous
        self._check_open = check_open
        self._lock = threads.Lock()
        self._handlers: list[Handler] = []
        self._on_added: Callable[[Handler], Any] | None = None
        """Hears of those that are added while handlers are run."""

    def begin(self, on_added: Callable[[Handler], Any]) -> list[Handler]:
        """Those that are to be run; whoever runs them hears of each one that is added from now on."""
        with self._lock:
            self._on_added = on_added
            return list(self._handlers)

    def end(self) -> None:
        """They are not run any more."""
        self._on_added = None

    @property
    def all(self) -> list[Handler]:
        """In the order in which they were registered."""
        with self._lock:
            return list(self._handlers)

    def add(self, handler: Handler, config: Config) -> None:
        """One more; Conflict (409) if another stands for its id."""
        if self._check_open is not None:
            self._check_open()
        handler.check(config, is_asynchronous=self.is_asynchronous)
        with self._lock:
            place = self._place_of(handler)
            if place is None:
                self._handlers.append(handler)
            else:
                self._handlers[place] = handler
            on_added = self._on_added
        if on_added is not None:
            try:
                on_added(handler)
            except BaseException:
                with self._lock:
                    self._handlers.remove(handler)
                raise

    def _place_of(self, handler: Handler) -> int | None:
        """Where the very same is: what was defined again, as in a cell of a notebook or a module that is loaded twice,
        takes its place."""
        for place, known in enumerate(self._handlers):
            if not known.shares_with(handler):
                continue
            if (known.name, known.asked, known.workers) == (handler.name, handler.asked, handler.workers):
                return place
            differs = [name for name, value in known.asked.items() if handler.asked.get(name) != value]
            differs += [name for name in handler.asked if name not in known.asked]
            differs += ["workers"] if known.workers != handler.workers else []
            what = f"with another {', '.join(differs)}" if differs else "already"
            advice = "subscribe with an id" if handler.id is None else f"give {handler.name} an id of its own"
            raise Conflict(f'subscription "{handler.subscription}" has the handler {known.name} {what}; {advice}')
        return None
