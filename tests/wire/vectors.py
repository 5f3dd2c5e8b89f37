"""The test vectors of docs/reference/protocol.md: frames in hex, each beside what it says.

A vector is a fenced block that starts with three backquotes and `vector`:

    name: ping
    frame: PING id=0 flags=0
    value: null
    hex: 08000000 20 00 0000 00000000

`value` is JSON, possibly over several lines; bytes in it are {"bytes": "hex"}. `hex` may have spaces and lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headwater.wire import batches, channel, handshake, operations, requests
from headwater.wire.frame import Frame, Kind, pack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md"
BLOCK = re.compile(
    r"^```vector\nname: (?P<name>[^\n]+)\nframe: (?P<kind>[A-Z]+) id=(?P<id>\d+) flags=(?P<flags>\d+)\n"
    r"value: (?P<value>.*?)\nhex: (?P<hex>[0-9a-f \n]+?)\n```$",
    re.MULTILINE | re.DOTALL,
)


class Vector(NamedTuple):
    """A frame that the page shows."""

    name: str
    kind: Kind
    id: int
    flags: int
    value: Any
    """As JSON has it, bytes as {"bytes": hex}."""
    data: bytes


def read_vectors() -> list[Vector]:
    """Every vector of the page; a block that cannot be parsed is an error, not passed over."""
    text = PAGE.read_text(encoding="utf-8")
    found = [
        Vector(
            m["name"],
            Kind[m["kind"]],
            int(m["id"]),
            int(m["flags"]),
            json.loads(m["value"]),
            bytes.fromhex(m["hex"]),
        )
        for m in BLOCK.finditer(text)
    ]
    assert len(found) == text.count("```vector\n"), (
        "a vector in the protocol's page is not in the form of wire/vectors.py"
    )
    return found


def shown(value: Any) -> Any:
    """A value as the page shows it."""
    if isinstance(value, msgspec.Struct):
        return shown(msgspec.to_builtins(value, builtin_types=(bytes,)))
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    return value


def meant(value: Any) -> Any:
    """What the page shows, as builtins."""
    if isinstance(value, dict):
        if value.keys() == {"bytes"}:
            return bytes.fromhex(value["bytes"])
        return {name: meant(one) for name, one in value.items()}
    if isinstance(value, list):
        return [meant(one) for one in value]
    return value


def _packed(type: Any) -> tuple[Callable[[Frame], Any], Callable[[Vector], bytes]]:
    """How a frame whose payload is MessagePack is read and written."""

    def write(vector: Vector) -> bytes:
        value = msgspec.convert(meant(vector.value), type, builtin_types=(bytes,))
        return pack(vector.kind, vector.id, requests.encode(value), vector.flags)

    return lambda frame: shown(requests.decode(frame.payload, type)), write


def _read_ok(frame: Frame) -> Any:
    return shown(requests.decode(frame.payload, handshake.Welcome)) if frame.payload else None


def _write_ok(vector: Vector) -> bytes:
    return pack(Kind.OK) if vector.value is None else _packed(handshake.Welcome)[1](vector)


def _read_empty(frame: Frame) -> Any:
    assert frame.payload == b""


def _write_empty(vector: Vector) -> bytes:
    return pack(vector.kind, vector.id, b"", vector.flags)


def _read_publish(frame: Frame) -> Any:
    return shown(batches.read_publish(frame))


def _write_publish(vector: Vector) -> bytes:
    v = meant(vector.value)
    return b"".join(
        batches.pack_publish(
            vector.id, v["root"], v["count"], v["crc"], v["body"], v["producer"], v["sequence"], vector.flags
        )
    )


def _read_published(frame: Frame) -> Any:
    return [shown(one) for one in batches.read_published(frame)]


def _write_published(vector: Vector) -> bytes:
    return batches.pack_published(
        [(v["id"], v["is_repeat"], v["first_offset"], v["time_us"]) for v in meant(vector.value)]
    )


def _read_deliver(frame: Frame) -> Any:
    read = batches.read_deliver(frame)
    fields = {name: getattr(read, name) for name in read.__struct_fields__}
    return shown({**fields, "deltas": None if read.deltas is None else list(read.deltas)})


def _write_deliver(vector: Vector) -> bytes:
    v = meant(vector.value)
    head = batches.pack_deliver(
        v["subscription"],
        v["lease"],
        v["root"].encode(),
        v["first_offset"],
        v["count"],
        v["crc"],
        len(v["body"]),
        v["attempt"],
        v["deltas"],
        batches.RETAINED if v["is_retained"] else 0,
    )
    return head + bytes(v["body"])


def _read_ranges(frame: Frame) -> Any:
    subscription, ranges = batches.read_ranges(frame)
    return {"subscription": subscription, "ranges": [list(one) for one in ranges]}


def _write_ranges(vector: Vector) -> bytes:
    v = vector.value
    return batches.pack_ranges(vector.kind, vector.id, v["subscription"], [tuple(one) for one in v["ranges"]])


def _read_credit(frame: Frame) -> Any:
    messages, size = batches.read_credit(frame)
    return {"messages": messages, "bytes": size}


def _write_credit(vector: Vector) -> bytes:
    return batches.pack_credit(vector.id, vector.value["messages"], vector.value["bytes"])


CODECS: dict[Kind, tuple[Callable[[Frame], Any], Callable[[Vector], bytes]]] = {
    Kind.HELLO: _packed(handshake.Hello),
    Kind.CHALLENGE: _packed(handshake.Challenge),
    Kind.RESPONSE: _packed(handshake.Response),
    Kind.OK: (_read_ok, _write_ok),
    Kind.REQUEST: (lambda frame: shown(operations.read_request(frame)), _packed(reduce(or_, operations.OPERATIONS))[1]),
    Kind.REPLY: _packed(requests.Registered | None),
    Kind.ERROR: _packed(requests.Problem),
    Kind.PUBLISH: (_read_publish, _write_publish),
    Kind.PUBLISHED: (_read_published, _write_published),
    Kind.DELIVER: (_read_deliver, _write_deliver),
    Kind.ACK: (_read_ranges, _write_ranges),
    Kind.TAKEN: (_read_ranges, _write_ranges),
    Kind.CREDIT: (_read_credit, _write_credit),
    Kind.RECALL: (_read_ranges, _write_ranges),
    Kind.NOTICE: _packed(requests.Notice),
    Kind.PING: (_read_empty, _write_empty),
    Kind.PONG: (_read_empty, _write_empty),
    Kind.GOODBYE: _packed(requests.Goodbye),
}
"""How each kind of frame is read into what the page shows, and written from it."""

CHANNEL_CODECS = {"channel-hello": _packed(channel.ChannelHello), "channel-welcome": _packed(channel.ChannelWelcome)}
"""The same for frames of the greeting of a channel, by the name of the vector."""


def codec_of(vector: Vector) -> tuple[Callable[[Frame], Any], Callable[[Vector], bytes]]:
    """How a vector is read, and written."""
    return CHANNEL_CODECS.get(vector.name) or CODECS[vector.kind]
