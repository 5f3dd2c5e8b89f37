"""The schemas that stand: which payload has to be what, asked for each message of a topic that has one.

A message has to fit every schema whose filter matches its topic. An empty payload that is retained fits all of them, as
it says nothing but that the value before it is no more. Topics that begin with `$` have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headwater.errors import HeadwaterError, SchemaMismatch, TooLarge
from headwater.log.publish import Part
from headwater.memo import Memo
from headwater.schema.checker import Schema
from headwater.topics.name import compile_filter, root_of_filter

TOPICS_KEPT = 100_000
"""Topics of which is remembered what they have to be."""

Matching = tuple[tuple[str, Schema], ...]
"""Filters that match a topic, and their schemas."""


class Standing:
    """Schemas by their filters; those of another moment are another one of these."""

    def __init__(self, schemas: Mapping[str, Schema], payload_bytes_max: int) -> None:
        self.schemas = dict(schemas)
        self._bytes_max = payload_bytes_max
        self._by_root: dict[str | None, list[tuple[Callable[[str], bool], tuple[str, Schema]]]] = {}
        for one in self.schemas.items():
            self._by_root.setdefault(root_of_filter(one[0]), []).append((compile_filter(one[0]), one))
        self._found: Memo[str, Matching] = Memo(TOPICS_KEPT)

    def of(self, topic: str) -> Matching:
        """What a topic's payloads have to be."""
        found = self._found.known.get(topic)
        if found is None:
            near = self._by_root.get(topic.partition("/")[0], ()), self._by_root.get(None, ())
            found = self._found.keep(topic, tuple(one for some in near for matches, one in some if matches(topic)))
        return found

    def misfit(self, topic: str, payload: bytes, retain: bool = False) -> HeadwaterError | None:
        """Why a message is refused; None if it fits."""
        for asked, schema in self.of(topic):
            if not payload and retain:
                return None
            if len(payload) > self._bytes_max:
                return TooLarge(
                    f'a payload of {len(payload)} bytes for "{topic}" is over schema_payload_bytes_max '
                    f'({self._bytes_max}), and "{asked}" has a schema that it has to be checked against'
                )
            why = schema.misfit(payload)
            if why is not None:
                return SchemaMismatch(f'a payload for "{topic}" does not fit the schema of "{asked}": {why}')
        return None

    def noted(self, part: Part) -> Part:
        """Messages that go together, with a note of the first that is refused."""
        if any(map(self.of, part.topics if part.columns is None else part.columns.names)):
            payload_at = part.payloads.__getitem__ if part.columns is None else part.columns.payload
            part.misfit = self._first_misfit(part.topics, payload_at, part.retain)
        return part

    def _first_misfit(
        self, topics: Sequence[str], payload_at: Callable[[int], bytes], retain: Sequence[bool] | None
    ) -> HeadwaterError | None:
        for place, topic in enumerate(topics):
            error = self.misfit(topic, payload_at(place), retain is not None and retain[place])
            if error is not None:
                return error
        return None
