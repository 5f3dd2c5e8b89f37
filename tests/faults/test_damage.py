"""Damage of every kind, to every file of a folder: each is told, mended or harmless, and nothing is ever served wrong.

PYTHONPATH=src:tests python -m faults.damage 2000      # the table, by place and verdict
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.damage import KINDS, PLACES, VERDICTS, cases, judge
from faults.lived_in import ROOTS, Image, Seen, live_in, visit, visiting

FAST, ALL = 250, 2000
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """In memory, where there is such a place: nothing here depends on what a sync does."""
    with tempfile.TemporaryDirectory(prefix="headwater-damage-", dir=MEMORY if MEMORY.is_dir() else None) as path:
        yield path


@pytest.fixture(scope="module")
def image(folder: str) -> Image:
    return live_in(f"{folder}/lived-in")


@pytest.fixture(scope="module")
def whole(folder: str, image: Image) -> Seen:
    image.put(f"{folder}/whole")
    with visiting(f"{folder}/whole") as bus:
        return visit(bus)


def test_the_folder_has_everything_in_it(image: Image, whole: Seen) -> None:
    assert all(find(image) for find in PLACES.values())
    covered = {path for find in PLACES.values() for path in find(image)}
    assert image.files.keys() - covered == {"state/LOCK"}  # which is empty
    assert all(len([path for path in image.files if f"-{root[0]}" in path and ".log" in path]) > 1 for root in ROOTS)
    assert whole.gaps == {"home": [(9, 9)]}
    assert all(whole.pending.values())
    assert any(whole.letters.values())
    assert all(whole.others.values())
    assert set(whole.repeats) == {1, 3}
    assert all(is_known for is_known, _ in whole.repeats.values())
    assert whole.retained.keys() == {"home/kept", "plant/kept"}
    assert {"$delayed", "$staged", *ROOTS} <= whole.ends.keys()
    assert isinstance(whole.committed, dict)


def test_the_cases_go_over_every_place_and_kind(image: Image) -> None:
    done = {(case.place, case.kind) for case in cases(image, FAST)}
    assert {place for place, _ in done} == {*PLACES, "folder"}
    assert {kind for _, kind in done} >= KINDS.keys()
    assert {(place, kind) for place in PLACES for kind in KINDS} <= {
        (case.place, case.kind) for case in cases(image, ALL)
    }


def run(image: Image, whole: Seen, folder: str, count: int) -> str:
    """What became of so many damages, by place, as a table."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    failures = []
    for case in cases(image, count):
        try:
            table[case.place][judge(image, whole, case, f"{folder}/case")] += 1
        except AssertionError as error:
            failures.append(str(error).partition("\n")[0])
        except Exception as error:
            failures.append(f"{case}: an error without a type, {error!r}")
    assert not failures
    table["all"] = sum(table.values(), Counter())
    lines = ["".join(f"{name:>18}" for name in ("", *VERDICTS))]
    lines += [f"{place:>18}" + "".join(f"{found[name]:>18}" for name in VERDICTS) for place, found in table.items()]
    return "\n".join(lines)


def test_each_damage_is_told_mended_or_harmless(image: Image, whole: Seen, folder: str) -> None:
    run(image, whole, folder, FAST)


@pytest.mark.soak
def test_each_of_two_thousand_damages_is_told_mended_or_harmless(image: Image, whole: Seen, folder: str) -> None:
    sys.stdout.write(f"\n{run(image, whole, folder, ALL)}\n")
