"""A release: one number in all places, and the changelog's section of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import headwater

REPO = Path(__file__).resolve().parents[2]
FILES = ("src/headwater/version.py", "deploy/helm/headwater/Chart.yaml", "CHANGELOG.md", "deploy/release.py")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    note(tmp_path)
    return tmp_path


def note(copy: Path) -> None:
    """Something that is unreleased."""
    changed = copy / "CHANGELOG.md"
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace("## Unreleased\n", "## Unreleased\n\n### Fixed\n\n- That.\n", 1), encoding="utf-8")


def release(copy: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(copy / "deploy/release.py"), "--version", version]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def texts(copy: Path) -> dict[str, str]:
    return {name: (copy / name).read_text(encoding="utf-8") for name in FILES}


def test_a_release_has_its_number_in_all_places_and_keeps_what_was_noted(copy: Path) -> None:
    before = texts(copy)
    assert release(copy, "77.0.0").returncode == 0
    after = texts(copy)
    assert '\n__version__ = "77.0.0"\n' in after["src/headwater/version.py"]
    chart = after["deploy/helm/headwater/Chart.yaml"]
    assert "\nversion: 77.0.0\nappVersion: 77.0.0\n" in chart
    notes = before["CHANGELOG.md"].partition("## Unreleased\n")[2]
    head, heading, section = after["CHANGELOG.md"].partition("\n## 77.0.0 - ")
    assert head.endswith("## Unreleased\n")
    assert heading
    assert section.partition("\n")[2] == notes


@pytest.mark.parametrize("wrong", ["1.0", "v1.0.0", "1.0.0 ", "newest", ""])
def test_what_is_no_version_changes_nothing(copy: Path, wrong: str) -> None:
    before = texts(copy)
    said = release(copy, wrong)
    assert said.returncode == 1
    assert "is no version; give one like 1.0.0" in said.stderr
    assert texts(copy) == before


def test_a_version_is_released_once_and_never_empty(copy: Path) -> None:
    assert release(copy, "77.0.0").returncode == 0
    before = texts(copy)
    said = release(copy, "77.0.1")
    assert "nothing unreleased" in said.stderr
    note(copy)
    said = release(copy, "77.0.0")
    assert "has a section of 77.0.0" in said.stderr
    assert texts(copy)["src/headwater/version.py"] == before["src/headwater/version.py"]


def test_what_is_built_reads_its_version_from_one_place_and_has_a_page() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == FILES[0]
    assert (REPO / project["project"]["readme"]).exists()


def test_the_image_is_built_from_files_that_there_are() -> None:
    copied = [
        line.split()[1:-1]
        for line in (REPO / "deploy/Containerfile").read_text().splitlines()
        if line.startswith("COPY ")
    ]
    for name in (name for names in copied for name in names if not name.startswith(("--", "/"))):
        assert (REPO / name).exists(), name
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"hatch_build.py", project["readme"], *project["license-files"]} <= {
        name for names in copied for name in names
    }


def test_the_changelog_has_a_section_of_the_version_that_the_code_names() -> None:
    assert f"\n## {headwater.__version__} - " in (REPO / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_keeps_its_form() -> None:
    text = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"(?m)^## ", text)[1:]
    assert [re.sub(r"^\d+\.\d+\.\d+\S* - \d{4}-\d\d-\d\d$", "release", title(part)) for part in releases] == [
        "Unreleased",
        *["release"] * (len(releases) - 1),
    ]
    for release in releases:
        kinds = re.split(r"(?m)^### ", release)[1:]
        names = [title(kind) for kind in kinds]
        assert names == sorted(set(names), key=KINDS.index), "each kind of change once, in the order of the form"
        for kind in kinds:
            _, _, entries = kind.partition("\n")
            assert "\n\n" not in entries.strip("\n"), f"{title(release)}, {title(kind)}: a blank line between entries"
            begun = [entry.splitlines()[0] for entry in re.split(r"(?m)^- ", entries)[1:]]
            assert [entry for entry, times in Counter(begun).items() if times > 1] == [], (
                f"{title(release)}: noted twice"
            )


def title(section: str) -> str:
    """What its heading says."""
    return section.partition("\n")[0]
