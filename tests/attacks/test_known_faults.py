"""Whoever knows the faults of what we build on: no version with one of them that matters here is ever installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FIXED = {
    "h11": "0.16",  # CVE-2025-43859
    "msgspec": "0.21.1",
    "cryptography": "48.0.1",  # GHSA-537c-gmf6-5ccf, CVE-2026-26007
    "starlette": "1.3.1",  # CVE-2026-48710, CVE-2025-62727
    "nicegui": "3.12",  # CVE-2026-45553, CVE-2026-27156
    "pyjwt": "2.15",  # CVE-2026-32597, CVE-2026-102268
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "protobuf": "6.33.5",  # CVE-2026-0994
}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def floors() -> dict[str, list[str]]:
    """By package: the oldest versions that are taken, wherever one is named."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    found: dict[str, list[str]] = {}
    for one in named:
        met = re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", one)
        if met is not None:
            found.setdefault(met[1], []).append(met[2])
    return found


@pytest.mark.parametrize("package", FIXED)
def test_the_oldest_version_that_is_taken_has_no_known_fault(package: str):
    named = floors()[package]
    assert all(number(version) >= number(FIXED[package]) for version in named)


def test_what_is_tested_with_is_not_older_than_what_is_taken():
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in (REPO / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for package, named in floors().items():
        for version in named:
            assert number(pinned[package]) >= number(version), package
