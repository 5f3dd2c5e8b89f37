"""The process that serves HTTP, where it cannot be or is not wanted; tests/admin/test_process.py has the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.serving import sidecar
from headwater.settings import load


def start(caplog: pytest.LogCaptureFixture, http: bool) -> str:
    """What is logged of a start after which there is neither a process nor a folder."""
    nobody: Any = None
    beside = sidecar.Sidecar(nobody, load({"http": ("--http", http)}, {}, None), pytest.fail)

    async def run() -> None:
        await beside.start()
        await beside.stop()

    with caplog.at_level("INFO", "headwater"):
        asyncio.run(run())
    return " ".join(str(vars(record)) for record in caplog.records)


def test_where_a_package_is_missing_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sidecar, "NEEDED", ("json", "no_such_package"))
    said = start(caplog, True)
    assert "no_such_package" in said
    assert "pip install 'headwater[server]'" in said


def test_where_it_is_not_wanted_there_is_none(caplog: pytest.LogCaptureFixture):
    assert start(caplog, False) == ""
