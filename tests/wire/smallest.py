"""The smallest form of each request."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.store.body import encode_body
from headwater.wire.request import Request

BODY = encode_body(["a", "a"], [b"x", b"y"], 1)


def smallest(struct: type[Request[Any]]) -> dict[str, Any]:
    """Something valid for each field that has to be there."""
    given: dict[str, Any] = {"do": struct.__name__}
    for field in msgspec.structs.fields(struct):
        if field.required:
            known = {
                "kind": "live",
                "change": "allow",
                "count": 2,
                "body": BODY,
                "parts": [],
                "archived": {},
                "letters": [],
                "channels": [],
                "role": "reader",
                "paused": True,
                "payload": b"",
                "key": b"",
            }
            is_text = field.type is str
            given[field.name] = known.get(field.name, "x" if is_text else 1)
    return given
