"""A publish call on its way: what it brings, to which roots, and where its messages came to stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from headwater.counts import Counts
from headwater.errors import Failed, HeadwaterError, PartlyStored
from headwater.log.items import Item
from headwater.log.retained import retained_size
from headwater.message import Headers, Receipt, Receipts
from headwater.store.batch import QUIET, checksum
from headwater.store.body import Body, encode_body

ONLY = (0,)
"""The positions of the messages of a call that brings one."""
NAMED_MAX = 3
"""Roots that an error names, of those that a call touches."""
MESSAGE_WEIGHT = 100
"""What a message weighs besides its payload, when a group is kept within its limit."""


class Part(msgspec.Struct, eq=False, gc=False):
    """What one publish call brings to one root."""

    root: str
    topics: Sequence[str]
    payloads: Sequence[bytes]
    """One for each topic; none where there are several and a body has them."""
    positions: Sequence[int]
    retain: Sequence[bool] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    expiries: Sequence[int] | None = None
    body: bytes | None = None
    crc: int = 0
    columns: Body | None = None
    """The body decoded, if somebody had to look into it."""
    time_us: int = -1
    """When its messages were published, unless the body says so; less than 0: when they are committed."""
    retained: dict[str, int] | None = None
    """How many bytes its topics retain after it, once somebody has asked."""
    few: Sequence[str] | None = None
    """Its topics, each at least once, if somebody has noted them."""
    misfit: HeadwaterError | None = None
    """Why it is refused by a schema: told to nobody who may not publish it."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one message without options."""
        return len(self.payloads) == 1 and not (self.retain or self.keys or self.headers or self.expiries)

    @property
    def weight(self) -> int:
        """How much it is, as a connection and a group count it."""
        size = len(self.body) if self.body is not None else sum(map(len, self.payloads))
        return size + MESSAGE_WEIGHT * len(self.payloads)

    @property
    def names(self) -> Sequence[str]:
        """Its topics, each at least once; no more than that where it is seen at a glance."""
        if self.few is not None:
            return self.few
        # What a body says of its messages' topics was read when this was made.
        return self.topics if self.columns is None or len(self.columns.names) > 1 else self.columns.names

    @property
    def distinct(self) -> tuple[str, ...]:
        """Its topics, each once."""
        return tuple(dict.fromkeys(self.topics)) if self.columns is None else self.columns.names

    def retains(self) -> dict[str, int]:
        """How many bytes each topic that it retains something of has then; 0 where it clears what was."""
        if self.retained is None:
            self.retained = self._measure() if self.retain is not None else {}
        return self.retained

    def _measure(self) -> dict[str, int]:
        columns, retain = self.columns, self.retain or ()
        keys, headers, payloads = self.keys, self.headers, self.payloads
        if columns is not None:
            keys, headers = columns.keys, columns.headers() or None
        return {
            topic: retained_size(
                payloads[place] if columns is None else columns.payload(place),
                keys[place] if keys is not None else None,
                headers[place] if headers is not None else (),
            )
            for place, topic in enumerate(self.topics)
            if retain[place]
        }

    def decode(self) -> None:
        """Have its columns at hand."""
        if self.columns is None:
            if self.body is None:
                self.encode(self.time_us)
            assert self.body is not None
            self.columns = Body(self.body)

    def encode(self, time_us: int) -> None:
        """Make the body, of messages that are published at this time."""
        options = self.expiries, self.retain, self.keys, self.headers
        self.body = body = encode_body(self.topics, self.payloads, time_us, *options)
        self.crc = checksum(body)
        if len(self.payloads) > 1 and self.retain is None:  # else it is yet to be measured what they retain
            self.payloads = ()  # the body has them: until it is on disk, they are not to be in memory twice


