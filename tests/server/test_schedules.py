"""Schedules of a server's clients: what they may, and what becomes of it when they may not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest

import headwater
import headwater.aio
from bus.flows import settle
from headwater import Config, Conflict, Malformed, ManualClock, NotAllowed, NotFound, QuotaExceeded
from headwater.client.bus import Bus as ServedBus
from server.harness import SECRET, Running

HOURLY = "0 * * * *"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_767_225_600_000_000)


@pytest.fixture
def running(clock: ManualClock) -> Iterator[Running]:
    config = Config(schedules_per_client_max=2)
    with (
        headwater.open(":memory:", config, clock=clock) as bus,
        Running(bus=bus, auth="scram", keepalive_s=86_400.0) as running,
    ):
        running.client("ann", allow=("publish jobs/#", "create jobs/#"))
        running.client("bob", allow=("publish jobs/#", "create jobs/#"))
        running.client("root", admin=True)
        yield running


def connected(running: Running, name: str) -> ServedBus:
    return headwater.connect(url_of(running, name))


def url_of(running: Running, name: str) -> str:
    return running.server.url.replace("://", f"://{name}:{quote(SECRET)}@")


def hour(running: Running, clock: ManualClock) -> int:
    """Let an hour pass; how many messages there are of the schedules."""
    clock.advance(3600)
    settle(running.bus)
    return running.bus.ends().get("jobs", 0)


def test_a_client_makes_sees_and_removes_its_own_and_an_administrator_all(running: Running, clock: ManualClock):
    with connected(running, "ann") as ann, connected(running, "bob") as bob, connected(running, "root") as root:
        made = ann.schedule("jobs/x", b"1", cron=HOURLY, headers={"a": "b"}, key=b"k")
        assert (made.client, made.id, made.headers) == ("ann", "jobs/x", (("a", "b"),))
        assert ann.schedule("jobs/x", b"1", cron=HOURLY, headers={"a": "b"}, key=b"k") == made
        assert (ann.schedules(), bob.schedules(), root.schedules()) == ([made], [], [made])
        with pytest.raises(Conflict, match="another id"):
            bob.schedule("jobs/x", b"2", cron=HOURLY)
        with pytest.raises(NotFound):
            bob.unschedule("jobs/x")
        assert hour(running, clock) == 1
        root.unschedule("jobs/x")
        assert ann.schedules() == []
        assert hour(running, clock) == 1


def test_what_a_client_may_not_publish_or_says_wrongly_is_refused(running: Running):
    with connected(running, "ann") as ann:
        with pytest.raises(NotAllowed, match="home/door"):
            ann.schedule("home/door", b"open", cron=HOURLY)
        with pytest.raises(NotAllowed, match="answers"):
            ann.schedule("jobs/x", b"", cron=HOURLY, headers={"reply-to": "home/door"})
        with pytest.raises(Malformed, match="five fields"):
            ann.schedule("jobs/x", b"", cron="daily")
        with pytest.raises(Malformed):
            ann.schedule("jobs/x", b"", cron=5)  # type: ignore[arg-type]
        with pytest.raises(Malformed, match="payload"):
            ann.schedule("jobs/x", None, cron=HOURLY)  # type: ignore[arg-type]
        for name in "ab":
            ann.schedule("jobs/x", b"", cron=HOURLY, id=name)
        with pytest.raises(QuotaExceeded, match="schedules_per_client_max"):
            ann.schedule("jobs/x", b"", cron=HOURLY, id="c")
        assert [one.id for one in ann.schedules()] == ["a", "b"]
    with connected(running, "bob") as bob:
        bob.schedule("jobs/x", b"", cron=HOURLY, id="c")


def test_a_time_at_which_its_client_has_no_right_is_passed_over(running: Running, clock: ManualClock):
    with connected(running, "ann") as ann:
        ann.schedule("jobs/x", b"", cron=HOURLY)
    assert hour(running, clock) == 1
    running.bus.acl.deny("ann", "publish", "jobs/#")
    assert hour(running, clock) == 1
    assert any("passed over" in event.text for event in running.bus.events())
    running.bus.acl.remove("ann", "publish", "jobs/#")
    running.bus.acl.allow("ann", "publish", "jobs/#")
    assert hour(running, clock) == 2
    running.bus.clients.remove("ann")
    running.client("ann", allow=("publish jobs/#",))
    assert hour(running, clock) == 2  # another client of the same name has not made it


def test_the_same_with_asyncio(running: Running):
    async def use() -> None:
        async with headwater.aio.connect(url_of(running, "ann")) as ann:
            made = await ann.schedule("jobs/x", b"", cron=HOURLY)
            assert await ann.schedules() == [made]
            await ann.unschedule("jobs/x")
            assert await ann.schedules() == []

    asyncio.run(use())
