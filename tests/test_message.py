"""Messages: what a payload says, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import headwater
import headwater.aio
from headwater import Malformed, Message


@dataclass
class Reading:
    celsius: float
    room: str = "hall"


class Struct(msgspec.Struct):
    celsius: float


class Model:
    """What pydantic's models have."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    @classmethod
    def model_validate_json(cls, payload: bytes) -> Model:
        if payload == b"{}":
            raise ValueError("celsius: field required")
        return cls(payload)


def message(payload: bytes) -> Message:
    return Message("home/hall/temp", 7, payload, 0)


def test_a_dead_letter_is_read_as_a_message_is() -> None:
    with headwater.open(":memory:") as bus:
        sub = bus.subscribe("a/#", id="s")
        bus.publish("a/b", b'{"celsius": 21.5}', headers={"unit": "C"})
        bus.publish("a/b", b"\xff")
        for _ in range(2):
            found = sub.next(60)
            assert found is not None
            found.reject("no")
        sub.close()
        letter, other = bus.dead_letters("s")
    assert letter.text == '{"celsius": 21.5}'
    assert letter.json() == {"celsius": 21.5}
    assert letter.json(Reading) == Reading(21.5, "hall")
    assert (letter.headers["unit"], letter.timestamp) == ("C", letter.time)
    with pytest.raises(Malformed, match='message 2 of "a/b" is no UTF-8 text'):
        assert other.text
    with pytest.raises(Malformed, match='message 2 of "a/b" cannot be read as JSON'):
        other.json()


def test_a_payload_is_text_and_json_and_of_the_type_that_is_asked_for() -> None:
    assert message("21 °C".encode()).text == "21 °C"
    assert message(b'{"celsius": 21.5}').json() == {"celsius": 21.5}
    assert message(b'{"celsius": 21.5}').json(Reading) == Reading(21.5, "hall")
    assert message(b'{"celsius": 21.5}').json(Struct).celsius == 21.5
    assert message(b"[1, 2]").json(list[int]) == [1, 2]
    assert message(b'{"celsius": 1}').json(Model).payload == b'{"celsius": 1}'
    assert headwater.aio.Message("a", 1, b"3", 0).json(int) == 3


@pytest.mark.parametrize(
    ("payload", "type", "says"),
    [
        (b"{", Any, "as JSON"),
        (b"", Any, "as JSON"),
        (b"\xff", Any, "as JSON"),
        (b'{"room": "hall"}', Reading, "as Reading: .*celsius"),
        (b'{"celsius": "warm"}', Struct, "as Struct: .*celsius"),
        (b"{}", Model, "as Model: celsius"),
        (b"[" * 100_000, Any, "as JSON"),
    ],
)
def test_what_does_not_fit_is_malformed_and_says_which_message(payload: bytes, type: Any, says: str) -> None:
    with pytest.raises(Malformed, match=f'message 7 of "home/hall/temp" cannot be read {says}'):
        message(payload).json(type)


def test_what_is_no_text_is_malformed() -> None:
    with pytest.raises(Malformed, match="no UTF-8 text"):
        _ = message(b"\xff").text
