"""A server with its HTTP port, open to this machine, for all tests that leave it as it was but for topics of theirs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from admin.served import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "data") as served:
        served.read_http()
        yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as http:
        yield http
