"""Bad input and bad disks: a typed error, and nothing changes."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
from bus.flows import WAIT_S, Held, payloads, some
from faults.faulty_files import FaultyFiles
from headwater import (
    Config,
    DiskFull,
    Failed,
    HeadwaterError,
    Malformed,
    NewerFormat,
    NotFound,
    Outgoing,
    QuotaExceeded,
    ReadOnly,
    TooLarge,
)
from headwater.bus import Bus
from headwater.store.state import MemoryState

LONG = ["x" * 65 + "/a", "a/" + "x" * 1023, "a" + "/b" * 32]
NO_NAMES: list[Any] = ["", "a\0b", "\ud800", *LONG, 5, None, b"a", ["a"]]
BAD_TOPICS: list[Any] = [*NO_NAMES, "a/+", "a/#", "#", "+", "a+b"]
BAD_FILTERS: list[Any] = [*NO_NAMES, "a/#/b", "a/b#", "a/b+", "+b", "a/*/b", "*", "$share/g/a"]


def nothing_changed(bus: Bus) -> bool:
    return bus.topics() == [] and bus.subscriptions() == [] and bus.publish("check/x", b"").offset >= 1


@pytest.mark.parametrize("topic", BAD_TOPICS, ids=lambda bad: repr(bad)[:20])
def test_a_malformed_topic_is_422(bus: Bus, topic: Any) -> None:
    for publish in (
        lambda: bus.publish(topic, b""),
        lambda: bus.publish_soon(topic, b""),
        lambda: bus.publish_many([("a/b", b""), (topic, b"")]),
        lambda: bus.publish_many([Outgoing("a/b", b""), Outgoing(topic, b"")]),
        lambda: bus.publish(topic, b"", deliver_at=bus.now),
        lambda: bus.request(topic, b"", timeout_s=1),
    ):
        with pytest.raises(Malformed) as refused:
            publish()
        assert refused.value.code == 422
    assert nothing_changed(bus)


@pytest.mark.parametrize("filter", BAD_FILTERS, ids=lambda bad: repr(bad)[:20])
def test_a_malformed_filter_is_422(bus: Bus, filter: Any) -> None:
    for use in (
        lambda: bus.subscribe(filter),
        lambda: bus.subscribe(filter, id="s"),
        lambda: bus.replay(filter),
        lambda: bus.follow(filter),
        lambda: bus.topics(filter),
        lambda: bus.retained(filter),
        lambda: bus.purge(filter),
    ):
        with pytest.raises(Malformed):
            use()
    assert nothing_changed(bus)


def test_an_oversized_message_is_413(folder: Path) -> None:
    config = Config(message_bytes_max=100, key_bytes_max=10, header_bytes_max=50, batch_bytes_max=2000)
    with headwater.open(folder, config) as bus:
        for publish in (
            lambda: bus.publish("a/b", bytes(101)),
            lambda: bus.publish_soon("a/b", bytes(101)),
            lambda: bus.publish_many([("a/b", b""), ("a/b", bytes(101))]),
            lambda: bus.publish_many([Outgoing("a/b", bytes(101))]),
            lambda: bus.publish("a/b", bytes(101), deliver_at=bus.now),
            lambda: bus.publish("a/b", b"", key=bytes(11)),
            lambda: bus.publish("a/b", b"", headers={"x": "y" * 50}),
            lambda: bus.publish_many([("a/b", bytes(100))] * 30),
        ):
            with pytest.raises(TooLarge) as refused:
                publish()
            assert refused.value.code == 413
        assert nothing_changed(bus)
        bus.publish("a/b", bytes(100), key=bytes(10), headers={"x": "y" * 49})


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": "\ud800"},
        {"payload": None},
        {"payload": object()},
        {"key": "text"},
        {"key": 5},
        {"headers": {"a": 5}},
        {"headers": {5: "a"}},
        {"headers": [("a",)]},
        {"headers": [("a", "b", "c")]},
        {"headers": 5},
        {"headers": {"a": "\ud800"}},
        {"headers": {str(number): "" for number in range(65)}},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": "5"},
        {"ttl_s": True},
        {"retain": "yes"},
        {"retain": 300},
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": "1"},
        {"producer": "p", "sequence": 1.5},
        {"producer": "p", "sequence": 1 << 63},
        {"producer": "", "sequence": 1},
        {"producer": "$p", "sequence": 1},
        {"producer": 5, "sequence": 1},
        {"producer": "\ud800", "sequence": 1},
        {"producer": "p" * 257, "sequence": 1},
        {"deliver_at": 5},
        {"deliver_at": "tomorrow"},
        {"deliver_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(2024, 1, 1, tzinfo=UTC), "producer": "p", "sequence": 1},
    ],
    ids=lambda bad: ",".join(f"{name}={value!r}"[:30] for name, value in bad.items()),
)
def test_a_malformed_publish_is_422(bus: Bus, bad: dict[str, Any]) -> None:
    given = {"payload": b"", **bad}
    for publish in (bus.publish, bus.publish_soon):
        with pytest.raises(Malformed):
            publish("a/b", **given)
    if not {"producer", "sequence", "deliver_at"} & bad.keys():
        with pytest.raises(Malformed):
            bus.publish_many([Outgoing("a/b", **given)])
    assert nothing_changed(bus)


def test_bad_input_of_one_caller_does_not_fail_the_others_of_its_group(bus: Bus) -> None:
    with Held(bus):
        good = [bus.publish_soon("a/b", b"") for _ in range(2)]
        with pytest.raises(Malformed):
            bus.publish_soon("a/b", b"", retain="yes")  # type: ignore[arg-type]
        good.append(bus.publish_soon("a/b", b""))
    assert [future.result(WAIT_S).offset for future in good] == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [
        {"id": ""},
        {"id": "x" * 1281},
        {"id": 5},
        {"id": b"s"},
        {"id": "\ud800"},
        {"start": "first"},
        {"start": -1},
        {"start": True},
        {"start": 1.5},
        {"start": None},
        {"order": "random"},
        {"order": ["strict"]},
        {"max_in_flight": 0},
        {"max_in_flight": 1_000_000},
        {"max_in_flight": 2.5},
        {"max_in_flight": True},
        {"max_in_flight": "5"},
        {"ack_timeout_s": -1},
        {"ack_timeout_s": float("nan")},
        {"ack_timeout_s": True},
        {"ack_timeout_s": "5"},
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"expire_after_s": 0},
        {"expire_after_s": float("inf")},
        {"expire_after_s": True},
        {"on_gap": "ignore"},
        {"retry_delay_s": -1},
        {"retry_delay_s": 10, "retry_delay_s_max": 5},
        {"retry_delay_s": True},
    ],
    ids=lambda bad: ",".join(f"{name}={value!r}"[:30] for name, value in bad.items()),
)
def test_a_malformed_subscription_is_422_and_the_folder_opens_again(folder: Path, bad: dict[str, Any]) -> None:
    with headwater.open(folder) as bus:
        with pytest.raises(Malformed):
            bus.subscribe("a/#", **{"id": "s", **bad})
        assert nothing_changed(bus)
        bus.subscribe("a/#", id="good").close()
        if "id" not in bad and "start" not in bad:
            with pytest.raises(Malformed):
                bus.subscribe("a/#", **{"id": "good", **bad})
    with headwater.open(folder) as bus:
        assert [info.id for info in bus.subscriptions()] == ["good"]


def test_a_start_offset_needs_a_filter_within_one_root(bus: Bus) -> None:
    for wide in ("#", "+/x"):
        with pytest.raises(Malformed, match="several roots"):
            bus.subscribe(wide, id="s", start=5)
    sub = bus.subscribe("#", id="s")
    with pytest.raises(Malformed, match="several roots"):
        sub.seek(5)
    with pytest.raises(Malformed):
        sub.seek("first")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"filter": "#", "after": 5},
        {"filter": "+/x", "after": 5},
        {"after": -1},
        {"after": True},
        {"after": "5"},
        {"after": 1.5},
        {"after": {"a": -1}},
        {"after": {"a": "x"}},
        {"after": {"a": 1.5}},
        {"after": {5: 1}},
        {"since": 5},
        {"since": "today"},
        {"after": 5, "since": datetime(2024, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_malformed_place_to_read_from_is_422(bus: Bus, bad: dict[str, Any]) -> None:
    bus.publish("a/b", b"")
    for read in (bus.replay, bus.follow):
        with pytest.raises(Malformed):
            read(**{"filter": "a/#", **bad}).next(timeout_s=0)


@pytest.mark.parametrize(
    "offsets", [1, "1", b"1", ["1"], [None], [("a", 1, 2)], [("a", "1")], [1.5], [True], [-1], [1 << 64]]
)
def test_what_is_no_place_of_a_dead_letter_is_422_and_they_stay(bus: Any, offsets: Any) -> None:
    bus.publish("a/b", b"1")
    sub = bus.subscribe("a/#", id="s", start="earliest")
    sub.next(WAIT_S).reject("no")
    for use in (bus.redrive, bus.drop_dead_letters):
        with pytest.raises(Malformed, match=r"offsets is|is no place of a dead letter"):
            use("s", offsets)
    assert [letter.offset for letter in bus.dead_letters("s")] == [1]
    assert bus.redrive("s", (offset for offset in [7, 1])) == 1


def test_an_unknown_subscription_is_404(bus: Bus) -> None:
    for use in (
        lambda: bus.unsubscribe("nobody"),
        lambda: bus.dead_letters("nobody"),
        lambda: bus.dead_letter("nobody", 1),
        lambda: bus.redrive("nobody"),
        lambda: bus.drop_dead_letters("nobody"),
        lambda: bus.states("nobody"),
    ):
        with pytest.raises(NotFound, match="nobody") as refused:
            use()
        assert refused.value.code == 404
    assert nothing_changed(bus)


def test_a_malformed_answer_to_a_message_is_422_and_it_stays_in_flight(bus: Bus) -> None:
    bus.publish("a/b", b"")
    sub = bus.subscribe("a/#", id="s", start="earliest")
    (message,) = some(sub, 1)
    for answer in (
        lambda: message.nack("x", delay_s=-1),
        lambda: message.nack("x", delay_s=float("nan")),
        lambda: message.nack("x", delay_s="5"),  # type: ignore[arg-type]
        lambda: message.nack(5),  # type: ignore[arg-type]
        lambda: message.nack(None),  # type: ignore[arg-type]
        lambda: message.reject(5),  # type: ignore[arg-type]
        lambda: message.extend(0),
        lambda: message.extend(-1),
        lambda: message.extend(float("inf")),
        lambda: message.extend("5"),  # type: ignore[arg-type]
        lambda: sub.batch(0),
        lambda: sub.batch(-1),
    ):
        with pytest.raises(Malformed):
            answer()
        assert [(one.topic, one.offset, one.state, one.attempts) for one in bus.states("s")] == [
            ("a/b", 1, "in_flight", 0)
        ]
    message.ack()


def test_a_malformed_live_subscription_is_422(bus: Bus) -> None:
    with pytest.raises(Malformed, match="drop_oldest"):
        bus.subscribe("a/#", when_full="explode")  # type: ignore[call-overload]
    live = bus.subscribe("a/#")
    for size in (0, -1):
        with pytest.raises(Malformed):
            live.batch(size, timeout_s=0)


@pytest.mark.parametrize("timeout_s", ["1", timedelta(seconds=1), float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(bus: Bus, timeout_s: Any) -> None:
    bus.publish("a/b", b"1", retain=True)
    values = bus.retained("a/#")
    readers = (bus.subscribe("a/#"), bus.subscribe("a/#", id="s"), bus.replay("a/#"), bus.follow("a/#"), values.watch())
    for reader in readers:
        with reader, pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
            reader.next(timeout_s)
    with pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
        bus.request("a/b", b"?", timeout_s=timeout_s)


@pytest.mark.parametrize("kind", [{"id": "s"}, {"kind": "session"}])
def test_what_a_slow_reader_may_do_is_asked_of_live_subscriptions_alone(bus: Any, kind: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="only a live subscription has it"):
        bus.subscribe("a/#", when_full="disconnect", **kind)
    with pytest.raises(Malformed, match="when_full is 'wait'"):
        bus.subscribe("a/#", when_full="wait", **kind)
    assert bus.subscriptions() == []


def test_one_subscription_more_than_allowed_is_429(folder: Path) -> None:
    with headwater.open(folder, Config(subscriptions_max=2)) as bus:
        for name in "ab":
            bus.subscribe("x/#", id=name).close()
        with pytest.raises(QuotaExceeded, match="subscriptions_max"):
            bus.subscribe("x/#", id="c")
        bus.subscribe("x/#", id="a").close()
        bus.unsubscribe("a")
        bus.subscribe("x/#", id="c").close()
        assert [info.id for info in bus.subscriptions()] == ["b", "c"]


def test_a_folder_of_a_newer_format_is_refused_and_left_as_it_is(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish("a/b", b"")
    (folder / "VERSION").write_text('{"format": 99}')
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for read_only in (False, True):
        with pytest.raises(NewerFormat, match="99"):
            headwater.open(folder, read_only=read_only)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(Malformed, match=r"thesis\.doc"):
        headwater.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_a_disk_that_fills_up_is_503_consumers_go_on_and_publishing_resumes_when_there_is_room(folder: Path) -> None:
    files = FaultyFiles(capacity_bytes=4 << 20)
    config = Config(disk_free_bytes_min=1 << 20, preallocate_bytes=0)
    with Bus(folder, config, files=files, state=MemoryState()) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        sent = 0
        with pytest.raises(DiskFull) as full:
            while True:
                bus.publish("jobs/x", bytes(100_000))
                sent += 1
        assert (full.value.code, full.value.retryable) == (503, True)
        with pytest.raises(DiskFull):
            bus.publish_many([("jobs/x", b""), ("other/x", b"")])
        messages = sub.batch(100, 0)
        assert len(messages) == sent > 5
        sub.ack(messages)
        files.capacity_bytes = 100 << 20
        assert bus.publish("jobs/x", b"again").offset == sent + 1
        assert payloads(sub.batch(10, WAIT_S)) == [b"again"]


def test_a_failed_sync_is_never_acked_and_makes_the_stream_read_only_until_it_is_opened_again(folder: Path) -> None:
    files, state = FaultyFiles(), MemoryState()
    bus = Bus(folder, files=files, state=state)
    live = bus.subscribe("jobs/#")
    bus.publish("jobs/x", b"1")
    bus.publish("other/x", b"1")
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed) as failed:
        bus.publish("jobs/x", b"never acked")
    assert failed.value.code == 500
    with pytest.raises(ReadOnly, match="open it again") as refused:
        bus.publish("jobs/x", b"refused")
    assert refused.value.code == 503
    assert bus.publish("other/x", b"2").offset == 2
    assert payloads(live.batch(10, 0)) == [b"1"]
    assert payloads(bus.replay("jobs/#")) == [b"1"]
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    some(sub, 1)[0].ack()


def test_an_error_says_its_name_its_code_and_what_to_do(bus: Bus) -> None:
    with pytest.raises(HeadwaterError) as error:
        bus.publish("home/+", b"")
    assert re.match(r"Malformed\(422\): topic .*wildcards", str(error.value))
