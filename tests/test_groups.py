"""What the tests themselves rely on."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one process")
def test_a_group_is_part_of_the_name_by_which_tests_are_shared_out(request: pytest.FixtureRequest) -> None:
    is_shared_out = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@one process") == is_shared_out
