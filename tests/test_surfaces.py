"""The four public surfaces are one: embedded and served, for threads and for asyncio, have the same methods.

They take the same parameters and answer the same types; with asyncio, as awaitables and async iterators. What differs
is named here, with its reason.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import pytest

import headwater
import headwater.aio
import headwater.client.aio
import headwater.client.bus
from headwater import surface
from headwater.bus import Bus
from headwater.client import readers
from headwater.delivery.consumer import Consumer
from headwater.delivery.live import Live
from headwater.delivery.replay import Reading

KINDS: dict[str, tuple[type, ...]] = {
    "bus": (Bus, headwater.client.bus.Bus, headwater.aio.Bus, headwater.client.aio.Bus),
    "consumer": (Consumer, readers.Consumer, headwater.aio.EmbeddedConsumer, headwater.client.aio.Consumer),
    "live": (Live, readers.Live, headwater.aio.EmbeddedLive, headwater.client.aio.Live),
    "reading": (Reading, readers.Reading, headwater.aio.Reading, headwater.client.aio.Reading),
}
PLACES = ("embedded", "served", "embedded asyncio", "served asyncio")

INSTANCE = {
    "bus": {
        "core",
        "is_read_only",
        "threads",
        "address",
        "settings",
        "clients",
        "acl",
        "channels",
        "tokens",
        "durables",
    },
    "consumer": {"id", "filter", "subscriber", "ticket"},
    "live": {"filter", "dropped"},
    "reading": {"filter"},
}
"""What is set when one is made; `test_what_is_set_when_a_bus_is_made` looks at those."""

ONLY: dict[str, tuple[set[str], str]] = {
    "bus.is_busy": ({"embedded", "served"}, "asyncio waits for a place by itself"),
    "bus.request_soon": ({"embedded", "served"}, "with asyncio, a task of bus.request(…)"),
    "bus.forget_request": ({"embedded", "served"}, "the same"),
    "bus.ask": ({"served", "served asyncio"}, "a request as the protocol has it; embedded there is no protocol"),
    "bus.show_progress": ({"served", "served asyncio"}, "for Spark, which reads a folder by itself"),
    "bus.count_matching": ({"served", "served asyncio"}, "the same"),
    "bus.stage_prepared": ({"served asyncio"}, "what `stage` of both served buses does once messages are encoded"),
}
"""Members that some surfaces have by design, and why the others do not."""

WORKINGS = {
    *("live.wants_places", "live.takes_early", "live.greet", "live.deliver", "live.take", "live.is_unread"),
    *("live.read_on", "live.add_waker", "live.end"),
    *("consumer.add_waker", "consumer.ack_later", "consumer.options"),
    *("consumer.poll", "live.poll", "reading.poll"),
    *(
        "reading.take",
        "reading.take_unsifted",
        "reading.begins",
        "reading.is_closed",
        "reading.take_batch",
        "reading.look",
        "reading.fetch",
        "reading.is_in_history",
        "reading.tell",
        "reading.end",
        "reading.add_waker",
    ),
}
"""Of readers: what the way out, the shells and Spark use of them."""


def members(kind: str, shell: type) -> dict[str, Any]:
    found = {name: inspect.getattr_static(shell, name) for name in dir(shell) if not name.startswith("_")}
    return {name: member for name, member in found.items() if f"{kind}.{name}" not in WORKINGS}


def is_method(member: Any) -> bool:
    return inspect.isfunction(member)


def type_words(annotation: Any) -> str:
    """A type as it is said, whatever a module calls its own: threads' and asyncio's are the same thing."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = text.replace('"', "").replace("surface.", "").replace("asyncio.", "")
    text = re.sub(r"\b(Task|Future|Opening|Coroutine|AsyncIterator|Iterator)\b", "", text)
    text = re.sub(r"\[Any, Any, (.*)\]$", r"\1", text)
    text = re.sub(r"^\[(.*)\]$", r"\1", text)
    text = text.replace("Mapping[str, str] | Sequence[tuple[str, str]]", "GivenHeaders")
    return {"Reader": "Reading", "Self": "", "Bus": "", "pyarrow.RecordBatchReader": "Batches"}.get(text, text)


