"""Payloads that do not fit the schema of their topic, as MQTT clients are told."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.mqtt import refused
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Publish, Will
from headwater.mqtt.reasons import Reason
from headwater.server.log import Log
from mqtt.peer import Served
from server.harness import SECRET

TEMP = "home/a/temp"
GOOD, BAD = b'{"celsius": 1}', b'{"celsius": "warm"}'
SCHEMA = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the lines of a second to itself."""
    monkeypatch.setattr(refused, "log", Log("headwater.mqtt"))


def run_of(payloads: list[bytes], qos: int) -> list[Publish]:
    return [Publish(TEMP, payload, qos, packet_id=n if qos else 0) for n, payload in enumerate(payloads, 1)]


def stored(served: Served) -> list[bytes]:
    return [one.payload for one in served.bus.replay("home/#")]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_of_5_is_told_which_and_where_and_the_others_are_stored(qos: int):
    with Served() as served:
        served.bus.schema("home/+/temp", SCHEMA)
        peer = served.mqtt("s", V5)
        peer.send(*run_of([GOOD, BAD, GOOD], qos))
        answers = [peer.ack(Kind.PUBACK if qos == 1 else Kind.PUBREC) for _ in range(3)]
        assert [one.reason for one in answers] == [0, Reason.PAYLOAD_FORMAT_INVALID, 0]
        assert "at $.celsius: Expected `float`" in (answers[1].properties.reason_string or "")
        assert stored(served) == [GOOD, GOOD]
        assert peer.publish(TEMP, b"", 1, retain=True).reason == 0


def test_a_client_of_3_1_1_is_closed_after_what_came_before(caplog: pytest.LogCaptureFixture):
    with Served() as served:
        served.bus.schema("home/+/temp", SCHEMA)
        peer = served.mqtt("s", V4)
        peer.send(*run_of([GOOD, BAD, GOOD], 1))
        peer.ends()
        assert [one.packet_id for one in peer.inbox if one.kind is Kind.PUBACK] == [1]  # type: ignore[union-attr]
        assert stored(served)[0] == GOOD
        assert BAD not in stored(served)
        assert any("home/+/temp" in line["reason"] for line in lines(caplog, "publish-refused"))


@pytest.mark.parametrize("version", [V4, V5])
def test_what_is_refused_of_qos_0_is_counted_and_logged_and_shown_to_nobody(
    version: int, caplog: pytest.LogCaptureFixture
):
    with Served() as served, served.bus.subscribe("home/#") as live:
        served.bus.schema("home/+/temp", SCHEMA)
        peer = served.mqtt("s", version)
        peer.send(*run_of([GOOD, BAD, GOOD], 0))
        peer.publish(TEMP, GOOD, 1)
        assert stored(served) == [GOOD] * 3
        assert [live.next(60).payload for _ in range(3)] == [GOOD] * 3  # type: ignore[union-attr]  # there is one
        assert served.server.sessions.counts.unstored == 1
        assert "celsius" in lines(caplog, "publish-dropped")[0]["reason"]


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [one.fields for one in caplog.records if getattr(one, "event", "") == event]  # type: ignore[attr-defined]


def test_a_will_that_does_not_fit_is_refused_with_the_connect_and_tells_those_alone_who_may_publish_it():
    with Served(auth="scram") as served:
        served.bus.schema("home/+/temp", SCHEMA)
        served.client("ann", allow=("publish home/#", "create home/#"))
        served.client("eve", allow=("publish mine/#",))
        for user, reason in (("ann", Reason.PAYLOAD_FORMAT_INVALID), ("eve", Reason.NOT_AUTHORIZED)):
            answer = served.line().connect("c", will=Will(TEMP, BAD), user_name=user, password=SECRET.encode())
            assert answer.reason == reason
            assert ("celsius" in (answer.properties.reason_string or "")) == (user == "ann")
