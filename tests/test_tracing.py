"""Traces: what is published, handled, and published by a handler is one trace, as the SDK exports it."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import headwater
import headwater.aio
from client.served import Served
from headwater import Malformed, Outgoing, Reject, tracing
from headwater.awaitables import BusOpening

WAIT_S = 60.0
TOPIC = "home/kitchen/temp"
STALE = f"00-{1:032x}-{2:016x}-01"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.fixture(params=["embedded", "served"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    """Of a server, or None for a bus in memory."""
    if request.param == "embedded":
        yield None
        return
    with Served(tmp_path / "data") as served:
        yield served.url


@pytest.fixture
def bus(url: str | None) -> Iterator[Any]:
    with headwater.open(":memory:") if url is None else headwater.connect(url) as opened:
        yield tracing.instrument(opened)


def opening(url: str | None) -> BusOpening[Any]:
    """A bus for asyncio that is still to be opened."""
    return headwater.aio.open(":memory:") if url is None else headwater.aio.connect(url)


def one(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The span of a name, once it has ended: a future tells those who wait for it before what is called back."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = [span for span in exporter.get_finished_spans() if span.name == name]
        if found or time.monotonic() > deadline:
            (span,) = found
            return span
        time.sleep(0.001)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    is_of_trace = span.context.trace_id == parent.context.trace_id
    return is_of_trace and span.parent is not None and span.parent.span_id == parent.context.span_id


def named_in(message: Any, span: ReadableSpan) -> bool:
    """Whether a message carries the context of a span."""
    assert span.context is not None
    _, trace_id, span_id, _ = message.headers["traceparent"].split("-")
    return (int(trace_id, 16), int(span_id, 16)) == (span.context.trace_id, span.context.span_id)


def is_one_trace(exporter: InMemorySpanExporter) -> bool:
    """Whether the flow of both tests below was told as it was."""
    published, handled = one(exporter, f"publish {TOPIC}"), one(exporter, f"process {TOPIC}")
    onward = one(exporter, "publish alerts/kitchen")
    assert [span.kind for span in (published, handled, onward)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.PRODUCER,
    ]
    assert dict(published.attributes or {}) == {
        "messaging.system": "headwater",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.message.id": "home/1",
    }
    assert dict(handled.attributes or {}) == {
        "messaging.system": "headwater",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.destination.subscription.name": "thermostat",
        "messaging.message.id": "home/1",
        "messaging.message.body.size": 4,
        "messaging.headwater.message.attempt": 1,
    }
    return published.parent is None and is_child(handled, published) and is_child(onward, handled)


def test_a_trace_goes_from_publish_through_a_handler_to_what_it_publishes(
    bus: headwater.Bus, exported: InMemorySpanExporter
) -> None:
    headers = []

    @bus.handler("home/+/temp", id="thermostat", start="earliest")
    def on_temp(message: headwater.Message) -> None:
        headers.append(dict(message.headers))
        bus.publish("alerts/kitchen", b"warm")
        bus.stop()

    bus.publish(TOPIC, b"21.5", headers={"unit": "C", "traceparent": STALE, "tracestate": "a=b"})
    assert bus.run().done == 1
    assert is_one_trace(exported)
    assert headers[0].keys() == {"unit", "traceparent"}, "a context that was there before is replaced, all of it"


def test_a_trace_goes_the_same_way_with_asyncio_and_handlers_registered_before_opening(
    url: str | None, exported: InMemorySpanExporter
) -> None:
    async def work() -> None:
        unopened = tracing.instrument(opening(url))
        running: list[Any] = []

        @unopened.handler("home/+/temp", id="thermostat", start="earliest")
        async def on_temp(message: headwater.aio.Message) -> None:
            await running[0].publish_soon("alerts/kitchen", b"warm")
            running[0].stop()

        async with asyncio.timeout(WAIT_S), unopened as bus:
            running.append(bus)
            await bus.publish(TOPIC, b"21.5")
            assert (await bus.run()).done == 1

    asyncio.run(work())
    assert is_one_trace(exported)


def test_every_way_to_publish_carries_its_span(bus: Any, exported: InMemorySpanExporter) -> None:
    with bus.subscribe("home/#") as live:
        bus.publish_soon("home/soon", b"1").result(WAIT_S)
        bus.send("home/sent", b"2")
        bus.publish_many([("home/a", b"3"), Outgoing("home/b", b"4", headers={"unit": "C"})])
        bus.publish_many_soon(iter([("home/c", b"5")])).result(WAIT_S)
        messages = {message.topic: message for message in (live.next(WAIT_S) for _ in range(5))}
    soon, sent = one(exported, "publish home/soon"), one(exported, "send home/sent")
    many, single = one(exported, "publish"), one(exported, "publish home/c")
    for topic, span in {"soon": soon, "sent": sent, "a": many, "b": many, "c": single}.items():
        assert named_in(messages[f"home/{topic}"], span)
    assert messages["home/b"].headers["unit"] == "C"
    assert len(exported.get_finished_spans()) == 4
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    assert (soon.attributes or {})["messaging.message.id"] == "home/1"


def test_every_way_to_publish_with_asyncio_carries_its_span(url: str | None, exported: InMemorySpanExporter) -> None:
    async def work() -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S), opening(url) as plain:
            bus = tracing.instrument(plain)
            async with bus.subscribe("home/#") as live:
                await bus.publish_soon("home/soon", b"1")
                await bus.send("home/sent", b"2")
                await bus.publish_many([("home/a", b"3"), Outgoing("home/b", b"4")])
                return {message.topic: message for message in [await live.next(WAIT_S) for _ in range(4)]}

    messages = asyncio.run(work())
    many = one(exported, "publish")
    found = {"soon": one(exported, "publish home/soon"), "sent": one(exported, "send home/sent"), "a": many, "b": many}
    assert all(named_in(messages[f"home/{topic}"], span) for topic, span in found.items())
    assert len(exported.get_finished_spans()) == 3


def test_a_request_is_answered_within_its_trace(bus: Any, exported: InMemorySpanExporter) -> None:
    with bus.subscribe("jobs/sum") as live:

        def answer() -> None:
            message = live.next(WAIT_S)
            with tracing.processing(message):
                message.reply(b"3")

        thread = threading.Thread(target=answer)
        thread.start()
        answered = bus.request("jobs/sum", b"1+2", timeout_s=WAIT_S)
        thread.join(WAIT_S)
    assert answered.payload == b"3"
    assert is_child(one(exported, "process jobs/sum"), one(exported, "request jobs/sum"))
    assert named_in(answered, one(exported, "process jobs/sum"))


def test_an_answer_with_asyncio_carries_the_trace_and_one_outside_of_it_none(
    url: str | None, exported: InMemorySpanExporter
) -> None:
    async def work() -> list[headwater.aio.Message]:
        async with asyncio.timeout(WAIT_S), opening(url) as bus, bus.subscribe("jobs/sum") as live:

            async def answer() -> None:
                with tracing.processing(await live.next()) as _:
                    pass
                message = await live.next()
                with tracing.processing(message):
                    await message.reply(b"3")
                await (await live.next()).reply(b"4")

            answering = asyncio.create_task(answer())
            await bus.send("jobs/sum", b"")
            found = [await bus.request("jobs/sum", b"1+2"), await bus.request("jobs/sum", b"2+2")]
            await answering
            return found

    inside, outside = asyncio.run(work())
    spans = [span for span in exported.get_finished_spans() if span.name == "process jobs/sum"]
    assert named_in(inside, spans[1])
    assert "traceparent" not in outside.headers


def test_delayed_and_recurring_messages_carry_the_trace_in_which_they_were_made(
    exported: InMemorySpanExporter,
) -> None:
    clock = headwater.ManualClock()
    with tracing.instrument(headwater.open(":memory:", clock=clock)) as bus, bus.subscribe("home/#") as live:
        bus.publish("home/later", b"", deliver_at=bus.now + timedelta(seconds=30))
        info = bus.schedule("home/nightly", b"", cron="* * * * *", headers={"unit": "C"})
        assert (info.id, dict(info.headers)["unit"]) == ("home/nightly", "C")
        clock.advance(120)
        found: dict[str, Any] = {}
        while len(found) < 2:
            message = live.next(WAIT_S)
            assert message is not None
            found[message.topic] = message
    assert named_in(found["home/later"], one(exported, "publish home/later"))
    made = one(exported, "schedule home/nightly")
    assert named_in(found["home/nightly"], made)
    assert (made.attributes or {})["messaging.operation.type"] == "create"
    assert "scheduled-for" in found["home/nightly"].headers


def test_a_schedule_with_asyncio_carries_its_span(url: str | None, exported: InMemorySpanExporter) -> None:
    async def work() -> headwater.ScheduleInfo:
        async with asyncio.timeout(WAIT_S), opening(url) as plain:
            found: headwater.ScheduleInfo = await tracing.instrument(plain).schedule("jobs/x", b"", cron="0 3 * * *")
            return found

    info = asyncio.run(work())
    assert named_in(SimpleNamespace(headers=dict(info.headers)), one(exported, "schedule jobs/x"))


class Collector:
    """The receiver of an OpenTelemetry collector: OTLP over HTTP, on a free port."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        """By name, as they came over the wire."""
        collected = self.spans

        class Post(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                asked = ExportTraceServiceRequest.FromString(body)
                for resource in asked.resource_spans:
                    for scope in resource.scope_spans:
                        collected.update((span.name, (scope.scope.name, span)) for span in scope.spans)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Post)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(WAIT_S)
        self._server.server_close()


def test_a_collector_receives_the_trace_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "heating"}), shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with Collector() as collector:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=collector.url)))
        with tracing.instrument(headwater.open(":memory:")) as bus:

            @bus.handler("home/+/temp", id="thermostat", start="earliest")
            def on_temp(message: headwater.Message) -> None:
                bus.stop()
                raise ValueError("too hot")

            bus.publish(TOPIC, b"95")
            bus.run()
        provider.shutdown()  # which exports what is left
    (scope, published), (_, handled) = (collector.spans[f"{verb} {TOPIC}"] for verb in ("publish", "process"))
    assert scope == "headwater"
    assert (handled.trace_id, handled.parent_span_id) == (published.trace_id, published.span_id)
    told = {one.key: one.value.string_value or one.value.int_value for one in handled.attributes}
    assert (told["messaging.destination.name"], told["messaging.message.body.size"]) == (TOPIC, 2)
    assert (handled.kind, published.kind) == (handled.SPAN_KIND_CONSUMER, handled.SPAN_KIND_PRODUCER)
    assert (handled.status.code, handled.status.message) == (handled.status.STATUS_CODE_ERROR, "ValueError: too hot")


def test_a_handler_that_fails_ends_its_span_as_an_error(bus: headwater.Bus, exported: InMemorySpanExporter) -> None:
    @bus.handler("home/#", id="thermostat", start="earliest")
    def fail(message: headwater.Message) -> None:
        bus.stop()
        raise Reject("no such sensor")

    bus.publish(TOPIC, b"x")
    bus.run()
    span = one(exported, f"process {TOPIC}")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "Reject: no such sensor")
    assert [event.name for event in span.events] == ["exception"]
    assert (span.attributes or {})["error.type"] == "Reject"
    assert [letter.errors for letter in bus.dead_letters("thermostat")] == [("no such sensor",)]


def test_a_publish_that_is_refused_is_an_error_as_ever_and_leaves_no_span_open(
    bus: Any, exported: InMemorySpanExporter
) -> None:
    calls = [
        lambda: bus.publish("home/#", b""),
        lambda: bus.publish(TOPIC, None),
        lambda: bus.publish(TOPIC, b"", headers=5),
        lambda: bus.publish_soon("home/+", b""),
        lambda: bus.publish_many(7),
        lambda: bus.publish_many([(TOPIC, b""), 7]),
        lambda: bus.send("", b""),
    ]
    for call in calls:
        with pytest.raises(Malformed):
            call()
    spans = exported.get_finished_spans()
    assert [(span.attributes or {}).get("error.type") for span in spans] == ["Malformed"] * len(calls)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_handler_that_cannot_be_one_is_refused_as_ever(bus: Any) -> None:
    def yields(message: Any) -> Iterator[None]:
        yield

    async def waits(message: Any) -> None: ...

    for wrong, text in ((yields, "yields"), (waits, "coroutine function"), (5, "a function of one message")):
        with pytest.raises(Malformed, match=text):
            bus.consume("home/#", wrong, id="thermostat")


def test_a_what_if_on_an_instrumented_bus_publishes_nothing(bus: Any, exported: InMemorySpanExporter) -> None:
    with bus.subscribe("home/#", id="thermostat", start="earliest") as sub:
        bus.publish(TOPIC, b"21.5")
        sub.next(WAIT_S).ack()
    compared = bus.what_if("thermostat", lambda message: bus.publish("alerts/kitchen", b"warm"))
    assert compared.messages == 1
    assert [info.topic for info in bus.topics("alerts/#")] == []
    bus.publish("alerts/kitchen", b"after")
    one(exported, "publish alerts/kitchen")


def test_a_bus_that_is_instrumented_twice_makes_each_span_once(bus: Any, exported: InMemorySpanExporter) -> None:
    assert tracing.instrument(bus) is bus
    bus.publish(TOPIC, b"x")
    assert len(exported.get_finished_spans()) == 1
    assert isinstance(bus, headwater.Bus)
    with headwater.open(":memory:") as other:
        other.publish(TOPIC, b"x")
    assert len(exported.get_finished_spans()) == 1, "another bus is as it was"


def test_what_is_no_bus_cannot_be_instrumented() -> None:
    with pytest.raises(Malformed, match="takes a bus"):
        tracing.instrument("var/data")


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "headwater.tracing")
    with pytest.raises(Malformed, match=r"pip install 'headwater\[otel\]'"):
        importlib.import_module("headwater.tracing")


def test_who_does_not_ask_for_traces_loads_nothing_of_them() -> None:
    code = (
        "import sys, headwater, headwater.aio; bus = headwater.open(':memory:'); bus.publish('a', b''); bus.close();"
        "print([name for name in sys.modules if 'opentelemetry' in name or name == 'headwater.tracing'])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
