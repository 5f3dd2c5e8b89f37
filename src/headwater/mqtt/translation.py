"""What MQTT calls properties and Headwater headers, and back.

    MQTT 5                    Headwater
    user property             header
    response topic            header reply-to, as bus.request has it: either side can answer the other; header
                              mqtt-response-topic if who asks may not publish there, which message.reply passes over
    correlation data          header correlation-id; base64:… where it is no text
    content type              header content-type
    payload format indicator  header payload-format, "utf-8" or "bytes"
    message expiry interval   the message's expiry, counted down
    –                         key: user property headwater-key, base64

A user property of a name that has a meaning here is the header mqtt-user-NAME, so that it comes out as it came in.
What only Headwater knows goes to MQTT 5 clients as user properties; clients of 3.1.1 get topic and payload.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from headwater.clock import SECOND_US, to_datetime
from headwater.message import FROM, REPLY_TO, Headers
from headwater.mqtt.kinds import Kind
from headwater.mqtt.properties import EMPTY, Properties, properties_bytes
from headwater.requests import CORRELATION

CONTENT_TYPE = "content-type"
PAYLOAD_FORMAT = "payload-format"
FORMATS = ("bytes", "utf-8")
"""What the indicator says."""
KEY = "headwater-key"
OFFSET = "headwater-offset"
TIME = "headwater-time"
RESPONSE_TOPIC = "mqtt-response-topic"
USER = "mqtt-user-"
MEANT = frozenset((REPLY_TO, RESPONSE_TOPIC, CORRELATION, CONTENT_TYPE, PAYLOAD_FORMAT, FROM))
"""Headers that are no user properties."""
BASE64 = "base64:"
EXPIRY_S_MAX = 0xFFFF_FFFF


def headers_of(
    properties: Properties, may_be_answered: Callable[[str], bool] = lambda _: True
) -> tuple[Headers, bytes | None]:
    """The headers that a message's properties stand for, and its key."""
    found: list[tuple[str, str]] = []
    if properties.response_topic is not None:
        name = REPLY_TO if may_be_answered(properties.response_topic) else RESPONSE_TOPIC
        found.append((name, properties.response_topic))
    if properties.correlation_data is not None:
        found.append((CORRELATION, _as_text(properties.correlation_data)))
    if properties.content_type is not None:
        found.append((CONTENT_TYPE, properties.content_type))
    if properties.payload_format_indicator is not None:
        found.append((PAYLOAD_FORMAT, FORMATS[properties.payload_format_indicator]))
    key: bytes | None = None
    for name, value in properties.user_properties:
        if name == KEY:
            key = _as_bytes(BASE64 + value)
        elif name in MEANT or name.startswith(USER):
            found.append((USER + name, value))
        else:
            found.append((name, value))
    return tuple(found), key


def expiry_us(properties: Properties, now_us: int) -> int:
    """When a message expires; 0 if it does not."""
    interval_s = properties.message_expiry_interval
    return 0 if interval_s is None else now_us + interval_s * SECOND_US


def block_of(
    headers: Headers,
    key: bytes | None = None,
    expires_us: int = 0,
    now_us: int = 0,
    identifiers: tuple[int, ...] = (),
    place: tuple[int, int] | None = None,
) -> bytes:
    """The properties of a message on its way out, as MQTT 5 writes them; `place` is its offset and its time."""
    if not headers and key is None and not expires_us and not identifiers and place is None:
        return EMPTY
    found: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    for name, value in headers:
        if name in (REPLY_TO, RESPONSE_TOPIC):
            found["response_topic"] = value
        elif name == CORRELATION:
            found["correlation_data"] = _as_bytes(value)
        elif name == CONTENT_TYPE:
            found["content_type"] = value
        elif name == PAYLOAD_FORMAT and value in FORMATS:
            found["payload_format_indicator"] = FORMATS.index(value)
        elif name != FROM:
            user.append((name.removeprefix(USER), value))
    if key is not None:
        user.append((KEY, base64.b64encode(key).decode()))
    if place is not None:
        user += ((OFFSET, str(place[0])), (TIME, to_datetime(place[1]).isoformat()))
    if expires_us:
        left_s = max(1, -(-(expires_us - now_us) // SECOND_US))
        found["message_expiry_interval"] = min(left_s, EXPIRY_S_MAX)
    properties = Properties(user_properties=tuple(user), subscription_identifiers=identifiers, **found)
    return properties_bytes(properties, Kind.PUBLISH)


def _as_text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    is_plain = bool(text) and text.isprintable() and not text.startswith(BASE64)
    return text if is_plain else BASE64 + base64.b64encode(data).decode()


def _as_bytes(text: str) -> bytes:
    if text.startswith(BASE64):
        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except binascii.Error:
            pass  # a native publisher may have written it by hand
    return text.encode()
