"""Messages that wait to be redelivered, or to be delivered behind others, and in which order they go.

A **chain** is a set of messages that must be handled one after the other: all of a subscription with order="strict",
those of one key with order="key". A chain goes on in the order of `Place`, at one consumer at a time. A message of
it that failed is redelivered alone (its `trial`), and nothing after it before it is acked or dead. With order="none"
one chain holds all that may go now, and binds nobody.

A **suspect** is a message that was with a consumer that is gone without a word: one of those it had may have killed it.
Suspects are redelivered one at a time, with order="key" those of each key, so that the next such end tells which of
them it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from headwater.delivery.lane import Key, Lane, LaneId, Place
from headwater.errors import Conflict

SUSPECTS_PASSED_MAX = 1000
"""Suspects at most that others need not wait for."""


class Chain(msgspec.Struct, eq=False):
    """Messages that must be handled one after the other."""

    key: Key | None
    waiting: list[Place] = []
    """Ascending."""
    trial: tuple[LaneId, int] | None = None
    """The failed message that is in flight again."""
    in_flight: int = 0
    """With order="key"; elsewhere nobody asks."""
    consumer: Hashable = None
    """Where they are in flight."""


class Waiting:
    """All chains of a subscription; keeps only those with something in them."""

    __slots__ = ("_lanes", "_ready", "_timers", "binding", "chains", "keyed", "suspects")

    def __init__(self, order: str, lanes: Mapping[LaneId, Lane]) -> None:
        self.binding = order != "none"
        self.keyed = order == "key"
        self.chains: dict[Key | None, Chain] = {}
        self.suspects: set[tuple[LaneId, int]] = set()
        self._lanes = lanes
        self._ready: dict[Chain, None] = {}
        """Chains that may have something to deliver; one found to have nothing is left out until something happens."""
        self._timers: list[tuple[int, LaneId, int]] = []
        """A heap: due moment, lane, offset of messages in RETRY that are not known to be due."""

    def is_clear(self, key: Key | None, consumer: Hashable) -> bool:
        """Whether a fresh message of this key may go to this consumer without waiting for others."""
        chain = self.chains.get(key) if self.binding else None
        if chain is None:
            return True
        return not chain.waiting and chain.trial is None and (not chain.in_flight or chain.consumer == consumer)

    def put(self, lane: Lane, offset: int) -> None:
        """A message waits; its place is known to its lane."""
        chain = self._chain(lane.keys.get(offset))
        insort(chain.waiting, lane.place(offset))
        self._ready[chain] = None

    def put_until_due(self, lane: Lane, offset: int) -> None:
        """A message in RETRY waits; its moment and place are known to its lane."""
        heappush(self._timers, (lane.due[offset], lane.id, offset))
        if self.binding:
            self.put(lane, offset)

    def start(self, lane: Lane, offset: int, consumer: Hashable) -> None:
        """A message is in flight now."""
        if self.keyed:
            chain = self._chain(lane.keys.get(offset))
            chain.in_flight += 1
            chain.consumer = consumer

    def end(self, lane: Lane, offset: int) -> None:
        """A message is in flight no more."""
        chain = self.chains.get(lane.keys.get(offset))
        if chain is None or not (self.binding or chain.trial):
            return
        if self.keyed:
            chain.in_flight -= 1
        if chain.trial == (lane.id, offset):
            chain.trial = None
        self._revive(chain)

    def take(self, lane: Lane, offsets: Sequence[int]) -> None:
        """Messages that wait are handed out; Conflict, and nothing changes, if one of them does not wait."""
        runs: dict[Key | None, list[Place]] = {}
        for offset in offsets:
            if offset not in lane.numbers:
                raise Conflict(f"message {offset} does not wait to be handed out again")
            runs.setdefault(lane.keys.get(offset), []).append(lane.place(offset))
        for key, places in runs.items():
            waiting = self.chains[key].waiting if key in self.chains else []
            for place in places:
                at = bisect_left(waiting, place)
                if at == len(waiting) or waiting[at] != place:
                    raise Conflict(f"message {place[3]} does not wait to be handed out again")
        for key, places in runs.items():
            chain = self.chains[key]
            waiting = chain.waiting
            if waiting[: len(places)] == places:
                del waiting[: len(places)]
            else:
                for place in places:
                    del waiting[bisect_left(waiting, place)]
            first = (lane.id, places[0][3])
            if (self.binding and places[0][3] in lane.failures) or first in self.suspects:
                chain.trial = first
            self._revive(chain)

    def offer(self, consumer: Hashable, limit: int, now_us: int) -> list[tuple[LaneId, int]]:
        """What may go to this consumer now, in the order in which it must."""
        self._wake(now_us)
        found: list[tuple[LaneId, int]] = []
        spent: list[Chain] = []
        for chain in self._ready:
            if len(found) >= limit:
                break
            if chain.in_flight and chain.consumer != consumer:
                continue
            places = self._next_of(chain, limit - len(found), now_us)
            found.extend(((place[2], not place[1]), place[3]) for place in places)
            if not places:
                spent.append(chain)
        for chain in spent:
            del self._ready[chain]
        return found

    def next_due_us(self) -> int | None:
        """The moment at which the next message in RETRY becomes due, of those that were not when last looked at."""
        return self._timers[0][0] if self._timers else None

    def forget(self, lane: Lane, offsets: set[int]) -> None:
        """These messages wait no more."""
        which = (not lane.id[1], lane.id[0])
        for chain in list(self.chains.values()):
            chain.waiting = [place for place in chain.waiting if place[1:3] != which or place[3] not in offsets]
            self._revive(chain)
        self._timers = [timer for timer in self._timers if timer[1] != lane.id or timer[2] not in offsets]
        heapify(self._timers)

    def _next_of(self, chain: Chain, limit: int, now_us: int) -> list[Place]:
        waiting = chain.waiting
        if not self.binding:
            return self._next_unbound(chain, limit) if self.suspects else waiting[:limit]
        if not waiting or chain.trial is not None:
            return []
        count = 0
        for place in waiting[:limit]:
            lane = self._lanes[place[2], not place[1]]
            if place[3] in lane.failures:
                if count == 0 and lane.due.get(place[3], 0) <= now_us:
                    return [place]
                break
            count += 1
        return waiting[:count]

    def _next_unbound(self, chain: Chain, limit: int) -> list[Place]:
        """What is no suspect; else one suspect, unless one is in flight."""
        first: Place | None = None
        found: list[Place] = []
        for place in chain.waiting[: limit + SUSPECTS_PASSED_MAX]:
            if ((place[2], not place[1]), place[3]) in self.suspects:
                first = first or place
            else:
                found.append(place)
                if len(found) == limit:
                    break
        if not found and first is not None and chain.trial is None:
            found.append(first)
        return found

    def _wake(self, now_us: int) -> None:
        while self._timers and self._timers[0][0] <= now_us:
            due_us, lane_id, offset = heappop(self._timers)
            lane = self._lanes.get(lane_id)
            if lane is None or lane.due.get(offset) != due_us:
                continue
            if self.binding:
                self._ready[self.chains[lane.keys.get(offset)]] = None
            else:
                self.put(lane, offset)

    def _chain(self, key: Key | None) -> Chain:
        chain = self.chains.get(key)
        if chain is None:
            chain = self.chains[key] = Chain(key)
        return chain

    def _revive(self, chain: Chain) -> None:
        if chain.waiting:
            self._ready[chain] = None
        else:
            self._ready.pop(chain, None)
            if chain.trial is None and not chain.in_flight:
                del self.chains[chain.key]
