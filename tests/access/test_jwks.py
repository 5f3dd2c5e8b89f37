"""Which keys of a set are taken, and for what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from headwater.access.jwks import KEY_SET_BYTES_MAX, KEYS_MAX, read_keys
from headwater.errors import Malformed
from server.issuing import SigningKey, key_set


def of(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.mark.parametrize(
    ("algorithm", "fits", "not_for"),
    [
        ("RS256", ("RS256", "RS512", "PS384"), ("ES256", "EdDSA")),
        ("ES256", ("ES256",), ("ES384", "RS256", "EdDSA")),
        ("ES512", ("ES512",), ("ES256",)),
        ("EdDSA", ("EdDSA",), ("ES256", "RS256")),
    ],
)
def test_a_key_checks_what_is_of_its_kind(algorithm: str, fits: tuple[str, ...], not_for: tuple[str, ...]):
    keys = read_keys(key_set(SigningKey("one", algorithm)))
    assert all(keys.fitting("one", name) for name in fits)
    assert not any(keys.fitting("one", name) for name in (*not_for, "HS256", "none"))
    assert not keys.fitting("two", algorithm)


def test_a_key_that_names_its_algorithm_checks_that_one():
    keys = read_keys(of({**SigningKey("one", "RS256").jwk, "alg": "RS384"}))
    assert keys.fitting("one", "RS384")
    assert not keys.fitting("one", "RS256")


@pytest.mark.parametrize(
    "bad",
    [
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        {"kty": "RSA"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "RSA", "n": 7, "e": 7},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": ["P-256"]},
        {},
    ],
    ids=str,
)
def test_what_is_no_public_key_is_passed_over(bad: dict[str, Any]):
    check_passed_over(bad)


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"alg": "none"},
        {"alg": "HS256"},
        {"kid": 7},
        {"kid": "k" * 300},
    ],
    ids=str,
)
def test_a_key_for_something_else_is_passed_over(changed: dict[str, Any]):
    check_passed_over({**SigningKey("x", "ES256").jwk, **changed})


def test_private_and_small_keys_are_passed_over():
    check_passed_over(json.loads(RSAAlgorithm.to_jwk(SigningKey("x", "RS256").private)))
    check_passed_over(json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(65_537, 1024).public_key())))


def check_passed_over(bad: dict[str, Any]) -> None:
    good = SigningKey("good")
    keys = read_keys(of(bad, good.jwk))
    assert len(keys) == 1
    assert keys.ids == ["good"]
    with pytest.raises(Malformed, match="none of its 1 keys"):
        read_keys(of(bad))


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"keys": {}}', b'{"keys": [7]}', b'{"keys": []}', b"\xff", b"[" * 10_000, b"<html>"],
    ids=lambda text: text[:12],
)
def test_what_is_no_set_is_said_to_be_none(text: bytes):
    with pytest.raises(Malformed):
        read_keys(text)


def test_a_set_has_a_longest_and_a_most():
    key = SigningKey("one")
    with pytest.raises(Malformed, match=str(KEY_SET_BYTES_MAX)):
        read_keys(key_set(key) + b" " * KEY_SET_BYTES_MAX)
    assert len(read_keys(of(*({**key.jwk, "kid": str(place)} for place in range(KEYS_MAX + 1))))) == KEYS_MAX


def test_sets_are_the_same_if_their_keys_are():
    one, other = SigningKey("one"), SigningKey("one")
    assert read_keys(key_set(one)) == read_keys(key_set(one))
    assert read_keys(key_set(one)) != read_keys(key_set(other))
    assert read_keys(key_set(one)) != read_keys(key_set(one, SigningKey("two")))
