"""Sealing: payloads that the broker must not read, AES-256-GCM with a key that never reaches it.

    ┌─────────┬────────────┬──────────────────────────┐
    │ 1 byte  │ 12 bytes   │ ciphertext, 16-byte tag  │
    │ version │ nonce      │                          │
    └─────────┴────────────┴──────────────────────────┘

The topic, if given, is authenticated too: a sealed payload that somebody moved to another topic does not open.
Needs `pip install 'headwater[seal]'`.
"""

from __future__ import annotations

import importlib
import secrets
from typing import Any

from headwater.errors import Malformed, NotAllowed

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"


def new_key() -> bytes:
    """A key to be kept where the broker is not."""
    return secrets.token_bytes(KEY_BYTES)


def seal(key: bytes, payload: bytes, topic: str = "") -> bytes:
    """A payload that only holders of the key can read."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed: bytes = _cipher(key).encrypt(nonce, payload, topic.encode())
    return VERSION + nonce + sealed


def unseal(key: bytes, sealed: bytes, topic: str = "") -> bytes:
    """The payload; NotAllowed if the key or topic is another, or a byte was changed."""
    if sealed[:1] != VERSION or len(sealed) < 1 + NONCE_BYTES + 16:
        raise Malformed("this is no sealed payload; seal it with headwater.seal.seal(key, payload)")
    nonce, rest = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
    cipher = _cipher(key)
    invalid = importlib.import_module("cryptography.exceptions").InvalidTag
    try:
        payload: bytes = cipher.decrypt(nonce, rest, topic.encode())
    except invalid as error:
        raise NotAllowed("the payload does not open: another key, another topic, or it was changed") from error
    return payload


def _cipher(key: bytes) -> Any:
    if len(key) != KEY_BYTES:
        raise Malformed(f"a key of {len(key)} bytes; use one of {KEY_BYTES}, as headwater.seal.new_key() makes")
    try:
        aead = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
    except ImportError as error:
        raise Malformed("sealing needs an extra package; install it with: pip install 'headwater[seal]'") from error
    return aead.AESGCM(key)
