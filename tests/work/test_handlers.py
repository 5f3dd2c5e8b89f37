"""Handlers as they are registered: what is wrong with one is said at once, and changes nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Closed, Conflict, Malformed, ReadOnly
from headwater.work.handlers import Handlers, handler_of
from work.shifts import WAIT_S, running, until


def handle(message: Any) -> None: ...


def other(message: Any) -> None: ...


async def handle_soon(message: Any) -> None: ...


class Callable:
    def __call__(self, message: Any) -> None: ...


class SoonCallable:
    async def __call__(self, message: Any) -> None: ...


def nothing() -> None: ...


def two(first: Any, second: Any) -> None: ...


def named(*, message: Any) -> None: ...


def yields(message: Any) -> Any:
    yield message


async def yields_soon(message: Any) -> Any:
    yield message


@pytest.mark.parametrize(
    "function",
    [handle, lambda _: None, Callable(), partial(two, 1), print, "".join, [].append],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_what_can_be_called_with_a_message_is_a_handler(function: Any) -> None:
    with headwater.open(":memory:") as bus:
        bus.consume("a/#", function, id="s")
        assert bus.handler("a/#", id="t")(function) is function


@pytest.mark.parametrize(
    "function",
    [nothing, two, named, yields, yields_soon, handle_soon, SoonCallable(), 3, None, "handle"],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_what_cannot_is_malformed_and_nothing_has_changed(function: Any) -> None:
    with headwater.open(":memory:") as bus:
        with pytest.raises(Malformed, match="handler"):
            bus.consume("a/#", function, id="s")
        assert not bus.subscriptions()
        with pytest.raises(Malformed, match="nothing to run"):
            bus.run()


@pytest.mark.parametrize(
    "function", [handle, yields_soon, nothing], ids=lambda one: getattr(one, "__name__", type(one).__name__)
)
def test_with_asyncio_handlers_are_coroutine_functions(function: Any) -> None:
    bus = headwater.aio.open(":memory:")
    bus.consume("a/#", handle_soon, id="s")
    with pytest.raises(Malformed, match="handler"):
        bus.consume("a/#", function, id="t")


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": True},
        {"workers": "4"},
        {"workers": 10_001},
        {"order": "some"},
        {"max_in_flight": 0},
        {"ack_timeout_s": -1},
        {"start": "now"},
        {"filter": "a/#/b"},
        {"id": ""},
        {"id": None, "order": "strict"},
        {"id": None, "when_full": "wait"},
        {"when_full": "disconnect"},
        {"kind": "session"},
        {"kind": "live"},
        {"id": None, "kind": "named"},
        {"id": None, "kind": "weekly"},
        {"on_resume": "forget"},
        {"max_deliveries": -1},
        {"states": "table"},
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_options_that_cannot_be_right_are_malformed(options: dict[str, Any]) -> None:
    with headwater.open(":memory:") as bus:
        with pytest.raises(Malformed):
            bus.consume(**{"filter": "a/#", "handler": handle, "id": "s", **options})
        with pytest.raises(Malformed, match="nothing to run"):
            bus.run()


def test_an_option_that_there_is_not_is_a_type_error() -> None:
    with headwater.open(":memory:") as bus, pytest.raises(TypeError, match="colour"):
        bus.consume("a/#", handle, id="s", colour="red")  # type: ignore[call-arg]  # which is the point


@pytest.mark.parametrize(
    ("filter", "function", "options", "says"),
    [
        ("a/#", other, {}, "handle already"),
        ("a/b", handle, {}, "another filter"),
        ("a/#", handle, {"max_attempts": 3}, "another max_attempts"),
        ("a/#", handle, {"workers": 3}, "another workers"),
    ],
)
def test_another_handler_for_the_same_id_is_a_conflict(filter: str, function: Any, options: Any, says: str) -> None:
    with headwater.open(":memory:") as bus:
        bus.consume("a/#", handle, id="s")
        with pytest.raises(Conflict, match=says):
            bus.consume(filter, function, id="s", **options)
        assert [one.function for one in bus._workers.handlers.all] == [handle]


def test_the_same_handler_twice_is_one_and_live_ones_are_several() -> None:
    handlers = Handlers(is_asynchronous=False)
    for _ in range(2):
        handlers.add(handler_of("a/#", handle, id="s", workers=2), headwater.Config())
        handlers.add(handler_of("a/#", handle), headwater.Config())
    assert [one.id for one in handlers.all] == ["s", None, None]


def test_one_that_is_defined_again_takes_its_own_place_also_while_it_runs(bus: headwater.Bus) -> None:
    heard: list[str] = []

    def cell(said: str) -> None:
        """A cell of a notebook that is run several times."""

        @bus.handler("a/#", id="s", start="earliest")
        def tell(message: headwater.Message) -> None:
            heard.append(f"{said} {message.text}")

    cell("first")
    cell("second")
    bus.publish("a/x", "1")
    with running(bus) as found:
        until(lambda: heard == ["second 1"])
        cell("third")
        bus.publish("a/x", "2")
        until(lambda: heard == ["second 1", "third 2"])
    assert [one.done for one in found.shift.handlers] == [2]


def test_with_asyncio_too_one_that_is_defined_again_takes_its_own_place() -> None:
    heard: list[str] = []

    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:

            def cell(said: str) -> None:
                @bus.handler("a/#", id="s", start="earliest")
                async def tell(message: headwater.aio.Message) -> None:
                    heard.append(said)
                    if said == "second":
                        bus.stop()
                    else:
                        cell("second")
                        await bus.publish("a/x", "2")

            cell("first")
            await bus.publish("a/x", "1")
            async with asyncio.timeout(WAIT_S):
                await bus.run()

    asyncio.run(work())
    assert heard == ["first", "second"]


def test_a_handler_of_a_session_goes_on_after_the_process_and_is_gone_with_its_session(tmp_path: Path) -> None:
    heard: list[str] = []

    def tell(message: headwater.Message) -> None:
        heard.append(message.text)
        if message.text == "bad" and heard.count("bad") == 1:
            raise headwater.Reject("not today")

    def work(text: str, *publishing: str) -> None:
        with headwater.connect(served.url, session=tmp_path / "session") as bus:
            bus.consume("a/#", tell, kind="session", start="earliest", on_resume="redrive", order="strict")
            with pytest.raises(Conflict, match="subscribe with an id"):
                bus.consume("a/#", handle, kind="session", start="earliest", on_resume="redrive", order="strict")
            bus.publish_many([("a/x", one) for one in publishing])
            with running(bus):
                until(lambda: heard[-1:] == [text] and [one.lag for one in bus.subscriptions()] == [0])

    with Served(tmp_path / "data") as served:
        work("good", "bad", "good")
        work("new", "new")
        assert heard == ["bad", "good", "bad", "new"]


def test_a_bus_that_is_closed_or_only_read_takes_no_handlers(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        pass
    with pytest.raises(Closed):
        bus.consume("a/#", handle, id="s")
    with headwater.open(tmp_path, read_only=True) as bus, pytest.raises(ReadOnly):
        bus.consume("a/#", handle, id="s")


def test_a_subscription_that_is_there_with_another_filter_fails_the_run() -> None:
    with headwater.open(":memory:") as bus:
        bus.subscribe("b/#", id="s").close()
        bus.consume("a/#", handle, id="r")
        bus.consume("a/#", handle, id="s")
        with pytest.raises(Conflict):
            bus.run()
        assert bus.subscriptions()[0].consumers == 0


def test_the_decorator_without_its_parentheses_is_refused() -> None:
    opening = headwater.aio.open(":memory:")
    with headwater.open(":memory:") as bus:
        for decorate, function in ((bus.handler, handle), (opening.handler, handle_soon)):
            with pytest.raises(Malformed, match=r'say which messages it is for: @bus.handler\("home/#"'):
                decorate(function)  # type: ignore[arg-type]  # that is what is tried
