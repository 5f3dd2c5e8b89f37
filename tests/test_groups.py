"""What the tests themselves rely on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def shared() -> str:
    return "what takes long to start"


@pytest.mark.xdist_group("one process")
def test_a_group_is_part_of_the_name_by_which_tests_are_shared_out(request: pytest.FixtureRequest) -> None:
    is_shared_out = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@one process") == is_shared_out


@pytest.mark.parametrize("number", range(2))
def test_those_that_share_a_fixture_of_their_module_are_a_group(
    request: pytest.FixtureRequest, shared: str, number: int
) -> None:
    is_shared_out = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@tests/test_groups.py") == is_shared_out
