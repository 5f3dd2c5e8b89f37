"""Payloads in JSON: as text where they are that, as base64 otherwise; and from JSON, text or base64 back to bytes."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Literal

from headwater.errors import Malformed
from headwater.message import Envelope

Encoding = Literal["text", "json", "base64"]
Shown = Literal["text", "base64"]


def to_bytes(value: Any, encoding: Encoding, what: str = "payload") -> bytes:
    """The bytes that a value stands for; Malformed (422) if it stands for none."""
    try:
        if encoding == "json":
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if not isinstance(value, str):
            raise Malformed(f'{what} is no string; send one, or say "encoding": "json"')
        return value.encode() if encoding == "text" else base64.b64decode(value.encode(), validate=True)
    except (UnicodeError, ValueError, RecursionError, binascii.Error):
        raise Malformed(f"{what} cannot be read as {encoding}") from None


def shown(data: bytes) -> tuple[str, Shown]:
    """Bytes as JSON can have them, and how."""
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def shown_contents(message: Any) -> dict[str, Any]:
    """Payload, key and headers of a message or a dead letter."""
    payload, encoding = shown(message.payload)
    found: dict[str, Any] = {"payload": payload, "encoding": encoding}
    if message.key is not None:
        found["key"], found["key_encoding"] = shown(message.key)
    found["headers"] = message.header_pairs
    return found


def shown_message(message: Envelope) -> dict[str, Any]:
    """A message as the API shows it."""
    return {
        "topic": message.topic,
        "offset": message.offset,
        "time": message.time,
        **shown_contents(message),
        "retained": message.retained,
    }
