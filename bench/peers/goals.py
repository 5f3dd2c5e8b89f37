"""Whether goals are met."""

from __future__ import annotations

from bench.peers.figures import number
from bench.peers.results import Cell, Point, Result, Verdict
from bench.peers.rows import ROWS, Goal, Row


def verdicts(result: Result) -> list[Verdict]:
    """What a row's goals come to; those about points that were left out are not among them."""
    row = ROWS[result.row]
    found = []
    for goal in row.goals:
        point = _point(result, goal)
        if point is not None:
            found.append(_verdict(row, goal, point))
    return found


def judged(result: Result) -> list[Point]:
    """The points that goals are about."""
    spoken_of = [_point(result, goal) for goal in ROWS[result.row].goals]
    return [point for point in result.points if point in spoken_of]


def _point(result: Result, goal: Goal) -> Point | None:
    return next((point for point in result.points if goal.at.items() <= point.at.items()), None)


def _verdict(row: Row, goal: Goal, point: Point) -> Verdict:
    ours = point.cell(goal.who)
    value = ours.median if ours is not None else None
    if not goal.than:
        wanted = f"{goal.sense} {number(goal.bound, row.unit)}"
        return Verdict(row.key, point.at, goal.who, wanted, goal.source, value, is_met=_holds(goal, value))
    wanted = f"{goal.sense} {goal.bound:g}×"
    best = _best([cell for key in goal.than if (cell := point.cell(key)) is not None], row.less_is_better)
    if best is None or best.median is None:
        return Verdict(row.key, point.at, goal.who, wanted, goal.source, value)
    ratio = value / best.median if value is not None and best.median else None
    return Verdict(
        row.key, point.at, goal.who, wanted, goal.source, value, best.who, best.median, ratio, _holds(goal, ratio)
    )


def _best(cells: list[Cell], less_is_better: bool) -> Cell | None:
    measured = [(cell.median, cell) for cell in cells if cell.median is not None]
    if not measured:
        return None
    return (min if less_is_better else max)(measured, key=lambda pair: pair[0])[1]


def _holds(goal: Goal, measured: float | None) -> bool | None:
    if measured is None:
        return None
    return measured >= goal.bound if goal.sense == "≥" else measured <= goal.bound