def shape(method: Any) -> list[tuple[str, Any, Any, str]]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [(one.name, one.kind, one.default, type_words(one.annotation)) for one in parameters]


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_surface_has_the_others_have(kind: str) -> None:
    have = {place: set(members(kind, shell)) for place, shell in zip(PLACES, KINDS[kind], strict=True)}
    everything = set().union(*have.values()) - INSTANCE[kind]
    for name in sorted(everything):
        places = {place for place in PLACES if name in have[place]}
        allowed, why = ONLY.get(f"{kind}.{name}", (set(PLACES), ""))
        assert places == allowed, f"{kind}.{name} is there {places}; expected {allowed} {why}"


def test_no_difference_is_listed_that_is_none() -> None:
    for listed in (*ONLY, *WORKINGS):
        kind, _, name = listed.partition(".")
        assert any(hasattr(shell, name) for shell in KINDS[kind]), listed


@pytest.mark.parametrize("kind", KINDS)
def test_they_take_the_same_and_answer_the_same(kind: str) -> None:
    embedded = members(kind, KINDS[kind][0])
    for place, shell in zip(PLACES[1:], KINDS[kind][1:], strict=True):
        for name, member in members(kind, shell).items():
            if not (is_method(member) and is_method(embedded.get(name))):
                continue
            assert shape(member) == shape(embedded[name]), f"{place} {kind}.{name}"
            answers = [type_words(inspect.signature(one).return_annotation) for one in (member, embedded[name])]
            assert answers[0] == answers[1], f"{place} {kind}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_a_property_in_one_is_one_in_all(kind: str) -> None:
    for name in set().union(*(members(kind, shell) for shell in KINDS[kind])):
        found = [members(kind, shell).get(name) for shell in KINDS[kind]]
        assert len({is_method(one) for one in found if one is not None}) <= 1, f"{kind}.{name}"


def test_every_method_of_the_surface_is_there_and_says_what_the_surface_says() -> None:
    said = {name: inspect.getdoc(member) for name, member in members("bus", surface.Bus).items()}
    assert all(said.values())
    for shell in KINDS["bus"]:
        for name, text in said.items():
            assert inspect.getdoc(getattr(shell, name)) == text, f"{shell.__module__}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_help_says_something_of_every_method(kind: str) -> None:
    for shell in KINDS[kind]:
        for name, member in members(kind, shell).items():
            if f"{kind}.{name}" not in ONLY and (is_method(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(shell, name)), f"{shell.__module__}.{shell.__name__}.{name}"
    assert "nobody sees before" in pydoc.render_doc(KINDS["bus"][3]) or kind != "bus"


def test_what_is_asynchronous_is_so_in_both() -> None:
    for kind in KINDS:
        embedded, served = (members(kind, shell) for shell in KINDS[kind][2:])
        for name in embedded.keys() & served.keys():
            if is_method(embedded[name]):
                ways = [inspect.iscoroutinefunction(one[name]) for one in (embedded, served)]
                assert ways[0] == ways[1], f"{kind}.{name}"


def test_an_embedded_bus_says_that_it_pushes_nothing() -> None:
    with Bus(":memory:") as bus, pytest.raises(headwater.Malformed, match="serve it"):
        bus.subscribe("a/#", destination=("127.0.0.1", 9000))


@pytest.mark.parametrize("shell", KINDS["bus"], ids=PLACES)
def test_handlers_take_the_options_of_subscribe(shell: Any) -> None:
    def options(method: Any, besides: set[str]) -> dict[str, Any]:
        found = {one.name: one for one in list(inspect.signature(method).parameters.values())[1:]}
        assert besides <= found.keys()
        return {name: (one.kind, one.default, one.annotation) for name, one in found.items() if name not in besides}

    wanted = options(shell.subscribe, {"destination"})
    assert options(shell.consume, {"handler", "workers"}) == wanted
    assert options(shell.handler, {"workers"}) == wanted
