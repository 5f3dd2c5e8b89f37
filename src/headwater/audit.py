"""The audit: who changed what about a bus and those who use it, as messages on `$sys/audit`.

Promises: a change is in the audit, on disk, before it is answered, whichever way it was asked for; changes of clients,
of rules and of tokens are in the order in which they were made; an entry is JSON, never longer than
`audit_bytes_max`, and has no secret in it. Where the disk does not take an entry the change stands all the same, and an
event has the entry instead: who has to mend a full disk must be able to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import msgspec

from headwater.clock import Clock, to_datetime
from headwater.errors import HeadwaterError

TOPIC = "$sys/audit"
LOCAL = "local"
"""Who it was, where nobody logged in: the process that owns the folder."""
NAME_CHARS_MAX = 256
"""Characters of a name in an entry; the rest is cut."""

_acting: ContextVar[tuple[str, str]] = ContextVar("acting", default=(LOCAL, LOCAL))


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change, as it is written."""

    time: datetime
    who: str
    """Who wanted it."""
    via: str
    """Whose connection asked for it."""
    what: str
    """client-added, rule-denied, subscription-sought, …"""
    target: str
    """Of what: a client's name, a subscription's id, …"""
    before: Any = None
    after: Any = None


@contextmanager
def acting(who: str, via: str) -> Iterator[None]:
    """Changes that this thread makes meanwhile are somebody's."""
    token = _acting.set((who, via))
    try:
        yield
    finally:
        _acting.reset(token)


class Audit:
    """Writes down changes; from any thread but the one that commits."""

    def __init__(
        self, publish: Callable[[str, bytes], object], clock: Clock, on_trouble: Callable[[str], None], bytes_max: int
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._on_trouble = on_trouble
        self._bytes_max = bytes_max

    def note(self, what: str, target: str, before: Any = None, after: Any = None) -> None:
        """Write down a change that was made: values of structs and the like, never a secret."""
        who, via = _acting.get()
        entry = AuditEntry(
            time=to_datetime(self._clock.now_us()),
            who=_cut(who, NAME_CHARS_MAX),
            via=_cut(via, NAME_CHARS_MAX),
            what=what,
            target=_cut(target, NAME_CHARS_MAX * 4),
            before=self._value(before),
            after=self._value(after),
        )
        data = msgspec.json.encode(entry)
        try:
            self._publish(TOPIC, data)
        except HeadwaterError as error:
            self._on_trouble(f"a change is not in the audit ({error}): {data.decode()}")

    def _value(self, value: Any) -> Any:
        """A value if it is short, else the beginning of its JSON."""
        if value is None:
            return None
        try:
            text = msgspec.json.encode(value).decode()
        except (UnicodeEncodeError, TypeError):
            text = ascii(value)
            value = text
        room = max(0, self._bytes_max // 4 - NAME_CHARS_MAX)
        return value if len(text.encode()) <= room else _cut(text, room // 2)


def _cut(text: str, chars_max: int) -> str:
    """Text that UTF-8 can say, as JSON writes it not much longer than so many characters."""
    kept = text[:chars_max].encode("utf-8", "replace").decode()
    while len(msgspec.json.encode(kept)) > chars_max * 2:
        kept = kept[: len(kept) * 2 // 3]
    return kept if len(kept) == len(text) else f"{kept}…"
