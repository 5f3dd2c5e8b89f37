"""What values say of themselves, in a console and in a notebook."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import headwater
import headwater.aio
from client.served import WAIT_S, Served
from headwater import ManualClock, html
from headwater.message import DeadLetter, Message, ScheduleInfo, StateInfo


def cells(shown: str) -> list[str]:
    return re.findall(r"<t[dh]>(.*?)</t[dh]>", shown)


def test_a_table_is_escaped_short_and_ends() -> None:
    shown = html.table(("a", "b"), (("<script>", "x" * 500) for _ in range(1_000_000)), 1_000_000)
    assert "<script>" not in shown
    assert cells(shown)[2:4] == ["&lt;script&gt;", "x" * 80 + "…"]
    assert shown.count("<tr>") == 21
    assert shown.endswith("<p>and 999,980 more</p>")
    assert "more" not in html.table(("a",), [(1,)] * 20, 20)


def test_a_payload_is_its_text_or_its_size() -> None:
    assert html.shortened(b"21.5") == "21.5"
    assert html.shortened(b"\xff\xfe") == "2 bytes"
    assert html.shortened(b"") == "0 bytes"
    assert html.shortened("é".encode() * 1000).startswith("ééé")
    assert html.shortened(b"a" + "é".encode() * 1000).startswith("aéé")


def test_messages_and_receipts_say_what_matters() -> None:
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        receipt = bus.publish("home/a", "<b>", headers={"unit": "C"})
        time = receipt.time.isoformat()
        assert repr(receipt) == f"Receipt('home/a', offset=1, time={time})"
        (message,) = bus.replay("home/#")
        assert repr(message) == ("Message('home/a', offset=1, payload=b'<b>', headers=HeaderMap({'unit': 'C'}))")
        shown = cells(message._repr_html_())
        assert shown == ["home/a", "", "payload", "&lt;b&gt;", "offset", "1", "time", time, "unit", "C"]
        few = bus.publish_many([("home/a", b"1")] * 2)
        assert repr(few) == f"Receipts([{few[0]!r}, {few[1]!r}])"
        assert cells(few._repr_html_())[:3] == ["topic", "offset", "time"]
        many = bus.publish_many([("home/a", b"1")] * 10_000)
        assert repr(many) == f"<10000 receipts, from {many[0]!r} to {many[-1]!r}>"
        bus.publish("home/b", b"on", retain=True)
        assert cells(bus.retained("home/#")._repr_html_())[4:7] == ["home/b", "on", "10004"]
    assert "Message" in repr(Message("a", 1, b"", 0))


def test_a_subscription_says_what_matters() -> None:
    with headwater.open(":memory:") as bus:
        sub = bus.subscribe("home/#", id="s", start="earliest")
        bus.publish("home/a", b"1")
        assert sub.next(WAIT_S) is not None
        (info,) = bus.subscriptions()
        assert repr(info) == ("SubscriptionInfo('s', filter='home/#', order='strict', lag=1, in_flight=1, consumers=1)")
        assert cells(info._repr_html_())[:4] == ["s", "", "filter", "home/#"]


def test_a_bus_and_its_readers_say_where_and_whether_they_go_on(tmp_path: Path) -> None:
    def look(bus: Any, where: str) -> None:
        live, sub, reading = bus.subscribe("home/#"), bus.subscribe("home/#", id="s"), bus.follow("home/a")
        assert [repr(one) for one in (live, sub, reading)] == [
            '<Live "home/#">',
            '<Consumer "s" of "home/#">',
            '<Reading "home/a">',
        ]
        for one in (live, sub, reading):
            one.close()
            assert repr(one).endswith("(closed)>")
        assert where in repr(bus)

    with headwater.open(":memory:") as bus:
        look(bus, "<headwater bus in :memory:>")
    assert repr(bus) == "<headwater bus in :memory: (closed)>"
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as remote:
        look(remote, f"<headwater bus at {remote.folder}>")
        with headwater.open(tmp_path / "data", read_only=True) as beside:
            assert repr(beside).endswith("(read only)>")

    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            assert repr(bus) == "<headwater bus in :memory:>"
            async with bus.subscribe("home/#") as live, bus.subscribe("home/#", id="s") as sub:
                assert (repr(live), repr(sub)) == ('<Live "home/#">', '<Consumer "s" of "home/#">')

    asyncio.run(work())


def test_reprs_of_what_is_listed_tell_what_matters_and_of_a_long_payload_its_beginning() -> None:
    long = b"x" * 1_000_000
    letter = DeadLetter("s", "home/a", 2, long, 0, None, (), 3, ("first", "ValueError: no\n  File …"), 1_000_000)
    assert repr(letter) == (
        "DeadLetter('home/a', offset=2, subscription='s', attempts=3, dead_at=1970-01-01T00:00:01+00:00, "
        f"error='ValueError: no', payload={b'x' * 200!r}… (1,000,000 bytes))"
    )
    state = StateInfo("home", "home/a", 2, "retry", 1, errors=("ValueError: no\n  File …",), retry_at_us=1_000_000)
    assert repr(state) == (
        "StateInfo('home/a', offset=2, state='retry', attempts=1, retry_at=1970-01-01T00:00:01+00:00, "
        "error='ValueError: no')"
    )
    assert repr(StateInfo("home", None, 2, "acked", 0)) == "StateInfo('home', offset=2, state='acked')"
    schedule = ScheduleInfo("nightly", "jobs/x", b"run", "0 3 * * *", "UTC", 1_000_000)
    assert repr(schedule) == (
        "ScheduleInfo('nightly', topic='jobs/x', cron='0 3 * * *', zone='UTC', next_at=1970-01-01T00:00:01+00:00, "
        "payload=b'run')"
    )
    assert len(repr(Message("home/a", 1, long, 0))) < 300
    assert cells(letter._repr_html_())[-4:] == ["error", "ValueError: no", "payload", "x" * 80 + "…"]
    assert cells(state._repr_html_())[:6] == ["home/a", "", "offset", "2", "state", "retry"]
    assert cells(schedule._repr_html_())[:4] == ["nightly", "", "topic", "jobs/x"]
