"""History: rates, latencies, lags and dead letters of the last day, whoever looked, so that what happened can be looked
at afterwards.

Promises: it is sampled by the server itself, from figures that are there anyway; it has a fixed size in memory and in
the state (`history_series_max`); an interval that nobody sampled is a gap. What was sampled survives a restart but for
the last minutes, which a killed process has not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.errors import NotFound
from headwater.server.watch.rates import Rates
from headwater.server.watch.ring import Ring, Values
from headwater.store import state as rows
from headwater.store.state import State
from headwater.wire.administration import Figures, HistoryLines, RootFigures, SubscriptionFigures

Kind = Literal["broker", "root", "subscription"]

DAY_S = 24 * 3600
BROKER_S = 10
"""The broker's own intervals,"""
SERIES_S = 60
"""and those of roots and subscriptions."""
QUIET = 3600 // SERIES_S
"""Intervals with nothing to tell, after which a series gives its place to another."""
BLOCK = 10
"""Intervals of a series that are written to the state together, with those of the broker: ten minutes."""
BROKER_BLOCK = BLOCK * SERIES_S // BROKER_S

LINES: dict[Kind, tuple[str, ...]] = {
    "broker": (
        *("in_s", "out_s", "bytes_in_s", "bytes_out_s", "commit_p50_s", "commit_p99_s"),
        *("connections", "lag", "in_flight", "retrying", "dead", "dropped_s"),
    ),
    "root": ("in_s", "bytes", "topics"),
    "subscription": ("lag", "in_flight", "retrying", "dead"),
}
RATES = frozenset(("in_s", "out_s", "bytes_in_s", "bytes_out_s", "dropped_s"))
"""Of several intervals, their mean; of everything else the most, so that a peak stays one."""


class Block(msgspec.Struct, frozen=True):
    """Ten minutes, as they are stored: values by interval."""

    broker: list[list[float | None]]
    root: dict[str, list[list[float | None]]]
    subscription: dict[str, list[list[float | None]]]


class _Series(NamedTuple):
    kind: Kind
    name: str


