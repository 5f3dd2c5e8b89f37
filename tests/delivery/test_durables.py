"""Subscriptions that are looked after by their ids, without a consumer."""

from __future__ import annotations

from typing import Any

import pytest

import headwater
from headwater import Malformed


@pytest.mark.parametrize(("filter", "start"), [("home/#", "soon"), ("home/#", -1), ("#", 5), ("home/#", True)])
def test_one_that_says_no_place_to_start_at_is_refused_and_not_made(filter: str, start: Any) -> None:
    with headwater.open(":memory:") as bus:
        with pytest.raises(Malformed, match="start"):
            bus.core.durables.create("s", filter, start=start)
        assert bus.subscriptions() == []
