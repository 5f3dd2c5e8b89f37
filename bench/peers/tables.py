"""What was measured, as tables on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.peers.figures import number, short
from bench.peers.results import Cell, Result, Verdict
from bench.peers.rows import ROWS, named

MET = {True: ("met", "green"), False: ("missed", "red"), None: ("not measured", "yellow")}


def show_result(console: Console, result: Result) -> None:
    """Everybody's medians, point by point."""
    row = ROWS[result.row]
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"{row.title}, {row.unit}", title_justify="left")
    table.add_column("")
    for point in result.points:
        table.add_column(named(point.at), justify="right")
    for one in row.contenders:
        cells = [point.cell(one.key) for point in result.points]
        if any(cells):
            table.add_row(one.title, *(_cell(cell) for cell in cells))
    console.print(table, "")


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("–")
    if cell.median is None:
        return Text(cell.problem or "–", style="red")
    text = Text(short(cell.median))
    if cell.tail is not None:
        text.append(f" p99 {short(cell.tail)}")
    text.append(f" ±{cell.spread:.0%}", style="dim")
    if cell.generator_share is not None:
        text.append(f" gen {cell.generator_share:.0%}", style="bold yellow" if cell.is_generator_bound else "dim")
    return text


def show_verdicts(console: Console, verdicts: list[Verdict]) -> None:
    """Ratios, goals, and whether they are met."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("work", "at", "Headwater", "beside", "ratio", "goal", "", ""):
        table.add_column(name, justify="right" if name in ("ratio", "goal") else "left")
    for verdict in verdicts:
        row = ROWS[verdict.row]
        said, style = MET[verdict.is_met]
        beside = f"{number(verdict.theirs, row.unit)} {row.contender(verdict.than).title}" if verdict.than else ""
        table.add_row(
            row.title,
            named(verdict.at),
            f"{number(verdict.value, row.unit)} {row.contender(verdict.who).title.partition(', ')[2]}",
            Text(beside, style="dim"),
            f"{verdict.ratio:.2f}×" if verdict.ratio is not None else "",
            verdict.goal,
            verdict.source,
            Text(said, style=style),
        )
    console.print(table)
