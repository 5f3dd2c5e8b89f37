"""One node, as far as it does not take others to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.cluster.node import Node
from headwater.config import Clustering, Config
from headwater.errors import Unavailable


class BehindItself:
    """An engine that has another node's row on its way: it refuses a second, and does not show the first yet."""

    def __getattr__(self, verb: str) -> Any:
        return lambda *_: None


def test_a_node_does_not_take_for_its_own_what_another_is_about_to_write(tmp_path: Path):
    engine: Any = BehindItself()
    node = Node(tmp_path / "n1", Config(), Clustering(cluster=("nats://127.0.0.1",)), engine, name="n1")
    with pytest.raises(Unavailable, match="another node begins"):
        node.begin()
