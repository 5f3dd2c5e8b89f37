"""Traces with OpenTelemetry: a message's trace goes on where it is handled, as its context travels in its headers.

    from headwater import tracing

    bus = tracing.instrument(headwater.open("var/data"))
    bus.publish("home/kitchen/temp", b"21.5")          # a producer's span, named in the header `traceparent`

    @bus.handler("home/+/temp", id="thermostat")       # a consumer's span of each message, the child of that one
    def on_temp(message): ...

    with tracing.processing(message):                  # the same, where there is no handler
        ...

Headers are those of W3C, `traceparent` and `tracestate`, unless the program has set another propagator; spans and
attributes are those of the semantic conventions for messaging. A bus that is instrumented is of a class of its own,
so that any other bus pays nothing for it. Needs `pip install 'headwater[otel]'`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, TypeVar

import msgspec

from headwater import surface
from headwater.awaitables import BusOpening
from headwater.errors import Malformed
from headwater.message import Envelope, Outgoing, ScheduleInfo
from headwater.payload import Payload
from headwater.receipt import Receipt, Receipts
from headwater.requests import carried, pairs_of
from headwater.surface import GivenHeaders, Messages, like
from headwater.version import __version__
from headwater.work.handlers import Function, check_function

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Span, SpanKind, StatusCode
except ImportError as error:
    raise Malformed("traces need OpenTelemetry; install it with: pip install 'headwater[otel]'") from error

B = TypeVar("B")
R = TypeVar("R")
SYSTEM = "headwater"


def instrument(bus: B) -> B:
    """The same bus, which makes a span of each publish, and of each message that a handler handles which is registered
    from now on. One of `headwater.aio` may still be to be opened."""
    kind: Any = type(bus)
    if getattr(kind, "is_traced", False):
        return bus
    if isinstance(bus, BusOpening):
        make = bus._make

        async def opened() -> Any:
            return instrument(await make())

        bus._make = opened
        bus.__class__ = _traced_opening(kind)
    elif isinstance(bus, surface.Bus):
        bus.__class__ = _traced_tasks(kind) if inspect.iscoroutinefunction(kind.publish) else _traced_threads(kind)
    else:
        raise Malformed(f"instrument takes a bus of headwater.open or connect, not {kind.__name__}")
    return bus


@contextmanager
def processing(message: Envelope, *, subscription: str | None = None) -> Iterator[Span]:
    """A consumer's span, for as long as a message is handled: the child of what its headers name, and an error if one
    leaves the block. Its answer, `message.reply(…)`, carries it on."""
    attributes = {
        **_attributes("process", "process", (message.topic,)),
        "messaging.message.id": _id(message),
        "messaging.message.body.size": len(message.payload),
        "messaging.headwater.message.attempt": message.attempt,
    }
    if subscription is not None:
        attributes["messaging.destination.subscription.name"] = subscription
    token = context.attach(propagate.extract(dict(message.headers)))
    answering = carried.set(lambda: _carrying(()))
    try:
        with _span(f"process {message.topic}", SpanKind.CONSUMER, attributes) as span:
            yield span
            span.end()
    finally:
        carried.reset(answering)
        context.detach(token)


# Buses that are traced: classes that stand before the bus's own


@cache
def _traced_threads(kind: Any) -> Any:
    """A class of buses for threads that are traced."""

    class Traced(kind):  # type: ignore[misc]  # it is the class of a bus
        is_traced = True

        @like(surface.Bus.publish)
        def publish(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> Receipt:
            with _publishing("publish", (topic,)) as span:
                receipt: Receipt = super().publish(topic, payload, headers=_carrying(headers), **options)
                return _finish(span, receipt)

        @like(surface.Bus.publish_soon)
        def publish_soon(
            self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any
        ) -> Future[Receipt]:
            with _publishing("publish", (topic,)) as span:
                future: Future[Receipt] = super().publish_soon(topic, payload, headers=_carrying(headers), **options)
            future.add_done_callback(partial(_finish_later, span))
            return future

        @like(surface.Bus.publish_many)
        def publish_many(self, messages: Messages, **options: Any) -> Receipts:
            return self.publish_many_soon(messages, **options).result()

        @like(surface.Bus.publish_many_soon)
        def publish_many_soon(self, messages: Messages, **options: Any) -> Future[Receipts]:
            given = _listed(messages)
            with _publishing_many(given) as span:
                future: Future[Receipts] = super().publish_many_soon(_all_carrying(given), **options)
            future.add_done_callback(partial(_finish_later, span))
            return future

        @like(surface.Bus.send)
        def send(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> None:
            with _publishing("send", (topic,)) as span:
                super().send(topic, payload, headers=_carrying(headers), **options)
                span.end()

        @like(surface.Bus.schedule)
        def schedule(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> ScheduleInfo:
            with _publishing("schedule", (topic,), kind="create") as span:
                info: ScheduleInfo = super().schedule(topic, payload, headers=_carrying(headers), **options)
                return _finish(span, info)

        @like(surface.Bus.request)
        def request(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> Any:
            with _publishing("request", (topic,)) as span:
                return _finish(span, super().request(topic, payload, headers=_carrying(headers), **options))

        @like(surface.Bus.consume)
        def consume(self, filter: str, handler: Function, *, id: str | None = None, **options: Any) -> None:
            super().consume(filter, _traced(handler, id), id=id, **options)

    return _named(Traced, kind)


@cache
def _traced_tasks(kind: Any) -> Any:
    """A class of buses for asyncio that are traced; what they do soon is a task that does it."""

    class Traced(kind):  # type: ignore[misc]  # it is the class of a bus
        is_traced = True

        @like(surface.Bus.publish)
        async def publish(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> Receipt:
            with _publishing("publish", (topic,)) as span:
                receipt: Receipt = await super().publish(topic, payload, headers=_carrying(headers), **options)
                return _finish(span, receipt)

        @like(surface.Bus.publish_many)
        async def publish_many(self, messages: Messages, **options: Any) -> Receipts:
            given = _listed(messages)
            with _publishing_many(given) as span:
                receipts: Receipts = await super().publish_many(_all_carrying(given), **options)
                return _finish(span, receipts)

        @like(surface.Bus.send)
        async def send(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> None:
            with _publishing("send", (topic,)) as span:
                await super().send(topic, payload, headers=_carrying(headers), **options)
                span.end()

        @like(surface.Bus.schedule)
        async def schedule(
            self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any
        ) -> ScheduleInfo:
            with _publishing("schedule", (topic,), kind="create") as span:
                info: ScheduleInfo = await super().schedule(topic, payload, headers=_carrying(headers), **options)
                return _finish(span, info)

        @like(surface.Bus.request)
        async def request(self, topic: str, payload: Payload, *, headers: GivenHeaders = (), **options: Any) -> Any:
            with _publishing("request", (topic,)) as span:
                return _finish(span, await super().request(topic, payload, headers=_carrying(headers), **options))

        @like(surface.Bus.consume)
        def consume(self, filter: str, handler: Function, *, id: str | None = None, **options: Any) -> None:
            super().consume(filter, _traced_soon(handler, id), id=id, **options)

    return _named(Traced, kind)


@cache
def _traced_opening(kind: Any) -> Any:
    """A class of what opens a bus for asyncio, whose handlers are traced."""

    class Traced(kind):  # type: ignore[misc]  # it is the class of an opening
        is_traced = True

        @like(surface.Bus.consume)
        def consume(self, filter: str, handler: Function, *, id: str | None = None, **options: Any) -> None:
            super().consume(filter, _traced_soon(handler, id), id=id, **options)

    return _named(Traced, kind)


def _named(traced: Any, kind: Any) -> Any:
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(traced, name, getattr(kind, name))
    return traced


def _traced(handler: Function, subscription: str | None) -> Function:
    check_function(handler, is_asynchronous=False)

    @wraps(handler)
    def handle(message: Any) -> Any:
        with processing(message, subscription=subscription):
            return handler(message)

    return handle


def _traced_soon(handler: Function, subscription: str | None) -> Function:
    check_function(handler, is_asynchronous=True)

    @wraps(handler)
    async def handle(message: Any) -> Any:
        with processing(message, subscription=subscription):
            return await handler(message)

    return handle


# Spans


@contextmanager
def _span(name: str, kind: SpanKind, attributes: dict[str, Any]) -> Iterator[Span]:
    """A span that is the current one in the block; an error that leaves it ends it, else whoever has it does."""
    span = trace.get_tracer(SYSTEM, __version__).start_span(name, kind=kind, attributes=attributes)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    except BaseException as error:
        _fail(span, error)
        raise


def _publishing(operation: str, topics: Sequence[str], *, kind: str = "send", count: int | None = None) -> Any:
    attributes = _attributes(operation, kind, topics)
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    topic = attributes.get("messaging.destination.name")
    return _span(operation if topic is None else f"{operation} {topic}", SpanKind.PRODUCER, attributes)


def _publishing_many(messages: Any) -> Any:
    topics = [one.topic for one in messages if isinstance(one, Outgoing)] if isinstance(messages, list) else []
    return _publishing("publish", topics, count=len(topics))


def _attributes(operation: str, kind: str, topics: Sequence[str]) -> dict[str, Any]:
    """What the conventions say of each span; a batch of several topics has no single destination."""
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if topics and all(topic == topics[0] for topic in topics):
        attributes["messaging.destination.name"] = str(topics[0])
    return attributes


def _id(message: Envelope | Receipt) -> str:
    return f"{message.topic.partition('/')[0]}/{message.offset}"


def _finish(span: Span, result: R) -> R:
    """End the span of a publish that was stored, with the message's id where it is known."""
    if isinstance(result, Receipt) and result.offset:
        span.set_attribute("messaging.message.id", _id(result))
    span.end()
    return result