class Publish(Item):
    """One publish call: a part for each root that it touches."""

    topics: Sequence[str] = ()
    parts: list[Part] = msgspec.field(default_factory=list)
    producer: str | None = None
    sequence: int = 0
    is_one: bool = False
    is_plain: bool = False
    """Whether it is one message, of no producer, that can go over no limit once its topic is known."""
    flags: int = 0
    """How it was published, which its batch says: `QUIET`, `ONCE`."""
    is_delayed: bool = False
    is_urgent: bool = False
    """Whether it may use the room that is kept for acks and recovery."""
    made_by: str = ""
    """Whose share it counts in, if that was said."""
    runs: list[tuple[Sequence[int], int, int, bool]] = msgspec.field(default_factory=list)
    """Per part: positions in the call, first offset, append time, whether it is a repeat."""
    refusals: Sequence[tuple[Part, HeadwaterError]] = ()
    """Parts that were refused, in no order, and why."""
    is_unsure: bool = False
    """Whether some of these may be stored all the same."""

    @property
    def owner(self) -> str:
        """Whose share what it makes counts in: a client of a server's; empty for nobody's."""
        return self.made_by

    @property
    def roots(self) -> Sequence[str]:
        return [part.root for part in self.parts]

    def result(self) -> Receipt | Receipts:
        if self.is_one:
            _, first, time_us, duplicate = self.runs[0]
            return Receipt(self.topics[0], 0 if self.is_delayed else first, time_us, duplicate)
        return Receipts(self.topics, self.runs)

    def outcome(self) -> HeadwaterError | None:
        """What its caller is told, once each part is stored or refused: nothing, why nothing was stored, or which of it
        was and why the others were not."""
        if not self.refusals:
            return None
        refused = {part.root: error for part, error in self.refusals}
        refused = {part.root: refused[part.root] for part in self.parts if part.root in refused}
        if not self.runs:
            return next(iter(refused.values()))
        receipts: list[Receipt | None] = [None] * len(self.topics)
        for positions, first, time_us, duplicate in self.runs:
            for offset, at in enumerate(positions, first):
                receipts[at] = Receipt(self.topics[at], offset, time_us, duplicate)
        count = sum(receipt is not None for receipt in receipts)
        stored = [part.root for part in self.parts if part.root not in refused]
        is_retryable = self.producer is not None and all(error.retryable for error in refused.values())
        is_sure = not self.is_unsure and not any(isinstance(error, Failed) for error in refused.values())
        text = (
            f"{count} of {len(receipts)} messages were stored, those of {_named(stored)}, and those of "
            f"{_named(list(refused))} {'were' if is_sure else 'perhaps'} not: {_reasons(refused)}; "
            "publish what has no receipt (None in receipts)"
        )
        if is_retryable:
            text += ", or all of it with the same producer and sequence: what was stored is not stored again"
        return PartlyStored(text, receipts, refused, is_retryable)


class Unawaited(Publish, kw_only=True):
    """A message that nobody waits for: if it cannot be stored, that is counted."""

    counts: Counts

    is_awaited = False

    @staticmethod
    def of(one: Publish, counts: Counts) -> Unawaited:
        """A message that was checked."""
        is_plain = one.parts[0].retain is None
        return Unawaited(
            one.topics, one.parts, is_one=True, is_plain=is_plain, flags=QUIET, weight=one.weight, counts=counts
        )

    def finish(self, error: BaseException | None = None) -> None:
        super().finish(error)
        if error is not None:
            self.counts.unstored += 1


def _named(roots: Sequence[str]) -> str:
    shown = ", ".join(f'"{root}"' for root in roots[:NAMED_MAX])
    return shown if len(roots) <= NAMED_MAX else f"{shown} and {len(roots) - NAMED_MAX} more roots"


def _reasons(refused: Mapping[str, HeadwaterError]) -> str:
    """Why they were refused; once, if it is the same for all."""
    texts = list(dict.fromkeys(map(str, refused.values())))
    if len(texts) == 1:
        return texts[0]
    shown = "; ".join(f'"{root}": {error}' for root, error in list(refused.items())[:NAMED_MAX])
    return shown if len(refused) <= NAMED_MAX else f"{shown}; and others"


def parts_by_root(topics: Sequence[str], root_of: Mapping[str, str]) -> dict[str, list[int]]:
    """Positions in a call, by root, in the order of the call."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for position, root in enumerate(map(root_of.__getitem__, topics)):
        places[root].append(position)
    return places
