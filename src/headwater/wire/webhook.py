"""Signatures of webhooks, as Standard Webhooks has them: whoever knows the secret can tell who sent a request.

    webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4W
    webhook-timestamp: 1674087231
    webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=

What is signed is `id.timestamp.body`, with HMAC-SHA-256. A secret is written as `whsec_` and Base64.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from headwater.errors import Malformed

PREFIX = "whsec_"
SECRET_BYTES = 32
"""Of a secret that is drawn."""
SECRET_BYTES_MIN = 24
SECRET_BYTES_MAX = 64


def secret_text(secret: bytes) -> str:
    """A secret as it is shown."""
    return PREFIX + base64.b64encode(secret).decode("ascii")


def secret_bytes(text: str) -> bytes:
    """A secret of its text; Malformed (422) if it is none. The error does not repeat it."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise Malformed(
            f"the secret of a channel is {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes as Base64; leave "
            "it out to have one drawn"
        )
    return secret


def sign(secret: bytes, id: str, timestamp_s: int, body: bytes) -> str:
    """The value of webhook-signature."""
    signed = hmac.digest(secret, f"{id}.{timestamp_s}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(signed).decode("ascii")
