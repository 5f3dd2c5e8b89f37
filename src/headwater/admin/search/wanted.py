"""What is wanted of messages: found in a body by bytes first, and by a closer look only where these are.

    payloads    ...{"sensor":"b","celsius":21}{"sensor":"a","celsius":20}{"sensor":"b"...
                                                        ^ the bytes "a", quotes included, are in this one alone

A text that JSON may write with escapes is looked for with a closer look, too, wherever there is a backslash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from headwater.admin.search.condition import Condition, parse
from headwater.errors import Malformed
from headwater.message import Headers
from headwater.store.body import Body

TEXT_CHARS_MAX = 1000
ESCAPE = b"\\"
Places = Sequence[int]


class Wanted:
    """What messages have to have; what is not stated may be anything."""

    def __init__(
        self, *, where: str | None = None, text: str | None = None, key: str | None = None, header: str | None = None
    ) -> None:
        """`where` is a condition on JSON fields; `text` is in the payload, `key` in the key; `header` is a name, or
        name=value with what is in the value."""
        for name, said in (("text", text), ("key", key), ("header", header)):
            if said is not None and len(said) > TEXT_CHARS_MAX:
                raise Malformed(f"{name} has at most {TEXT_CHARS_MAX} characters, and this has {len(said)}")
        self._condition: Condition | None = parse(where) if where and where.strip() else None
        self._text = (text or "").encode()
        self._key = (key or "").encode()
        name, self._has_value, self._header_value = (header or "").partition("=")
        self._header_name = name.strip().lower()
        if header and not self._header_name:
            raise Malformed(f'header is "{header}"; write its name, or name=value')

    def places(self, body: Body, places: Places | None = None) -> Places:
        """Which messages of a body, or of those at some places of it, are meant."""
        found = range(body.count) if places is None else places
        if self._key:
            keys = body.keys or ()
            found = [place for place in found if keys and self._key in (keys[place] or b"")] if keys else ()
        if self._header_name and found:
            headers = body.headers()
            found = [place for place in found if self._has_header(headers[place])] if headers else ()
        if self._text and found:
            found = _both(found, body, holding(body, self._text))
        if self._condition is not None and found:
            found = self._fitting(body, found, self._condition)
        return found

    def _has_header(self, headers: Headers) -> bool:
        return any(
            name.lower() == self._header_name and (not self._has_value or self._header_value in value)
            for name, value in headers
        )

    def _fitting(self, body: Body, places: Places, condition: Condition) -> Places:
        needle = condition.needle
        if needle is not None:
            near = holding(body, needle)
            if escaped := holding(body, ESCAPE):
                near = sorted({*near, *escaped})
            places = _both(places, body, near)
        holds: Callable[[bytes], bool] = condition.holds
        return [place for place in places if holds(body.payload(place))]


def holding(body: Body, needle: bytes) -> list[int]:
    """The places of the messages whose payloads have some bytes in them."""
    offsets, start = body.payload_places
    find, size, end = body.data.find, len(needle), start + offsets[-1]
    found: list[int] = []
    at = find(needle, start, end)
    while at >= 0:
        place = bisect_right(offsets, at - start) - 1
        stop = start + offsets[place + 1]
        if at + size <= stop:
            found.append(place)
            at = find(needle, stop, end)
        else:  # the end of one payload and the beginning of the next
            at = find(needle, at + 1, end)
    return found


def _both(places: Places, body: Body, found: Iterable[int]) -> Places:
    if len(places) == body.count:
        return list(found)
    among = set(places)
    return [place for place in found if place in among]
