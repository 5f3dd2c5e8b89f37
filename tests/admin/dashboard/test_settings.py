"""Settings: values as a settings file may have them."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.admin.dashboard.settings import written


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("segment_bytes", 64 << 20, "64MiB"),
        ("retention.bytes", 0, "0"),
        ("retention.bytes", 1 << 30, "1GiB"),
        ("topic_bytes_max", 1000, "1000"),
        ("mqtt_wills_max", 1 << 20, "1048576"),
        ("unix_path", "", '""'),
        ("lake", None, "–"),
        ("mqtt", True, "true"),
    ],
)
def test_a_value_is_told_as_it_may_be_written(name: str, value: Any, told: str) -> None:
    assert written(name, value) == told
