"""An MQTT session with thousands of filters: each costs what it is itself, however many there are already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from headwater.mqtt.packets import Subscription
from headwater.server.pump import Credit, Pump, Wake
from headwater.server.session_row import SessionRow, SubscriptionOf, stored_sessions
from headwater.store import state as rows
from headwater.store.rocks import RocksState
from headwater.store.state import State
from mqtt.peer import MqttPeer, Served

FILTERS = [f"home/{number:04}/{'x' * 50}" for number in range(400)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, int]:
    """Bytes that the state was given, by the first byte of their keys."""
    counts: dict[bytes, int] = {}
    for name in ("commit", "write"):
        real = getattr(RocksState, name)

        def counted(self: RocksState, changed: Mapping[bytes, bytes | None], real: Any = real) -> None:
            for key, value in changed.items():
                counts[key[:1]] = counts.get(key[:1], 0) + len(key) + len(value or b"")
            real(self, changed)

        monkeypatch.setattr(RocksState, name, counted)
    return counts


def cost_of(written: dict[bytes, int]) -> int:
    return written.get(rows.SESSION, 0) + written.get(rows.HELD, 0)


@pytest.mark.parametrize("at_once", [1, 200])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_bytes_that_are_written_grow_with_the_filters_and_not_with_their_square(
    tmp_path: Path, written: dict[bytes, int], qos: int, at_once: int
) -> None:
    count = len(FILTERS) if qos == 0 else 100
    with Served(tmp_path / "data") as served:
        peer = served.kept("phone")
        written.clear()
        for first in range(0, count, at_once):
            wanted = FILTERS[first : min(count, first + at_once)]
            assert set(peer.subscribe(*(Subscription(one, qos) for one in wanted))) == {qos}
        assert 0 < cost_of(written) <= 4 * sum(len(one) + 40 for one in FILTERS[:count])
        written.clear()
        peer.subscribe("one more")
        assert 0 < cost_of(written) < 1000
        written.clear()
        peer.unsubscribe(FILTERS[0])
        assert 0 < cost_of(written) < 1000


def held(state: State) -> list[bytes]:
    return [key for key, _ in state.scan(rows.HELD)]


def asked_for(served: Served, id: str = "phone") -> list[str]:
    return sorted(one.filter for one in served.mqtt_session(id).subscriptions.values())


def test_they_are_there_after_a_restart_and_nothing_is_left_of_a_session_that_ends(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        peer = served.kept("phone")
        for qos in (0, 1):
            peer.subscribe(*(Subscription(one, qos) for one in FILTERS[qos::40]))
        peer.unsubscribe(FILTERS[0])
        before = asked_for(served)
        assert len(before) == 19
    with Served(tmp_path / "data") as served:
        peer = served.kept("phone")
        assert peer.connack.session_present
        assert asked_for(served) == before
        served.until(lambda: len(served.mqtt_session("phone").pumps) == 19)
        served.bus.publish(FILTERS[1], b"1")
        served.bus.publish(FILTERS[40], b"0")
        assert {peer.got().topic, peer.got().topic} == {FILTERS[1], FILTERS[40]}
        assert len(held(served.bus.core.state)) == 19
        peer.leave()
        served.mqtt("phone", clean_start=True).leave()
        served.until(lambda: not held(served.bus.core.state))
        served.until(lambda: not stored_sessions(served.bus.core.state))


def as_of_format_2(folder: Path) -> None:
    """Put what sessions take from back into their own rows."""
    with headwater.open(folder) as bus:
        state = bus.core.state
        for row in stored_sessions(state):
            state.commit({rows.SESSION + row.id.encode(): rows.pack(row)})
        state.commit(dict.fromkeys(held(state)))
    version = folder / "VERSION"
    version.write_bytes(version.read_bytes().replace(b'"format":3', b'"format":2'))


def test_sessions_of_a_folder_of_format_2_go_on_and_get_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Served(folder) as served:
        peer = served.kept("phone")
        peer.subscribe("home/#", qos=1, subscription_identifiers=(7,))
        peer.subscribe("hall/#")
        native = served.peer("ann", expire_after_s=3600.0)
        native.subscribe(3, "home/#", kind="session")
    as_of_format_2(folder)
    with headwater.open(folder, read_only=True) as bus:
        assert sorted(len(row.subscriptions) for row in stored_sessions(bus.core.state)) == [1, 2]
    for life in range(2):
        with Served(folder) as served:
            state = served.bus.core.state
            served.until(lambda: len(held(state)) == 3)  # noqa: B023  # it is asked in this turn
            assert not any(
                msgspec.msgpack.decode(value, type=SessionRow).subscriptions for _, value in state.scan(rows.SESSION)
            )
            peer = served.kept("phone")
            assert peer.connack.session_present
            assert asked_for(served) == ["hall/#", "home/#"]
            served.bus.publish("home/x", b"%d" % life)
            message = peer.got()
            assert (message.payload, message.properties.subscription_identifiers) == (b"%d" % life, (7,))
            peer.puback(message)
            back = served.peer("ann", session=native.session)
            assert back.done_with(3, 1) == [b"%d" % life]
    assert b'"format":3' in (folder / "VERSION").read_bytes()


def test_what_a_crash_has_left_of_a_session_that_is_gone_goes(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        left = SubscriptionOf(1, "live", "gone:home/#", "home/#", 1, 1)
        bus.core.state.commit({rows.key_words(rows.HELD, "gone", left.id): rows.pack(left)})
    with Served(tmp_path / "data") as served:
        served.until(lambda: not held(served.bus.core.state))


def test_a_shared_subscription_goes_with_the_last_who_takes_from_it(tmp_path: Path) -> None:
    name = "$share/group/home/#"

    def is_there(served: Served) -> bool:
        return served.bus.core.dispatcher.row(name) is not None

    def both(served: Served) -> tuple[MqttPeer, MqttPeer]:
        return served.kept("a"), served.kept("b")

    with Served(tmp_path / "data") as served:
        for peer in both(served):
            peer.subscribe(name, qos=1)
            peer.subscribe(name, qos=1)  # the same again
    with Served(tmp_path / "data") as served:
        first, second = both(served)
        first.unsubscribe(name)
        second.ping()
        assert is_there(served)
        second.leave()
        served.mqtt("b", clean_start=True)
        served.until(lambda: not is_there(served))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a pump has looked for something to send."""
    counted = [0]
    real = Pump.receive

    def receive(self: Pump, message: object) -> None:
        counted[0] += isinstance(message, Wake | Credit)
        real(self, message)

    monkeypatch.setattr(Pump, "receive", receive)
    return counted


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_more_filter_and_each_message_have_few_of_them_looked_at(looks: list[int], qos: int) -> None:
    with Served() as served:
        peer = served.kept("phone")
        for first in range(0, 200, 50):
            peer.subscribe(*(Subscription(one, qos) for one in FILTERS[first : first + 50]))
        served.until(lambda: not served.server.wakes.rung)
        looks[0] = 0
        for number in range(20):
            peer.subscribe(f"one more/{number}", qos=qos)
            served.bus.publish(FILTERS[number], b"")
            peer.settle(peer.got())
        peer.ping()
        assert looks[0] < 20 * 20


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_with_little_room_gets_what_all_its_filters_bring_in_turn(qos: int) -> None:
    with Served() as served:
        peer = served.line()
        peer.connect("phone", clean_start=True, receive_maximum=2)
        peer.subscribe(*(Subscription(one, qos) for one in FILTERS[:100]))
        for number in range(3):
            for one in FILTERS[:100]:
                served.bus.publish(one, b"%d" % number)
        got = []
        for _ in range(300):
            message = peer.got()
            got.append((message.topic, message.payload))
            peer.settle(message)
        for one in FILTERS[:100]:
            assert [payload for topic, payload in got if topic == one] == [b"0", b"1", b"2"]


def test_a_client_that_reads_slowly_gets_what_all_its_filters_bring() -> None:
    with Served(write_bytes_max=10_000) as served:
        peer = served.kept("phone")
        for qos in (0, 1):
            peer.subscribe(*(Subscription(one, qos) for one in FILTERS[qos:100:2]))
        for one in FILTERS[:100]:
            served.bus.publish(one, bytes(100_000))
        topics = []
        for _ in range(100):
            message = peer.got()
            topics.append(message.topic)
            if message.qos:
                peer.puback(message)
        assert sorted(topics) == FILTERS[:100]
