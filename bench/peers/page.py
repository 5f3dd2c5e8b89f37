"""docs/contribute/benchmarks.md its pictures and its JSON: all is written anew but what people say about limits."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from bench.peers import chart
from bench.peers.brokers import SETTINGS
from bench.peers.figures import number, short
from bench.peers.goals import verdicts
from bench.peers.libraries import LIBRARIES
from bench.peers.results import Cell, Point, Report, Result, Verdict
from bench.peers.rows import ROWS, Row, named

JSON = "benchmarks.json"
PAGE = "benchmarks.md"
BARS, GROWTH = "images/benchmarks.svg", "images/benchmarks-growth.svg"
LIMITS = re.compile(r"<!-- limits: (?P<row>[a-z-]+) -->\n(?P<text>.*?)\n?<!-- end of limits -->", re.DOTALL)
BUSY = "generator, broker"
UNKNOWN = "Nobody has looked yet."
SOURCES = {"least": "at least", "mqtt": "at least, MQTT", "design": "goal"}

HEAD = """# Headwater beside its peers

The same work, from the same load generator, on the same machine, by turns: `make bench-peers` (about ten minutes;
`python -m bench.peers --quick` two, `--help` the rest) measures all of it, and writes this page, its pictures and
[benchmarks.json](benchmarks.json) anew. What stands under "What limits it" is written by people, between two marks in
this page, and stays. Absolute numbers are this machine's; ratios of one run are what counts.

