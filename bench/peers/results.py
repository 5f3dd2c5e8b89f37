"""What was measured: a cell for each contender at each point of a row, and what comes of it."""

from __future__ import annotations

from statistics import median

import msgspec

SATURATED = 0.9
"""A generator that used more than this share of a core may have been the limit."""


class Cell(msgspec.Struct, frozen=True):
    """What one contender reached at one point, round by round."""

    who: str
    values: list[float] = []
    tails: list[float] = []
    """p99, where the value is a p50."""
    generator_shares: list[float] = []
    """Of a core, used by the load generator."""
    broker_shares: list[float] = []
    """Of a core, used by the broker."""
    problem: str = ""

    @property
    def median(self) -> float | None:
        return median(self.values) if self.values else None

    @property
    def tail(self) -> float | None:
        return median(self.tails) if self.tails else None

    @property
    def spread(self) -> float:
        """Half of the way from the lowest to the highest value, as a share of the median."""
        middle = self.median
        return (max(self.values) - min(self.values)) / 2 / middle if middle else 0.0

    @property
    def generator_share(self) -> float | None:
        return median(self.generator_shares) if self.generator_shares else None

    @property
    def broker_share(self) -> float | None:
        return median(self.broker_shares) if self.broker_shares else None

    @property
    def is_generator_bound(self) -> bool:
        return (self.generator_share or 0.0) > SATURATED


class Point(msgspec.Struct, frozen=True):
    """The same work for all, at one place of a row's curves."""

    at: dict[str, float | str]
    cells: list[Cell]

    def cell(self, who: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.who == who), None)


class Result(msgspec.Struct, frozen=True):
    """A row, measured."""

    row: str
    points: list[Point]
    measured_at: str
    rounds: int
    is_quick: bool = False
    is_compiled: bool = False
    """Whether Headwater's typed modules were compiled."""


class Verdict(msgspec.Struct, frozen=True):
    """A goal, and whether it is met; None where something it speaks of was not measured."""

    row: str
    at: dict[str, float | str]
    who: str
    goal: str
    source: str
    value: float | None
    than: str = ""
    """The best of those that it is compared with."""
    theirs: float | None = None
    ratio: float | None = None
    is_met: bool | None = None


class Report(msgspec.Struct, frozen=True):
    """A whole run, as it stands in benchmarks.json."""

    machine: dict[str, str]
    versions: dict[str, str]
    missing: dict[str, str]
    """How each that is not there is installed."""
    generator: list[Point]
    """Against a sink that only reads."""
    results: list[Result]
    verdicts: list[Verdict]
