from __future__ import annotations

from pathlib import Path

from cli.command import one_sentence, run
from headwater.cli.demo.cluster import can_run


def test_the_demo_holds_what_it_promises_from_the_house_to_the_lake(tmp_path: Path) -> None:
    picture = tmp_path / "rollup.png"
    result = run("demo", "--fast", "--data", tmp_path / "data", "--plot", picture, timeout_s=240)
    assert f"All {21 if can_run() else 19} checks hold." in result.stdout
    assert "✗" not in result.stdout
    assert "home/attic/temp" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "data-lake").is_dir()
    run("verify", data=tmp_path / "data")
    assert one_sentence(run("demo", "--fast", "--data", tmp_path / "data", code=2).stderr)
