"""The public keys of an issuer: a JSON Web Key Set (RFC 7517), bytes in, keys out.

Invariants:

- A key checks signatures of its own kind alone: an RSA key RS and PS, a curve the one ES that belongs to it, an Edwards
  curve EdDSA; one that names its algorithm, that one. Secrets (`oct`), private keys, keys for encryption and RSA keys
  of less than 2048 bits are passed over.
- There are at most so many keys, in so many bytes; a set in which nothing is of use is none.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import msgspec

from headwater.access.name import quoted
from headwater.config import JWT_ALGORITHMS
from headwater.errors import Malformed

KEY_SET_BYTES_MAX = 256 * 1024
"""A longer set is not read."""
KEYS_MAX = 100
"""Keys of a set beyond these are passed over."""
KEY_ID_CHARS_MAX = 256
RSA_BITS_MIN = 2048

CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
EDWARDS = ("Ed25519", "Ed448")


class Key(NamedTuple):
    """One public key, ready to check signatures."""

    algorithms: tuple[str, ...]
    """Those that it checks."""
    public: Any


class KeySet:
    """The keys of an issuer, by their ids."""

    def __init__(self, keys: dict[str, list[Key]]) -> None:
        self._by_id = keys

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._numbers() == other._numbers()

    __hash__ = None  # type: ignore[assignment]  # it is compared, and kept nowhere

    def _numbers(self) -> dict[str, list[tuple[tuple[str, ...], object]]]:
        return {
            name: [(key.algorithms, _spki(key.public)) for key in keys] for name, keys in sorted(self._by_id.items())
        }

    @property
    def ids(self) -> list[str]:
        """Of every key, those without one left out."""
        return sorted(filter(None, self._by_id))

    def fitting(self, id: str | None, algorithm: str) -> list[Key]:
        """The keys that a token may be checked with; a token that names none fits one alone."""
        if id is not None:
            return [key for key in self._by_id.get(id, ()) if algorithm in key.algorithms]
        found = [key for keys in self._by_id.values() for key in keys if algorithm in key.algorithms]
        return found if len(found) == 1 else []


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(data: bytes) -> KeySet:
    """The keys in the bytes of a set; Malformed (422) says why it is none."""
    if len(data) > KEY_SET_BYTES_MAX:
        raise Malformed(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data, type=_Set).keys
    except (msgspec.DecodeError, RecursionError):
        raise Malformed('it is no JWKS: a JSON object with a list "keys"') from None
    keys: dict[str, list[Key]] = {}
    for one in found[:KEYS_MAX]:
        key = _key_of(one)
        named = one.get("kid", "")
        if key is not None and isinstance(named, str) and len(named) <= KEY_ID_CHARS_MAX:
            keys.setdefault(named, []).append(key)
    if not keys:
        raise Malformed(f"none of its {len(found)} keys can check a signature")
    return KeySet(keys)


def _key_of(one: dict[str, Any]) -> Key | None:
    """A key of the set; None for one that is of no use here."""
    kind, curve, named = one.get("kty"), one.get("crv"), one.get("alg")
    may_verify = one.get("use", "sig") == "sig" and "verify" in one.get("key_ops", ("verify",))
    if "d" in one or not may_verify:
        return None
    algorithms = tuple(name for name in JWT_ALGORITHMS if _is_of(name, kind, curve) and named in (None, name))
    if not algorithms:
        return None
    public = _public(algorithms[0], one)
    return None if public is None else Key(algorithms, public)


def _is_of(algorithm: str, kind: object, curve: object) -> bool:
    match kind:
        case "RSA":
            return algorithm.startswith(("RS", "PS"))
        case "EC":
            return isinstance(curve, str) and CURVES.get(curve) == algorithm
        case "OKP":
            return algorithm == "EdDSA" and curve in EDWARDS
        case _:
            return False


def _public(algorithm: str, one: dict[str, Any]) -> Any:
    jwt = library()
    try:
        public = jwt.get_algorithm_by_name(algorithm).from_jwk(one)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, ArithmeticError):
        return None
    return None if getattr(public, "key_size", RSA_BITS_MIN) < RSA_BITS_MIN and one["kty"] == "RSA" else public


def _spki(public: Any) -> object:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def library() -> Any:
    """PyJWT; Malformed (422) where it, or what it needs, is not installed."""
    try:
        importlib.import_module("cryptography")
        return importlib.import_module("jwt")
    except ImportError as error:
        raise Malformed(
            f"tokens of an issuer (auth jwt) need {quoted(error.name or 'jwt')}; install it with: "
            "pip install 'headwater[jwt]'"
        ) from error
