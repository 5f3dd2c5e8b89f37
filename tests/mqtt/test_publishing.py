"""An acknowledgement means disk: what was not stored is not acknowledged, whatever refused it, and the log says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.mqtt import refused
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Disconnect, Publish
from headwater.mqtt.reasons import Reason
from headwater.server.log import Log
from mqtt.peer import MqttPeer, Served

both = pytest.mark.parametrize("version", [V4, V5])
acked = pytest.mark.parametrize("qos", [1, 2])


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the lines of a second to itself."""
    monkeypatch.setattr(refused, "log", Log("headwater.mqtt"))


def run_of(topics: list[str], qos: int, **options: Any) -> list[Publish]:
    return [Publish(topic, b"%d" % n, qos, packet_id=n if qos else 0, **options) for n, topic in enumerate(topics, 1)]


def acks_until_the_end(peer: MqttPeer) -> list[int]:
    """The numbers that were acknowledged, in order, before the server closed."""
    peer.ends()
    return [one.packet_id for one in peer.inbox if isinstance(one, Ack)]


def stored(served: Served) -> list[int]:
    return [int(one.payload) for one in served.bus.replay("#")]


def refusals(caplog: pytest.LogCaptureFixture, event: str = "publish-refused") -> list[dict[str, Any]]:
    return [one.fields for one in caplog.records if getattr(one, "event", "") == event]  # type: ignore[attr-defined]


LIMITS: list[tuple[str, Callable[[], Served], list[str]]] = [
    (
        "topics_created_per_minute_max",
        lambda: Served(auth="scram", topics_created_per_minute_max=2),
        ["home/1", "home/2", "home/3", "home/1"],
    ),
    ("topics_per_root_max", lambda: Served(config=Config(topics_per_root_max=2)), ["a/1", "a/2", "a/3", "a/1"]),
    ("roots_max", lambda: Served(config=Config(roots_max=2)), ["a/1", "b/2", "c/3", "a/1"]),
    ("topic_levels_max", lambda: Served(config=Config(topic_levels_max=2)), ["a/1", "b/2", "b/2/3", "a/1"]),
]


