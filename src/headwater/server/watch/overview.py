"""The overview: what administrators and dashboards ask about a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.server.watch.cluster import ClusterView
from headwater.server.watch.figures import INTERNAL, Collector
from headwater.server.watch.health import Health
from headwater.server.watch.history import History
from headwater.server.watch.levels import Levels
from headwater.settings import Loaded
from headwater.wire import administration as wire

if TYPE_CHECKING:
    from headwater.server.broker import Broker

SECRETS = ("secret", "password", "token")
"""A setting whose name has one of these is told without its value."""


class Overview:
    """Answers what is asked about the server as a whole."""

    def __init__(
        self,
        broker: Broker,
        collector: Collector,
        health: Health,
        settings: Loaded,
        cluster: ClusterView | None,
    ) -> None:
        self._core = broker.core
        self._cluster = cluster
        self.figures = collector.figures
        self.health = health.check
        self.history = History(
            broker.core.state, broker.core.clock, collector.figures, broker.serving.history_series_max
        )
        self.levels = Levels(broker.core)
        self._settings = settings

    def cluster(self) -> wire.ClusterStatus | None:
        """How the cluster is; None if this is the server of none."""
        return self._cluster.status() if self._cluster is not None else None

    def settings(self) -> list[wire.Setting]:
        """Every setting, never a secret."""
        return [
            wire.Setting(
                name=name,
                value="***" if value and any(word in name for word in SECRETS) else value,
                default=default,
                source=str(source),
            )
            for name, value, default, source in self._settings.rows()
        ]

    def pipelines(self) -> list[wire.Pipeline]:
        """How far each lake has each root, by root; roots that no lake has with an empty one."""
        lakes = {lake: mark or {} for lake, mark in sorted(self._core.data.archived().items())}
        found = []
        for root in sorted(self._core.roots.all(), key=lambda root: root.name):
            marks = {lake: mark[root.name] for lake, mark in lakes.items() if root.name in mark}
            if marks or root.name not in INTERNAL:
                first, end = root.stream.first_offset, root.stream.durable + 1
                found += [_pipeline(root.name, first, end, *mark) for mark in (marks or {"": 0}).items()]
        return found


def _pipeline(root: str, first: int, end: int, lake: str, archived: int) -> wire.Pipeline:
    return wire.Pipeline(root=root, first=first, end=end, lake=lake, archived=archived, lag=max(0, end - 1 - archived))
