"""Messages as CloudEvents 1.0, which is how http channels send them: one in binary mode, several as a JSON batch.

| attribute | what it is |
|---|---|
| id | root/offset: the same however often a message is sent, and unique within its source |
| source | /headwater/ and the id of the bus |
| type | headwater.message |
| subject | the topic |
| time | when it was published |
| datacontenttype | the message's header content-type, if it has one that can be |
| headwateroffset | the offset |
| headwaterattempt | which attempt this is, from the second on |
| headwaterkey | the key, as Base64 |
| headwaterheaders | the message's headers, as a JSON list of pairs |
| headwaterretained | true for a retained message that a new channel begins with |
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

import msgspec

from headwater.clock import to_datetime
from headwater.message import Headers, Message

TYPE = "headwater.message"
TRIAL_TYPE = "headwater.test"
BATCH = "application/cloudevents-batch+json"
OPAQUE = "application/octet-stream"

_CONTENT_TYPE = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(;[ -~]{0,256})?", re.ASCII)
_UNQUOTED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What an attribute's value may hold as it is, in a header."""

_encode = msgspec.json.Encoder().encode


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message as a CloudEvent."""

    specversion: str
    id: str
    source: str
    type: str
    time: datetime | None = None
    subject: str = ""
    datacontenttype: str = ""
    headwateroffset: str = ""
    headwaterattempt: int = 1
    headwaterkey: str = ""
    headwaterheaders: str = ""
    headwaterretained: bool = False
    data_base64: bytes = b""


def event_of(message: Message, source: str) -> Event:
    """A message as an event."""
    headers = message.header_pairs
    return Event(
        specversion="1.0",
        id=f"{message.root}/{message.offset}",
        source=source,
        type=TYPE,
        time=to_datetime(message.time_us),
        subject=message.topic,
        datacontenttype=_content_type(headers) if headers else "",
        headwateroffset=str(message.offset),
        headwaterattempt=message.attempt,
        headwaterkey="" if message.key is None else base64.b64encode(message.key).decode("ascii"),
        headwaterheaders=_encode(headers).decode() if headers else "",
        headwaterretained=message.retained,
        data_base64=message.payload,
    )


def source_of(bus: str) -> str:
    """Where events of a bus come from."""
    return f"/headwater/{bus}"


def trial_event(source: str, id: str) -> Event:
    """What is sent to try a channel out."""
    return Event(specversion="1.0", id=id, source=source, type=TRIAL_TYPE)


def in_binary_mode(event: Event) -> tuple[list[tuple[str, str]], bytes]:
    """The headers and the body of a request with one event."""
    headers = [("content-type", event.datacontenttype or OPAQUE)]
    for name in Event.__struct_fields__:
        value = getattr(event, name)
        is_default = value in ("", None, False) or (name == "headwaterattempt" and value == 1)
        if is_default or name in ("datacontenttype", "data_base64"):
            continue
        headers.append((f"ce-{name}", _header_value(value)))
    return headers, event.data_base64


def as_batch(events: Sequence[Event]) -> bytes:
    """The body of a request with several events."""
    return _encode(events)


def _header_value(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if value is True:
        return "true"
    return quote(str(value), safe=_UNQUOTED)


def _content_type(headers: Headers) -> str:
    for name, value in headers:
        if name.lower() == "content-type" and _CONTENT_TYPE.fullmatch(value):
            return value
    return ""