@acked
@pytest.mark.parametrize(("setting", "serve", "topics"), LIMITS, ids=[setting for setting, *_ in LIMITS])
def test_a_publish_of_3_1_1_over_a_limit_closes_the_connection_and_is_not_acknowledged(
    setting: str, serve: Callable[[], Served], topics: list[str], qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as served:
        if served.server.serving.auth == "scram":
            served.client("ann", allow=("publish #", "create #"))
        peer = served.mqtt("s", V4, user="ann" if served.server.serving.auth == "scram" else None)
        peer.send(*run_of(topics, qos))
        assert acks_until_the_end(peer) == [1, 2]
        assert set(stored(served)) - {4} == {1, 2}
        [line] = refusals(caplog)
        assert setting in line["reason"]
        assert line["client"] == "s"


@pytest.mark.parametrize("more", [1, 100_000])
def test_a_payload_of_3_1_1_that_is_too_long_closes_the_connection_after_what_came_before_it(
    more: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(config=Config(message_bytes_max=1000)) as served:
        peer = served.mqtt("s", V4)
        long = Publish("home/x", bytes(1000 + more), 1, packet_id=2)
        peer.send(Publish("home/x", b"1", 1, packet_id=1), long, Publish("home/x", b"3", 1, packet_id=3))
        assert acks_until_the_end(peer) == [1]
        assert stored(served) == [1]
        [line] = refusals(caplog)
        assert "message_bytes_max" in line["reason"]


@acked
def test_a_full_disk_closes_the_connection_of_3_1_1_and_the_log_says_so(
    qos: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(tmp_path, config=Config(disk_free_bytes_min=1 << 60)) as served:
        peer = served.mqtt("s", V4)
        peer.send(*run_of(["a/1", "b/1"], qos))
        assert acks_until_the_end(peer) == []
        assert "disk_free_bytes_min" in refusals(caplog)[0]["reason"]


def test_retained_messages_of_3_1_1_over_their_limit_close_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with Served(config=Config(retained_per_root_max=2)) as served:
        peer = served.mqtt("s", V4)
        peer.send(*run_of(["home/1", "home/2", "home/3", "home/1"], 1, retain=True))
        assert acks_until_the_end(peer) == [1, 2]
        assert "retained_per_root_max" in refusals(caplog)[0]["reason"]


def test_a_refused_publish_in_the_midst_of_a_run_over_several_roots_lets_those_before_it_be_acknowledged() -> None:
    with Served(config=Config(topics_per_root_max=3)) as served:
        peer = served.mqtt("s", V4)
        topics = [f"{root}/{n}" for n in range(3) for root in "abc"] + ["a/0", "b/9", "c/0", "a/1"]
        peer.send(*run_of(topics, 1))
        assert acks_until_the_end(peer) == list(range(1, 11))
        assert set(range(1, 11)) <= set(stored(served))
        assert 11 not in stored(served)


def test_what_stands_between_one_that_is_not_allowed_and_one_that_ends_the_connection_is_stored() -> None:
    with Served(config=Config(topic_levels_max=2), auth="scram") as served:
        served.client("ann", allow=("publish #", "create #"), deny=("publish a/denied",))
        peer = served.mqtt("s", V4, user="ann")
        topics = ["c/1", "a/denied", "b/1", "c/2", "b/1", "a/1", "b/1/2", "c/3", "a/1", "d/1"]
        peer.send(*run_of(topics, 1))
        assert acks_until_the_end(peer) == [1, 2, 3, 4, 5, 6]
        assert {1, 3, 4, 5, 6} <= set(stored(served)) <= {1, 3, 4, 5, 6, 8, 9}


def test_a_client_of_3_1_1_that_comes_again_is_not_stored_again_and_again() -> None:
    with Served(config=Config(topics_per_root_max=1)) as served:
        for _ in range(3):
            peer = served.mqtt("s", V4)
            peer.send(*run_of(["a/1", "a/2", "a/1", "b/1"], 1))
            assert acks_until_the_end(peer) == [1]
        assert stored(served).count(3) <= 1
        assert stored(served).count(4) <= 1


@acked
def test_acknowledgements_come_in_the_order_of_the_publishes_whatever_their_roots(qos: int) -> None:
    with Served() as served:
        for version in (V4, V5):
            peer = served.mqtt("s", version)
            peer.send(*run_of(["a/1", "b/1", "a/2", "c/1", "b/2", "a/3"], qos))
            kind = Kind.PUBACK if qos == 1 else Kind.PUBREC
            assert [peer.ack(kind).packet_id for _ in range(6)] == [1, 2, 3, 4, 5, 6]
            peer.leave()


@both
@acked
def test_what_a_client_may_not_publish_is_answered_in_its_turn_logged_and_counted(
    version: int, qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))
        peer = served.mqtt("s", version, user="ann")
        peer.send(*run_of(["home/1", "garden/2", "home/3"], qos))
        kind = Kind.PUBACK if qos == 1 else Kind.PUBREC
        answers = [peer.ack(kind) for _ in range(3)]
        assert [one.packet_id for one in answers] == [1, 2, 3]
        reason = Reason.NOT_AUTHORIZED if version == V5 else 0
        assert [one.reason for one in answers] == [0, reason, 0]
        assert stored(served) == [1, 3]
        counts = served.server.sessions.counts
        assert (counts.rights_refusals, counts.unstored) == (1, int(version == V4))
        lines = refusals(caplog, "publish-dropped")
        assert len(lines) == (version == V4)
        assert all("garden/2" in line["reason"] and line["user"] == "ann" for line in lines)


@both
def test_what_is_refused_of_qos_0_is_counted_and_logged_and_the_connection_stays(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(config=Config(topics_per_root_max=1)) as served:
        peer = served.mqtt("s", version)
        peer.send(*run_of(["a/1", "a/2", "a/3"], 0))
        peer.publish("a/1", b"4", 1)
        assert stored(served) == [1, 4]
        assert served.server.sessions.counts.unstored == 2
        assert "topics_per_root_max" in refusals(caplog, "publish-dropped")[0]["reason"]


def test_no_publish_of_5_that_is_not_stored_is_called_a_success() -> None:
    config = Config(topics_per_root_max=2, roots_max=2, message_bytes_max=1000, retained_per_root_max=1)
    with Served(config=config) as served:
        peer = served.mqtt("s", V5)
        wanted = [
            *(("a/1", 0), ("a/2", 0), ("a/3", Reason.QUOTA_EXCEEDED)),
            *(("b/1", 0), ("c/1", Reason.QUOTA_EXCEEDED), ("a/1", 0)),
            ("/".join("a" * 40), Reason.TOPIC_NAME_INVALID),
        ]
        for qos in (1, 2):
            kind = Kind.PUBACK if qos == 1 else Kind.PUBREC
            peer.send(*run_of([topic for topic, _ in wanted], qos))
            assert [peer.ack(kind).reason for _ in wanted] == [reason for _, reason in wanted]
        long = Publish("a/1", bytes(1001), 1, packet_id=90)
        peer.send(long, *run_of(["a/1", "a/2"], 1, retain=True))
        assert [peer.ack(Kind.PUBACK).reason for _ in range(3)] == [Reason.QUOTA_EXCEEDED, 0, Reason.QUOTA_EXCEEDED]


def test_a_run_that_fills_a_root_is_stored_up_to_the_limit() -> None:
    with Served(config=Config(topics_per_root_max=5)) as served:
        peer = served.mqtt("s", V5)
        peer.send(*run_of([f"a/{n}" for n in range(1, 11)], 1))
        reasons = [peer.ack(Kind.PUBACK).reason for _ in range(10)]
        assert reasons == [0] * 5 + [Reason.QUOTA_EXCEEDED] * 5
        assert stored(served) == [1, 2, 3, 4, 5]


def test_a_client_that_comes_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with Served(config=Config(roots_max=1), refusals_logged_per_minute_max=3) as served:
        served.mqtt("t", V4).publish("a/1", b"1", 1)
        for _ in range(10):
            peer = served.mqtt("s", V4)
            peer.send(*run_of(["b/1"], 1))
            assert acks_until_the_end(peer) == []
        assert len(refusals(caplog)) == 3
        assert served.server.sessions.counts.refused == 10
        # Another client has lines of its own.
        peer = served.mqtt("u", V4)
        peer.send(*run_of(["b/1"], 1))
        peer.ends()
        assert [line["client"] for line in refusals(caplog)] == ["s", "s", "s", "u"]


def test_a_refused_publish_of_qos_2_leaves_its_number_free_for_the_next_connection() -> None:
    with Served(config=Config(topics_per_root_max=1)) as served:
        peer = served.kept("s", V4)
        peer.send(*run_of(["a/1", "a/2"], 2))
        assert acks_until_the_end(peer) == [1]
        peer = served.kept("s", V4)
        peer.send(Publish("a/1", b"2", 2, packet_id=2))
        peer.ack(Kind.PUBREC, 2)
        assert stored(served) == [1, 2]


def test_what_was_stored_before_a_packet_that_breaks_the_rules_is_acknowledged() -> None:
    with Served() as served:
        for version in (V4, V5):
            peer = served.mqtt("s", version)
            peer.send(*run_of(["a/1", "b/1"], 1), b"\xf0\x05hello")
            assert acks_until_the_end(peer) == [1, 2]
            assert version == V4 or [one for one in peer.inbox if isinstance(one, Disconnect)]


def test_a_first_start_may_announce_5000_topics_in_a_minute() -> None:
    with Served(auth="scram") as served:
        served.client("gateway", allow=("publish #", "create #"))
        peer = served.mqtt("s", V4, user="gateway")
        topics = [f"homeassistant/sensor/{n}/config" for n in range(5000)]
        for first in range(0, 5000, 500):
            peer.send(*[Publish(topic, b"1", 1, packet_id=n) for n, topic in enumerate(topics[first : first + 500], 1)])
            for _ in range(500):
                peer.ack(Kind.PUBACK)
        assert sum(1 for _ in served.bus.replay("#")) == 5000
