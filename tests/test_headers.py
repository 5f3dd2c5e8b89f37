"""Headers as a mapping: in order, with repeats, and made when they are looked at."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import headwater
from headwater.headers import HeaderMap
from headwater.message import Message

PAIRS = (("unit", "C"), ("site", "1"), ("unit", "K"))


def test_a_name_is_its_last_value_and_get_all_has_every_one() -> None:
    headers = HeaderMap(PAIRS)
    assert headers["unit"] == headers.get("unit") == "K"
    assert headers.get_all("unit") == ["C", "K"]
    assert headers.get("none") is None
    assert headers.get("none", "x") == "x"
    assert headers.get_all("none") == []
    assert "unit" in headers
    assert "none" not in headers
    with pytest.raises(KeyError):
        headers["none"]


def test_what_is_gone_through_is_in_order_with_repeats() -> None:
    headers = HeaderMap(PAIRS)
    assert tuple(headers.items()) == PAIRS
    assert list(headers) == list(headers.keys()) == ["unit", "site", "unit"]
    assert list(headers.values()) == ["C", "1", "K"]
    assert len(headers) == len(headers.items()) == 3
    assert ("unit", "C") in headers.items()
    assert "C" in headers.values()


def test_a_dict_of_them_keeps_the_last_of_a_name() -> None:
    assert dict(HeaderMap(PAIRS)) == {"unit": "K", "site": "1"}
    assert {**HeaderMap(PAIRS)} == {"unit": "K", "site": "1"}


def test_they_equal_a_dict_without_repeats_alone() -> None:
    assert HeaderMap(PAIRS[:2]) == {"unit": "C", "site": "1"}
    assert HeaderMap(PAIRS) != {"unit": "K", "site": "1"}
    assert HeaderMap(PAIRS) == HeaderMap(PAIRS)
    assert HeaderMap(PAIRS) != HeaderMap(PAIRS[:2])
    assert HeaderMap() == {}
    assert HeaderMap() != 5
    assert {HeaderMap(PAIRS), HeaderMap(PAIRS)} == {HeaderMap(PAIRS)}
    assert isinstance(HeaderMap(), Mapping)
    assert not HeaderMap()


def test_they_say_what_they_are() -> None:
    assert repr(HeaderMap(PAIRS[:2])) == "HeaderMap({'unit': 'C', 'site': '1'})"
    assert repr(HeaderMap(PAIRS)) == f"HeaderMap({PAIRS!r})"


def test_a_message_has_them_and_is_passed_on_with_them() -> None:
    with headwater.open(":memory:") as bus:
        bus.publish("a/b", b"1", headers=PAIRS)
        bus.publish("a/b", b"2", headers=next(bus.replay("a/#")).headers)
        bus.publish_many([headwater.Outgoing("a/b", b"3", headers=next(bus.replay("a/#")).headers)])
        for message in bus.replay("a/#"):
            assert message.headers["unit"] == "K"
            assert message.header_pairs == PAIRS
        assert Message("a", 1, b"", 0).headers == {}
        with bus.subscribe("a/#", id="s", start="earliest") as sub:
            sub.next(timeout_s=60).reject("no")  # type: ignore[union-attr]
        (letter,) = bus.dead_letters("s")
        assert letter.headers.get_all("unit") == ["C", "K"]
        assert letter.mend(headers=letter.headers) == letter
        assert letter.mend(headers={"unit": "F"}).headers == {"unit": "F"}