def _finish_later(span: Span, future: Future[Any]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _fail(span, error)
    else:
        _finish(span, None if future.cancelled() else future.result())


def _fail(span: Span, error: BaseException) -> None:
    if isinstance(error, Exception):  # that a task is cancelled, or a program ended, is no error
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()


# The context in headers


def _carrying(headers: GivenHeaders) -> Any:
    """Headers with the current context, in place of another that they may carry."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return headers
    stale = propagate.get_global_textmap().fields
    try:
        return (*((name, value) for name, value in pairs_of(headers) if name not in stale), *carrier.items())
    except (TypeError, ValueError):
        return headers  # whoever checks them says what is wrong


def _listed(messages: Messages) -> Any:
    """Messages of one publish as a list of `Outgoing`s; what is none stays, for whoever checks it."""
    try:
        given = iter(messages)
    except TypeError:
        return messages
    return [one if isinstance(one, Outgoing) else _outgoing(one) for one in given]


def _outgoing(message: Any) -> Any:
    try:
        topic, payload = message
    except (TypeError, ValueError):
        return message
    return Outgoing(topic, payload)


def _all_carrying(messages: Any) -> Any:
    if not isinstance(messages, list):
        return messages
    return [
        msgspec.structs.replace(one, headers=_carrying(one.headers)) if isinstance(one, Outgoing) else one
        for one in messages
    ]


__all__ = ["instrument", "processing"]
