"""Dead letters: what is said of those that are not shown."""

from __future__ import annotations

import pytest

from headwater.admin.dashboard.dead_letters import left_out


@pytest.mark.parametrize(
    ("found", "total", "text", "said"),
    [
        (200, 200, "", ""),
        (5_000, 5_000, "", "4,800 more are not shown; find them by their text."),
        (3, 900, "vat", ""),
        (3, 5_000, "vat", "The first 1,000 of 5,000 were looked through."),
    ],
)
def test_all_that_are_not_shown_are_told_and_those_that_were_not_looked_at(
    found: int, total: int, text: str, said: str
) -> None:
    assert left_out(found, total, text) == said
