"""Delayed messages: they wait in the stream `$delayed` and are appended to their topic, once, when they are due.

What waits is a row in the state, ordered by due time, that reflects two streams: a batch in `$delayed` makes it, the
batch that brings the message to its topic (which states the row as its producer and sequence) removes it. Both are
re-applied after a crash, so that none is lost and none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.message import Headers, Message
from headwater.store import state as rows
from headwater.store.state import State

ROOT = "$delayed"
WAITING = "$delayed/waiting"
"""All wait under one topic; a topic each would stay in the list of topics for ever."""
TOPIC = "$topic"
DUE = "$due"
TTL = "$ttl"
RETAIN = "$retain"
BY = "$by"
"""Behind the others, of a message whose client needs the right to publish it when it is due, too."""
RELEASED_MAX = 1000
"""Messages released in one go; the rest follows at once."""
RELEASED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of them, unless one alone is larger."""


def wrap(
    topic: str, headers: Headers, due_us: int, ttl_s: float | None, retain: bool, by: str = ""
) -> tuple[str, Headers]:
    """The topic and headers under which a message waits."""
    ttl, kept = "" if ttl_s is None else repr(ttl_s), "1" if retain else ""
    author = ((BY, by),) if by else ()
    return WAITING, (*headers, (TOPIC, topic), (DUE, str(due_us)), (TTL, ttl), (RETAIN, kept), *author)


def unwrap(message: Message) -> tuple[str, Headers, int, float | None, bool]:
    """Topic, headers, due time, ttl and retain flag of a message that waits."""
    headers = message.header_pairs[:-1] if author_of(message) else message.header_pairs
    (_, topic), (_, due), (_, ttl), (_, retain) = headers[-4:]
    return topic, headers[:-4], int(due), float(ttl) if ttl else None, bool(retain)


def author_of(message: Message) -> str:
    """Who has to have the right to publish a message that waits; empty if nobody is asked."""
    name, value = message.header_pairs[-1]
    return value if name == BY else ""


def due_key(message: Message) -> bytes:
    """The row of a message that waits."""
    return rows.key_due(int(message.header_pairs[-4 if author_of(message) else -3][1]), message.offset)


def earliest(state: State, after: bytes = rows.DELAYED) -> int | None:
    """When the next message is due, of those after a row."""
    for key, _ in state.scan(rows.DELAYED, after + b"\0"):
        return int.from_bytes(key[1:9], "big")
    return None


def due(state: State, now_us: int, after: bytes) -> list[tuple[bytes, int]]:
    """Rows and offsets in `$delayed` of messages that are due, after a row, the earliest first; not all at once."""
    found: list[tuple[bytes, int]] = []
    for key, _ in state.scan(rows.DELAYED, after + b"\0"):
        if int.from_bytes(key[1:9], "big") > now_us or len(found) == RELEASED_MAX:
            break
        found.append((key, rows.offset_in(key)))
    return found


def waiting(state: State) -> Iterator[int]:
    """The offset in `$delayed` of each message that waits."""
    return (rows.offset_in(key) for key, _ in state.scan(rows.DELAYED))
