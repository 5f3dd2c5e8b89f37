from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec

from bench.peers.goals import verdicts
from bench.peers.page import BARS, GROWTH, PAGE, limits_of, merged, read_report, write_page
from bench.peers.results import Cell, Point, Report, Result
from bench.peers.rows import ROWS

MACHINE = {"processor": "x", "cores": "2", "memory": "8 GiB", "system": "Linux"}


def report(*rows: str, value: float = 100.0) -> Report:
    results = [
        Result(
            key,
            [
                Point(dict(at), [Cell(one.key, [value, value * 2], [], [0.95], [1.0]) for one in ROWS[key].contenders])
                for at in ROWS[key].points
            ],
            "2026-01-01T00:00:00+00:00",
            2,
        )
        for key in rows
    ]
    judged = [one for result in results for one in verdicts(result)]
    sink = [Point({"bytes": 400}, [Cell("sink", [5e6], [], [1.0])])]
    return Report(MACHINE, {"headwater": "1", "redis": "7"}, {"nats": "pip install"}, sink, results, judged)


def test_what_people_wrote_survives_and_all_else_is_written_anew(tmp_path: Path):
    write_page(tmp_path, report("publish", "fan-out"))
    path = tmp_path / PAGE
    page = path.read_text()
    assert set(limits_of(page)) == {"publish", "fan-out"}
    said = "fdatasync, two thirds.\n\nThen `mqtt/reader`."
    edited = page.replace(limits_of(page)["publish"], said, 1).replace("# Headwater beside", "# Beside")
    path.write_text(edited)
    write_page(tmp_path, report("fan-out", value=7.0))
    again = path.read_text()
    assert "Not measured yet." in again
    assert limits_of(again)["publish"] == said
    assert again.startswith("# Headwater beside")
    assert "may be what was measured" in again, "the generator was at its limit"


def test_a_row_measured_again_takes_the_place_of_its_own_alone(tmp_path: Path):
    write_page(tmp_path, report("publish", "fan-out"))
    both = merged(read_report(tmp_path), report("fan-out", value=7.0))
    assert [one.row for one in both.results] == ["publish", "fan-out"]
    assert [one.points[0].cells[0].median for one in both.results] == [150.0, 10.5]
    assert len(both.verdicts) == len(ROWS["publish"].goals) + len(ROWS["fan-out"].goals)


def test_rows_are_kept_when_the_system_was_brought_up_to_date_and_not_from_another_machine():
    before = report("publish")
    newer = msgspec.structs.replace(report("fan-out"), machine=MACHINE | {"system": "Linux 7"})
    assert [one.row for one in merged(before, newer).results] == ["publish", "fan-out"]
    elsewhere = msgspec.structs.replace(newer, machine=MACHINE | {"cores": "64"})
    assert [one.row for one in merged(before, elsewhere).results] == ["fan-out"]


def test_who_has_left_a_row_since_is_kept_no_longer(tmp_path: Path):
    before = report("publish")
    before.results[0].points[0].cells.append(Cell("gone", [1.0]))
    both = merged(before, report("fan-out"))
    assert both.results[0].points[0].cell("gone") is None
    write_page(tmp_path, both)


def test_the_pictures_are_whole(tmp_path: Path):
    write_page(tmp_path, report(*ROWS))
    for name in (BARS, GROWTH):
        shown = "".join(ElementTree.fromstring((tmp_path / name).read_text()).itertext())
        assert "Headwater" in shown
        assert "nan" not in shown
