"""The pictures of docs/contribute/benchmarks.md: bars for who reached what, lines for how it grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from bench.peers.brokers import SETTINGS
from bench.peers.figures import number, short
from bench.peers.goals import judged
from bench.peers.results import Point, Result
from bench.peers.rows import ROWS, Contender, Row, named

STYLE = """
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.dim { fill: #6e7781 }
.grid { stroke: #d8dee4; stroke-width: 1 }
.paper { fill: #ffffff }
.headwater { fill: #0b8a8f } .synced { fill: #7d8b99 } .unsynced { fill: #c3ccd5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .dim { fill: #9198a1 } .grid { stroke: #30363d } .paper { fill: #0d1117 }
  .headwater { fill: #2bb7bd } .synced { fill: #8694a2 } .unsynced { fill: #4b5763 }
}
"""
WIDTH = 960
MARGIN = 24
GAP = 36
BAR, BAR_STEP = 15, 22
NAME_WIDTH, VALUE_WIDTH = 184, 66
LINES_HEIGHT = 190
LINES_COLUMNS = 3
COLOURS = {"headwater": "#0b9fa5", "redis": "#d64545", "nats": "#3b7dd8", "mosquitto": "#9a57cd", "rabbitmq": "#e08a1e"}
DASHES = {
    "headwater": "7 3",
    "headwater-mqtt": "2 3",
    "cold": "7 3",
    "wildcard": "7 3",
    "warm-changing": "2 3",
    "cold-changing": "9 3 2 3",
}


def bars(results: Iterable[Result]) -> str:
    """A panel for each row, and for each of its points that has a goal."""
    panels = [(ROWS[one.row], point) for one in results for point in _judged(one)]
    columns: list[list[tuple[Row, Point]]] = [[], []]
    heights = [0, 0]
    for row, point in panels:
        shorter = heights.index(min(heights))
        columns[shorter].append((row, point))
        heights[shorter] += _bars_height(point)
    width = (WIDTH - 2 * MARGIN - GAP) / 2
    parts = [_key()]
    for place, column in enumerate(columns):
        top = MARGIN + 34.0
        for row, point in column:
            parts.append(_bars(row, point, MARGIN + place * (width + GAP), top, width))
            top += _bars_height(point)
    return _picture(parts, MARGIN + 34 + max(heights))


def _judged(result: Result) -> list[Point]:
    row = ROWS[result.row]
    if row.key.startswith("look-up"):  # nobody stands beside Headwater there
        return []
    return [point for point in judged(result) if any(cell.values for cell in point.cells)]


def _key() -> str:
    parts, left = [], float(MARGIN)
    for name, said in (
        ("headwater", "Headwater, synced before it acks"),
        ("synced", "peers that sync before they ack"),
        ("unsynced", "peers that do not, or need not"),
    ):
        parts.append(f'<rect class="{name}" x="{left}" y="{MARGIN - 10}" width="12" height="12" rx="2"/>')
        parts.append(f'<text x="{left + 18}" y="{MARGIN}">{said}</text>')
        left += 250
    return "".join(parts)


def _bars_height(point: Point) -> int:
    return 50 + BAR_STEP * sum(1 for cell in point.cells if cell.values) + 22


def _bars(row: Row, point: Point, left: float, top: float, width: float) -> str:
    said = f"{named(point.at)}; {'less' if row.less_is_better else 'more'} is better"
    parts = [
        f'<text class="title" x="{left:.0f}" y="{top + 14:.0f}">{escape(row.title)}</text>',
        f'<text class="dim" x="{left:.0f}" y="{top + 31:.0f}">{escape(said)}</text>',
    ]
    most = max(cell.median or 0 for cell in point.cells) or 1.0
    room = width - NAME_WIDTH - VALUE_WIDTH
    line = top + 42
    for cell in point.cells:
        if cell.median is None:
            continue
        one = row.contender(cell.who)
        middle = line + BAR / 2 + 4
        length = max(1.5, room * max(cell.median, 0) / most)
        parts.append(
            f'<text x="{left + NAME_WIDTH - 8:.0f}" y="{middle:.1f}" text-anchor="end">{escape(one.title)}</text>'
        )
        parts.append(
            f'<rect class="{_kind(one)}" x="{left + NAME_WIDTH:.0f}" y="{line:.1f}" '
            f'width="{length:.1f}" height="{BAR}" rx="2"/>'
        )
        shown = escape(number(cell.median, row.unit))
        parts.append(f'<text class="dim" x="{left + NAME_WIDTH + length + 6:.1f}" y="{middle:.1f}">{shown}</text>')
        line += BAR_STEP
    return "".join(parts)


def _kind(one: Contender) -> str:
    if one.is_headwater:
        return "headwater"
    return "synced" if one.setting and SETTINGS[one.setting].is_synced else "unsynced"


def growth(results: Iterable[Result]) -> str:
    """A panel for each thing that grows, both of its sides in powers of ten."""
    panels = []
    for result in results:
        row = ROWS[result.row]
        for axis, along in row.axes():
            points = [point for at in along for point in result.points if point.at == dict(at)]
            if len(points) > 1:
                panels.append((row, axis, points))
    width = (WIDTH - 2 * MARGIN - (LINES_COLUMNS - 1) * GAP) / LINES_COLUMNS
    step = LINES_HEIGHT + 76
    keys = _line_keys(panels)
    top = MARGIN + 22 * math.ceil(len(keys) / LINES_COLUMNS) + 10
    parts = [_line_key(one, place) for place, one in enumerate(keys)]
    for place, (row, axis, points) in enumerate(panels):
        down, right = divmod(place, LINES_COLUMNS)
        parts.append(_lines(row, axis, points, MARGIN + right * (width + GAP), top + down * step, width))
    return _picture(parts, top + math.ceil(len(panels) / LINES_COLUMNS) * step)


def _line_keys(panels: Sequence[tuple[Row, str, list[Point]]]) -> list[Contender]:
    found: dict[str, Contender] = {}
    for row, _, points in panels:
        for cell in points[0].cells:
            one = row.contender(cell.who)
            if cell.values:
                found.setdefault(one.key, one)
    return list(found.values())


def _line_key(one: Contender, place: int) -> str:
    down, right = divmod(place, LINES_COLUMNS)
    left, line = MARGIN + right * (WIDTH - 2 * MARGIN) // LINES_COLUMNS, MARGIN - 4 + down * 22
    title = one.title.removesuffix(", QoS 1").removesuffix(", QoS 0").removesuffix(" QoS 1").removesuffix(" QoS 0")
    return f'<path d="M{left} {line} h26" {_stroke(one)}/><text x="{left + 34}" y="{line + 4}">{escape(title)}</text>'


def _stroke(one: Contender) -> str:
    dash = DASHES.get(one.key, "7 3" if one.key.endswith("always") else "")
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{_colour(one)}" stroke-width="2"{dashed}'


def _colour(one: Contender) -> str:
    return COLOURS.get(SETTINGS[one.setting].peer, "#888888")


def _lines(row: Row, axis: str, points: list[Point], left: float, top: float, width: float) -> str:
    values = [cell.median for point in points for cell in point.cells if cell.median]
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 0.01)
    places = [math.log10(float(point.at[axis])) for point in points]
    begin, height = top + 44, LINES_HEIGHT - 20

    def x(place: float) -> float:
        return left + 40 + (width - 48) * (place - places[0]) / (places[-1] - places[0])

    def y(value: float) -> float:
        return begin + height * (1 - (math.log10(value) - lowest) / (highest - lowest))

    parts = [
        f'<text class="title" x="{left:.0f}" y="{top + 14:.0f}">{escape(row.title)}</text>',
        f'<text class="dim" x="{left:.0f}" y="{top + 31:.0f}">{escape(f"{row.unit} by {axis}")}</text>',
    ]
    for power in range(lowest, highest + 1):
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{left + 40:.0f} {at:.1f} h{width - 48:.0f}"/>')
        parts.append(
            f'<text class="dim" x="{left + 34:.0f}" y="{at + 4:.1f}" text-anchor="end">{_tick(10.0**power)}</text>'
        )
    for place, point in zip(places, points, strict=True):
        value = float(point.at[axis])
        shown = f"{value:,.0f}" if value < 10_000 else _tick(value)
        parts.append(
            f'<text class="dim" x="{x(place):.1f}" y="{begin + height + 18:.0f}" text-anchor="middle">{shown}</text>'
        )
    for cell in points[0].cells:
        found = [(x(place), point.cell(cell.who)) for place, point in zip(places, points, strict=True)]
        drawn = [(at, y(one.median)) for at, one in found if one is not None and one.median]
        if drawn:
            path = "M" + " L".join(f"{at:.1f} {down:.1f}" for at, down in drawn)
            stroke = _stroke(row.contender(cell.who))
            parts.append(f'<path d="{path}" {stroke} stroke-linejoin="round"/>')
            colour = _colour(row.contender(cell.who))
            parts += [f'<circle cx="{at:.1f}" cy="{down:.1f}" r="2.6" fill="{colour}"/>' for at, down in drawn]
    return "".join(parts)


def _tick(value: float) -> str:
    return short(value).replace(".00", "").replace(".0", "") if value >= 1 else f"{value:g}"


def _picture(parts: Iterable[str], height: float) -> str:
    body = "\n".join(parts)
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>\n{body}\n</svg>\n'
    )
