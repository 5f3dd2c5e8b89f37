"""The overview: what administrators and dashboards ask about a running server."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

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
IN_ADDRESS = re.compile(r"://[^@/\s]*@")


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
        self.jobs: Callable[[], list[wire.Job]] = list
        """The pipelines that are run beside the server, as whoever runs them knows them."""

    def cluster(self) -> wire.ClusterStatus | None:
        """How the cluster is; None if this is the server of none."""
        return self._cluster.status() if self._cluster is not None else None

    def settings(self) -> list[wire.Setting]:
        """Every setting, never a secret."""
        return [
            wire.Setting(
                name=name,
                value=_told(name, value),
                default=default,
                source=str(source),
            )
            for name, value, default, source in self._settings.rows()
        ]

    def list_jobs(self) -> list[wire.Job]:
        """How the pipelines are that the server runs; what waits for an archive is what no lake has yet."""
        found = [msgspec.structs.replace(job, command=_without_secrets(job.command)) for job in self.jobs()]
        lag = sum(one.lag for one in self.pipelines()) if found else 0
        return [msgspec.structs.replace(job, lag=lag) if job.command.startswith("archive") else job for job in found]

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


def _told(name: str, value: object) -> object:
    if value and any(word in name for word in SECRETS):
        return "***"
    return _without_secrets(value) if name.startswith("pipelines.") and isinstance(value, str) else value


def _without_secrets(command: str) -> str:
    """A command without the names and secrets in the addresses that it has."""
    return IN_ADDRESS.sub("://***@", command)


def _pipeline(root: str, first: int, end: int, lake: str, archived: int) -> wire.Pipeline:
    return wire.Pipeline(root=root, first=first, end=end, lake=lake, archived=archived, lag=max(0, end - 1 - archived))
