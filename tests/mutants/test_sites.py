from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from mutants.__main__ import SHARES, draw, faults_in
from mutants.harmless import HARMLESS, NOT_JUDGED
from mutants.sites import sites


def broken(text: str) -> list[tuple[str, str]]:
    """Every fault that a function can have: its kind, and its code with the fault in it."""
    text = dedent(text)
    found = []
    for number in range(len(list(sites(ast.parse(text))))):
        tree = ast.parse(text)
        site = list(sites(tree))[number]
        site.apply()
        found.append((site.kind, ast.unparse(ast.fix_missing_locations(tree)).partition("\n")[2].replace("    ", "")))
    return found


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("file.datasync()", [("drop-sync", "pass")]),
        ("note(offset)", [("drop-call", "pass")]),
        ("await note(offset)", [("drop-call", "pass")]),
        ("self.end = offset", [("drop-store", "pass")]),
        ("self.ends[root] += offset", [("drop-store", "pass")]),
        ("end = first + 1", [("off-by-one", "end = first + 0")]),
        ("return first <= last", [("off-by-one", "return first < last")]),
        ("return a and b", [("invert", "return a or b")]),
        ("return max(a, b)", [("invert", "return min(a, b)")]),
    ],
)
def test_a_line_is_broken_in_these_ways(line, faults):
    assert broken(f"async def work():\n    {line}") == faults


def test_two_effects_change_places():
    assert ("swap", "write()\nsync()") in broken("def work():\n    sync()\n    write()")


def test_a_check_that_leaves_is_skipped():
    checked = "def work():\n    if wrong(batch):\n        raise BadBatch\n    return batch"
    assert ("skip-check", "if False:\nraise BadBatch\nreturn batch") in broken(checked)


@pytest.mark.parametrize("line", ["'a docstring'", "log.warning('x')", "raise Failed(a and b)", "assert a < b"])
def test_what_is_only_said_is_left_alone(line):
    assert broken(f"def work():\n    {line}") == []


@pytest.mark.xdist_group("faults")  # which take a while to find
def test_a_draw_is_the_same_each_time_and_has_its_share_of_each_room():
    drawn = list(draw(1, 100, None, ""))
    faults_in.cache_clear()
    assert [mutant.fault for mutant in drawn] == [mutant.fault for mutant in draw(1, 100, None, "")]
    for room, share in SHARES.items():
        assert sum(mutant.module.startswith(f"{room}/") for mutant in drawn) == share
    assert not any(mutant.module in NOT_JUDGED for mutant in drawn)


@pytest.mark.xdist_group("faults")
def test_what_is_called_harmless_is_there():
    """A fault whose code has changed is to be judged anew."""
    found = {mutant.fault for room in SHARES for mutant in faults_in(room)}
    assert HARMLESS.keys() <= found
