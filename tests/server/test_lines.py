"""What the log says of sessions, refusals, slow readers and messages that fail: one line each, with whose it is."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater
from client.served import Served
from headwater import Connecting
from headwater.server.log import configure

WAIT_S = 60.0


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") == event]


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not found() and time.monotonic() < end:
        time.sleep(0.01)
    return found()


def test_a_sessions_life_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headwater.server")
    settings = Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.01)
    with (
        Served(tmp_path / "data", session_expire_after_s=0.2) as served,
        headwater.connect(served.url, settings) as bus,
    ):
        (registered,) = until(lambda: said(caplog, "session-registered"))
        (connected,) = until(lambda: said(caplog, "connected"))
        assert (connected["session"], connected["user"]) == (registered["session"], registered["user"])
        link = bus._client.link
        connection = link._connection
        assert connection is not None
        bus._loop.call_soon_threadsafe(connection.fail, headwater.Disconnected("cut"))
        bus.ends()
        (resumed,) = until(lambda: said(caplog, "session-resumed") + said(caplog, "session-taken-over"))
        (lost,) = until(lambda: said(caplog, "disconnected"))
        assert (lost["session"], lost["reason"]) == (registered["session"], "lost")
        assert resumed["session"] == registered["session"] == link.session
        assert resumed["address"].startswith("127.0.0.1")
        with pytest.raises(headwater.NotFound):
            bus.unsubscribe("nobody")
        (refused,) = until(lambda: said(caplog, "request-refused"))
        assert (refused["session"], refused["code"]) == (link.session, 404)
        assert "nobody" in refused["reason"]
        connection = link._connection
        assert connection is not None
        link.close(end_session=False)
        (reclaimed,) = until(lambda: said(caplog, "session-reclaimed"))
        assert reclaimed["session"] == registered["session"]
        assert "nobody came back within 0.2 s" in reclaimed["reason"]


def test_what_times_out_and_comes_again_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headwater.server")
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        bus.publish_many([("a/b", b"x"), ("a/b", b"y")])
        sub = bus.subscribe("a/#", id="x", start="earliest", ack_timeout_s=0.1, retry_delay_s=0.01, order="none")
        assert len(sub.batch(2, WAIT_S)) == 2
        message = sub.next(WAIT_S)
        assert message is not None
        assert message.attempt == 2
        late = until(lambda: said(caplog, "timed-out"))[0]
        assert (late["subscription"], late["root"], late["first"]) == ("x", "a", 1)
        assert (late["consumer"], late["user"]) == (bus.session, "anonymous")
        again = until(lambda: said(caplog, "redelivered"))[0]
        assert (again["subscription"], again["root"], again["user"]) == ("x", "a", "anonymous")


def test_a_session_that_is_taken_over_is_told_with_who_took_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.server")
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        assert bus.session is not None
        with headwater.connect(served.url, session=bus.session) as other:
            assert other.session == bus.session
        taken = until(lambda: said(caplog, "session-taken-over"))[0]
        assert (taken["session"], taken["user"], taken["by"]) == (bus.session, "anonymous", "127.0.0.1")
        assert "another connection" in taken["reason"]


def test_who_is_refused_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.server")
    with Served(tmp_path / "data", auth="scram") as served:
        with pytest.raises(headwater.Unauthenticated):
            headwater.connect(served.url.replace("://", "://ann:wrong@"))
        refused = until(lambda: said(caplog, "refused"))[0]
        assert (refused["user"], refused["session"], refused["address"]) == ("ann", "-", "127.0.0.1")
        assert "401" in refused["error"]


def test_who_gets_no_session_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headwater.server")
    with Served(tmp_path / "data") as served, pytest.raises(headwater.NotFound):
        headwater.connect(served.url, session="0" * 32)
    (refused,) = until(lambda: said(caplog, "request-refused"))
    assert (refused["code"], refused["user"]) == (404, "anonymous")
    assert "there is no such session" in refused["reason"]


def test_what_is_given_up_is_a_line_with_all_that_is_known_and_many_of_them_are_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater")
    out = io.StringIO()
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        handler = configure(as_json=True, stream=out)
        try:
            bus.publish_many([("a/b", b"x")] * 100)
            sub = bus.subscribe("a/#", id="s", start="earliest", order="none", max_in_flight=100)
            messages = sub.batch(100, WAIT_S)
            for message in messages:
                message.reject("no number")
        finally:
            for name in ("headwater", "asyncio"):
                logging.getLogger(name).removeHandler(handler)
                logging.getLogger(name).propagate = True
        session = bus.session
        assert len(bus.dead_letters("s")) == 100
    lines = [line for line in map(json.loads, out.getvalue().splitlines()) if line["event"] == "dead"]
    assert 10 <= len(lines) < 100
    told = {name: lines[0][name] for name in ("subscription", "topic", "attempts", "reason", "consumer", "user")}
    assert told == {
        "subscription": "s",
        "topic": "a/b",
        "attempts": 1,
        "reason": "no number",
        "consumer": session,
        "user": "anonymous",
    }


def test_a_slow_reader_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.server")
    config = headwater.Config(live_messages_max=10)
    with (
        Served(tmp_path / "data", config) as served,
        headwater.connect(served.url, Connecting(prefetch_messages=1)) as bus,
    ):
        live = bus.subscribe("a/#")
        for _ in range(5):
            bus.publish_many([("a/b", b"x")] * 10)
        live.batch(100, WAIT_S)
        slow = until(lambda: said(caplog, "slow-reader"))[0]
        assert (slow["filter"], slow["session"], slow["user"]) == ("a/#", bus.session, "anonymous")
        assert 0 < slow["dropped"] <= slow["in_all"]
