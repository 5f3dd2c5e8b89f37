"""`headwater topics`: the topics as a tree, with counts, last offsets, retained marks and rates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from headwater import TopicInfo
from headwater.bus import Bus
from headwater.cli.following import pause
from headwater.cli.options import At
from headwater.cli.output import console, counted, emit, safe

INTERVAL_S = 1.0
RETAINED = "●"

Rates = Mapping[str, float] | None
"""Messages per second of each topic; None where there was one look alone."""


def topics(
    at: At,
    filter: Annotated[str, typer.Argument(help="Which topics.")] = "#",
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Show so many levels, and sums below.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval_s: Annotated[
        float | None,
        typer.Option("--interval", min=0.05, help="Seconds between looks; also without --watch, to see rates once."),
    ] = None,
) -> None:
    """Show topics as a tree: messages, last offset, whether there is a retained value (●), and messages per second.

    It works beside the process that owns the folder. Rates need two looks: --watch, or --interval.

    With --json: an object for each topic (topic, messages, last_offset, retained, and rate where there are two looks);
    with --watch, all of them at each look.
    """
    is_served = at.is_served
    with at.look() as bus:
        looks = _looks(bus, filter, interval_s or INTERVAL_S, is_served)
        if watch and not at.json:
            with Live(console=console(), auto_refresh=False) as live:
                for sample, rates in looks:
                    live.update(tree_of(sample.topics, rates, depth), refresh=True)
        first = 1 if watch or interval_s is not None else 0
        for sample, rates in islice(looks, first, None if watch else first + 1):
            _show(sample, rates, depth, at.json)


class Sample:
    """The topics at a moment."""

    def __init__(self, topics: Sequence[TopicInfo]) -> None:
        self.topics = topics
        self._at_s = time.perf_counter()

    def rates_since(self, before: Sample) -> dict[str, float]:
        """Messages per second of each topic."""
        elapsed_s = max(self._at_s - before._at_s, 1e-9)
        known = {info.topic: info.messages for info in before.topics}
        return {info.topic: max(0, info.messages - known.get(info.topic, 0)) / elapsed_s for info in self.topics}


def _looks(bus: Bus, filter: str, interval_s: float, is_served: bool) -> Iterator[tuple[Sample, Rates]]:
    """The topics again and again, with the rates since the look before."""
    sample = Sample(bus.topics(filter))
    yield sample, None
    while True:
        pause(interval_s)
        if not is_served:  # a server always knows; beside an owner one has to look again
            bus.refresh()
        before, sample = sample, Sample(bus.topics(filter))
        yield sample, sample.rates_since(before)


def _show(sample: Sample, rates: Rates, depth: int | None, json: bool) -> None:
    if not json:
        console().print(tree_of(sample.topics, rates, depth), soft_wrap=True)
        return
    for info in sample.topics:
        found: dict[str, Any] = {
            "topic": info.topic,
            "messages": info.messages,
            "last_offset": info.last_offset,
            "retained": info.retained,
        }
        if rates is not None:
            found["rate"] = round(rates[info.topic], 3)
        emit(found)
    console().file.flush()


# The tree


class Level:
    """A level: the topic that ends here, if any, and sums over it and everything below."""

    __slots__ = ("below", "info", "messages", "rate", "topics")

    def __init__(self) -> None:
        self.info: TopicInfo | None = None
        self.below: dict[str, Level] = {}
        self.messages = 0
        self.topics = 0
        self.rate = 0.0


def levels_of(topics: Sequence[TopicInfo], rates: Mapping[str, float]) -> Level:
    """Topics by their levels."""
    top = Level()
    for info in topics:
        path = [top]
        for name in info.topic.split("/"):
            path.append(path[-1].below.setdefault(name, Level()))
        path[-1].info = info
        for level in path:
            level.messages += info.messages
            level.topics += 1
            level.rate += rates.get(info.topic, 0.0)
    return top


def tree_of(topics: Sequence[TopicInfo], rates: Rates, depth: int | None = None) -> Group:
    """Topics as people see them."""
    top = levels_of(topics, rates or {})
    summary = Text.assemble(
        (f"{top.topics:,}", "bold"),
        " topic" if top.topics == 1 else " topics",
        f" in {counted(len(top.below), 'root')}, {counted(top.messages, 'message')}",
        f", {top.rate:,.1f}/s" if rates is not None else "",
    )
    trees = []
    for name in sorted(top.below):
        tree = Tree(_label(name, top.below[name], rates is not None, depth == 1, bold=True), guide_style="dim")
        _grow(tree, top.below[name], rates is not None, None if depth is None else depth - 1)
        trees.append(tree)
    return Group(*trees, summary)


def _grow(tree: Tree, level: Level, with_rates: bool, depth: int | None) -> None:
    if depth == 0:
        return
    for name in sorted(level.below):
        below = level.below[name]
        branch = tree.add(_label(name, below, with_rates, depth == 1))
        _grow(branch, below, with_rates, None if depth is None else depth - 1)


def _label(name: str, level: Level, with_rates: bool, is_cut: bool, bold: bool = False) -> Text:
    label = Text(safe(name) if name else "(empty)", style="bold cyan" if bold else "cyan")
    info = level.info
    if info is not None:
        label.append(f"  {info.messages:,}", style="default not bold")
        label.append(f"  last {info.last_offset}", style="dim not bold default")
        if info.retained:
            label.append(f"  {RETAINED}", style="yellow not bold")
    if level.topics > 1 or (is_cut and level.below):
        topics = "topic" if level.topics == 1 else "topics"
        label.append(f"  {level.messages:,} in {level.topics:,} {topics}", style="dim not bold default")
    if with_rates and level.rate:
        label.append(f"  {level.rate:,.1f}/s", style="green not bold")
    return label
