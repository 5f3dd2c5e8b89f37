"""The cluster: which node leads, how far the others are behind, and when another came to lead."""

from __future__ import annotations

from nicegui import ui

from headwater import units
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import Listing, column
from headwater.admin.dashboard.overview import Tile
from headwater.clock import SystemClock
from headwater.wire.administration import ClusterStatus, Failover, NodeStatus

TILES = ("Leader", "Epoch", "Records", "Lag", "Failovers")
ALONE = "This server is in no cluster. See one on this machine:"


class Cluster:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._clock = SystemClock()
        heading("Cluster", "Which node leads, and how far the others are behind.")
        self._alone = Empty("hub", ALONE, "headwater cluster try")
        with ui.column().classes("hw-cluster") as self._whole:
            self._trouble = ui.label().classes("hw-trouble").props('role="status"')
            self._trouble.visible = False
            with ui.element("div").classes("hw-tiles"):
                self._tiles = {name: Tile(name) for name in TILES}
            with panel("Nodes"):
                self._nodes = Listing(
                    "name",
                    Empty("hub", "No node is known."),
                    column("name", "Node", lambda one: shown.plain(one.name), mono=True),
                    column("role", "Role", lambda one: one.role),
                    column("address", "Address", lambda one: shown.plain(one.address), mono=True, wide=True),
                    column("record", "Record", lambda one: shown.count(one.record), number=True),
                    column("lag", "Behind", _behind, number=True),
                    column("seen", "Heard of", self._heard, wide=True),
                    label="Nodes of the cluster",
                )
            with panel("Failovers"):
                self._timeline = Listing(
                    "epoch",
                    Empty("history", "No node has begun to lead since this one was started."),
                    column("time", "Time (UTC)", lambda one: shown.moment(one.time_us)),
                    column("epoch", "Epoch", lambda one: shown.count(one.epoch), number=True),
                    column("node", "Led from then on", lambda one: shown.plain(one.node), mono=True),
                    column("why", "How it came", _how),
                    column("took", "Nobody led for", _took, number=True),
                    label="When another node came to lead",
                )
        self._whole.visible = False
        frame.every(1.0, self.update)

    async def update(self) -> None:
        """Show how it is now."""
        status: ClusterStatus | None = await self._frame.admin.cluster()
        self._alone.show(status is None)
        self._whole.visible = status is not None
        if status is None:
            return
        self._trouble.text = f"Nothing can be written: {shown.plain(status.suspended)}"
        self._trouble.visible = bool(status.suspended)
        self._show_tiles(status)
        self._nodes.show(status.nodes)
        self._timeline.show(reversed(status.timeline))

    def _show_tiles(self, status: ClusterStatus) -> None:
        tiles, furthest = self._tiles, max((one.lag_s for one in status.nodes), default=0.0)
        tiles["Leader"].show(shown.plain(status.leader) or "none", f"bus {shown.plain(status.bus)}")
        tiles["Epoch"].show(shown.count(status.epoch), f"told by {shown.plain(status.node)}")
        average = status.record_bytes / status.records if status.records else 0
        tiles["Records"].show(shown.brief(status.record), f"{units.size(average)} each")
        behind = max((one.lag_records for one in status.nodes), default=0)
        tiles["Lag"].show(shown.seconds(furthest) if furthest else "none", shown.many(behind, "record"))
        tiles["Failovers"].show(shown.count(status.failovers), "since this node was started")

    def _heard(self, one: NodeStatus) -> str:
        return shown.ago(one.seen_us, self._clock.now_us()) if one.seen_us else "never"


def _behind(one: NodeStatus) -> str:
    if not one.lag_records:
        return "–"
    return f"{shown.count(one.lag_records)} ({shown.seconds(one.lag_s)})"


def _how(one: Failover) -> str:
    return "the one before stepped down" if one.planned else "the one before was lost"


def _took(one: Failover) -> str:
    return shown.seconds(one.took_s) if one.took_s else "–"
