"""Numbers of QoS 2 that come again while nobody knows what became of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from headwater.errors import Failed, HeadwaterError, SteppedDown, Unavailable
from headwater.mqtt.kinds import Kind
from headwater.mqtt.packet_ids import PacketIds
from headwater.mqtt.receiving import Receiving
from headwater.mqtt.session import MqttSession

NUMBER = 5


@pytest.fixture
def receiving() -> Receiving:
    sessions = SimpleNamespace(serving=SimpleNamespace(mqtt_receive_max=10))
    return Receiving(cast("MqttSession", SimpleNamespace(sessions=sessions, row=SimpleNamespace(id="s"))))


def came(receiving: Receiving) -> tuple[int | None, PacketIds]:
    """A PUBLISH: the sequence to store it under, and who waits for that."""
    return receiving.take(NUMBER, "home"), PacketIds(Kind.PUBREC, (NUMBER,), receiving, left=1)


def test_a_repeat_that_is_refused_leaves_the_first_its_number(receiving: Receiving):
    sequence, first = came(receiving)
    again, second = came(receiving)
    assert again == sequence
    second.settle(None, Unavailable("not now"))
    assert came(receiving)[0] == sequence
    first.settle(None, None)
    assert came(receiving)[0] is None


def test_a_number_whose_message_was_refused_each_time_is_free(receiving: Receiving):
    sequence, first = came(receiving)
    _, second = came(receiving)
    second.settle(None, Unavailable("not now"))
    first.settle(None, Unavailable("not now"))
    assert came(receiving)[0] != sequence


@pytest.mark.parametrize("error", [Failed("the disk"), SteppedDown("it may be stored or not")])
def test_a_message_that_may_be_stored_keeps_its_sequence(receiving: Receiving, error: HeadwaterError):
    sequence, first = came(receiving)
    first.settle(None, error)
    again, second = came(receiving)
    assert again == sequence
    second.settle(None, Unavailable("not now"))
    assert came(receiving)[0] == sequence
