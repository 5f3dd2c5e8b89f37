"""What type checkers, and so editors, know of a user's program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from mypy import api

import headwater
import headwater.aio
import headwater.client.bus
from headwater import given
from headwater.units import is_duration, is_size

ROOT = Path(__file__).parent.parent
PROGRAM = """
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

import headwater
import headwater.aio
import headwater.client.bus
from headwater import Bus, Consumer, HeaderMap, Live, Message, Reading, Receipt, Receipts, Retained, SubscriptionInfo
from headwater import ConsumerInfo, DeadLetter, ScheduleInfo, SchemaInfo, StateInfo, TopicInfo


@dataclass
class Sample:
    celsius: float


def both(bus: Bus) -> None:
    assert_type(bus.publish("a/b", {"celsius": 21.5}), Receipt)
    bus.publish("a/b", Sample(21.5), headers=[("unit", "C")], ttl_s=5)
    bus.publish("a/b", "text", headers={"unit": "C"})
    assert_type(bus.publish_soon("a/b", [1, 2]).result(), Receipt)
    assert_type(bus.publish_many([("a/b", b"1"), ("a/b", 2)]), Receipts)
    durable = bus.subscribe("a/#", id="s", start="earliest", order="key")
    assert_type(durable, Consumer)
    assert_type(durable.id, str)
    live = bus.subscribe("a/#")
    assert_type(live, Live)
    assert_type(live.dropped, int)
    with live as same:
        assert_type(same, Live)
    assert_type(bus.subscribe("a/#", destination=("127.0.0.1", 9000)), str)
    for message in durable:
        assert_type(message, Message)
        assert_type(message.headers, HeaderMap)
        assert_type(message.json(Sample), Sample)
        message.ack()
    reading = bus.replay("a/#", since=datetime.now())
    assert_type(reading, Reading)
    assert_type(reading.next(), Message | None)
    assert_type(bus.follow("a/#"), Reading)
    values = bus.retained("a/#")
    assert_type(values, Retained)
    assert_type(values["a/b"], Message)
    assert_type(bus.subscriptions(), list[SubscriptionInfo])
    assert_type(bus.request("a/b", 1), Message)

    @bus.handler("a/#", id="h", order="strict")
    def handle(message: Message) -> None: ...

    handle(message)


def what_it_tells(bus: Bus, sub: Consumer) -> None:
    assert_type(bus.states("s"), list[StateInfo])
    assert_type(bus.states("s")[0].errors, tuple[str, ...])
    letter = bus.dead_letters("s")[0]
    assert_type(letter.mend(payload={"celsius": 21.5}, key=None, headers={"unit": "C"}), DeadLetter)
    assert_type(bus.redrive("s", mended=[letter]), int)
    assert_type(bus.topics("a/#"), list[TopicInfo])
    assert_type(bus.schema("a/+", Sample), SchemaInfo)
    assert_type(bus.schedule("a/b", b"", cron="0 3 * * *"), ScheduleInfo)
    assert_type(bus.what_if("s", print).counts["fails"], int)
    assert_type(bus.run(workers=2).handlers[0].done, int)
    assert_type(bus.subscriptions()[0].active, tuple[ConsumerInfo, ...])
    assert_type(bus.session, str | None)
    assert_type(bus.retained("a/#").watch().next(timeout_s=1), Message | None)
    assert_type(bus.sql("select 1", {"one": 1}).columns, list[str])
    answer = bus.request("a/b", {"a": 1}, durable=True)
    assert_type(answer.headers.get_all("unit"), list[str])
    assert_type(answer.text, str)
    assert_type(answer.reply("b"), Receipt)
    with sub, answer:
        answer.nack("why", delay_s=3)
        sub.ack(sub.batch(100, timeout_s=1))
    bus.subscribe("a/#", id="t", max_attempts=None, max_deliveries=None, expire_after_s=None).seek(5)


retention = headwater.Retention(age_s="7d", bytes="10GiB")
config = headwater.Config(segment_bytes="64MiB", retry_delay_s=0.5, dead_letter_age_s="30d", retention=retention)
assert_type(config.segment_bytes, int)
assert_type(config.retention.age_s, float)
with headwater.open("folder", headwater.Config(segment_bytes=64 << 20)) as embedded:
    both(embedded)
    headwater.open("folder", lake="lake", read_only=True, clock=headwater.ManualClock(0))
    headwater.aio.open("folder", lake="lake", read_only=True)
    assert_type(embedded.subscribe("a/#", id="s"), Consumer)
    assert_type(embedded.publish("a/b", b""), Receipt)
connecting = headwater.Connecting(reconnect_s_max="5m", session_expire_after_s=None)
with headwater.connect("headwater://127.0.0.1:7411", connecting) as served:
    both(served)
    assert_type(served.subscribe("a/#"), Live)
    assert_type(served.publish_soon("a/b", b"").result(), Receipt)
    assert_type(served.clients.add("ann").secret, str)
    assert_type(served.channels.list()[0].state, str)


