"""The overview: what administrators and dashboards ask about a running server, and who may know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.errors import Malformed
from headwater.server.watch.figures import INTERNAL, Collector
from headwater.server.watch.health import Health
from headwater.server.watch.levels import Levels
from headwater.settings import Loaded
from headwater.wire import administration as wire
from headwater.wire.request import Request

if TYPE_CHECKING:
    from headwater.server.broker import Broker
    from headwater.server.session import Session

SECRETS = ("secret", "password", "token")
"""A setting whose name has one of these is told without its value."""


class Overview:
    """Answers what is asked about the server as a whole."""

    def __init__(self, broker: Broker, collector: Collector, health: Health, settings: Loaded) -> None:
        self._broker = broker
        self._core = broker.core
        self.figures = collector.figures
        self._health = health
        self._levels = Levels(broker.core)
        self._settings = settings

    def work_for(self, session: Session, request: Request) -> Callable[[], Any]:
        """What a request asks to be looked up, if its session may know."""
        if isinstance(request, wire.ListLevels):
            return self._list_levels(session, request)
        self._broker.check_admin(session.row.user, "see how the server is doing")
        match request:
            case wire.Metrics():
                return self.figures
            case wire.CheckHealth():
                return self._health.check
            case wire.ListSettings():
                return self.settings
            case wire.ListPipelines():
                return self.pipelines
        raise Malformed(f"a request {type(request).__name__} is not one for here")

    def _list_levels(self, session: Session, request: wire.ListLevels) -> Callable[[], list[wire.Level]]:
        broker, user, own = self._broker, session.row.user, session.row.id
        if broker.is_admin(user):
            return lambda: self._levels.page(request.parent, request.after, request.limit, lambda _: True, "")

        def sees(filter: str) -> bool:
            return broker.may_subscribe(user, own, filter)

        eyes = f"{broker.acl.version} {user}"
        return lambda: self._levels.page(request.parent, request.after, request.limit, sees, eyes)

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
