"""A measured figure, the raw limit beside it, and the goal."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.table import Table
from rich.text import Text

from headwater import __version__
from headwater.cli.output import console, emit
from headwater.compiled import is_compiled

Goal = tuple[Literal["value ≥", "value ≤", "ratio ≥", "ratio ≤"], float]


class Figure(msgspec.Struct, frozen=True):
    """What was measured."""

    name: str
    variant: str
    """What it was measured with: "1 topic", "1,000 topics"."""
    value: float
    unit: str
    raw: float | None = None
    raw_name: str = ""
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of the raw limit."""
        return self.value / self.raw if self.raw else None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        what, bound = self.goal
        measured = self.value if what.startswith("value") else self.ratio
        if measured is None:
            return False
        return measured >= bound if what.endswith("≥") else measured <= bound


def show(figures: Sequence[Figure], json: bool) -> None:
    """All of them, for people or for machines."""
    if json:
        emit({"machine": _machine(), "figures": [_object(figure) for figure in figures]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold", caption=_sentence(), caption_justify="left")
    for name in ("what", "with", "measured", "raw limit of the same run", "ratio", "goal", ""):
        table.add_column(name, justify="right" if name in ("measured", "ratio", "goal") else "left")
    last = ""
    for figure in figures:
        table.add_row(
            figure.name if figure.name != last else "",
            figure.variant,
            _number(figure.value, figure.unit),
            Text(f"{_number(figure.raw, figure.unit)}  {figure.raw_name}" if figure.raw else "", style="dim"),
            f"{figure.ratio:.2f}×" if figure.ratio is not None else "",
            _goal(figure),
            {True: Text("met", style="green"), False: Text("missed", style="red"), None: Text("")}[figure.is_met],
        )
        last = figure.name
    console().print(table)


def _object(figure: Figure) -> dict[str, object]:
    found = msgspec.structs.asdict(figure)
    found["goal"] = _goal(figure) or None
    return {**found, "ratio": figure.ratio, "is_met": figure.is_met}


def _number(value: float, unit: str) -> str:
    if unit == "µs":
        return f"{value:,.0f} µs"
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "MB/s":
        return f"{value:,.1f} MB/s"
    if unit.endswith("/s"):
        return f"{value:,.0f}/s"
    return f"{value:,.0f} {unit}"


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    what, bound = figure.goal
    sign = what[-1]
    return f"{sign} {bound:g}×" if what.startswith("ratio") else f"{sign} {_number(bound, figure.unit)}"


def _machine() -> dict[str, object]:
    return {
        "headwater": __version__,
        "compiled": is_compiled(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def _sentence() -> str:
    machine = _machine()
    compiled = " (compiled)" if machine["compiled"] else ""
    return (
        f"Headwater {machine['headwater']}{compiled}, Python {machine['python']}, {machine['system']}, "
        f"{machine['cores']} cores; medians; numbers vary from machine to machine, ratios of one run less so"
    )