async def asynchronous() -> None:
    async with headwater.aio.open("folder") as bus:
        assert_type(await bus.publish("a/b", {"a": 1}), Receipt)
        async with bus.subscribe("a/#", id="s") as sub:
            assert_type(sub, headwater.aio.Consumer)
            async for message in sub:
                assert_type(message, headwater.aio.Message)
                await message.ack()
        assert_type(await bus.subscribe("a/#"), headwater.aio.Live)
        async for message in bus.subscribe("a/#"):
            assert_type(message, headwater.aio.Message)
        assert_type((await bus.clients.list())[0].name, str)
        assert_type((await bus.acl.list())[0].allow, bool)
        assert_type((await bus.tokens.add("ann", "reader")).token, str)
        await bus.durables.seek("s", "earliest")

        @bus.handler("a/#", kind="session", on_resume="redrive", states="stream")
        async def handle(message: headwater.aio.Message) -> None: ...

    async with headwater.aio.connect("headwater://127.0.0.1:7411") as bus2:
        assert_type(await bus2.subscribe("a/#", id="s"), headwater.aio.Consumer)
        assert_type(await bus2.subscribe("a/#"), headwater.aio.Live)
        assert_type(await bus2.publish_many([("a/b", b"")]), Receipts)
        await bus2.acl.allow("ann", "publish", "a/#")
        channels = await bus2.channels.add("c", "a/#", "127.0.0.1", 9000, start="earliest")
        assert_type(channels[0].id, str)
        assert_type((await bus2.channels.test("c")).ok, bool)
"""
WRONG = {
    'bus.subscribe("a/#", id="s", order="odd")': "call-overload",
    'bus.subscribe("a/#", id="s", start="middle")': "call-overload",
    'bus.subscribe("a/#", max_attempts=5)': "call-overload",
    'bus.subscribe("a/#").ack([])': "attr-defined",
    'headwater.aio.open("folder").publish("a/b", b"")': "attr-defined",
    'bus.publish("a/b", None)': "arg-type",
    'bus.publish("a/b", object())': "arg-type",
    'bus.publish("a/b", b"", retian=True)': "call-arg",
    'bus.publish_soon("a/b", b"", ttl="5")': "call-arg",
    'bus.retained("a/#")[0]': "index",
    'bus.consume("a/#", print, id="s", kind="weekly")': "arg-type",
    'served.acl.allow("ann", "dance", "a/#")': "arg-type",
    "served.clients.add(5)": "arg-type",
    'bus.dead_letters("s")[0].mend(payloads=b"")': "call-arg",
    'headwater.open("folder", readonly=True)': "call-arg",
    "headwater.Config(segment_byte=5)": "call-arg",
    'headwater.Config(headers_max="5")': "arg-type",
    'headwater.aio.open("folder", read_only="yes")': "arg-type",
}


def checked(program: Path, *options: str) -> list[str]:
    """What mypy says of a program, with this project's settings, which are strict."""
    said, errors, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), *options, str(program)])
    assert not errors, errors
    return said.splitlines()


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of a program with what is right, and below it one line for each thing that is wrong."""
    program = tmp_path_factory.mktemp("typing") / "program.py"
    wrong = "".join(f"    {line}\n" for line in WRONG)
    program.write_text(f"{PROGRAM}\n\ndef wrong(bus: Bus) -> None:\n{wrong}")
    return checked(program)


def test_a_users_program_is_known_and_what_is_wrong_in_it_is_told(verdict: list[str]) -> None:
    first = f"{PROGRAM}\n\ndef wrong(bus: Bus) -> None:\n".count("\n") + 1
    found = {
        int(match[1]): match[2]
        for match in (re.search(r"program\.py:(\d+): error: .*\[([\w-]+)\]$", line) for line in verdict)
        if match is not None
    }
    assert found == dict(enumerate(WRONG.values(), first)), "\n".join(verdict)


@pytest.mark.parametrize("settings", [headwater.Config, headwater.Connecting, headwater.Retention])
def test_each_setting_may_be_given_as_what_it_is_and_sizes_and_durations_as_texts(
    settings: type[msgspec.Struct],
) -> None:
    texts = {int: given.Size, float: given.Duration, float | None: given.Duration | None}
    names = {"R": headwater.Retention}
    wanted = {
        name: texts[hint] if is_size(name) or is_duration(name) else hint
        for name, hint in get_type_hints(settings).items()
    }
    assert get_type_hints(getattr(given, f"Given{settings.__name__}"), localns=names) == wanted, "mend given.py"


def test_nothing_in_a_users_program_is_of_any_type(tmp_path: Path) -> None:
    """What JSON, or a row of SQL, says is of a type that nobody can know: `message.json()`, `result.rows()` and frames
    are left out."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert checked(program, "--disallow-any-expr") == ["Success: no issues found in 1 source file"]
    program.write_text(f'{PROGRAM}\n\ndef unknown(message: Message) -> None:\n    print(message.json()["a"])\n')
    assert any("has type" in line and '"Any"' in line for line in checked(program, "--disallow-any-expr"))


def test_what_open_and_connect_give_is_a_bus() -> None:
    with headwater.open(":memory:") as bus:
        assert isinstance(bus, headwater.Bus)
    assert headwater.Bus in headwater.client.bus.Bus.__mro__
    assert not isinstance(object(), headwater.Bus)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (headwater.Bus, r"headwater\.open\(folder\), or headwater\.connect\(url\), gives one"),
        (headwater.Consumer, r"bus\.subscribe\(filter, id=…\) gives one"),
        (headwater.Live, r"bus\.subscribe\(filter\) gives one"),
        (headwater.Reading, r"bus\.replay\(filter\), or bus\.follow\(filter\), gives one"),
        (headwater.aio.Bus, r"headwater\.aio\.open\(folder\)"),
        (headwater.aio.Consumer, r"bus\.subscribe\(filter, id=…\) gives one"),
        (headwater.aio.Live, r"bus\.subscribe\(filter\) gives one"),
    ],
)
def test_a_type_that_is_called_says_what_gives_one(kind: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        kind(":memory:")
    with pytest.raises(TypeError, match=says):
        kind("home/#", None)


def test_every_name_of_the_package_is_there() -> None:
    assert all(getattr(headwater, name) is not None for name in headwater.__all__)
    assert len(set(headwater.__all__)) == len(headwater.__all__)
