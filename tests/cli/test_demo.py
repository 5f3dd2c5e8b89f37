from __future__ import annotations

from pathlib import Path

from cli.command import one_sentence, run


def test_the_demo_holds_what_it_promises_and_leaves_its_folder_where_it_was_told(tmp_path: Path):
    result = run("demo", "--fast", "--no-spark", "--data", tmp_path / "data")
    assert "All 16 checks hold." in result.stdout
    assert "✗" not in result.stdout
    run("verify", data=tmp_path / "data")
    assert one_sentence(run("demo", "--fast", "--data", tmp_path / "data", code=2).stderr)
