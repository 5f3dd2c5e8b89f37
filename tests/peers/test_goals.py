from __future__ import annotations

import re

from bench.peers.goals import verdicts
from bench.peers.results import Cell, Point, Result
from bench.peers.rows import ROWS, At
from headwater import Bus


def result(row: str, at: At, **figures: list[float]) -> Result:
    cells = [Cell(who.replace("_", "-"), values) for who, values in figures.items()]
    return Result(row, [Point(dict(at), cells)], "2026-01-01T00:00:00+00:00", 3)


def test_a_ratio_is_of_medians_to_the_best_of_those_that_were_measured():
    at = ROWS["fan-out"].points[0]
    found = verdicts(result("fan-out", at, headwater_batches=[1, 30, 20], redis=[9, 10, 11], nats=[5, 8, 6]))
    least = next(one for one in found if one.who == "headwater-batches" and one.source == "least")
    assert (least.value, least.than, least.theirs, least.ratio, least.is_met) == (20, "redis", 10, 2.0, True)
    assert least.goal == "≥ 1×"


def test_where_less_is_better_the_best_is_the_least():
    at = ROWS["round-trip"].points[0]
    found = verdicts(result("round-trip", at, headwater=[121.0], mosquitto=[100.0]))
    assert [(one.ratio, one.is_met) for one in found if one.who == "headwater"] == [(1.21, False)]


def test_a_goal_may_be_a_figure_of_its_own():
    at = ROWS["start"].points[0]
    found = verdicts(result("start", at, headwater=[0.5, 0.5, 9.0]))
    assert [(one.goal, one.is_met) for one in found] == [("≤ 1×", None), ("≤ 0.50 s", True)]


def test_what_was_not_measured_is_neither_met_nor_missed():
    at = ROWS["publish"].points[0]
    found = verdicts(result("publish", at, headwater=[5.0], redis_always=[]))
    assert found
    assert {one.is_met for one in found} == {None}


def test_each_row_names_public_calls_that_reach_it():
    for row in ROWS.values():
        assert row.reached_by, row.key
        for call in re.findall(r"`@?bus\.(\w+)", row.reached_by):
            assert callable(getattr(Bus, call)), f"{row.key}: there is no bus.{call}"


def test_goals_speak_of_contenders_and_points_that_their_rows_have():
    for row in ROWS.values():
        keys = {one.key for one in row.contenders}
        for goal in row.goals:
            assert {goal.who, *goal.than} <= keys
            assert any(goal.at.items() <= at.items() for at in row.points)
