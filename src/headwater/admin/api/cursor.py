"""Cursors: where a reader is in the messages of a filter, as text that a client keeps and sends back.

Within one root that is an offset. Over several roots it is an offset for each root that brought something, and the
moment from which the others are read; that is base64url of JSON, which clients need not look into. Dead letters and
states of messages are paged by their place as text: root:offset.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime

import msgspec

from headwater.clock import from_datetime, to_datetime
from headwater.errors import Malformed
from headwater.topics.name import root_of_filter
from headwater.wire.request import U63, Micros

DIGITS_MAX = 19


class _Kept(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    since_us: Micros | None
    places: dict[str, U63]


_decoder = msgspec.json.Decoder(_Kept)


class Cursor:
    """A place in the messages of a filter."""

    def __init__(self, filter: str, places: Mapping[str, int], since_us: int | None = None) -> None:
        self._root = root_of_filter(filter)
        self._places = dict(places)
        self._since_us = since_us

    @classmethod
    def read(cls, filter: str, after: str | None, since: datetime | None) -> Cursor:
        """Where a client says that it is: Malformed (422) if that says nothing."""
        if after is None or not after:
            return cls(filter, {}, None if since is None else from_datetime(since))
        if since is not None:
            raise Malformed("state where to begin with after or with since, not both")
        if after.isascii() and after.isdigit():
            return cls(filter, {cls._one_root(filter): _offset(after)})
        try:
            kept = _decoder.decode(base64.b64decode(after.encode(), altchars=b"-_", validate=True))
        except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError):
            raise Malformed("after is neither an offset nor a cursor that was in a `next` or an `id`") from None
        return cls(filter, kept.places, kept.since_us)

    @staticmethod
    def _one_root(filter: str) -> str:
        root = root_of_filter(filter)
        if root is None:
            raise Malformed(
                f'"{filter}" reaches over several roots, and offsets count within one; use since, or a `next`'
            )
        return root

    @property
    def roots(self) -> int:
        """How many roots it names."""
        return len(self._places)

    @property
    def after(self) -> dict[str, int] | None:
        """Offsets by root, as the bus takes them."""
        return self._places or None

    @property
    def since(self) -> datetime | None:
        """From when on the other roots are read."""
        return None if self._since_us is None else to_datetime(self._since_us)

    def advance(self, root: str, offset: int) -> None:
        """Be past a message."""
        self._places[root] = offset

    def __str__(self) -> str:
        if self._root is not None and self._root in self._places:
            return str(self._places[self._root])
        if not self._places and self._since_us is None:
            return "0" if self._root is not None else ""
        kept = msgspec.json.encode(_Kept(self._since_us, self._places))
        return base64.urlsafe_b64encode(kept).decode()


def _offset(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise Malformed(f"after is an offset of {len(text)} digits; none is as large")
    return min(int(text), 2**63 - 1)


def place_text(root: str, offset: int) -> str:
    """A place as text."""
    return f"{root}:{offset}"


def place_of(text: str) -> tuple[str, int]:
    """The place that a text is; Malformed (422) if it is none."""
    root, _, digits = text.rpartition(":")
    if not root or not digits.isascii() or not digits.isdigit() or len(digits) > DIGITS_MAX:
        raise Malformed(f'"{text}" is no place; use root:offset, as in a `next`')
    return root, min(int(digits), 2**63 - 1)
