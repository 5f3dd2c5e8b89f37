"""Sealed payloads: what only holders of the key can read, and what does not open."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater import Malformed, NotAllowed
from headwater.seal import KEY_BYTES, NONCE_BYTES, new_key, seal, unseal

KEY = bytes(range(32))
TOPICS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.binary(max_size=200), TOPICS, st.binary(min_size=32, max_size=32))
def test_what_is_sealed_opens_with_its_key_and_topic(payload: bytes, topic: str, key: bytes) -> None:
    sealed = seal(key, payload, topic)
    assert unseal(key, sealed, topic) == payload
    assert len(sealed) == 1 + NONCE_BYTES + len(payload) + 16


def test_a_sealed_payload_is_laid_out_as_documented() -> None:
    sealed = seal(KEY, b"secret")
    assert sealed[0] == 1
    assert b"secret" not in sealed
    assert seal(KEY, b"secret")[1:13] != sealed[1:13], "each has a nonce of its own"


def test_it_opens_with_no_other_key_and_on_no_other_topic() -> None:
    sealed = seal(KEY, b"secret", "home/door")
    for key, topic in [(new_key(), "home/door"), (KEY, "home/window"), (KEY, "")]:
        with pytest.raises(NotAllowed, match="another key") as refused:
            unseal(key, sealed, topic)
        assert refused.value.code == 403


def test_it_does_not_open_if_a_bit_was_changed_or_a_byte_is_missing() -> None:
    sealed = seal(KEY, b"secret")
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((NotAllowed, Malformed)):
            unseal(KEY, bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises((NotAllowed, Malformed)):
            unseal(KEY, sealed[:length])


@given(st.binary(max_size=60))
@settings(max_examples=50)
def test_random_bytes_do_not_open(data: bytes) -> None:
    with pytest.raises((NotAllowed, Malformed)):
        unseal(KEY, data)


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(Malformed, match="new_key"):
        seal(key, b"x")
    with pytest.raises(Malformed, match="new_key"):
        unseal(key, seal(KEY, b"x"))


def test_keys_are_new_each_time() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_the_broker_carries_what_it_cannot_read() -> None:
    with headwater.open(":memory:") as bus:
        bus.publish("home/door", headwater.seal.seal(KEY, b"open", "home/door"))
        (message,) = bus.replay("home/#")
        assert b"open" not in message.payload
        assert headwater.seal.unseal(KEY, message.payload, message.topic) == b"open"


def test_without_the_package_both_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = seal(KEY, b"x")
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Malformed, match=r"pip install 'headwater\[seal\]'"):
        seal(KEY, b"x")
    with pytest.raises(Malformed, match=r"pip install 'headwater\[seal\]'"):
        unseal(KEY, sealed)