class History:
    """The last day of a server; `sample` by one thread at a time, `read` from any."""

    def __init__(self, state: State, clock: Clock, figures: Callable[[], Figures], series_max: int) -> None:
        self._state = state
        self._clock = clock
        self._series_max = series_max
        self._figures = figures
        self._lock = threads.Lock()
        self._broker = Ring(len(LINES["broker"]), DAY_S // BROKER_S)
        self._series: dict[_Series, Ring] = {}
        self._active: dict[_Series, int] = {}
        """The last interval in which a series had something to tell."""
        self._before: Figures | None = None
        self._minute: Figures | None = None
        """The figures by which the rates of roots were last told."""
        self._written: int | None = None
        """The last block that need not be written any more."""
        self._loading = threads.Lock()
        self._is_loaded = False

    # Sampling

    def sample(self) -> None:
        """Note how it is now; in a thread."""
        self._load()
        now = self._figures()
        slot = now.time_us // (BROKER_S * SECOND_US)
        with self._lock:
            before, self._before = self._before, now
            if before is not None and slot != self._broker.last:
                self._broker.put(slot, _of_broker(Rates(before, now), now))
            if slot // (SERIES_S // BROKER_S) != self._slot_of(self._minute):
                self._sample_series(now)
            block = slot // BROKER_BLOCK
            if self._written is None:
                self._written = block - 1
            is_due = self._written < block - 1
        if is_due:
            self._write(block - 1)

    def _slot_of(self, figures: Figures | None) -> int:
        return -1 if figures is None else figures.time_us // (SERIES_S * SECOND_US)

    def _sample_series(self, now: Figures) -> None:
        before, self._minute = self._minute, now
        if before is None:
            return
        slot, rates = self._slot_of(now), Rates(before, now)
        for root in now.roots:
            self._put(_Series("root", root.root), slot, _of_root(rates, root), rates.of_root_per_s(root.root))
        for one in now.subscriptions:
            busy = one.lag + one.in_flight + one.retrying + one.dead
            self._put(_Series("subscription", one.id), slot, _of_subscription(one), busy)

    def _put(self, series: _Series, slot: int, values: Values, busy: float) -> None:
        ring = self._series.get(series)
        if ring is None:
            if not self._make_room(series.kind, slot):
                return
            ring = self._series[series] = Ring(len(LINES[series.kind]), DAY_S // SERIES_S)
        if busy or series not in self._active:
            self._active[series] = slot
        ring.put(slot, values)

    def _make_room(self, kind: Kind, slot: int) -> bool:
        there = [one for one in self._series if one.kind == kind]
        if len(there) < self._series_max:
            return True
        if not there:
            return False
        quietest = min(there, key=lambda one: self._active[one])
        if slot - self._active[quietest] < QUIET:
            return False
        del self._series[quietest], self._active[quietest]
        return True

    # Keeping

    def _load(self) -> None:
        """Take what was written by earlier servers, once; what is damaged or too old is left out."""
        with self._loading:
            if self._is_loaded:
                return
            self._is_loaded = True
            self._load_blocks()

    def _load_blocks(self) -> None:
        oldest = self._clock.now_us() // SECOND_US // (BLOCK * SERIES_S) - DAY_S // (BLOCK * SERIES_S)
        for key, value in self._state.scan(rows.HISTORY):
            number = int.from_bytes(key[1:], "big")
            if number < oldest:
                continue
            with suppress(msgspec.DecodeError, ValueError):
                self._take(number, msgspec.msgpack.decode(value, type=Block))

    def _take(self, number: int, block: Block) -> None:
        with self._lock:
            self._refill(self._broker, number * BROKER_BLOCK, block.broker, len(LINES["broker"]))
            kept: tuple[tuple[Kind, dict[str, list[list[float | None]]]], ...] = (
                ("root", block.root),
                ("subscription", block.subscription),
            )
            for kind, found in kept:
                for name, samples in found.items():
                    series = _Series(kind, name)
                    slot = number * BLOCK
                    if series not in self._series and not self._make_room(kind, slot):
                        continue
                    ring = self._series.setdefault(series, Ring(len(LINES[kind]), DAY_S // SERIES_S))
                    self._active[series] = slot
                    self._refill(ring, slot, samples, len(LINES[kind]))

    @staticmethod
    def _refill(ring: Ring, first: int, samples: Iterable[list[float | None]], lines: int) -> None:
        for slot, values in enumerate(samples, first):
            if len(values) == lines and any(value is not None for value in values):
                ring.put(slot, values)

    def close(self) -> None:
        """Write what was not written yet; in a thread, once nobody samples any more."""
        if self._broker.last >= 0:
            self._write(self._broker.last // BROKER_BLOCK)

    def _write(self, number: int) -> None:
        """Keep ten minutes, and let go of what is a day old."""
        with self._lock:
            block = self._block(number)
            self._written = number
        changed: rows.Rows = {_key(number): msgspec.msgpack.encode(block)}
        oldest = _key(number - DAY_S // (BLOCK * SERIES_S))
        for key, _ in self._state.scan(rows.HISTORY):
            if key >= oldest:
                break
            changed[key] = None
        self._state.commit(changed)

    def _block(self, number: int) -> Block:
        def of(kind: Kind) -> dict[str, list[list[float | None]]]:
            found = {
                series.name: [ring.get(number * BLOCK + at) for at in range(BLOCK)]
                for series, ring in self._series.items()
                if series.kind == kind
            }
            return {name: samples for name, samples in found.items() if any(map(_is_sample, samples))}

        broker = [self._broker.get(number * BROKER_BLOCK + at) for at in range(BROKER_BLOCK)]
        return Block(broker, of("root"), of("subscription"))

    # Looking

    def read(
        self, kind: Kind = "broker", name: str = "", since_us: int = 0, until_us: int | None = None, points: int = 600
    ) -> HistoryLines:
        """What was sampled, in at most so many intervals of one length; an interval without a sample is left out."""
        self._load()
        now_us = self._clock.now_us()
        until_us = now_us if until_us is None else min(until_us, now_us)
        since_us = max(since_us, until_us - DAY_S * SECOND_US)
        every_s = BROKER_S if kind == "broker" else SERIES_S
        with self._lock:
            ring = self._broker if kind == "broker" else self._series.get(_Series(kind, name))
            if ring is None:
                raise NotFound(
                    f'nothing was sampled of {kind} "{name}" in the last day; the {self._series_max} largest roots and '
                    "the subscriptions furthest behind are, once a minute"
                )
            first, last = since_us // (every_s * SECOND_US), until_us // (every_s * SECOND_US)
            step = max(1, -(-(last - first) // points))
            first -= first % step  # so that whoever looks again is told of the same intervals
            times, found = [], []
            for slot in range(first, last + 1, step):
                samples = [sample for at in range(slot, slot + step) if _is_sample(sample := ring.get(at))]
                if samples:
                    times.append(slot * every_s * SECOND_US)
                    found.append(tuple(_together(LINES[kind], samples)))
        return HistoryLines(
            every_s=float(every_s * step), lines=LINES[kind], times_us=tuple(times), values=tuple(found)
        )


def _key(number: int) -> bytes:
    return rows.HISTORY + max(0, number).to_bytes(8, "big")


def _is_sample(values: Values) -> bool:
    return any(value is not None for value in values)


def _together(lines: tuple[str, ...], samples: list[list[float | None]]) -> Iterable[float | None]:
    """Several intervals as one."""
    for line, values in zip(lines, zip(*samples, strict=True), strict=True):
        known = [value for value in values if value is not None]
        if not known:
            yield None
        else:
            yield sum(known) / len(known) if line in RATES else max(known)


def _of_broker(rates: Rates, now: Figures) -> Values:
    gauges = now.gauges
    return (
        rates.per_s("messages_in"),
        rates.per_s("messages_out"),
        rates.per_s("bytes_in"),
        rates.per_s("bytes_out"),
        rates.quantile_s("commit", 0.5),
        rates.quantile_s("commit", 0.99),
        *(gauges[name] for name in ("connections", "lag", "in_flight", "retrying", "dead")),
        rates.per_s("messages_dropped"),
    )


def _of_root(rates: Rates, root: RootFigures) -> Values:
    return rates.of_root_per_s(root.root), root.bytes, root.topics


def _of_subscription(one: SubscriptionFigures) -> Values:
    return one.lag, one.in_flight, one.retrying, one.dead