Headwater has every acknowledged message on disk before the acknowledgement leaves, in every row. What the peers promise
is said [below](#what-was-measured). To measure Headwater alone, like `nats bench`: `headwater bench`.

Under each row stands the public call that goes the same way through the broker. How fast a Python program makes these
calls is another matter (`headwater bench served`): the load generator is C, and its acked frames carry no producer, as
those of our own client do.
"""


def read_report(folder: Path) -> Report | None:
    """What was measured before."""
    path = folder / JSON
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None


def merged(before: Report | None, now: Report) -> Report:
    """Rows that were measured now in the place of those from before; another machine's are not kept."""
    if before is None or _hardware(before) != _hardware(now):
        return now
    rows = {result.row: result for result in (*before.results, *now.results)}
    results = [_still_measured(rows[key]) for key in ROWS if key in rows]
    return Report(
        now.machine,
        before.versions | now.versions,
        {name: install for name, install in now.missing.items() if name not in before.versions},
        now.generator,
        results,
        [verdict for result in results for verdict in verdicts(result)],
    )


def _still_measured(result: Result) -> Result:
    """Without those who have left the row since."""
    there = {one.key for one in ROWS[result.row].contenders}
    points = [Point(point.at, [cell for cell in point.cells if cell.who in there]) for point in result.points]
    return msgspec.structs.replace(result, points=points)


def _hardware(report: Report) -> dict[str, str]:
    """The machine; it is the same one when its system was brought up to date, and each row has its date."""
    return {name: said for name, said in report.machine.items() if name != "system"}


def json_of(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def write_page(folder: Path, report: Report) -> None:
    """The page, the pictures and the JSON."""
    path = folder / PAGE
    limits = limits_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    (folder / BARS).parent.mkdir(parents=True, exist_ok=True)
    (folder / BARS).write_text(chart.bars(report.results), encoding="utf-8")
    (folder / GROWTH).write_text(chart.growth(report.results), encoding="utf-8")
    (folder / JSON).write_bytes(json_of(report))
    path.write_text(page_of(report, limits), encoding="utf-8")


def limits_of(page: str) -> dict[str, str]:
    """What people wrote, by row."""
    return {found["row"]: found["text"] for found in LIMITS.finditer(page)}


def page_of(report: Report, limits: dict[str, str]) -> str:
    parts = [HEAD, _verdicts(report.verdicts), f"![Everybody's figures]({BARS})\n"]
    results = {result.row: result for result in report.results}
    parts += [
        _row(row, results.get(key), limits.get(key, UNKNOWN))
        for key, row in ROWS.items()
        if key in results or key in limits
    ]
    parts += ["## How it grows\n", f"![How it grows]({GROWTH})\n", _measured(report), _generator(report)]
    return "\n".join(parts)


def _verdicts(verdicts: list[Verdict]) -> str:
    lines = ["## Goals\n", "| work | at | Headwater | beside | ratio | wanted | |", "|---|---|--:|---|--:|---|---|"]
    for one in verdicts:
        row = ROWS[one.row]
        how = row.contender(one.who).title.partition(", ")[2]
        beside = f"{row.contender(one.than).title} {number(one.theirs, row.unit)}" if one.than else ""
        ratio = f"{one.ratio:.2f}×" if one.ratio is not None else ""
        met = {True: "met", False: "**missed**", None: "not measured"}[one.is_met]
        wanted = f"{SOURCES[one.source]} {one.goal}"
        ours = f"{number(one.value, row.unit)}{f' ({how})' if how else ''}"
        lines.append(f"| {row.title} | {named(one.at)} | {ours} | {beside} | {ratio} | {wanted} | {met} |")
    return "\n".join(lines) + "\n"


def _row(row: Row, result: Result | None, limits: str) -> str:
    lines = [f"## {row.title}\n", f"{row.about} In {row.unit}; {'less' if row.less_is_better else 'more'} is better.\n"]
    lines += [f"Reached by {row.reached_by}.\n"]
    lines += _table(row, result) if result is not None else ["Not measured yet."]
    lines += ["", "### What limits it\n", f"<!-- limits: {row.key} -->", limits, "<!-- end of limits -->", ""]
    return "\n".join(lines)


def _table(row: Row, result: Result) -> list[str]:
    lines = [
        f"| | {' | '.join(named(point.at) for point in result.points)} | {BUSY if row.work else ''} |",
        f"|---|{'--:|' * len(result.points)}--:|",
    ]
    for one in row.contenders:
        cells = [point.cell(one.key) for point in result.points]
        if any(cells):
            title = f"**{one.title}**" if one.is_headwater else one.title
            lines.append(f"| {title} | {' | '.join(_cell(cell) for cell in cells)} | {_busy(cells[0])} |")
    return [*lines, "", _how(result, row)]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if cell.median is None:
        return cell.problem or "–"
    tail = f", p99 {short(cell.tail)}" if cell.tail is not None else ""
    spread = f" ±{cell.spread:.0%}" if len(cell.values) > 1 else ""
    return f"{short(cell.median)}{tail}{spread}{' †' if cell.is_generator_bound else ''}"


def _how(result: Result, row: Row) -> str:
    compiled = "compiled" if result.is_compiled else "not compiled"
    rounds = f"medians of {result.rounds} rounds, ± half the range" if result.rounds > 1 else "one round"
    quick = ", a quick run" if result.is_quick else ""
    said = [f"Measured {result.measured_at[:10]}, {rounds}, Headwater {compiled}{quick}."]
    if row.work:
        said.append("The last column: how much of a core the generator and the broker used at the first point.")
    if any(cell.is_generator_bound for point in result.points for cell in point.cells):
        said.append("† The generator used more than 90% of a core, and may be what was measured.")
    return " ".join(said)


def _busy(cell: Cell | None) -> str:
    if cell is None or cell.generator_share is None:
        return ""
    return f"{cell.generator_share:.0%}, {cell.broker_share or 0:.0%}"


def _measured(report: Report) -> str:
    processor, cores, memory, system = report.machine.values()
    lines = [
        "## What was measured\n",
        f"{processor}, {cores} cores, {memory}, {system}; all on loopback, with data on one disk; each broker is",
        "a process of its own, and all but the one that is measured are stopped meanwhile.\n",
        "| | version | before it acknowledges |",
        "|---|---|---|",
    ]
    lines += [
        f"| {setting.title} | {report.versions[setting.peer]} | {setting.promise} |"
        for setting in SETTINGS.values()
        if setting.peer in report.versions
    ]
    lines += [
        f"| {library.title} | {report.versions[library.key]} | {library.promise} |"
        for library in LIBRARIES.values()
        if library.key in report.versions
    ]
    lines += [f"| {name} | not installed: `{install}` | |" for name, install in report.missing.items()]
    return "\n".join(lines) + "\n"


def _generator(report: Report) -> str:
    lines = [
        "## The load generator\n",
        "A C program of one thread (`bench/peers/load`), built on the spot. Against a sink that only reads:\n",
        "| payload | messages/s | share of a core |",
        "|--:|--:|--:|",
    ]
    for point in report.generator:
        cell = point.cells[0]
        lines.append(f"| {named(point.at)} | {short(cell.median or 0)} | {cell.generator_share or 0:.0%} |")
    return "\n".join(lines) + "\n"
