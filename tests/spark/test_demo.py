from __future__ import annotations

from pathlib import Path

from cli.command import run


def test_the_demo_ends_with_an_archive_a_rollup_and_a_query_over_lake_and_live(tmp_path: Path) -> None:
    picture = tmp_path / "rollup.png"
    result = run("demo", "--fast", "--data", tmp_path / "data", "--plot", picture, timeout_s=240)
    assert "All 19 checks hold." in result.stdout
    assert "home/attic/temp" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "data-lake").is_dir()
