"""A release: `make release VERSION=1.0.0` calls what is here by that number, and `make dist` builds and tries it.

The number stands in src/headwater/version.py; the chart and the changelog follow. What was noted as unreleased becomes
the section of this release, and a new one is begun above it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
UNRELEASED = "## Unreleased\n"
TRIAL = Path(__file__).with_name("trial.py")


def call(root: Path, version: str, date: str) -> None:
    """Name what is unreleased; ValueError, and nothing has changed, if that cannot be."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version; give one like 1.0.0 or 1.1.0rc1")
    edits: dict[str, Callable[[str], str]] = {
        "src/headwater/version.py": lambda text: re.sub(
            r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', text
        ),
        "deploy/helm/headwater/Chart.yaml": lambda text: re.sub(
            r"(?m)^(version|appVersion): .*$", rf"\1: {version}", text
        ),
        "CHANGELOG.md": lambda text: changelog(text, version, date),
    }
    changed = {root / path: edit((root / path).read_text(encoding="utf-8")) for path, edit in edits.items()}
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")


def changelog(text: str, version: str, date: str) -> str:
    """What was unreleased is this release."""
    before, heading, after = text.partition(UNRELEASED)
    if f"\n## {version} " in text:
        raise ValueError(f"CHANGELOG.md has a section of {version}; give the next version")
    if not heading or after.lstrip().startswith("## ") or not after.strip():
        raise ValueError("CHANGELOG.md has nothing unreleased; note what has changed before it is released")
    return f"{before}{UNRELEASED}\n## {version} - {date}\n{after}"


def check(folder: Path) -> None:
    """Look at what was built, and try each file as somebody who has nothing else; SystemExit if it does not work."""
    built = sorted(folder.glob("headwater-*"))
    if not built:
        raise SystemExit(f"{folder} has nothing to check")
    run("-m", "twine", "check", "--strict", *map(str, built))
    for path in built:
        with tempfile.TemporaryDirectory(prefix="headwater-trial-") as place:
            print(f"{path.name}: in an empty environment", flush=True)
            venv.create(f"{place}/venv", with_pip=True)
            python = f"{place}/venv/bin/python"
            install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            run(*install, str(path), "-c", str(ROOT / "constraints.txt"), python=python)
            run("-I", str(TRIAL), python=python, cwd=place)


def run(*arguments: str, python: str = sys.executable, cwd: str | None = None) -> None:
    """A Python that does this; SystemExit if it fails."""
    if subprocess.run([python, *arguments], cwd=cwd, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(arguments)}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="call what is unreleased by this number")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="check what was built into a folder, and try it")
    given = parser.parse_args()
    if given.version is not None:
        try:
            call(ROOT, given.version, datetime.now(UTC).date().isoformat())
        except ValueError as error:
            raise SystemExit(str(error)) from None
    if given.check is not None:
        check(given.check)


if __name__ == "__main__":
    main()
