"""The stage of the demo: what people see while it runs, and the checks that it has to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headwater.cli.output import console

BARS = "▁▂▃▄▅▆▇█"
FRAMES_PER_S = 12


class Stage:
    """Shows acts one after another, and remembers what was checked."""

    def __init__(self) -> None:
        self._console: Console = console()
        self._acts = 0
        self.checks: list[tuple[str, bool]] = []
        self.figures: list[tuple[str, str]] = []

    def act(self, title: str, sentence: str) -> None:
        self._acts += 1
        self._console.print()
        self._console.print(Rule(Text(f"{self._acts}  {title}", style="bold"), align="left", style="dim"))
        self._console.print(Padding(Text(sentence, style="dim"), (0, 0, 0, 3), expand=False))

    def show(self, content: RenderableType) -> None:
        """Something to look at, that stays."""
        self._console.print(Padding(content, (0, 0, 0, 3), expand=False))

    @contextmanager
    def moving(self, picture: Callable[[], RenderableType]) -> Iterator[None]:
        """Something to look at that changes while the block runs; where nobody watches, only how it ends."""
        if not self._console.is_terminal:
            yield
            self.show(picture())
            return

        def frame() -> RenderableType:
            return Padding(picture(), (0, 0, 0, 3), expand=False)

        with Live(get_renderable=frame, console=self._console, refresh_per_second=FRAMES_PER_S):
            yield

    def check(self, what: str, holds: bool) -> None:
        """Say whether something holds that has to."""
        self.checks.append((what, holds))
        mark = Text("✓ ", style="green") if holds else Text("✗ ", style="bold red")
        self.show(mark + Text(what, style="" if holds else "red"))

    def figure(self, name: str, value: str) -> None:
        """A number for the end."""
        self.figures.append((name, value))

    def end(self) -> bool:
        """The numbers, and whether everything held."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim")
        table.add_column(justify="right", style="bold")
        for name, value in self.figures:
            table.add_row(name, value)
        failed = [what for what, holds in self.checks if not holds]
        verdict = (
            Text(f"All {len(self.checks)} checks hold.", style="bold green")
            if not failed
            else Text(f"{len(failed)} of {len(self.checks)} checks failed: {'; '.join(failed)}", style="bold red")
        )
        self.act("What happened", "Figures of this run, on this machine.")
        self.show(Group(table, Text(), verdict))
        return not failed


class Worker(threading.Thread):
    """Somebody who works beside the story, until told to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Have it end, and wait for that."""
        self.stopping.set()
        self.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def pairs(*rows: tuple[str, RenderableType]) -> Table:
    """Names and values, below one another."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def sparkline(values: list[float], width: int = 24) -> str:
    """The last values as a little graph."""
    recent = values[-width:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in recent)


def meter(done: int, total: int, width: int = 30) -> Text:
    """A bar that fills."""
    full = width if total <= 0 else min(width, done * width // total)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "dim"), f" {done:,} of {total:,}")
